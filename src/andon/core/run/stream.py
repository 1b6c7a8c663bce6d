# SPDX-License-Identifier: Apache-2.0
"""The stream of a run that its reader started, and owns: leaving it cancels the run.

An iterator object, not a generator: it begins the run at the first `next`, holds nothing open in between, and may be
dropped at any moment, from any thread.
"""

from __future__ import annotations

import asyncio
import sys
from enum import Enum

from andon.core.events import Event
from andon.core.journal import Reader
from andon.core.run.handle import Run, local_run
from andon.core.run.waits import leave, wait_admitted, wait_settled


class _State(Enum):
    new = 1
    begun = 2
    closed = 3


class EventStream:
    """A run's events, as they come.

    Read it to its end, or leave: `aclose()` cancels the run and waits until it is settled; dropping the last reference
    cancels it too. Cancelling a waiting `anext` cancels the run as well.
    """

    __slots__ = ("_reader", "_state", "run")

    def __init__(self, run: Run) -> None:
        self._state = _State.new
        self.run = run
        self._reader = Reader(local_run(run).journal)

    @classmethod
    def of_begun(cls, run: Run, after: int = 0) -> EventStream:
        """The stream of a run that has begun, from a sequence number on."""
        stream = cls(run)
        stream._reader, stream._state = Reader(local_run(run).journal, after), _State.begun
        return stream

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        for event in self._reader.at_hand:  # the quickest way to ask for one that may not be there
            return event
        me = object()
        reader = self._reader
        try:
            reader.seat.take(me)
            return reader.next_at_hand() or await self._more()
        finally:
            reader.seat.leave(me)

    async def _more(self) -> Event:
        """Begin the run if that is due, and wait for the next event."""
        run = local_run(self.run)
        if self._state is _State.new:
            self._state = _State.closed  # unless it begins
            run.begin()
            self._state = _State.begun
            if not run.storage.is_admitted:
                await self._admitted()
        if self._state is _State.closed:
            raise StopAsyncIteration
        try:
            return await self._reader.more()
        except StopAsyncIteration:
            await self.aclose()
            raise
        except asyncio.CancelledError as error:
            self._close()
            await wait_settled(run, error)
            raise

    async def _admitted(self) -> None:
        try:
            await wait_admitted(local_run(self.run))
        except BaseException:
            self._state = _State.closed
            raise

    def _close(self) -> None:
        self._state = _State.closed
        self._reader.drop()

    async def aclose(self) -> None:
        """Leave. Returns when the run is settled."""
        begun = self._state is _State.begun
        self._close()
        if begun:
            leave(local_run(self.run))
            await wait_settled(local_run(self.run))

    def __del__(self) -> None:
        # Only a cancel: this may be any thread, and no place to wait.
        if getattr(self, "_state", None) is _State.begun and not sys.is_finalizing():  # __init__ may be interrupted
            leave(local_run(self.run))
