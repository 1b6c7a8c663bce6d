# SPDX-License-Identifier: Apache-2.0
"""The events of a run as server-sent events, and noticing that a client disconnected.

A response reads the journal of the run and owns no part of the run. A slow client delays only its own `send`. A
disconnect is noticed at once, also while the run is silent, because `receive` is awaited beside the sending.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from andon.core.events import Event
from andon.core.shared.remote import EventSource
from andon.core.states import CancelCause

BATCH = 500
"""How many events are written at once at most, so that the event loop is not blocked."""

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),  # else nginx would buffer events
]

HEARTBEAT = b": still here\n\n"

# These are no line breaks in JSON or SSE, but some clients split lines as Python's `str.splitlines` does.
_SEPARATORS = [(char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\u0085\u2028\u2029"]

CLIENT_DISCONNECTED = 499
"""nginx's status for a client that disconnected. The client does not read it, but a middleware may need a response."""

OnDisconnect = Callable[[CancelCause], object]
"""Called when the client disconnects (`disconnect`), or when the ASGI server cancels the response (`shutdown`)."""


def escape_line_separators(frames: bytes) -> bytes:
    """Escape the line separators of Unicode, so that each line of a frame is one line for every client."""
    if not frames.isascii():
        for separator, escape in _SEPARATORS:
            frames = frames.replace(separator, escape)
    return frames


async def run_while_connected(
    receive: Receive, work: Coroutine[Any, Any, None], leave: OnDisconnect | None = None
) -> None:
    """Do the work while the client is connected; when it disconnects, the work is cancelled."""
    working = asyncio.ensure_future(work)
    listening = asyncio.ensure_future(_gone(receive))
    cause = CancelCause.disconnect
    try:
        await asyncio.wait((working, listening), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        cause = CancelCause.shutdown
        raise
    finally:
        finished = working.done()
        if not finished and leave is not None:
            leave(cause)
        working.cancel()
        listening.cancel()
        await asyncio.wait((working, listening))
    if finished and (error := working.exception()) is not None:
        if leave is not None:
            leave(CancelCause.disconnect)
        if not isinstance(error, OSError):  # some ASGI servers raise it in `send` after a disconnect
            raise error


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventResponse(Response):
    """The events of a reader as a stream; each batch is one chunk.

    `encode` makes bytes of a batch. `leave` is called if the client disconnects before the end. After `heartbeat`
    seconds of silence a comment is sent, so that proxies keep the connection and a dead one is noticed. `headers` has
    the id of the run.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        reader: EventSource,
        encode: Callable[[Sequence[Event]], bytes],
        *,
        heartbeat: float,
        leave: OnDisconnect | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._reader, self._encode, self._heartbeat, self._leave = reader, encode, heartbeat, leave
        named = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        self.raw_headers = [*HEADERS, *named]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = asyncio.Event()

        async def listen() -> Message:
            await begun.wait()  # first send the headers, also to a client that has disconnected
            return await receive()

        await run_while_connected(listen, self._write(send, begun), self._leave)

    async def _write(self, send: Send, begun: asyncio.Event) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        begun.set()
        while True:
            try:
                async with asyncio.timeout(self._heartbeat):
                    chunk = self._encode(await self._reader.batch(BATCH))
            except TimeoutError:
                chunk = HEARTBEAT
            # The last event goes with the end of the response: one write less.
            ended = self._reader.at_end
            if chunk or ended:
                await send({"type": "http.response.body", "body": chunk, "more_body": not ended})
            if ended:
                return


class DelayedResponse(Response):
    """A response that takes long to make: `make` is awaited while the client is connected."""

    def __init__(self, make: Callable[[], Awaitable[Response]], leave: OnDisconnect | None = None) -> None:
        super().__init__()
        self._make, self._leave = make, leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answers: list[Response] = []

        async def work() -> None:
            answers.append(await self._make())

        await run_while_connected(receive, work(), self._leave)
        response = answers[0] if answers else Response(status_code=CLIENT_DISCONNECTED)
        with contextlib.suppress(OSError):  # the client has disconnected
            await response(scope, receive, send)
