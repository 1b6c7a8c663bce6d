# SPDX-License-Identifier: Apache-2.0
"""A reader of a stream that an exploration can make leave: after any event, by `break` or by `aclose()`.

What must stay true: outside an exploration, and until the reader is told to leave, reading works as without it. Only
the reader keeps the stream alive, so dropping the reader drops the stream.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Literal

from andon.core.events import Event
from andon.core.run.handle import local_run
from andon.core.run.run import LocalRun
from andon.core.run.stream import EventStream

Way = Literal["break", "aclose"]


class Reading:
    """The reading of one stream."""

    __slots__ = ("__weakref__", "_stream", "_track")

    def __init__(self, stream: EventStream, track: Track | None) -> None:
        self._stream: EventStream | None = stream
        self._track = track

    def __aiter__(self) -> Reading:
        return self

    async def __anext__(self) -> Event:
        if self._stream is None:
            raise StopAsyncIteration
        if self._track is None:
            return await anext(self._stream)
        if self._track.should_leave(local_run(self._stream.run)):
            await self._leave(self._track.way)
            raise StopAsyncIteration
        event = await anext(self._stream)
        self._track.events += 1
        return event

    async def aclose(self) -> None:
        """Leave, and wait until the run is settled."""
        if self._stream is not None:
            await self._stream.aclose()

    async def _leave(self, way: Way | None) -> None:
        stream, self._stream = self._stream, None
        if way == "aclose" and stream is not None:
            await stream.aclose()
        del stream  # the last reference, if the scenario keeps none


class Track:
    """What an exploration knows of one reading. It does not keep the reading alive."""

    def __init__(self, leave_after: int | None, way: Way | None, leaves: Callable[[LocalRun], None]) -> None:
        self.events = 0
        self.way = way
        self._leave_after = leave_after
        self._leaves = leaves
        self.reading: Callable[[], Reading | None] = lambda: None

    def should_leave(self, run: LocalRun) -> bool:
        if self._leave_after is None or self.events < self._leave_after:
            return False
        self._leaves(run)
        return True

    def stream(self) -> EventStream | None:
        """The stream, while it is read."""
        reading = self.reading()
        return None if reading is None or not self.events else reading._stream


tracker: ContextVar[Callable[[], Track] | None] = ContextVar("tracker", default=None)
"""Makes the track of a reading, in an exploration."""


def reading(stream: EventStream) -> Reading:
    """Read a stream so that an exploration can leave it at any event.

    >>> async def scenario() -> None:
    ...     async for event in reading(agent.stream_async("Hello")):
    ...         ...

    Outside an exploration it has no effect. Don't keep a reference to the stream: dropping it is one way to leave.
    """
    make = tracker.get()
    track = None if make is None else make()
    wrapped = Reading(stream, track)
    if track is not None:
        track.reading = weakref.ref(wrapped)
    return wrapped
