# SPDX-License-Identifier: Apache-2.0
"""The blocking facade: the same runs, on the portal's loop, waited for by an ordinary thread.

Nothing here is a second way to run or to cancel. What a cancelled task is to the async calls, an interrupt (Ctrl-C) is
here: the run is ended first, with cause `caller`, and then the interrupt goes its own way.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TypeVar

from andon.core.events import Event
from andon.core.journal import Reader
from andon.core.portal import portal
from andon.core.receipt import OutputT, RunResult
from andon.core.run.run import Run
from andon.core.states import CancelCause
from andon.errors import ConfigurationError, InsideEventLoopError, ReaderBusyError

T = TypeVar("T")

INTERRUPTED_SECONDS = 10.0
"""How long an interrupted call waits for its run to end, at the most. A second interrupt gets through at once."""

BEGINNING_SECONDS = 1.0
"""The same for a run of which it is not known whether it will begin at all."""

EXITING_SECONDS = 0.25
"""The same after `sys.exit()`, say in a signal handler: closing the portal ends what has not ended by then."""

BLOCKED_SECONDS = 2.0
"""If the portal's loop has no turn for so long, it waits no longer: something blocks it, and nothing can end there."""


def check_blocking(instead: str) -> None:
    """Refuse to block a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InsideEventLoopError(f"agent.run blocks, and would stop the event loop that is running here; use {instead}")


def run_blocking(run: Run[OutputT]) -> RunResult[OutputT]:
    """Do a run to its end."""

    def whole() -> RunResult[OutputT]:
        _begin(run)
        return run.result_blocking()

    return _outlast(run, whole)


class BlockingStream:
    """A run's events, as they come, for a thread.

    It begins at the first `next`. Read it to its end, or leave: `close()` cancels the run and waits until it is
    settled; dropping the last reference cancels it too.
    """

    __slots__ = ("_reader", "_state", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self._reader = Reader(run.journal)
        self._state = "new"

    def __iter__(self) -> BlockingStream:
        return self

    def __next__(self) -> Event:
        event = _outlast(self.run, self._advance)
        if event is None:
            raise StopIteration
        return event

    def _advance(self) -> Event | None:
        reader = self._reader
        if self._state == "begun" and (event := reader.at_hand()) is not None:
            return event
        me = object()
        try:
            reader.seat.take(me)
            return self._advance_alone()
        finally:
            reader.seat.leave(me)

    def _advance_alone(self) -> Event | None:
        if self._state == "new":
            self._state = "closed"  # unless it begins
            _begin(self.run)
            self._state = "begun"
        reader = self._reader
        event = (reader.at_hand() or reader.wait_blocking()) if self._state == "begun" else None
        if event is None and self._state == "begun":
            self._leave()
            self._state = "closed"
        return event

    def close(self) -> None:
        """Leave. Returns when the run is settled."""
        if self._state == "begun":
            _outlast(self.run, self._leave)
        self._state = "closed"

    def _leave(self) -> None:
        self.run.leave()
        self.run.attend_blocking()

    def __del__(self) -> None:
        # Only a signal: this may be any thread, and no place to wait.
        if getattr(self, "_state", "new") == "begun" and not sys.is_finalizing():  # __init__ may have been interrupted
            self.run.leave()


def _begin(run: Run) -> None:
    if isinstance(run.limits.cancel_on, asyncio.Event):
        raise ConfigurationError(
            "cancel_on is an asyncio.Event, which a blocking call can't watch: use threading.Event"
        )

    async def begin() -> None:
        await run.open()

    portal.wait(begin)


def _outlast(run: Run, wait: Callable[[], T]) -> T:
    """Do what waits for a run; wherever that is interrupted, end the run first."""
    try:
        return wait()
    except ReaderBusyError:  # another thread reads this stream, and goes on with it
        raise
    except BaseException as error:
        run.cancel_for(CancelCause.caller)
        if isinstance(error, SystemExit):
            run.attend_blocking(EXITING_SECONDS)
        elif run.has_begun:
            if not run.attend_blocking(EXITING_SECONDS) and portal.has_turns(BLOCKED_SECONDS):
                run.attend_blocking(INTERRUPTED_SECONDS)
        elif not isinstance(error, Exception):  # else it is what kept the run from starting
            run.attend_blocking(BEGINNING_SECONDS)
        raise
