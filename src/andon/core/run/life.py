# SPDX-License-Identifier: Apache-2.0
"""The life of a run: one task, one signal, one journal, and one way to end.

The run owns its task; whoever reads or waits owns nothing. Its work is done in steps (`core/steps.py`), so a cancel
finds it wherever it waits; and every way out leads through `_finish`, which settles, stores, frees the session and only
then writes the one terminal event. If the run's task dies before that, its done-callback hands the run to the portal,
which does the same.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from andon.core.budget import Budget
from andon.core.cutting import cut_line
from andon.core.events import Event, RunEvent
from andon.core.journal import Journal
from andon.core.portal import leave_pending
from andon.core.receipt import CancelRequest
from andon.core.run.caretaker import Outliving
from andon.core.run.event_limit import limit_events
from andon.core.run.limits import Limits
from andon.core.run.work import Settlement
from andon.core.session import Place
from andon.core.signal import Batch, Completed, Failed, Fate
from andon.core.states import CancelCause, CancelMode, CancelOutcome, Phase, RunStatus, StopReason, check_step
from andon.core.steps import Cut, as_exception
from andon.core.waiters import Waiters
from andon.errors import HandleError, StartError, describe
from andon.messages import UNKNOWN_USAGE, Message

if TYPE_CHECKING:
    from andon.core.cord import Cord
    from andon.core.run.run import Run
    from andon.core.run.work import Work
    from andon.core.runtime import Runtime
    from andon.core.session import OnBusy, Session

log = logging.getLogger(__name__)

spectator: contextvars.ContextVar[Callable[[Run], None] | None] = contextvars.ContextVar("spectator", default=None)
"""Is told of every run that begins in its context (the explorer watches this way)."""


class Life(Outliving):
    """A run from its beginning to its end; `core/run/run.py` makes a handle of it."""

    _work: Work

    __slots__ = (
        "__weakref__",
        "_cord",
        "_heeds_arm",
        "_refusal",
        "_work",
    )

    def __init__(
        self,
        runtime: Runtime,
        cord: Cord,
        session: Session,
        run_id: str,
        *,
        on_busy: OnBusy,
        limits: Limits,
        metadata: dict[str, Any],
        budget: Budget | None = None,
        detached: bool = False,
        heeds_arm: bool = False,
    ) -> None:
        super().__init__(runtime, session, run_id, metadata, budget, detached)
        self._cord, self._on_busy, self.limits = cord, on_busy, limits
        self._heeds_arm = heeds_arm
        """It is of its agent's own conversation, and an armed cancel is for it."""
        self.journal = Journal(run_id, session.key.session_id, session.key.agent_id)
        limit_events(self)
        self.tenure = None if runtime.keeper is None else runtime.keeper.tenure(cast("Run", self))
        self._last, self.store_is_away = None, False
        self._stage = RunStatus.pending
        self._task: asyncio.Task[None] | None = None
        self._caretaker: asyncio.AbstractEventLoop | None = None
        self._ended = self._settled = False
        self._refusal: StartError | None = None
        """What kept it from taking a place in its session: then it never began."""

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def session_id(self) -> str:
        return self.session.key.session_id

    @property
    def agent_id(self) -> str:
        return self.session.key.agent_id

    @property
    def user_id(self) -> str | None:
        return self.session.key.user_id

    @property
    def status(self) -> RunStatus:
        """Where the run is. `cancelling` is not stored anywhere: it follows from the fate."""
        if not self._ended and self.signal.request is not None:
            return RunStatus.cancelling
        return self._stage

    @property
    def own_messages(self) -> list[Message]:
        """What the run has added to its session: so far, and, once it is settled, in the final form."""
        if self._settlement is not None:
            return self._settlement.messages
        return [] if self._stage is RunStatus.pending else self.session.tail

    def so_far(self) -> list[Message]:
        work = getattr(self, "_work", None)  # let go of at the end
        return self.own_messages if work is None else work.so_far()

    @property
    def is_cancelling(self) -> bool:
        return self.status is RunStatus.cancelling

    def __repr__(self) -> str:
        return f"<Run {self.run_id} of {self.agent_id}: {self.status.name}>"

    # -- cancelling it ------------------------------------------------------------------------------------------------

    def cancel_for(self, cause: CancelCause, reason: str | None = None) -> CancelOutcome:
        return self.ask(CancelRequest.make(cause, reason))

    def ask(self, request: CancelRequest, batch: Batch | None = None) -> CancelOutcome:
        outcome = self.ask_alone(request, batch)
        if self._children:
            self._cascade()
        return outcome

    def ask_alone(self, request: CancelRequest, batch: Batch | None = None) -> CancelOutcome:
        if self._ended:
            self.end_elsewhere_if_due()
            return CancelOutcome.already_finished
        if self.is_lost():
            request = msgspec.structs.replace(request, cause=CancelCause.lost)
        outcome = self.signal.cancel(request, batch)
        if (tenure := self.tenure) is not None:
            tenure.stir()  # the store is to know, if the run takes its time to end
        self.end_elsewhere_if_due()
        return outcome

    def host_cancelled(self) -> None:
        """The task that does the run's work was cancelled, by whoever owns its loop: the same end, passed on after."""
        self.host_has_cancelled = True
        self.cancel_for(CancelCause.caller)

    # -- its life -----------------------------------------------------------------------------------------------------

    def employ(self, work: Work) -> None:
        """Say what the run does."""
        self._work = work

    def set_out(self) -> None:
        """Take a place in the session, register, and start the task; or raise, and nothing was recorded."""
        if self.has_begun:
            raise HandleError(f"run {self.run_id!r} has begun already; start another one")
        try:
            self._enlist()
            self.journal.add(RunEvent.run_started, parent_run_id=self.parent_run_id)
            self._cord.add(self, self.bounds.arm_seconds if self._heeds_arm else 0)
            self._work.begin()
            self._go()
        except BaseException:
            if self.has_begun:  # it may have been seen: it ends like any other
                self._break_off()
            else:
                self._withdraw()
            raise

    def _enlist(self) -> None:
        """Be found by its id, and stand in the session's line; or raise, and it never was."""
        self.loop = asyncio.get_running_loop()
        call = self._call_above()
        self._check_ancestors(call, waits=self._on_busy == "queue")
        try:
            self.runtime.register(self)
            place = self._place = Place(self)
            self.session.enter(place, self._on_busy)
            if self._on_busy == "cancel":
                self.session.supersede(place)
            self._join_family(call)
            if (watcher := spectator.get()) is not None:
                watcher(cast("Run", self))
        except BaseException:
            self._withdraw()
            raise

    def _withdraw(self) -> None:
        """Be as if it had never been. Called again, it changes nothing more."""
        self._leave_family()
        if self._place is not None:
            self.session.withdraw(self._place)
        self.runtime.forget(self)

    def _break_off(self) -> None:
        """An exception interrupted the run's beginning, or its going on: its task ends it, or else the portal."""
        self.cancel_for(CancelCause.caller)
        if self._task is None:
            self.signal.adopt()
            self._hand_over_soon()

    def _go(self) -> None:
        """Begin to work, or go on with it after a pause."""
        self.signal.bind(self.loop, self._deliver)
        self._task = None
        self._task = self.loop.create_task(self._main(), name=f"andon run {self.run_id}")
        self._task.add_done_callback(self._task_done)
        self.limits.begin(self)

    async def _main(self) -> None:
        if self._task is None:  # this loop begins tasks at once (asyncio.eager_task_factory): `_go` has to finish first
            await asyncio.sleep(0)
            if self.signal.adopted:  # an exception kept `_go` from that, and the portal ends the run
                return
        try:
            if self._stage is RunStatus.pending:
                await self._take_turn()
            stop_reason = await self._work.perform()
            if stop_reason is StopReason.interrupt:
                if await self._pause():
                    return
            else:
                await self._outlast_children()
                self.signal.claim(Completed(stop_reason))
        except Cut:
            pass
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or (isinstance(error, GeneratorExit) and self._is_closed()):
                raise  # the portal ends the run
            self.signal.claim(Failed(as_exception(error)))  # the boundary: a failed run returns its error
        await self._finish()
        if self.host_has_cancelled:
            raise asyncio.CancelledError
        assert self._task is not None
        self._task.remove_done_callback(self._task_done)  # said here, it costs the loop one turn less
        self._settle()

    def _is_closed(self) -> bool:
        """Is the coroutine of its task being closed, with that or with its loop?"""
        loop = asyncio._get_running_loop()
        return loop is None or asyncio.current_task(loop) is not self._task

    async def _take_turn(self) -> None:
        """Wait until the session is ours."""
        place = self._place
        assert place is not None
        if not place.granted:
            self.phase = Phase.queued
            await self.step(lambda: self.session.turn(place), name="queue", cut_by=CancelMode.after_turn)
        if self.tenure is not None:
            await self._take_in(self.tenure)
        self.gate(CancelMode.after_turn)
        self._move(RunStatus.running)
        if self.tenure is not None and self.tenure.restoring:
            self.journal.add(RunEvent.run_continued)

    def describe_open(self) -> str:
        """The questions that are open."""
        raise NotImplementedError

    async def _pause(self) -> bool:
        """Wait for a person, and hold nothing meanwhile. False if a cancel was quicker."""
        raise NotImplementedError

    def _move(self, to: RunStatus) -> None:
        check_step(self.status, to)
        self._stage = to

    def _deliver(self, request: CancelRequest) -> None:
        """A cancel arrives, on the run's loop; if that was taken from it meanwhile, whoever ends the run heeds it."""
        asked = self.signal.asked
        if self.phase is not Phase.ending and not self.signal.adopted:
            self._heed(request)
        self.signal.heard(asked)

    def _heed(self, request: CancelRequest) -> None:
        """Do all that was asked so far. Called again if an exception interrupted it, or if more was asked."""
        first = self._cut_phase is None
        if first:
            if not self.journal.ends_with(RunEvent.cancel_requested):  # else it was interrupted right here
                # The first one counts, also if a later one has overtaken it.
                self.journal.append(RunEvent.cancel_requested, reason=(self.signal.request or request).reason)
            self._cut_phase = self.phase
        for soft in self.signal.graces:
            self.limits.escalate(self, soft)
        self.cut_steps()
        if self._children:  # whoever asked may have been interrupted before it came to them
            self._cascade()
        if first and self.journal.waiters.wakes:
            # A turn later: what was cut ends in the meantime, and a reader is woken once for both events.
            self.loop.call_soon(self.journal.waiters.wake)

    # -- its end ------------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """The one way to end."""
        fate = self.signal.fate
        assert fate is not None
        if self._cut_phase is None and isinstance(fate, CancelRequest):
            self._heed(fate)  # decided so late that it has not arrived yet
        self.phase = Phase.ending
        if (watch := self.limits.end()) is not None:
            await watch.wait()
        if self._children:
            await self._end_children()
        if self._settlement is None:  # or the task that did this was stopped right after
            self._settle_as(fate)
        status = RunStatus.completed
        if isinstance(fate, CancelRequest):
            status = RunStatus.cancelled
        elif isinstance(fate, Failed):
            status = RunStatus.error
        if self.tenure is not None:
            status = await self._agree(status)
            if self._stage is RunStatus.paused and status is not RunStatus.cancelled:  # someone else went on with it
                self._stage = RunStatus.running
        await self._close(status)

    async def _close(self, status: RunStatus) -> None:
        """Have ended, and say so."""
        await self._put_away(status)
        self._move(status)
        self._ended = True
        assert self._record is not None
        self._retire(self._last or self._last_event(self._record))
        if not self.was_refused:
            await self._work.farewell()
        del self._work  # it knows the run: let go, so that both are freed without the garbage collector

    def _settle_as(self, fate: Fate) -> None:
        settlement = self._settlement = self._work.settle(fate)
        if isinstance(fate, CancelRequest):
            self._receipt = self._make_receipt()
            for call in settlement.cancelled:
                self.journal.append(RunEvent.tool_call_cancelled, tool=call)
            if settlement.cancelled:
                self.journal.waiters.wake()
        elif isinstance(fate, Failed) and not self.was_refused:
            why, facts = cut_line(describe(fate.error)), {"facts": self.names}
            log.error("run %s failed: %s", self.run_id, why, exc_info=fate.error, extra=facts)

    def _retire(self, last: Event) -> None:
        """Be found among the ended, and say so."""
        (self.runtime.forget if self.was_refused else self.runtime.unregister)(self)
        self._cord.remove(self)
        try:
            self._work.ended()
        finally:
            self.journal.close(last)
            self._waiters.wake()

    def give_up(self) -> asyncio.Task[None] | None:
        """Its loop is about to be closed: wait for nothing but the store. Returns its task, if that is at work."""
        self.give_up_steps()
        return None if self._task is None or self._task.done() else self._task

    def disown(self) -> None:
        """In a forked child: the run is the parent's, and goes on there. Here it has ended, and nobody waits for it."""
        self.journal.waiters, self._waiters = Waiters(), Waiters()  # the loops in the old ones are the parent's
        leave_pending(task for task in (self._task, *(step.task for step in self._steps)) if task is not None)
        error = HandleError(f"run {self.run_id!r} belongs to the process that this one was forked from")
        self.signal.overrule(Failed(error))
        self.signal.unbind()
        kept = self.own_messages
        self._conversation, self._settlement = self.session.base, Settlement(kept, "", UNKNOWN_USAGE, [], [])
        self._stage, self._ended, self._settled, self.tenure = RunStatus.error, True, True, None
        self.journal.close(self.journal.draft(RunEvent.run_error, status=self._stage, error=describe(error)))

    def _continues(self) -> str | None:
        return self._work.continues

    @property
    def goes_on_with(self) -> str | None:
        """The run whose messages are part of this one's, so far."""
        work = getattr(self, "_work", None)  # let go of at the end
        return self.continues if work is None else work.continues

    def _sketch(self, request: CancelRequest) -> Settlement | None:
        if asyncio._get_running_loop() is not self.loop or not hasattr(self, "_work"):
            return None
        return self._work.settle(request)
