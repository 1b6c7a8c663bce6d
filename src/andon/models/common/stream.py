# SPDX-License-Identifier: Apache-2.0
"""An answer as it comes over the network, from its first byte to its last.

A cancel arrives as a `CancelledError` wherever this waits for bytes. The caller holds the response in an `async with`,
so the connection is closed before the error goes on. Tokens are pushed as soon as a read of the network has brought
them. Between two reads the event loop runs its other tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, NoReturn, Protocol, TypeVar

from andon.errors import ModelStreamError
from andon.models.common.errors import ErrorTable, ended_early
from andon.models.common.http import join_chunks
from andon.models.common.sse import SseSplitter

REST_SECONDS = 0.25
"""How long the rest of the stream is read after the answer. Only a connection read to its end can be used again."""

EVENTS_PER_TURN = 64
"""After how many events the event loop runs its other tasks, even if the next events are there already."""

EXCERPT_BYTES = 4096

STREAM_TYPES = ("text/event-stream", "text/plain", "application/octet-stream")
"""The content types that servers give a stream. Only the first is right; pages and plain JSON have others."""

Event = TypeVar("Event")


class Splitter(Protocol[Event]):
    """Cuts the bytes of a stream into events. One for each answer."""

    def feed(self, read: bytes) -> list[Event]:
        """The events that this read completes."""
        ...

    def finish(self) -> list[Event]:
        """The events that the end of the stream completes."""
        ...


class Decoder(Protocol[Event]):
    """Understands the events of one answer, and pushes them to a sink. One for each answer."""

    finished: bool
    """Whether the answer is complete."""

    def take(self, events: list[Event]) -> None:
        """Push what these events say."""
        ...

    def end(self) -> None:
        """No more events come. A decoder that learns only now that the answer is complete sets `finished` here."""
        ...


async def read_sse(
    response: Any, decoder: Decoder[bytes], table: ErrorTable, splitter: Splitter[bytes] | None = None
) -> None:
    """Read server-sent events from an httpx2 response, which the caller closes.

    `splitter` is for a provider whose stream has more than such events.
    """
    kind = response.headers.get("content-type", STREAM_TYPES[0]).lower()
    if not kind.startswith(STREAM_TYPES):
        await _refuse(response, kind, table)
    join_chunks(response)
    await read_events(response.aiter_bytes(), splitter or SseSplitter(), decoder)


async def read_events(reads: AsyncGenerator[bytes, None], splitter: Splitter[Event], decoder: Decoder[Event]) -> None:
    """Read an answer to its end. Raises `ModelStreamError` if the stream ends before the answer does."""
    events = 0
    async with contextlib.aclosing(reads):
        async for read in reads:
            found = splitter.feed(read)
            if not found:
                continue
            decoder.take(found)
            if decoder.finished:
                break
            events += len(found)
            if events >= EVENTS_PER_TURN:
                events = 0
                await asyncio.sleep(0)
        else:
            _take_last(splitter, decoder)
        if decoder.finished:
            await _read_rest(reads)
    decoder.end()
    if not decoder.finished:
        raise ended_early()


def _take_last(splitter: Splitter[Event], decoder: Decoder[Event]) -> None:
    """The last event may lack its end. If it can't be read, it was cut: that is reported as an early end."""
    with contextlib.suppress(ModelStreamError):
        decoder.take(splitter.finish())


async def _read_rest(reads: AsyncGenerator[bytes, None]) -> None:
    # The answer is complete, so an error of the connection does not matter any more. A cancel gets through.
    with contextlib.suppress(Exception):
        async with asyncio.timeout(REST_SECONDS):
            async for _ in reads:
                pass


async def _refuse(response: Any, kind: str, table: ErrorTable) -> NoReturn:
    body, is_cut = b"", False
    async with contextlib.aclosing(response.aiter_bytes()) as reads:
        async for read in reads:
            body += read
            if is_cut := len(body) >= EXCERPT_BYTES:
                break
    request_id = response.headers.get("x-request-id") or response.headers.get("request-id")
    raise table.not_a_stream(kind, body, request_id, is_cut=is_cut)
