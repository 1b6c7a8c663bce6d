# SPDX-License-Identifier: Apache-2.0
"""The end of a run whose own task, or whose event loop, is gone: the portal ends it in the same way.

Should that fail too, which would be a defect of ours, the run still has an end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from andon.core.events import TERMINAL_EVENT, Event, RunEvent
from andon.core.portal import leave_pending, portal
from andon.core.run.ending import Ending, EndingRun, adopt_end, agree, make_receipt, make_record, pass_on, write
from andon.core.run.limits import Limits
from andon.core.run.storage import EndedElsewhere
from andon.core.run.work import Settlement
from andon.core.signal import Failed
from andon.core.states import CancelCause, CancelOutcome, RunState, RunStatus
from andon.core.waiters import Waiters
from andon.errors import HandleError, StoreError, confide, describe
from andon.messages import UNKNOWN_USAGE, Message, Text, assistant

log = logging.getLogger(__name__)


Watch = Callable[[], Awaitable[EndedElsewhere]]


class LostRun(EndingRun, Protocol):
    """A run, as its caretaker sees it."""

    state: RunState
    caretaker: asyncio.AbstractEventLoop | None
    limits: Limits
    task: asyncio.Task[None] | None

    @property
    def own_messages(self) -> list[Message]: ...

    def move(self, to: RunState) -> None: ...

    def cancel_for(self, cause: CancelCause, reason: str | None = None) -> CancelOutcome: ...

    async def end_on_portal(self) -> None: ...

    def tell_end(self, ending: Ending, status: RunStatus, last: Event) -> None: ...

    def vanish(self) -> None: ...


def hand_over(run: LostRun) -> None:
    """Have the portal end the run. Safe from any thread and from a signal handler."""
    portal.submit_soon(run, run.end_on_portal)


async def end(run: LostRun, finish: Callable[[], Awaitable[None]], release: Callable[[], None]) -> None:
    """End the run on this loop, which is the portal's."""
    loop = run.steps.loop = run.caretaker = asyncio.get_running_loop()
    try:
        run.limits.abandon()
        run.steps.lose()
        await finish()
    except BaseException as error:  # the last boundary there is
        if isinstance(error, GeneratorExit) and asyncio._get_running_loop() is not loop:
            raise  # this coroutine is closed, with its loop: another portal ends the run
        try:
            await force_end(run, error)
        finally:
            if run.state not in (RunState.ended, RunState.released):  # that failed too: no caller waits for ever
                run.vanish()
                with contextlib.suppress(BaseException):
                    await pass_on(run)
            release()
    else:
        release()


async def force_end(run: LostRun, error: BaseException) -> None:
    """The end itself failed: a defect of ours. No caller waits for ever, and the session goes on all the same."""
    log.critical("%r: could not be ended properly", run, exc_info=error, extra={"facts": run.steps.facts})
    if run.state in (RunState.ended, RunState.released):  # and that has been told
        return
    ending = run.ending = run.ending or Ending()
    # Nothing of what it has said is known to be valid; the prompt is.
    kept = [*run.session.tail[:1], assistant(Text("(lost)"))] if run.place and run.place.granted else []
    ending.settlement = Settlement(kept, "", UNKNOWN_USAGE, [], [])
    request = run.signal.request
    status = RunStatus.error if request is None else RunStatus.cancelled
    with contextlib.suppress(BaseException):  # what failed once may fail again, each time at another place
        ending.receipt = None if request is None else make_receipt(run)
        ending.record = make_record(run, status, ending.settlement)
        status = await agree(run, ending, request or Failed(RuntimeError(describe(error))))
        if kept:
            await write(run, run.steps)
    with contextlib.suppress(BaseException):
        await pass_on(run)
    ending.conversation = run.session.base or [assistant(Text("(lost)"))]
    run.state = RunState.ending
    why = f"could not be ended properly: {describe(error)}"
    last = run.journal.draft(TERMINAL_EVENT[status], status=status, receipt=ending.receipt, error=why)
    run.tell_end(ending, status, last)


async def follow(
    run: LostRun,
    watch: Watch,
    close: Callable[[Ending, RunStatus], Awaitable[None]],
    finish: Callable[[], Awaitable[None]],
) -> None:
    """Another process goes on with the run. `watch` shows here what is done there, and returns its end."""
    run.storage.changed()  # a cancel that was requested here meanwhile is told to the store
    try:
        end = await watch()
        ending = run.ending = run.ending or Ending()
        adopt_end(run, ending, end)
        run.move(RunState.ending)
        await close(ending, end.record.status)
    except StoreError as error:  # the store was closed: how the run goes on will not be known here
        run.cancel_for(CancelCause.lost, confide(error))
        await finish()
    except Exception as error:  # noqa: BLE001 - the last boundary there is
        await force_end(run, error)


def give_up(run: LostRun) -> asyncio.Task[None] | None:
    """The run's loop is about to be closed: wait only for the store. Returns its task, if that is at work."""
    run.steps.abandon_cut()
    return None if run.task is None or run.task.done() else run.task


def disown(run: LostRun) -> None:
    """In a forked child: the run belongs to the parent process, and goes on there. In this process it is over."""
    run.journal.waiters, run.steps.waiters = Waiters(), Waiters()  # the loops in the old ones are the parent's
    leave_pending(task for task in (run.task, *(step.task for step in run.steps.live)) if task is not None)
    error = HandleError(f"run {run.run_id!r} belongs to the process that this one was forked from")
    kept = run.own_messages
    run.signal.overrule(Failed(error))
    run.signal.unbind()
    ending = run.ending = Ending()
    ending.settlement = Settlement(kept, "", UNKNOWN_USAGE, [], [])
    ending.conversation, ending.status = run.session.base, RunStatus.error
    run.state, run.storage = RunState.released, run.storage.release()
    run.journal.close(run.journal.draft(RunEvent.run_error, status=RunStatus.error, error=describe(error)))
