# SPDX-License-Identifier: Apache-2.0
"""A run of this process, made of parts: one task, one signal, one journal, and one way to end.

| part | what it is |
|---|---|
| `signal` | how the run ends: the first cancel, completion or failure wins |
| `journal` | its events |
| `steps` | its work, in tasks that a cancel can cut |
| `children` | its place in the tree of runs, and their budget |
| `limits` | its deadline and the event that its caller watches for |
| `storage` | where it is kept: in this process, or in a store that several processes share |
| `work` | what it does: the loop of an agent. None after the end |
| `pause` | how far it had come when it paused |
| `ending` | what was cut, and what the run leaves |

The work is done in steps, so a cancel finds it wherever it waits. Every way out leads through `_finish`: it settles,
stores, gives the session to the next run, and only then writes the one terminal event. If the run's own task dies
before that, the portal does the same in its place (`caretaker.py`).

Users hold a `Run` (`handle.py`), which shows what is meant for them. A part that must call the run back is given a
method of it, and `_release` takes that away again, so an ended run is freed without the garbage collector.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from typing import Any

import msgspec

from andon.core.bounds import Bounds
from andon.core.budget import Budget
from andon.core.cord import Cord
from andon.core.events import Event, RunEvent
from andon.core.journal import Journal, Reader
from andon.core.portal import portal
from andon.core.receipt import CancelRequest, Interrupt, Receipt, describe_open
from andon.core.records import RequestKey, SessionKey
from andon.core.run import caretaker
from andon.core.run.caretaker import Watch
from andon.core.run.children import ChildRuns
from andon.core.run.ending import Ending, agree, end_event, put_away, undo_and_settle
from andon.core.run.event_limit import EventLimit
from andon.core.run.host import RunHost, spectator
from andon.core.run.limits import Limits
from andon.core.run.pause import Pause, pause_run, take_pause
from andon.core.run.tool_call import open_call
from andon.core.run.work import Settlement, Work
from andon.core.session import OnBusy, Place, Session
from andon.core.signal import Batch, CancelSignal, Completed, Failed
from andon.core.states import (
    RUN_STEPS,
    STATUS_OF,
    CancelCause,
    CancelMode,
    CancelOutcome,
    Phase,
    RunState,
    RunStatus,
    StopReason,
    check_step,
)
from andon.core.steps import Cut, StepRunner, as_exception, is_being_closed
from andon.errors import HandleError, StartError
from andon.messages import Message

log = logging.getLogger(__name__)

_NEEDS_LOOP = frozenset({RunState.pending, RunState.running, RunState.ending})


class LocalRun:
    """One run, from its beginning to its end."""

    __slots__ = (
        "__weakref__",
        "_heeds_arm",
        "caretaker",
        "children",
        "cord",
        "created_at",
        "ending",
        "given_metadata",
        "id_was_given",
        "journal",
        "limits",
        "on_busy",
        "output_schema",
        "pause",
        "phase",
        "place",
        "refusal",
        "request_key",
        "run_id",
        "runtime",
        "session",
        "signal",
        "state",
        "steps",
        "storage",
        "task",
        "work",
    )

    def __init__(
        self,
        runtime: RunHost[LocalRun],
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
        id_was_given: bool = False,
    ) -> None:
        self.runtime, self.session, self.run_id, self.given_metadata = runtime, session, run_id, metadata
        self.cord, self.on_busy, self.limits = cord, on_busy, limits
        self._heeds_arm = heeds_arm
        """It belongs to its agent's own conversation, so an armed cancel is for it."""
        self.id_was_given = id_was_given  # so another process may have been given it too
        self.created_at = time.time()
        self.request_key: RequestKey | None = None
        """The idempotency key of the request that starts it. A shared store takes it in together with the run."""
        self.output_schema: dict[str, Any] | None = None
        """The JSON schema that a server's client asked for. It is kept with the run, for a run that continues it."""
        self.state, self.phase = RunState.pending, Phase.pending
        self.signal = CancelSignal()
        self.journal = Journal(run_id, session.key.session_id, session.key.agent_id)
        if runtime.max_events or runtime.max_event_bytes:
            stop = functools.partial(self.cancel_for, CancelCause.budget)
            EventLimit(self.journal, stop, runtime.max_events, runtime.max_event_bytes)
        self.steps = StepRunner(run_id, session.key, self.signal, runtime.bounds)
        self.children = ChildRuns(run_id, self.steps, budget, detached)
        self.storage = runtime.storage_for(self)
        self.work: Work | None = None
        self.pause: Pause | None = None
        self.ending: Ending | None = None
        self.place: Place | None = None
        """Its place in the session's queue. None before the beginning, and when it has left the queue."""
        self.caretaker: asyncio.AbstractEventLoop | None = None
        """The portal's loop, if the run is being ended there."""
        self.task: asyncio.Task[None] | None = None
        self.refusal: StartError | None = None
        """Why it was not allowed to begin."""

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def session_key(self) -> SessionKey:
        return self.session.key

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
    def parent_run_id(self) -> str | None:
        return self.children.parent_run_id

    @property
    def store(self) -> object:
        return self.runtime.store

    @property
    def bounds(self) -> Bounds:
        return self.steps.bounds

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop on which the run is at work."""
        return self.steps.loop

    @property
    def metadata(self) -> dict[str, Any]:
        """A copy of what was given with the prompt, as JSON."""
        return dict[str, Any](msgspec.to_builtins(self.given_metadata))

    def __repr__(self) -> str:
        return f"<run {self.run_id} of {self.agent_id}: {self.status.name}>"

    # -- where it stands ----------------------------------------------------------------------------------------------

    @property
    def has_begun(self) -> bool:
        return bool(self.journal.events)

    @property
    def has_ended(self) -> bool:
        """Its terminal event is written."""
        return self.state is RunState.ended or self.state is RunState.released

    @property
    def status(self) -> RunStatus:
        """Where the run is, as users see it. `cancelling` follows from the signal."""
        if (status := STATUS_OF.get(self.state)) is None:  # it has ended
            return (self.ending and self.ending.status) or RunStatus.error
        return status if self.signal.request is None else RunStatus.cancelling

    @property
    def is_paused(self) -> bool:
        return self.state is RunState.paused and self.signal.request is None

    @property
    def is_cancelling(self) -> bool:
        return not self.has_ended and self.signal.request is not None

    @property
    def is_settled(self) -> bool:
        """It is over, or it is paused: nothing happens any more by itself."""
        return self.state is RunState.released or self.is_paused

    @property
    def may_be_elsewhere(self) -> bool:
        """It is paused, or about to be, in a store from which another process may take it: only the store knows."""
        return self.storage.may_be_elsewhere

    @property
    def was_refused(self) -> bool:
        """Its store has refused it: nothing of it is recorded."""
        return self.storage.refusal is not None

    @property
    def interrupts(self) -> list[Interrupt]:
        """The questions that are open. The question of a call that was cancelled alone is not open any more."""
        return work.progress().interrupts if (work := self.work) is not None and self.is_paused else []

    def describe_open(self) -> str:
        return describe_open(self.interrupts)

    @property
    def settlement(self) -> Settlement:
        assert self.ending is not None
        assert self.ending.settlement is not None
        return self.ending.settlement

    @property
    def receipt(self) -> Receipt | None:
        """What the cancel found, once the run has ended by one."""
        return None if self.ending is None else self.ending.receipt

    @property
    def conversation(self) -> list[Message]:
        """All that was said in its session when it ended."""
        return [] if self.ending is None else self.ending.conversation

    @property
    def own_messages(self) -> list[Message]:
        """What the run has added to its session so far. Once it is settled: in the final form."""
        if self.ending is not None and self.ending.settlement is not None:
            return self.ending.settlement.messages
        return self.session.tail if self.place is not None and self.place.granted else []

    def so_far(self) -> list[Message]:
        """The same, with the results of those calls that have one. Safe from any thread."""
        work = self.work
        return self.own_messages if work is None else work.so_far()

    @property
    def continues(self) -> str | None:
        """The earlier run whose messages are part of this one's."""
        if (work := self.work) is not None:
            return work.continues
        return None if self.ending is None or self.ending.record is None else self.ending.record.continues

    def move(self, to: RunState) -> None:
        if to not in RUN_STEPS[self.state]:
            check_step(self.state, to)
        self.state = to

    # -- cancelling it ------------------------------------------------------------------------------------------------

    def cancel_for(self, cause: CancelCause, reason: str | None = None) -> CancelOutcome:
        return self.request_cancel(CancelRequest.make(cause, reason))

    def request_cancel(self, request: CancelRequest, batch: Batch | None = None) -> CancelOutcome:
        """Cancel the run, and the runs below it. Never waits; safe from any thread, loop or signal handler."""
        outcome = self.request_cancel_alone(request, batch)
        if self.children:
            self.children.cascade()
        return outcome

    def request_cancel_alone(self, request: CancelRequest, batch: Batch | None = None) -> CancelOutcome:
        """Cancel the run. Its children are cancelled when it applies the cancel."""
        if portal.exited and self.is_paused:  # at exit the portal ends no run any more, so nothing is promised
            return CancelOutcome.unknown
        if self.has_ended:
            self.hand_over_if_due()
            return CancelOutcome.already_finished
        if self.is_lost():
            request = msgspec.structs.replace(request, cause=CancelCause.lost)
        outcome = self.signal.cancel(request, batch)
        self.storage.changed()  # the store must know, if the run takes its time to end
        self.hand_over_if_due()
        return outcome

    def cancel_tool(self, call_id: str, reason: str | None = None, force: bool = False) -> CancelOutcome:
        """Cancel one tool call and keep the run. Safe from anywhere."""
        return work.cancel_call(call_id, reason, force) if (work := self.work) else CancelOutcome.already_finished

    def _deliver(self, request: CancelRequest) -> None:
        """The signal calls this on the run's loop. If the portal ends the run already, that applies the cancel."""
        asked = self.signal.asked
        if self.state is not RunState.ending and not self.has_ended and not self.signal.adopted:
            self._apply_cancel(request)
        self.signal.heard(asked)

    def _apply_cancel(self, request: CancelRequest) -> None:
        """Do all that was requested so far. Called again if an exception interrupted it, or if more was requested."""
        first = self.ending is None
        if first:
            if not self.journal.ends_with(RunEvent.cancel_requested):  # else it was interrupted right here
                # The first request counts, also if a later one has overtaken it.
                self.journal.append(RunEvent.cancel_requested, reason=(self.signal.request or request).reason)
            self.ending = Ending(self.phase)
        for soft in self.signal.graces:
            self.limits.escalate(self.steps, self.request_cancel, soft)
        self.steps.cut_for_cancel()
        if self.children:  # the caller of `request_cancel` may have been interrupted before it came to them
            self.children.cascade()
        if first and self.journal.waiters.wakes:
            # A turn later: what was cut ends in the meantime, and a reader is woken once for both events.
            self.loop.call_soon(self.journal.waiters.wake)

    def _host_cancelled(self) -> None:
        """The host has cancelled the task that does the run's work."""
        self.cancel_for(CancelCause.caller)

    # -- its beginning ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take a place in the session, register, and start the task; or raise, and nothing was recorded."""
        if self.has_begun:
            raise HandleError(f"run {self.run_id!r} has begun already; start another one")
        if self.refusal is not None:
            raise HandleError(f"run {self.run_id!r} was refused; start another one")
        try:
            self.enlist()
            self.journal.add(RunEvent.run_started, parent_run_id=self.parent_run_id)
            self.cord.add(self, self.bounds.arm_seconds if self._heeds_arm else 0)
            assert self.work is not None
            self.work.begin()
            self.go()
        except BaseException:
            if self.has_begun:  # readers may have seen it: it ends like any other run
                self.break_off()
            else:
                self._withdraw()
            raise

    def enlist(self) -> None:
        """Register the run and put it into the session's queue; or raise, and it leaves no trace."""
        call = None if self.children.detached else open_call()
        if call is not None:
            waits = self.on_busy == "queue"
            call.run.children.check_child(call.call_id, self.runtime.max_depth, self.session.key, self.store, waits)
        try:
            self.bind_loop()
            self.runtime.register(self)
            place = self.place = Place(self)
            self.session.enter(place, self.on_busy)
            if self.on_busy == "cancel":
                self.session.supersede(place)
            self.children.join(self, call)
            if (watcher := spectator.get()) is not None:
                watcher(self)
        except BaseException:
            self._withdraw()
            raise

    def _withdraw(self) -> None:
        """Undo `enlist`. Called again, it changes nothing more."""
        self.steps.release()
        self.children.leave(None)
        if self.place is not None:
            self.session.withdraw(self.place)
        self.runtime.withdraw(self)

    def break_off(self) -> None:
        """An exception interrupted the beginning of the run, or its going on. Its task ends it, or else the portal."""
        self.cancel_for(CancelCause.caller)
        if self.task is None:
            self.signal.adopt()
            caretaker.hand_over(self)

    # -- its work -----------------------------------------------------------------------------------------------------

    def bind_loop(self) -> None:
        """Be at work on the running loop from now on."""
        self.steps.bind(asyncio.get_running_loop(), self._host_cancelled)

    def go(self) -> None:
        """Begin to work, or go on after a pause."""
        self.signal.bind(self.loop, self._deliver)
        self.task = None
        self.task = self.loop.create_task(self._main(), name=f"andon run {self.run_id}")
        self.task.add_done_callback(self._task_done)
        self.limits.begin(self.steps, self.request_cancel)

    async def _main(self) -> None:
        if self.task is None:  # this loop begins tasks at once (asyncio.eager_task_factory): `go` has to finish first
            await asyncio.sleep(0)
            if self.signal.adopted:  # an exception kept `go` from that, and the portal ends the run
                return
        try:
            if self.state is RunState.pending:
                await self._take_turn()
            assert self.work is not None
            stop_reason = await self.work.perform()
            if stop_reason is StopReason.interrupt:
                if await pause_run(self):
                    return
            else:
                await self.children.wait()
                self.signal.claim(Completed(stop_reason))
        except Cut:
            pass
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or (
                isinstance(error, GeneratorExit) and is_being_closed(self.task)
            ):
                raise  # the portal ends the run
            self.signal.claim(Failed(as_exception(error)))  # the boundary: a failed run returns its error
        await self._finish()
        if self.steps.host_has_cancelled:
            raise asyncio.CancelledError
        assert self.task is not None
        self.task.remove_done_callback(self._task_done)  # released here, which costs the loop one turn less
        self._release()

    async def _take_turn(self) -> None:
        """Wait until all runs ahead in the session have ended."""
        place = self.place
        assert place is not None
        if not place.granted:
            self.phase = Phase.queued
            wait = functools.partial(self.session.wait_turn, place)
            await self.steps.start(wait, name="queue", cut_by=CancelMode.after_turn)
        await self.storage.admit()
        self.steps.gate(CancelMode.after_turn)
        self.move(RunState.running)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        if task is not self.task:  # it has paused the run, and another task may have gone on since
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("%r: its task broke", self, exc_info=error, extra={"facts": self.steps.facts})
        if self.has_ended:
            self._release()
        else:  # cancelled before its first step, or stopped with its loop
            self.steps.host_cancelled()
            self.limits.end()
            if self.signal.adopt():
                self.steps.cut_all()  # here, on their loop: from now on the portal's thread writes
                portal.submit(self.end_on_portal)

    # -- its end ------------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """The one way to end."""
        fate = self.signal.fate
        assert fate is not None
        if self.ending is None:
            if isinstance(fate, CancelRequest):
                self._apply_cancel(fate)  # decided so late that it was not delivered yet
            else:
                self.ending = Ending()
        ending = self.ending
        assert ending is not None
        self.move(RunState.ending)
        self.phase = Phase.ending
        if (watch := self.limits.end()) is not None:
            await watch.wait()
        if self.children:
            await self.children.end()
        if ending.settlement is None:  # else the task that did this was stopped right after it
            await undo_and_settle(self, ending, fate)
        await self._close(ending, await agree(self, ending, fate))

    async def _close(self, ending: Ending, status: RunStatus) -> None:
        """Store what the run leaves, and tell its end."""
        assert self.work is not None
        await put_away(self, ending)
        assert ending.record is not None
        self.tell_end(ending, status, ending.last_event or end_event(self.journal, ending.record))
        if not self.was_refused:
            await self.work.farewell()

    def tell_end(self, ending: Ending, status: RunStatus, last: Event) -> None:
        """Have ended. From here on the run is found among the ended ones."""
        ending.status = status
        self.move(RunState.ended)
        (self.runtime.withdraw if self.was_refused else self.runtime.run_ended)(self)
        self.cord.remove(self)
        try:
            if self.work is not None:
                self.work.ended()
        finally:
            self.journal.close(last)
            self.steps.waiters.wake()

    def vanish(self) -> None:
        """It is over for this process without a terminal event, and can't be found any more."""
        self.state = RunState.ended
        self.runtime.withdraw(self)
        self.cord.remove(self)

    def let_go(self) -> bool:
        """It is paused in a store from which any process may take it: for this one it is over. False if it is not."""
        if not take_pause(self, self):
            return False
        self.vanish()
        self._release()
        return True

    def _release(self) -> None:
        """The run is over: take back everything that refers to it, so that it is freed with its last handle."""
        self.move(RunState.released)
        self.runtime.run_released(self)
        self.storage = self.storage.release()
        self.signal.unbind()
        self.steps.release()
        self.children.leave(self.receipt)
        self.work = None
        self.steps.waiters.wake()

    # -- if its task or its loop is gone: see caretaker.py ------------------------------------------------------------

    def is_lost(self) -> bool:
        """Its loop was closed under it. A paused run needs no loop."""
        return self.state in _NEEDS_LOOP and bool(self.journal.events) and self.steps.loop.is_closed()

    def ensure_ending(self) -> None:
        """Called whenever the run is looked at. If it is lost, or a cancel did not reach it, have it end."""
        self.hand_over_if_due()
        self.signal.deliver_again()

    def hand_over_if_due(self) -> None:
        """Have the portal end the run if nothing else can."""
        waits = self.pause is not None and self.pause.token.is_free
        if waits and self.signal.request is not None:
            self.journal.go_on()  # readers that come now read to the end
            caretaker.hand_over(self)
        elif self.state is RunState.ended:
            if self.loop.is_closed():  # in its last hooks, which went with the loop
                self._release()
        elif self.is_lost():
            self.signal.adopt()
            self.signal.cancel(CancelRequest.make(CancelCause.lost))
            caretaker.hand_over(self)
        elif self.signal.adopted and self.caretaker is None and not self.has_ended:  # interrupted after it was adopted
            caretaker.hand_over(self)

    async def end_on_portal(self) -> None:
        """Runs on the portal's loop, in place of the run's own task."""
        if self._may_be_ended_here():
            await caretaker.end(self, self._finish, self._release)

    def _may_be_ended_here(self) -> bool:
        """Is no other task about to end it? Called on the portal's loop alone."""
        waits = self.pause is not None and self.caretaker is None and not self.signal.adopted
        if waits and not take_pause(self, portal):
            # Another task has taken the pause, and ends the run: its own, one that has the answers, or one that follows
            # another process, where the run was answered or ended.
            return False
        return not self.has_ended and (self.caretaker is None or self.caretaker.is_closed())

    async def follow(self, watch: Watch) -> None:
        """Another process has taken the paused run: show here what is done there, and end as it ends there."""
        # The loop comes first: a running run whose loop is closed would be taken for lost.
        self.steps.loop = asyncio.get_running_loop()
        self.move(RunState.running)
        await caretaker.follow(self, watch, self._close, self._finish)
        self._release()

    # -- reading and waiting ------------------------------------------------------------------------------------------

    def read(self, after: int = 0) -> Reader:
        """Read its events from a sequence number on."""
        self.ensure_ending()
        return Reader(self.journal, after)

    def wake(self) -> None:
        """Something has changed: wake all that wait for the run."""
        self.steps.waiters.wake()
