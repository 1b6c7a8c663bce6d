# SPDX-License-Identifier: Apache-2.0
"""The life of a run: one task, one signal, one journal, and one way to end.

The run owns its task; whoever reads or waits owns nothing. Its work is done in steps (`core/step.py`), so a cancel
finds it wherever it waits; and every way out leads through `_finish`, which settles, stores, frees the session and only
then writes the one terminal event. If the run's task dies before that, its done-callback hands the run to the portal,
which does the same.
"""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import functools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from andon.core.events import TERMINAL_EVENT, RunEvent
from andon.core.journal import Journal
from andon.core.limits import Limits
from andon.core.portal import portal
from andon.core.receipt import CancelRequest, Receipt
from andon.core.signal import Batch, CancelSignal, Completed, Failed, stop_reason_of
from andon.core.states import CancelCause, CancelMode, CancelOutcome, Phase, RunStatus, check_step
from andon.core.step import Cut, Stepper
from andon.core.store import DONE, RunRecord
from andon.core.work import Settlement
from andon.errors import HandleError, describe
from andon.messages import UNKNOWN_USAGE, Message, Text, Usage, assistant

if TYPE_CHECKING:
    from andon.core.cord import Cord
    from andon.core.run import Run
    from andon.core.runtime import Runtime
    from andon.core.session import OnBusy, Place, Session
    from andon.core.work import Work

log = logging.getLogger("andon")

spectator: contextvars.ContextVar[Callable[[Run], None] | None] = contextvars.ContextVar("spectator", default=None)
"""Is told of every run that begins in its context (the explorer watches this way)."""


