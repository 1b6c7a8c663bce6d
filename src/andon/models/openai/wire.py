# SPDX-License-Identifier: Apache-2.0
"""One request to OpenAI, or to a server that speaks like it, from the client to the last byte.

A cancel arrives as a CancelledError wherever this waits: for a connection, for the headers, for the next byte. As soon
as there is a response, an `async with` holds it, so the connection is closed before the error goes on. Tokens are
pushed as they are found in what one read of the network brought; the event loop gets its turn between two reads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, Protocol

from andon.errors import ConfigurationError, ModelError, ModelStreamError
from andon.models.openai import faults
from andon.models.openai.clients import Settings, check_sdk, clients, raw_response, sdk
from andon.models.openai.secrets import Secrets
from andon.models.openai.setup import check_options, check_url
from andon.models.reads import join_chunks
from andon.models.sse import Splitter

LINGER_SECONDS = 0.25
"""After the answer, the stream is read to its end for so long, so that the connection can be used again."""

TURN_EVENTS = 64
"""After so many events the loop gets its turn, even if the next ones are there already."""

EXCERPT_BYTES = 4096

STREAMS = ("text/event-stream", "text/plain", "application/octet-stream")
"""What a stream may call itself. Only the first is right; pages and plain JSON are told from it by theirs."""


class Decoder(Protocol):
    """Understands the events of one answer."""

    finished: bool
    """Whether the answer is complete."""

    def take(self, payloads: list[bytes]) -> None:
        """Push what these events say."""
        ...

    def end(self) -> None:
        """There will be no more events."""
        ...


_OPTIONS = {"timeout": "timeout", "extra_headers": "headers", "extra_query": "params", "extra_body": "extra_json"}
"""What is no part of the request's body, by the SDK's names for it."""


class OpenAIModel:
    """What both interfaces have in common: where the requests go, and with what."""

    provider = "OpenAI"
    _path: ClassVar[str]

    def __init__(self, id: str, settings: Settings, client: Any, options: Mapping[str, Any]) -> None:
        if not isinstance(id, str) or not id.strip():
            raise ConfigurationError(
                f'the model\'s id is {id!r}; it is its name, as in {type(self).__name__}("gpt-5.2")'
            )
        if client is not None and any(setting is not None for setting in settings):
            raise ConfigurationError("pass either client= or what makes one (api_key=, base_url= and so on), not both")
        self.id = id
        self._settings = settings
        self._given = client
        self._given_quiet: Any = None
        self._is_checked = False
        given = {name: value for name, value in options.items() if value is not None}
        self._options = {_OPTIONS[name]: given.pop(name) for name in _OPTIONS if name in given}
        self._body = {**given, "model": id, "stream": True}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"  # nothing of the settings: the key is one of them

    def check_setup(self) -> None:
        """Raise `SetupError` for what would keep every request from being sent: no key, no package, a bad option."""
        if self._given is None:
            settings = self._settings.resolved()
            check_sdk()
            if settings.http_client is None:  # one of your own may take addresses of its own
                check_url(settings.base_url)
        if not self._is_checked:
            check_options(self._body, self._options)
            self._is_checked = True

    async def aclose(self) -> None:
        """Close this event loop's connections, unless other models use them too.

        A client that was passed as `client=` stays open. Without this call they are closed with the loop.
        """
        if self._given is None:
            with contextlib.suppress(ConfigurationError):  # without a key nothing was opened
                await clients.let_go(self._settings.resolved(), self)

    async def _client(self) -> Any:
        if self._given is None:
            return await clients.get(self._settings.resolved(), self)
        if self._given_quiet is None:
            self._given_quiet = self._given.with_options(max_retries=0)
        return self._given_quiet

    def _secrets(self, client: Any) -> Secrets:
        return Secrets.of(client, self._options, self._settings.base_url)

    async def _ask(self, body: Mapping[str, Any], decoder: Decoder) -> None:
        """Send it, and have the answer decoded as it comes."""
        client, failure = await self._client(), None  # type: Any, ModelError | None
        try:
            # The SDK's way to a bare response. Its typed ways to the same path import megabytes of types for what
            # is not used here, and walk through the whole conversation each time.
            response = await client.post(
                self._path, cast_to=raw_response(), body={**self._body, **body}, options=self._options, stream=True
            )
            async with contextlib.aclosing(response):
                await _pour(response, decoder)
        except ModelError as error:
            if (failure := faults.cleaned(error, self._secrets(client))) is error:
                raise
        except Exception as error:
            failure = faults.translate(error, sdk(), self._secrets(client))
            if failure is None:
                self._secrets(client).clean(error)
                raise
        if failure is not None:
            # Out here, so that it doesn't drag the other one along, with its frames, its request and the key in it.
            raise failure


async def _pour(response: Any, decoder: Decoder) -> None:
    kind = response.headers.get("content-type", STREAMS[0]).lower()
    if not kind.startswith(STREAMS):
        await _refuse(response, kind)
    join_chunks(response)
    splitter, events = Splitter(), 0
    async with contextlib.aclosing(response.aiter_bytes()) as reads:
        async for read in reads:
            payloads = splitter.feed(read)
            if not payloads:
                continue
            decoder.take(payloads)
            if decoder.finished:
                break
            events += len(payloads)
            if events >= TURN_EVENTS:
                events = 0
                await asyncio.sleep(0)
        else:
            _take_rest(splitter, decoder)
        if decoder.finished:
            await _linger(reads)
    decoder.end()
    if not decoder.finished:
        raise faults.ended_early()


def _take_rest(splitter: Splitter, decoder: Decoder) -> None:
    """The last event may lack its blank line. If it can't be read, it was cut: that is told as an early end."""
    with contextlib.suppress(ModelStreamError):
        decoder.take(splitter.finish())


async def _linger(reads: Any) -> None:
    # The answer is complete: how the connection ends is no part of it. A cancel gets through.
    with contextlib.suppress(Exception):
        async with asyncio.timeout(LINGER_SECONDS):
            async for _ in reads:
                pass


async def _refuse(response: Any, kind: str) -> NoReturn:
    body, is_cut = b"", False
    async with contextlib.aclosing(response.aiter_bytes()) as reads:
        async for read in reads:
            body += read
            if is_cut := len(body) >= EXCERPT_BYTES:
                break
    raise faults.no_stream(kind, body, response.headers.get("x-request-id"), is_cut=is_cut)
