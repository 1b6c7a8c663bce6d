# SPDX-License-Identifier: Apache-2.0
"""The blocking API: runs on the portal's event loop, and an ordinary thread that waits for them.

The runs and cancels are the same as in the async API. An interrupt (Ctrl-C) here is what a cancelled task is there: the
run is ended first, with cause `caller`, and then the interrupt is raised.
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
from andon.core.run.handle import Run, local_run
from andon.core.run.run import LocalRun
from andon.core.run.waits import begin_and_wait, leave, wait_result_blocking, wait_settled_blocking
from andon.core.states import CancelCause
from andon.errors import ConfigurationError, InsideEventLoopError, ReaderBusyError

T = TypeVar("T")

INTERRUPTED_SECONDS = 10.0
"""How long an interrupted call waits at most for its run to end. A second interrupt is raised at once."""

BEGINNING_SECONDS = 1.0
"""The same for a run that has not begun, and may never begin."""

EXITING_SECONDS = 0.25
"""The same after `sys.exit()`, for example in a signal handler: closing the portal then ends the run."""

BLOCKED_SECONDS = 2.0
"""If the portal's event loop is blocked for this time, the call stops waiting: no run can end there."""


def check_blocking(instead: str) -> None:
    """Refuse to block a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InsideEventLoopError(f"agent.run blocks, and would stop the event loop that is running here; use {instead}")


def run_blocking(handle: Run[OutputT]) -> RunResult[OutputT]:
    """Run it to its end."""
    run = local_run(handle)

    def whole() -> RunResult[OutputT]:
        _begin(run)
        return wait_result_blocking(run)

    return _outlast(run, whole)


class BlockingStream:
    """The events of a run, as they come, for a thread.

    The run begins at the first `next`. Read the stream to its end, or close it: `close()` cancels the run and waits
    until it is settled. Dropping the last reference cancels the run too.
    """

    __slots__ = ("_reader", "_state", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self._reader = Reader(local_run(run).journal)
        self._state = "new"

    def __iter__(self) -> BlockingStream:
        return self

    def __next__(self) -> Event:
        event = _outlast(local_run(self.run), self._advance)
        if event is None:
            raise StopIteration
        return event

    def _advance(self) -> Event | None:
        reader = self._reader
        if self._state == "begun" and (event := reader.next_at_hand()) is not None:
            return event
        me = object()
        try:
            reader.seat.take(me)
            return self._advance_alone()
        finally:
            reader.seat.leave(me)

    def _advance_alone(self) -> Event | None:
        if self._state == "new":
            self._state = "closed"  # unless the run begins
            _begin(local_run(self.run))
            self._state = "begun"
        reader = self._reader
        event = (reader.next_at_hand() or reader.wait_blocking()) if self._state == "begun" else None
        if event is None and self._state == "begun":
            self._leave()
            self._state = "closed"
        return event

    def close(self) -> None:
        """Cancel the run, if it has not ended. Returns when the run is settled."""
        if self._state == "begun":
            _outlast(local_run(self.run), self._leave)
        self._state = "closed"

    def _leave(self) -> None:
        leave(local_run(self.run))
        wait_settled_blocking(local_run(self.run))

    def __del__(self) -> None:
        # It only signals the cancel: a finalizer may run in any thread, and must not wait.
        if getattr(self, "_state", "new") == "begun" and not sys.is_finalizing():  # __init__ may have been interrupted
            leave(local_run(self.run))


def _begin(run: LocalRun) -> None:
    if isinstance(run.limits.cancel_on, asyncio.Event):
        raise ConfigurationError(
            "cancel_on is an asyncio.Event, which a blocking call can't watch: use threading.Event"
        )

    async def begin() -> None:
        await begin_and_wait(run)

    portal.wait(begin)


def _outlast(run: LocalRun, wait: Callable[[], T]) -> T:
    """Call `wait`, which waits for the run. If it is interrupted, end the run first, and then raise the interrupt."""
    try:
        return wait()
    except ReaderBusyError:  # another thread reads this stream, and reads on
        raise
    except BaseException as error:
        run.cancel_for(CancelCause.caller)
        if isinstance(error, SystemExit):
            wait_settled_blocking(run, EXITING_SECONDS)
        elif run.has_begun:
            if not wait_settled_blocking(run, EXITING_SECONDS) and portal.has_turns(BLOCKED_SECONDS):
                wait_settled_blocking(run, INTERRUPTED_SECONDS)
        elif not isinstance(error, Exception):  # an Exception kept the run from starting
            wait_settled_blocking(run, BEGINNING_SECONDS)
        raise