class Life(Stepper):
    """A run from its beginning to its end; `core/run.py` makes a handle of it."""

    _work: Work
    _conversation: list[Message]

    __slots__ = (
        "__weakref__",
        "_added",
        "_conversation",
        "_cord",
        "_cut_phase",
        "_ended",
        "_on_busy",
        "_place",
        "_receipt",
        "_record",
        "_settled",
        "_settlement",
        "_stage",
        "_task",
        "_work",
        "created_at",
        "journal",
        "limits",
        "metadata",
        "phase",
        "run_id",
        "runtime",
        "session",
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
    ) -> None:
        super().__init__(CancelSignal(), runtime.bounds)
        self.runtime, self._cord, self.session, self.run_id = runtime, cord, session, run_id
        self._on_busy, self.limits, self.metadata = on_busy, limits, metadata
        self.journal = Journal(run_id, session.key.session_id, session.key.agent_id)
        self.phase = Phase.pending
        self.created_at = time.time()
        self._stage = RunStatus.pending
        self._task: asyncio.Task[None] | None = None
        self._place: Place | None = None
        self._settlement: Settlement | None = None
        self._record: RunRecord | None = None
        self._receipt: Receipt | None = None
        self._cut_phase: Phase | None = None
        self._ended = self._settled = self._added = False

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

    @property
    def is_cancelling(self) -> bool:
        return self.status is RunStatus.cancelling

    def __repr__(self) -> str:
        return f"<Run {self.run_id} of {self.agent_id}: {self.status.name}>"

    # -- cancelling it ------------------------------------------------------------------------------------------------

    def cancel_for(self, cause: CancelCause, reason: str | None = None) -> CancelOutcome:
        return self.ask(CancelRequest.make(cause, reason))

    def ask(self, request: CancelRequest, batch: Batch | None = None) -> CancelOutcome:
        if self._ended:
            return CancelOutcome.already_finished
        if self._is_lost():
            request = msgspec.structs.replace(request, cause=CancelCause.lost)
        outcome = self.signal.cancel(request, batch)
        self.end_if_lost()
        return outcome

    def host_cancelled(self) -> None:
        """The task that does the run's work was cancelled, by whoever owns its loop: the same end, passed on after."""
        self.host_has_cancelled = True
        self.cancel_for(CancelCause.caller)

    # -- its life -----------------------------------------------------------------------------------------------------

    def employ(self, work: Work) -> None:
        """Say what the run does."""
        self._work = work

    def begin(self) -> None:
        """Take a place in the session, register, and start the task; or raise, and nothing was recorded."""
        if self._task is not None:
            raise HandleError(f"run {self.run_id!r} has begun already; start another one")
        self.loop = asyncio.get_running_loop()
        self.runtime.register(self)
        try:
            self._place = self.session.enter(self, self._on_busy)
        except BaseException:
            self.runtime.forget(self)
            raise
        if self._on_busy == "cancel":
            self.session.supersede(self._place)
        self.journal.add(RunEvent.run_started)
        self.signal.bind(self.loop, self._deliver)
        self._cord.add(self, self.bounds.arm_seconds)
        self.limits.begin(self)
        self._task = self.loop.create_task(self._main(), name=f"andon run {self.run_id}")
        self._task.add_done_callback(self._task_done)
        if (watcher := spectator.get()) is not None:
            watcher(cast("Run", self))

    async def _main(self) -> None:
        place = self._place
        assert place is not None
        try:
            if not place.granted:
                self.phase = Phase.queued
                await self.step(lambda: self.session.turn(place), name="queue", cut_by=CancelMode.after_turn)
            self.gate(CancelMode.after_turn)
            self._move(RunStatus.running)
            self.signal.claim(Completed(await self._work.perform()))
        except Cut:
            pass
        except Exception as error:  # noqa: BLE001 - the boundary: a failed run returns its error
            self.signal.claim(Failed(error))
        await self._finish()
        if self.host_has_cancelled:
            raise asyncio.CancelledError

    def _move(self, to: RunStatus) -> None:
        check_step(self.status, to)
        self._stage = to

    def _deliver(self, request: CancelRequest) -> None:
        """A cancel arrives, on the run's loop."""
        if self.phase is Phase.ending:
            return
        first = self._cut_phase is None
        if first:
            self._cut_phase = self.phase
            self.journal.append(RunEvent.cancel_requested, reason=request.reason)
        if request.grace is not None and request.mode is not CancelMode.now:
            self.limits.escalate(self, request)
        self.cut_steps()
        if first and self.journal.waiters.wakes:
            # A turn later: what was cut ends in the meantime, and a reader is woken once for both events.
            self.loop.call_soon(self.journal.waiters.wake)

    # -- its end ------------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """The one way to end."""
        work, fate = self._work, self.signal.fate
        assert fate is not None
        if self._cut_phase is None and isinstance(fate, CancelRequest):
            self._deliver(fate)  # decided so late that it has not arrived yet
        self.phase = Phase.ending
        if (watch := self.limits.end()) is not None:
            await watch.wait()
        status = RunStatus.completed
        if isinstance(fate, CancelRequest):
            status = RunStatus.cancelled
        elif isinstance(fate, Failed):
            status = RunStatus.error
        if self._settlement is None:  # or the task that did this was stopped right after
            self._settlement = work.settle(fate)
            if isinstance(fate, CancelRequest):
                self._receipt = self._make_receipt()
                for call in self._settlement.cancelled:
                    self.journal.add(RunEvent.tool_call_cancelled, tool=call)
            elif isinstance(fate, Failed):
                log.warning("run %s failed: %s", self.run_id, describe(fate.error))
        settlement = self._settlement
        await self._put_away(status)
        self._move(status)
        self._ended = True
        self._retire(
            settlement.content,
            status,
            usage=settlement.usage,
            receipt=self._receipt,
            reason=self._receipt.reason if self._receipt else None,
            error=describe(fate.error) if isinstance(fate, Failed) else None,
        )
        await work.farewell()
        del self._work  # it knows the run: let go, so that both are freed without the garbage collector

    def _retire(self, content: str, status: RunStatus, **facts: object) -> None:
        """Be found among the ended, and say so."""
        self.runtime.unregister(self)
        self._cord.remove(self)
        self.journal.close(TERMINAL_EVENT[status], content, status=status, **facts)
        self._waiters.wake()

    async def _put_away(self, status: RunStatus) -> None:
        """Store the end, and pass the session on."""
        place = self._place
        if place is None:  # done before, by a task that was stopped right after
            return
        self._record = self._make_record(status)
        if self.session.bequeath(place, self._write):  # still in the queue: whoever is ahead will write it
            self._conversation, self._place = self.settlement.messages, None
            return
        await self._write(self)
        self._conversation = self.session.base
        await self._pass_on()

    async def _pass_on(self) -> None:
        """Give the session to the next in line; what cancelled runs left in between is written first.

        Should this task be stopped here, the portal goes on with the place that was reached.
        """
        while (place := self._place) is not None:
            if place.bequest is not None:
                await place.bequest(self)
            heir = self.session.leave(place)
            self._place = heir if heir is not None and heir.bequest is not None else None

    async def _write(self, by: Life) -> None:
        """Add what the run leaves to its session, here and in the store. Done by itself, or by whoever was ahead."""
        session, store = self.session, self.runtime.store
        assert store is not None
        assert self._record is not None
        if not self._added:
            self._added = True
            session.close(self.settlement.messages)
        save = functools.partial(store.save, self._record, self.settlement.messages)
        try:
            pending = save()
        except Exception as error:  # noqa: BLE001 - the boundary to a store that isn't ours
            pending = DONE
            by.warn(f"the store failed: {describe(error)}")
        if pending is not DONE:
            first = [pending]  # what was asked is awaited once; should that be cancelled, it is asked again
            await by.bounded(lambda: first.pop() if first else save(), "the store", self.bounds.settle_seconds)
        if not session.loaded:  # it ended before it had read what came before
            base = await by.bounded(lambda: store.load(session.key), "the store", self.bounds.settle_seconds)
            if base is not None:
                session.open(base, [])

    def _make_record(self, status: RunStatus) -> RunRecord:
        fate = self.signal.fate
        return RunRecord(
            self.run_id,
            self.session.key,
            status,
            self.created_at,
            self.metadata,
            stop_reason_of(fate),
            self.settlement.content,
            self.settlement.usage,
            self._receipt,
            describe(fate.error) if isinstance(fate, Failed) else None,
        )

    def _make_receipt(self) -> Receipt:
        request = self.signal.request
        assert request is not None
        tools, usage = (self._settlement.tools, self._settlement.usage) if self._settlement else ([], Usage())
        mode, phase = self.signal.mode or request.mode, self._cut_phase or self.phase
        return Receipt.of(request, mode, phase, tools, usage, self.leftovers)

    @property
    def settlement(self) -> Settlement:
        assert self._settlement is not None
        return self._settlement

    # -- without its loop ---------------------------------------------------------------------------------------------

    def _task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("%r: its task broke", self, exc_info=error)
        if self._ended:
            self._settle()
        else:  # cancelled before its first step, or stopped with its loop
            self.host_cancelled()
            self.limits.end()
            if self.signal.adopt():
                self._hand_over()

    def _settle(self) -> None:
        self._settled = True
        self.signal.unbind()
        self._waiters.wake()

    def _is_lost(self) -> bool:
        return self._task is not None and not self._ended and self.loop.is_closed()

    def end_if_lost(self) -> None:
        """If the run's loop was closed under it, have the portal end it."""
        if self._is_lost() and self.signal.adopt():
            self.signal.cancel(CancelRequest.make(CancelCause.lost))
            # A raw thread: the portal takes locks, and this may be a signal handler that interrupted their holder.
            _thread.start_new_thread(self._hand_over, ())

    def _hand_over(self) -> None:
        portal.submit(self._end_elsewhere)

    async def _end_elsewhere(self) -> None:
        self.loop = asyncio.get_running_loop()
        try:
            self.limits.abandon()
            self.lose_steps()
            await self._finish()
        except Exception as error:  # noqa: BLE001 - the last boundary there is
            await self._collapse(error)
        self._settle()

    async def _collapse(self, error: Exception) -> None:
        """Settling itself failed: a defect of ours. Even then nobody waits for ever, and the session goes on."""
        log.critical("%r: could not be ended properly", self, exc_info=error)
        self.session.close([])
        await self._pass_on()
        self._settlement = Settlement([], "", UNKNOWN_USAGE, [], [])
        if self.signal.request is not None:
            self._receipt = self._make_receipt()
        self._conversation = self.session.base or [assistant(Text("(lost)"))]
        self._stage = RunStatus.error if self.signal.request is None else RunStatus.cancelled
        self._ended = True
        self._retire("", self._stage, receipt=self._receipt, error=f"could not be ended properly: {describe(error)}")
