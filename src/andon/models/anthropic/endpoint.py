# SPDX-License-Identifier: Apache-2.0
"""Where the requests of one model go, with which options, and when one is sent again within the same turn.

It is sent again if the provider pauses the turn, with the answer so far; and once if blocks of thinking are bound to
another conversation, with the leave to drop them. Nothing was shown then.

A cancel arrives as a `CancelledError` wherever `ask` waits: for a connection, for the headers, for the next byte. As
soon as there is a response, an `async with` holds it, so the connection is closed before the error goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from andon.errors import ConfigurationError
from andon.models.anthropic.answer import MessagesAnswer
from andon.models.anthropic.clients import SDK, Settings, clients, secrets_of
from andon.models.anthropic.conversation import without_thinking
from andon.models.anthropic.errors import TABLE, is_of_other_conversation, translate
from andon.models.anthropic.limits import limit_of
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
from andon.models.common.stream import read_sse

PATH = "/v1/messages"
MOST_PAUSES = 20
"""So often a turn goes on after a pause."""

BINDING_BETA = "thinking-binding-controls-2026-08-01"
BETA_HEADER = "anthropic-beta"
DROP = "drop_block"

_SDK_OPTIONS = {"timeout": "timeout", "extra_headers": "headers", "extra_query": "params"}
"""The options that are not part of the request's body, with the SDK's names for them."""


class Endpoint:
    """Sends the requests of one model. `options` are all of the model's options; those that are None are not sent."""

    def __init__(self, settings: Settings, client: Any, options: Mapping[str, Any], block_binding: str | None) -> None:
        check_client(client, settings[:4])
        self._settings = settings
        self._given = client
        self._given_quiet: Any = None
        self._is_checked = False
        given = {name: value for name, value in options.items() if value is not None}
        self._options = {_SDK_OPTIONS[name]: given.pop(name) for name in _SDK_OPTIONS if name in given}
        self._extra = given.pop("extra_body", {})
        self._body = {**given, "stream": True}
        self._binding = block_binding

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
        check_numbers(self._body, ("temperature", "top_p"))
        check_count(self._body, "top_k", least=0)
        check_count(self._body, "max_tokens", least=1)
        check_timeout(self._options.get("timeout"))
        check_headers(self._options.get("headers", {}))
        check_mapping(self._options.get("params", {}), "extra_query")
        check_mapping(self._extra, "extra_body")
        check_json(self._body, self._extra)

    async def aclose(self) -> None:
        """Close this event loop's connections, unless other models use them too. A client that was given stays open."""
        if self._given is None:
            with contextlib.suppress(ConfigurationError):  # without a key nothing was opened
                await clients.release(self._settings.resolved(), self)

    # -- a request ----------------------------------------------------------------------------------------------------

    async def ask(self, body: Mapping[str, Any], answer: MessagesAnswer) -> None:
        """Send a request, and decode the answer as it comes."""
        client = await self._client()
        options = await self._with_key()
        seen: list[Any] = []  # the headers that were sent: a profile's token is nowhere else
        sent = self._converse(client, options, body, answer, seen)
        await report(sent, translate, lambda: secrets_of(client, options, self._settings.base_url, seen))

    async def _converse(
        self, client: Any, options: Mapping[str, Any], body: Mapping[str, Any], answer: MessagesAnswer, seen: list[Any]
    ) -> None:
        whole = {**self._body, **body, **self._extra}
        if "max_tokens" not in whole:
            asked = {name: value for name, value in options.items() if name != "timeout"}
            whole["max_tokens"] = await limit_of(client, whole["model"], asked)
        messages = whole["messages"]
        for _ in range(MOST_PAUSES + 1):
            await self._send_bound(client, options, whole, answer, seen)
            if not answer.is_paused:
                return
            if content := answer.content:  # nothing may be left of it: blank text alone is refused
                whole["messages"] = [*messages, {"role": "assistant", "content": content}]
            answer.go_on()
        answer.give_up()

    async def _send_bound(
        self, client: Any, options: Mapping[str, Any], body: Mapping[str, Any], answer: MessagesAnswer, seen: list[Any]
    ) -> None:
        if self._binding is None:
            try:
                return await self._send(client, options, body, answer, seen)
            except Exception as error:
                if not is_of_other_conversation(error):
                    raise
            # The provider says so of every later request with these messages too.
            self._binding = DROP
        return await self._send(client, self._with_beta(options), self._with_binding(body), answer, seen)

    def _with_binding(self, body: Mapping[str, Any]) -> dict[str, Any]:
        thinking = body.get("thinking") or {"type": "adaptive"}  # what these models do without it, too
        if thinking.get("type") not in ("adaptive", "enabled"):  # the others have no place for the leave
            return {**body, "messages": without_thinking(body["messages"])} if self._binding == DROP else dict(body)
        return {**body, "thinking": {**thinking, "block_binding": {"prefix_mismatch_behavior": self._binding}}}

    def _with_beta(self, options: Mapping[str, Any]) -> dict[str, Any]:
        headers = dict(options.get("headers", {}))
        name = next((name for name in headers if name.lower() == BETA_HEADER), BETA_HEADER)
        headers[name] = ",".join(filter(None, (headers.get(name), BINDING_BETA)))
        return {**options, "headers": headers}

    async def _with_key(self) -> dict[str, Any]:
        """The options, with the key if a function returns it."""
        key = self._settings.api_key
        if self._given is not None or key is None or isinstance(key, str):
            return self._options
        return {
            **self._options,
            "headers": {"Authorization": f"Bearer {await key()}"} | self._options.get("headers", {}),
        }

    async def _send(
        self, client: Any, options: Mapping[str, Any], body: Mapping[str, Any], answer: MessagesAnswer, seen: list[Any]
    ) -> None:
        # The SDK's way to a bare response. Its typed methods walk through the whole conversation each time. A client
        # for another platform changes the body on its way; Anthropic's own can be given the bytes, which is quicker.
        kind = {"content": write_json(body)} if type(client) is SDK.load().AsyncAnthropic else {"body": body}
        response = await client.post(PATH, cast_to=response_type(), options=options, stream=True, **kind)
        seen[:] = [response.request.headers]
        async with contextlib.aclosing(response):
            await read_sse(response, answer, TABLE)

    async def _client(self) -> Any:
        if self._given is None:
            return await clients.get(self._settings.resolved(), self)
        if self._given_quiet is None:
            self._given_quiet = self._given.with_options(max_retries=0)
        return self._given_quiet
