# SPDX-License-Identifier: Apache-2.0
"""ConverseStream: where its requests go, and how the bytes of an answer are reached.

A cancel arrives as a `CancelledError` wherever `ask` waits: for a connection, for the headers, for the next byte. As
soon as there is a stream, a `finally` closes it. botocore's own iterator does not, and its connection stays open.

A request is sent once more within the same turn if blocks of thinking are bound to another conversation: with the leave
to drop them. Nothing was shown then.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import msgspec

from andon.errors import ConfigurationError
from andon.models.bedrock.answer import ConverseAnswer
from andon.models.bedrock.binding import body_with_leave, is_of_other_conversation, says_what_to_do
from andon.models.bedrock.clients import SDK, Settings, clients, secrets_of
from andon.models.bedrock.errors import translate
from andon.models.bedrock.frames import Frame, FrameSplitter, Meaning
from andon.models.common.errors import report
from andon.models.common.http import JOINED_BYTES
from andon.models.common.setup import check_client, check_url
from andon.models.common.stream import read_events

_log = logging.getLogger("andon.models.bedrock")


class Endpoint:
    """Sends the requests of one model. `check_options` raises for options that can't be sent."""

    def __init__(self, settings: Settings, client: Any, check_options: Callable[[], None]) -> None:
        check_client(client, settings)
        self._settings = settings
        self._given = client
        self._check_options = check_options
        self._is_checked = False
        self._gives_leave = False

    def check_setup(self) -> None:
        """Raise `SetupError` for what would keep every request from being sent: no region, no package, a bad option."""
        if not self._is_checked:
            self._check_options()
            self._is_checked = True
        if self._given is None:
            SDK.check()
            settings = self._settings.resolved()
            check_url(settings.base_url)
            settings.check()

    async def aclose(self) -> None:
        """Close this event loop's connections, unless other models use them too. A client that was given stays open."""
        if self._given is None:
            with contextlib.suppress(ConfigurationError):  # with half a pair of keys nothing was opened
                await clients.release(self._settings.resolved(), self)

    async def ask(self, body: Mapping[str, Any], answer: ConverseAnswer) -> None:
        """Send a request, and decode the answer as it comes."""
        settings = None if self._given is not None else self._settings.resolved()
        known: list[Any] = []  # the client, as soon as there is one: errors are cleaned of what it sends
        sent = self._send(settings, known, body, answer)
        await report(sent, translate, lambda: secrets_of(known[0] if known else None, settings))

    async def _send(
        self, settings: Settings | None, known: list[Any], body: Mapping[str, Any], answer: ConverseAnswer
    ) -> None:
        client = self._given if settings is None else await clients.get(settings, self)
        known.append(client)
        stream = (await self._asked(client, body))["stream"]
        try:
            content = raw_content(stream)
            if content is not None:
                await read_events(_reads(content), FrameSplitter(), answer)
            else:
                await read_events(_parsed(stream), _ParsedEvents(), answer)
        finally:
            stream.close()

    async def _asked(self, client: Any, body: Mapping[str, Any]) -> Any:
        if not self._gives_leave or says_what_to_do(body):
            try:
                return await client.converse_stream(**body)
            except Exception as error:
                if says_what_to_do(body) or not is_of_other_conversation(error):
                    raise
            # The provider says so of every later request with these messages too.
            self._gives_leave = True
        return await client.converse_stream(**body_with_leave(body))


async def _reads(content: Any) -> AsyncGenerator[bytes, None]:
    while read := await content.read(JOINED_BYTES):
        yield read


# -- private names of the SDK -----------------------------------------------------------------------------------------


def raw_content(stream: Any) -> Any:
    """What the bytes of a stream are read from, by private names of the SDK; None if they are not as expected."""
    content = getattr(getattr(stream, "_raw_stream", None), "content", None)
    if callable(getattr(content, "read", None)):
        return content
    _warn_of_slow_way()
    return None


_has_warned = False


def _warn_of_slow_way() -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        _log.warning(
            "this version of aiobotocore hides the bytes of a stream, so its events are parsed by the slower public way"
        )


async def _parsed(stream: Any) -> AsyncGenerator[bytes, None]:
    """The events as the SDK parses them, as JSON again: bytes become base64, as they came."""
    async for event in stream:
        yield msgspec.json.encode(event)


class _ParsedEvents:
    """A splitter for these: each read is an event already."""

    def feed(self, read: bytes) -> list[Frame]:
        event = msgspec.json.decode(read, type=dict[str, msgspec.Raw])
        return [(Meaning(kind), bytes(payload)) for kind, payload in event.items()]

    def finish(self) -> list[Frame]:
        return []
