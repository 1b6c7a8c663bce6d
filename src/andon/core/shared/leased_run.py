# SPDX-License-Identifier: Apache-2.0
"""One run in a shared store, for as long as this process holds it: the storage of that run.

What the run does is written by the worker, in batches, beside the run. The run itself waits for the store at its
beginning, before its tools start, where it pauses, and at its end. The store has the last word on how a run ends. A
cancel that the store has accepted makes every other end a cancel. An end that another process has written is the run's
end.

No end is told to readers before it is stored. If the store can't be reached, readers are told that, and it is tried
again, as long as the run's loop goes on. If that loop is being closed, the run gives up, and the store says `lost`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from andon.core.events import Event, RunEvent
from andon.core.portal import portal
from andon.core.receipt import CancelRequest
from andon.core.records import RequestKey, RunRecord, SessionKey
from andon.core.run.children import paused_below
from andon.core.run.ending import end_event, make_record
from andon.core.run.pause import take_pause
from andon.core.run.run import LocalRun
from andon.core.run.storage import EndedElsewhere, EndedStorage
from andon.core.run.work import Settlement
from andon.core.selection import Selection
from andon.core.session import OnBusy
from andon.core.shared.call_cancels import CallAnswers
from andon.core.shared.claim import Claimed, claim_paused, give_back
from andon.core.shared.lease_state import LeaseState, check_lease_step
from andon.core.shared.leases import Leases
from andon.core.shared.link import StoreLink
from andon.core.shared.orphans import Orphans
from andon.core.shared.remote import StoredReader, follow
from andon.core.shared.store import CallRequest, Lease, Progress
from andon.core.shared.writer import Writer
from andon.core.shared.written import Written
from andon.core.states import CancelCause, CancelMode, CancelOutcome, Phase, RunState, RunStatus
from andon.core.steps import STRAY_CANCELS, CutAloneError, StepRunner, StrayCancelError
from andon.core.waiters import CallingLatch
from andon.errors import (
    AndonError,
    ConfigurationError,
    LeaseLostError,
    SessionBusyError,
    StartError,
    StoreError,
    confide,
)
from andon.messages import Message, Usage

T = TypeVar("T")


class RunWorker(Protocol):
    """The worker, as its runs see it. Its parts are looked up each time: a forked child has others."""

    link: StoreLink
    leases: Leases
    writer: Writer
    orphans: Orphans

    def look(self, run_ids: Sequence[str]) -> None:
        """Have the state of these runs read from the store."""
        ...


class LeasedRun:
    """The hold that this process has on a run in a shared store."""

    __slots__ = (
        "_call_answers",
        "_is_fresh",
        "_is_new",
        "_link",
        "_listens",
        "_on_busy",
        "_run",
        "_told",
        "_waiting_children",
        "_worker",
        "cancel_seen",
        "is_away",
        "lease",
        "owner",
        "refusal",
        "state",
        "valid_until",
        "was_claimed",
        "written",
    )

    def __init__(self, worker: RunWorker, run: LocalRun, on_busy: OnBusy) -> None:
        self._worker, self._link = worker, worker.link
        self._run, self._on_busy, self.owner = run, on_busy, worker.link.owner
        self.state = LeaseState.outside
        self.lease: Lease | None = None
        self.valid_until = math.inf
        self.refusal: AndonError | None = None
        self.is_away = False
        self.was_claimed = False
        """The run was paused in another process, or has waited in a queue for one, and was claimed by this one."""
        self._is_new = False  # of these two: it has waited in a queue
        self.cancel_seen = False
        self._waiting_children: Sequence[str] = ()
        """The runs below it that were paused with it, in another process: it does not know them as its children."""
        self._call_answers: CallAnswers | None = None
        self._told = False
        """The store has answered that it knows of the run's cancel. A notification of a cancel is not enough: a
        database may notify before a power failure, and lose the row in it.
        """
        self.written = Written(run.journal.events, run.so_far)
        self._is_fresh = self._listens = False
        """The session was empty before the run. The next event of the journal marks the run as changed."""

    @property
    def run_id(self) -> str:
        return self._run.run_id

    @property
    def is_admitted(self) -> bool:
        return self.state is not LeaseState.outside

    @property
    def is_closing(self) -> bool:
        return self.state.is_closing

    @property
    def may_be_elsewhere(self) -> bool:
        # Going on after a pause, the run is held a moment before it is running.
        return self.state.may_be_elsewhere or self._run.state is RunState.paused

    @property
    def is_settled(self) -> bool:
        return self._run.is_settled

    @property
    def is_held(self) -> bool:
        return self._worker.leases.holds(self)

    def _move(self, to: LeaseState) -> None:
        check_lease_step(self.state, to)
        self.state = to

    # -- the beginning ------------------------------------------------------------------------------------------------

    async def admit(self) -> None:
        run, steps = self._run, self._run.steps
        if self.was_claimed:  # it has kept its place in the session
            steps.gate(CancelMode.after_turn)
            if not self._is_new:
                run.journal.add(RunEvent.run_continued)
            return
        record = make_record(run, RunStatus.pending, Settlement([], "", Usage(), [], []))
        record = msgspec.structs.replace(record, usage=None)  # from here on it may spend some
        enter = functools.partial(self._enter, record)
        if not await steps.start(enter, name="the store", cut_by=CancelMode.after_turn):
            run.phase = Phase.queued
            await steps.start(self._wait_turn, name="queue", cut_by=CancelMode.after_turn)

    async def _enter(self, record: RunRecord) -> bool:
        """Take a place in the session's queue, or be refused. True if no run is ahead."""
        link, leases = self._link, self._worker.leases
        while True:
            missed = leases.missed
            try:
                lease = await link.store.enter(record, link.owner, link.seconds, self._on_busy)
            except SessionBusyError as error:
                holder = self._run.runtime.find(error.run_id)
                if holder is not None:
                    holder.ensure_ending()
                request = None if holder is None else holder.signal.request
                if request is None:
                    self.refusal = error
                    raise
                # That run was cancelled here, or is lost, so the session does not count as busy: tell the store.
                await link.store.request_cancel(Selection(error.run_id), request)
            except AndonError as error:
                self.refusal = error
                raise
            else:
                self._is_fresh = lease.is_fresh
                self.hold(lease, lease.since, link.owner)
                if leases.missed != missed:  # it may have been cancelled before this process knew of it
                    leases.look([record.run_id])
                return lease.has_turn

    async def _wait_turn(self) -> None:
        """Wait until all runs that are ahead in the session have ended."""
        link, lease = self._link, self.lease
        assert lease is not None
        with link.news.watch(self.run_id) as topic:
            while True:
                seen = topic.count
                if await link.retry(lambda: link.store.take_turn(lease)):
                    return
                await topic.changed(seen)
                link.check_open()

    def hold(self, lease: Lease, since: float, owner: str) -> None:
        """From now on this process holds the run, under that name. The lease counts since then."""
        self._move(LeaseState.held)
        self.owner, self.lease = owner, lease
        self.valid_until = self._worker.leases.validity(since)
        self._worker.leases.hold(self)
        self._worker.writer.changed(self)
        self._link.start()
        self._run.wake()

    def begin_claimed(
        self,
        events: Sequence[Event],
        record: RunRecord,
        claimed: Claimed,
        *,
        is_new: bool = False,
        is_fresh: bool = False,
    ) -> None:
        """Go on with a run that was paused in another process; or begin one that has waited in a queue (`is_new`).
        `is_fresh`: its session has no messages yet.
        """
        run, self._is_new, self._is_fresh = self._run, is_new, is_fresh
        run.created_at = record.created_at
        run.children.restore(record)
        self.was_claimed, self.written.events, self._waiting_children = True, len(events), paused_below(record)
        run.journal.events.extend(events)
        try:
            run.enlist()
        except BaseException:
            if not is_new:  # it is refused here, and stays paused
                give_back(self._link, run.run_id, claimed)
            raise
        self.hold(*claimed)
        self._worker.leases.look([run.run_id])  # it may have been cancelled in between
        try:
            run.cord.add(run, 0)
            if is_new and run.work is not None:
                run.work.begin()
            run.go()
        except BaseException:
            run.break_off()
            raise

    async def load(self, session: SessionKey) -> list[Message]:
        said: list[Message] = []
        if self._is_fresh:
            return said
        for record, messages in await self._link.retry(lambda: self._link.store.history(session)):
            if record.run_id == self.run_id:  # what the run has added itself may be there already
                break
            said += messages
        return said

    async def load_session(self, session: SessionKey) -> list[Message]:
        return await self._link.store.load(session)

    async def replace_history(self, session: SessionKey, history: list[Message]) -> None:
        lease = self.lease
        assert lease is not None
        await self._link.retry(lambda: self._link.store.bring(lease, history))

    # -- what it does, seen by the worker's writer --------------------------------------------------------------------

    def changed(self) -> None:
        self._worker.writer.changed(self)

    def listen(self) -> None:
        """Mark the run as changed with the next event of its journal. Register first, then look what came before."""
        journal = self._run.journal
        if not self._listens:
            self._listens, entry = True, (None, CallingLatch(self.on_event))
            journal.waiters.wakes.append(entry)
            if journal.closed:  # it has ended meanwhile, and wakes no one any more
                journal.waiters.forget(entry)
        if len(journal.events) > self.written.events or self.untold_request is not None:
            self.changed()

    def on_event(self) -> None:
        """Called by the journal, once for each `listen`."""
        self._listens = False
        self.changed()

    @property
    def untold_request(self) -> CancelRequest | None:
        request = self._run.signal.request
        return None if request is None or self._told or request.cause is CancelCause.lost else request

    def cancel_was_stored(self) -> None:
        self._told = True

    def progress(self, now: float, *, hurried: bool, relayed: bool) -> Progress | None:
        """What is new since the last round. Called on another thread than the run's."""
        if (lease := self.lease) is None:  # another process goes on with it
            return None
        continues = self._run.continues
        news = self.written.news(now, hurried=hurried, relayed=relayed)
        if self._run.continues != continues:  # the messages of the earlier run have become its own at this very moment
            return self.progress(now, hurried=hurried, relayed=relayed)
        return None if news is None else Progress(lease, news.messages, news.events, continues)

    @property
    def has_waiting_text(self) -> bool:
        return self.lease is not None and self.written.has_waiting_text

    def note(self, progress: Progress, now: float) -> None:
        self.written.note(progress, now)

    async def checkpoint(self) -> None:
        await self._run.steps.start(self._save, name="the store", cut_by=CancelMode.now)

    async def _save(self) -> None:
        await self._worker.writer.flush(self, self.written.check_messages())

    async def commit_events(self) -> bool:
        count = len(self._run.journal.events)
        await self._worker.writer.flush(self, lambda: self.written.events >= count or not self.is_held)
        if self.written.events < count:
            raise LeaseLostError(f"run {self.run_id!r} belongs to another worker now, or has ended")
        return True

    async def may_undo(self) -> bool:
        if self.state is LeaseState.elsewhere:
            return False
        if self.is_held and not self.may_be_elsewhere:
            return True
        # It was cancelled in a pause. The process that takes it over, maybe this one, undoes its calls.
        if (request := self._run.signal.request) is not None and self.may_be_elsewhere:
            await self._request_there(request)
            await self._worker.orphans.end_all()
        return False

    # -- what the store tells, seen by the worker's leases ------------------------------------------------------------

    def check_alive(self) -> None:
        self._run.ensure_ending()

    def cancel_for(self, cause: CancelCause, reason: str) -> CancelOutcome:
        return self._run.cancel_for(cause, reason)

    def request_cancel(self, request: CancelRequest) -> CancelOutcome:
        return self._run.request_cancel(request)

    def on_cancel(self, owner: str, request: CancelRequest) -> None:
        if self.is_closing:  # the store says so when it takes the end
            return
        if owner != self.owner or self.lease is None or self._run.is_settled:
            # Another process may have it by now, or it may be another run of that id: the store knows.
            self._worker.look([self.run_id])
        else:
            self._run.request_cancel(request)

    def on_call_requests(self, requests: Sequence[CallRequest]) -> None:
        with contextlib.suppress(RuntimeError):  # its loop is closed: it ends as lost
            self._run.loop.call_soon_threadsafe(self._answer_calls, requests)

    def _answer_calls(self, requests: Sequence[CallRequest]) -> None:
        if self.lease is None or self.is_closing or self.may_be_elsewhere:  # too late: the end or the pause says that
            return
        if self._call_answers is None:
            self._call_answers = CallAnswers(self._link, self._run)
        self._call_answers.take(requests)

    def on_taken_over(self) -> bool:
        if self.is_closing or self.state is LeaseState.claiming:  # the store's answer to that says it too
            return False
        run = self._run
        was_at_work = not run.is_settled and run.signal.request is None
        if take_pause(run, self):  # answered there: that is no end
            self.lease = None
            self._move(LeaseState.elsewhere)
            run.runtime.part_from(run)  # an answer is for the process that has it
            run.wake()
            portal.submit(functools.partial(run.follow, self._watch_elsewhere))
        else:
            run.cancel_for(CancelCause.lost, "another worker has taken it over")
        return was_at_work

    async def _watch_elsewhere(self) -> EndedElsewhere:
        """Show the run's events here, over every further pause, until it has ended."""
        run, link, last = self._run, self._link, None
        with link.news.watch(run.run_id) as topic:
            while True:
                seen = topic.count
                reader = StoredReader(link, run.run_id, len(run.journal.events))
                while events := await reader.batch():
                    for event in events:
                        if event.event.terminal:
                            last = event
                        else:
                            run.journal.publish(event)
                    run.journal.waiters.wake()
                record = await link.retry(lambda: link.store.find(run.run_id))
                if record is None:
                    assert run.work is not None
                    return EndedElsewhere(make_record(run, RunStatus.cancelled, run.work.progress()), [], last)
                if record.status.final:
                    return EndedElsewhere(record, await self._added(), last)
                await topic.changed(seen)
                link.check_open()

    # -- the pause ----------------------------------------------------------------------------------------------------

    async def pause(self, steps: StepRunner, record: RunRecord, messages: Sequence[Message]) -> Event | None:
        run = self._run
        self._move(LeaseState.pausing)  # first: a cancel looks for this afterwards
        if run.signal.fate is not None:  # there is no question any more
            self._move(LeaseState.held)
            return None
        answer = await self._offer(record, messages)
        if isinstance(answer, CancelRequest):
            self._move(LeaseState.finishing)
            run.request_cancel(answer)
            return None
        if isinstance(answer, RunRecord):
            self._move(LeaseState.elsewhere)  # a cancel of it here is not certain: it may end there in any way
            run.cancel_for(CancelCause.lost, "another worker has taken it over")
            return None
        self._move(LeaseState.paused)
        self._worker.look([run.run_id])  # a cancel was not looked for meanwhile
        return answer

    async def reclaim(self, request_key: RequestKey | None = None) -> bool:
        run, claimed = self._run, None
        self._move(LeaseState.claiming)
        try:
            known, seconds = len(run.journal.events), run.bounds.settle_seconds
            claimed = await claim_paused(self._link, run.run_id, known, seconds, request_key)
            if claimed is None:
                self._move(LeaseState.paused)
                return False
            self.hold(*claimed)
            self._worker.leases.look([run.run_id])  # it may have been cancelled in between
        except BaseException:
            if self.state is not LeaseState.released:  # in a forked child, where this task is dropped
                self._move(LeaseState.unsure)
            if claimed is not None:  # a Ctrl-C came in between: no task would go on with the run
                self._worker.leases.release(self)
                give_back(self._link, run.run_id, claimed)
            raise
        return True

    # -- the end ------------------------------------------------------------------------------------------------------

    async def finish(self, record: RunRecord, messages: list[Message]) -> Event | CancelRequest | EndedElsewhere | None:
        if self.refusal is not None or self.state is LeaseState.released:
            return None
        answer = await self._offer(record, messages)
        if isinstance(answer, CancelRequest):
            return answer
        if isinstance(answer, RunRecord):
            return await self._ended_elsewhere(answer)
        self._worker.leases.release(self)
        return answer

    async def _offer(self, record: RunRecord, messages: Sequence[Message]) -> Event | RunRecord | CancelRequest | None:
        """Ask the store to take the end, or the pause, until it has answered. None if that was given up.

        The event: it is stored, together with it. A request: the run was cancelled before. A record: another process
        has the run, and that is its state.
        """
        run, tries, began = self._run, 0, time.monotonic()
        while True:
            last = end_event(run.journal, record)
            try:
                answer = await self._uncut(functools.partial(self._store_end, record, messages, last))
            except (StartError, ConfigurationError) as error:
                self.refusal = error  # it was cancelled before it was entered, and would have been refused
                return None
            except Exception as error:  # noqa: BLE001 - the boundary to the store
                waited = time.monotonic() - began
                if self._gives_up(error, tries, waited):
                    run.steps.warn("the store could not take the run's end", error=error)
                    return None
                if tries == 0:
                    run.journal.add(RunEvent.store_waiting, error=confide(error))
                if waited > run.bounds.settle_seconds and not self.is_away:
                    self.is_away = True
                    run.wake()
                with contextlib.suppress(StoreError):
                    await self._uncut(functools.partial(self._link.pause_before_retry, tries))
                tries += 1
            else:
                return last if answer is None else answer

    def _gives_up(self, error: Exception, tries: int, waited: float) -> bool:
        """Is it of no use to try again?"""
        if isinstance(error, LeaseLostError):  # the store has nothing of the run any more
            return True
        if not isinstance(error, StoreError):  # the store can be reached, but is broken
            return tries > 5
        return self._link.closed or (self._run.steps.host_has_cancelled and waited > self._run.bounds.settle_seconds)

    async def _uncut(self, make: Callable[[], Awaitable[T]]) -> T:
        """Do what no cancel cuts. If the host ends its loop, it has only so long."""
        steps = self._run.steps
        for _ in range(STRAY_CANCELS):
            seconds = steps.bounds.settle_seconds if steps.host_has_cancelled else None
            try:
                return await steps.start(make, name="the store", cut_by=None, timeout=seconds)
            except StrayCancelError:
                continue
            except CutAloneError:
                raise StoreError(f"the store took longer than {seconds:g} s") from None
        raise StoreError("a call of the store was cancelled again and again, from outside of this package")

    async def _store_end(
        self, record: RunRecord, messages: Sequence[Message], last: Event
    ) -> RunRecord | CancelRequest | None:
        """See `SharedStore.finish`. A run that was cancelled before it was entered, or reclaimed, is that first."""
        link, store = self._link, self._link.store
        if self.state is LeaseState.outside:
            fresh = msgspec.structs.replace(record, status=RunStatus.pending, stop_reason=None, receipt=None)
            lease = await store.enter(fresh, link.owner, link.seconds, "queue")
            self.hold(lease, lease.since, link.owner)
        elif (self.lease is None or self.state.is_unknown) and not await self.reclaim():
            return await store.find(record.run_id)
        assert self.lease is not None
        if record.status.final:
            self._move(LeaseState.finishing_paused if self.state.may_be_elsewhere else LeaseState.finishing)
        # First the children: if this process dies once the end is stored, no other one comes back to the run for them.
        cancel_children = record.status.final and bool(self._waiting_children)
        are_orphans = cancel_children and await self._cancel_children(self.lease)
        if self._call_answers is not None:
            await self._call_answers.store()
        events = [*self.written.rest(), last]
        answer = await store.finish(self.lease, record, messages, events)
        if answer is None and are_orphans:  # they end with it, and not at the next look for orphans
            with contextlib.suppress(StoreError, TimeoutError):  # there may be many others to end
                async with asyncio.timeout(self._run.bounds.settle_seconds):
                    await self._worker.orphans.end_all()
        return answer

    async def _cancel_children(self, lease: Lease) -> bool:
        """Cancel the runs that wait below this one: they will get no answers. True if no worker has one of them.

        Those that this run has gone on with have ended before it. If another worker has this run by now, the children
        belong to it there.
        """
        store, are_orphans = self._link.store, False
        if (await store.renew([lease], None)).lost:
            return False
        for child in self._waiting_children:
            request = CancelRequest.make(CancelCause.parent, f"run {lease.run_id} ended")
            are_orphans |= (await store.request_cancel(Selection(child), request)).has_orphans
        return are_orphans

    async def _ended_elsewhere(self, record: RunRecord) -> EndedElsewhere | CancelRequest | None:
        """Another process has the run: wait until it has ended there."""
        run, link, asked = self._run, self._link, self._run.signal.request
        try:
            if not record.status.final:
                run.runtime.part_from(run)
                self._worker.leases.release(self)
                if asked is not None and asked.cause is not CancelCause.lost:  # what was requested here, counts there
                    await self._uncut(lambda: link.retry(lambda: self._request_there(asked)))
                ended = await self._uncut(lambda: follow(link, run.run_id))
                record = record if ended is None else ended
            left = await self._uncut(self._added)
        except StoreError as error:  # the store was closed
            run.steps.warn("how another worker ends the run is not known", error=error)
            self._move(LeaseState.released)
            return None if asked is not None else CancelRequest.make(CancelCause.lost)
        self._worker.leases.release(self)
        return EndedElsewhere(record, left)

    async def _request_there(self, request: CancelRequest) -> None:
        await self._link.store.request_cancel(Selection(self.run_id), request)

    async def _added(self) -> list[Message]:
        """What the run has left in its session."""
        return await self._link.retry(lambda: self._link.store.added(self.run_id)) or []

    async def save(self, steps: StepRunner, record: RunRecord, messages: Sequence[Message]) -> bool:
        return True  # `finish` has stored it

    def release(self) -> EndedStorage:
        self._worker.leases.release(self)
        was_admitted = self.is_admitted
        self._move(LeaseState.released)
        return EndedStorage(self.refusal, is_admitted=was_admitted)
