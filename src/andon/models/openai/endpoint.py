# SPDX-License-Identifier: Apache-2.0
"""One of OpenAI's interfaces, or of a compatible server's: where its requests go, and with which options.

A cancel arrives as a `CancelledError` wherever `ask` waits: for a connection, for the headers, for the next byte. As
soon as there is a response, an `async with` holds it, so the connection is closed before the error goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Mapping
from typing import Any

from andon.errors import ConfigurationError
from andon.models.common.errors import report
from andon.models.common.http import response_type, write_json
from andon.models.common.setup import (
    check_client,
    check_count,
    check_headers,
    check_json,
    check_mapping,
    check_numbers,
    check_timeout,
    check_url,
)
from andon.models.common.stream import Decoder, read_sse
from andon.models.openai.clients import SDK, Settings, clients, secrets_of
from andon.models.openai.errors import TABLE, translate

_SDK_OPTIONS = {"timeout": "timeout", "extra_headers": "headers", "extra_query": "params", "extra_body": "extra_json"}
"""The options that are not part of the request's body, with the SDK's names for them."""

_NUMBERS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")


class Endpoint:
    """Sends the requests of one model. `options` are all of the model's options; those that are None are not sent."""

    def __init__(self, path: str, settings: Settings, client: Any, options: Mapping[str, Any]) -> None:
        check_client(client, settings)
        self._path = path
        self._settings = settings
        self._given = client
        self._given_quiet: Any = None
        self._is_checked = False
        given = without_none(options)
        self._options = {_SDK_OPTIONS[name]: given.pop(name) for name in _SDK_OPTIONS if name in given}
        self._body = {**given, "stream": True}

    def check_setup(self) -> None:
        """Raise `SetupError` for what would keep every request from being sent: no key, no package, a bad option."""
        if self._given is None:
            SDK.check()
            settings = self._settings.resolved()
            if settings.http_client is None:  # an HTTP client of the user's may have addresses of its own
                check_url(settings.base_url)
        if not self._is_checked:
            self._check_options()
            self._is_checked = True

    def _check_options(self) -> None:
        check_numbers(self._body, _NUMBERS)
        check_count(self._body, "max_output_tokens", least=1)
        check_count(self._body, "max_completion_tokens", least=1, told="max_output_tokens")
        check_count(self._body, "seed")
        check_timeout(self._options.get("timeout"))
        check_headers(self._options.get("headers", {}))
        check_mapping(self._options.get("params", {}), "extra_query")
        check_mapping(extra := self._options.get("extra_json", {}), "extra_body")
        check_json(self._body, extra)

    async def aclose(self) -> None:
        """Close this event loop's connections, unless other models use them too. A client that was given stays open."""
        if self._given is None:
            with contextlib.suppress(ConfigurationError):  # without a key nothing was opened
                await clients.release(self._settings.resolved(), self)

    async def open(self) -> None:
        """Have a client, so that the next request is sent at once."""
        await self._client()

    async def ask(self, body: Mapping[str, Any], decoder: Decoder[bytes]) -> None:
        """Send a request, and decode the answer as it comes."""
        client = await self._client()
        whole = {**self._body, **body, **self._options.get("extra_json", {})}
        # The SDK's way to a bare response. Its typed methods for the same path import megabytes of types that are not
        # used here, and walk through the whole conversation each time. A client for another platform looks into the
        # body on its way; OpenAI's own can be given the bytes, which is quicker: images are megabytes.
        kind = {"content": write_json(whole)} if type(client) is SDK.load().AsyncOpenAI else {"body": whole}
        options = self._without_body()
        response = client.post(self._path, cast_to=response_type(), options=options, stream=True, **kind)
        await self._report(client, _read(response, decoder))

    async def follow(self, path: str, query: Mapping[str, object], decoder: Decoder[bytes]) -> None:
        """Read a stream that exists already, at an address below this one, and decode it as it comes."""
        client, options = await self._client(), self._without_body()
        options["params"] = {**options.get("params", {}), **query}
        response = client.get(f"{self._path}{path}", cast_to=response_type(), options=options, stream=True)
        await self._report(client, _read(response, decoder))

    async def order(self, path: str) -> None:
        """Send a request that has no body, to an address below this one. Its answer does not matter."""
        client = await self._client()
        url = f"{self._path}{path}"
        await self._report(client, client.post(url, cast_to=response_type(), options=self._without_body()))

    def _without_body(self) -> dict[str, Any]:
        return {name: value for name, value in self._options.items() if name != "extra_json"}

    async def _report(self, client: Any, request: Awaitable[object]) -> None:
        await report(request, translate, lambda: secrets_of(client, self._options, self._settings.base_url))

    async def _client(self) -> Any:
        if self._given is None:
            return await clients.get(self._settings.resolved(), self)
        if self._given_quiet is None:
            self._given_quiet = self._given.with_options(max_retries=0)
        return self._given_quiet


async def _read(request: Awaitable[Any], decoder: Decoder[bytes]) -> None:
    async with contextlib.aclosing(await request) as response:
        await read_sse(response, decoder, TABLE)


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}
