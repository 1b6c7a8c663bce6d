# SPDX-License-Identifier: Apache-2.0
"""One run's place in a shared store, for as long as this process holds it.

What the run does is written by the keeper, in batches, beside the run; the run itself waits for the store at its
beginning, before its tools start, where it pauses, and at its end. The store has the last word on how a run ends: a
cancel that it has accepted makes every other end a cancel, and an end that someone else has written is the run's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from andon.core.events import Event, RunEvent
from andon.core.receipt import CancelRequest
from andon.core.selection import Selection
from andon.core.shared.claim import give_back, take_paused_for
from andon.core.shared.remote import follow
from andon.core.shared.store import Lease, Progress
from andon.core.states import CancelCause, RunStatus
from andon.errors import AndonError, SessionBusyError, StoreError

if TYPE_CHECKING:
    from andon.core.records import RequestKey, RunRecord
    from andon.core.run.run import Run
    from andon.core.session import OnBusy
    from andon.core.shared.worker import Keeper
    from andon.messages import Message

EVENTS_AT_ONCE = 5_000
"""How many events of a run one transaction takes."""

TEXT_SECONDS = 0.15
"""How often text that only goes on is written."""

_TEXT = frozenset({RunEvent.run_content, RunEvent.reasoning})


class Tenure:
    """The hold that this process has on a run."""

    __slots__ = (
        "_is_fresh",
        "_keeper",
        "_listens",
        "_noted",
        "_run",
        "_scanned",
        "_text_due",
        "closing",
        "has_turn",
        "has_waiting_text",
        "lease",
        "noticed",
        "owner",
        "pausing",
        "refusal",
        "restoring",
        "taking",
        "told",
        "unsure",
        "valid_until",
        "waiting",
        "written",
    )

    def __init__(self, keeper: Keeper, run: Run) -> None:
        self._keeper, self._run, self.owner = keeper, run, keeper.owner
        self.lease: Lease | None = None
        self.valid_until = math.inf
        """When this process must stop the run unless the lease was renewed, as `time.monotonic()` counts."""
        self.refusal: AndonError | None = None
        """What kept the run from starting; then nothing of it is recorded."""
        self.written = 0
        """How many of its events the store is known to have."""
        self.closing = False
        """The store is being asked to take the run's end, or its pause."""
        self.pausing = False
        """The store is being asked to take the run's pause, or has: from then on it may be answered elsewhere."""
        self.told = False
        """The store has answered that it knows of the run's cancel. What was only heard of there is told again if the
        run takes its time: a database may let others see what it loses then, with its power say.
        """
        self.noticed = False
        """The keeper has seen that the run was cancelled, in a round of its writing."""
        self.restoring = False
        """It was paused, and not here: it was not entered, but taken up."""
        self.waiting: Sequence[str] = ()
        """The runs below it that were paused with it, and not here: it does not know them as its children."""
        self.has_turn = False
        """When it was entered, nobody was ahead in the line."""
        self.taking = self.unsure = False
        """The store is being asked to give the run back after a pause; it was, and what it did is not known."""
        self.has_waiting_text = False
        """There is text that is written a little later."""
        self._noted: tuple[int, int] | None = None
        self._scanned, self._text_due = 0, 0.0
        """So many events are known to be text, or written; and when text is written the next time."""
        self._is_fresh = self._listens = False
        """Nothing was said in the session before; the next event of the journal stirs the run."""

    @property
    def run(self) -> Run:
        return self._run

    @property
    def keeper(self) -> Keeper:
        return self._keeper

    # -- the beginning ------------------------------------------------------------------------------------------------

    async def enter(self, record: RunRecord, on_busy: OnBusy) -> None:
        """Take a place in the session's line, or be refused."""
        if self.restoring:
            return
        try:
            await self._enter(record, on_busy)
        except AndonError as error:
            self.refusal = error
            raise

    async def _enter(self, record: RunRecord, on_busy: OnBusy) -> None:
        leases = self._keeper.leases
        while True:
            missed = leases.missed
            try:
                lease = await self._keeper.store.enter(record, self._keeper.owner, self._keeper.seconds, on_busy)
            except SessionBusyError as error:
                holder = self._run.runtime.run(error.run_id)
                if holder is not None:
                    holder.ensure_ending()
                request = None if holder is None else holder.signal.request
                if request is None:
                    raise
                # It was cancelled here, or lost, and does not count as busy: the store must know.
                await self._keeper.store.request_cancel(Selection(error.run_id), request)
            else:
                self.has_turn, self._is_fresh = lease.has_turn, lease.is_fresh
                self.hold(lease, lease.since, self._keeper.owner)
                if leases.missed != missed:  # it may have been asked to stop, and nobody here knew of it yet
                    leases.look([record.run_id])
                return

    async def turn(self) -> None:
        """Wait until all that are ahead in the line have ended."""
        keeper, lease = self._keeper, self.lease
        assert lease is not None
        with keeper.news.watch(self._run.run_id) as topic:
            while True:
                seen = topic.count
                if await keeper.ask(lambda: keeper.store.take_turn(lease)):
                    return
                await topic.changed(seen)
                keeper.check_open()

    async def base(self) -> list[Message]:
        """The conversation before this run: what it has added itself may be there already."""
        said: list[Message] = []
        if self._is_fresh:
            return said
        for record, messages in await self._keeper.ask(lambda: self._keeper.store.history(self._run.session.key)):
            if record.run_id == self._run.run_id:
                break
            said += messages
        return said

    async def bring(self, history: list[Message]) -> None:
        """Put this in place of what was said before this run."""
        lease = self.lease
        assert lease is not None
        await self._keeper.ask(lambda: self._keeper.store.bring(lease, history))

    def hold(self, lease: Lease, since: float, owner: str) -> None:
        """From now on the run is this process's own, under that name; its lease counts since then."""
        self.owner, self.lease, self.closing, self.pausing = owner, lease, False, False
        self.valid_until = self._keeper.leases.validity(since)
        self._keeper.hold(self)

    # -- what it does -------------------------------------------------------------------------------------------------

    def stir(self) -> None:
        """The run has something new, or was asked to stop. Safe from any thread."""
        self._keeper.writer.stir(self)

    def listen(self) -> None:
        """Have the next event of the journal stir the run. First that is said, and then looked what came before."""
        if not self._listens:
            self._listens, entry = True, (None, _Stirring(self))
            self._run.journal.waiters.wakes.append(entry)
            if self._run.journal.closed:  # it has ended meanwhile, and wakes nobody any more
                self._run.journal.waiters.forget(entry)
        if len(self._run.journal.events) > self.written or self.untold_request is not None:
            self.stir()

    def heard(self) -> None:
        """Called by the journal, once for each time that someone listens."""
        self._listens = False
        self.stir()

    @property
    def untold_request(self) -> CancelRequest | None:
        """The cancel of the run, if the store is to know of it and does not. To be lost is our own affair."""
        request = self._run.signal.request
        return None if request is None or self.told or request.cause is CancelCause.lost else request

    def progress(self, now: float, *, hurried: bool) -> Progress | None:
        """What is new since the last time, if anything is. Called by the keeper, on another thread than the run's.

        Text that only goes on may wait a little, unless somebody waits for it to be written (`hurried`).
        """
        self.has_waiting_text = False
        if (lease := self.lease) is None:  # someone else goes on with it
            return None
        events = self._run.journal.events[self.written : self.written + EVENTS_AT_ONCE]
        if now < self._text_due and not hurried and self._is_text(events):
            self.has_waiting_text = True
            return None
        messages = self._run.so_far()
        noted = _size(messages)
        if not events and noted == self._noted:
            return None
        return Progress(lease, None if noted == self._noted else messages, events, self._run.goes_on_with)

    def _is_text(self, events: Sequence[Event]) -> bool:
        """Is all of it text, and not very much?"""
        start = max(0, self._scanned - self.written)
        if len(events) == EVENTS_AT_ONCE or not events:
            return False
        if any(event.event not in _TEXT for event in events[start:]):
            return False
        self._scanned = self.written + len(events)
        return True

    def note(self, progress: Progress, now: float) -> None:
        """That much is written."""
        self.written = max(self.written, progress.events[-1].seq if progress.events else 0)
        self._text_due = now + TEXT_SECONDS
        if progress.messages is not None:
            self._noted = _size(progress.messages)

    def hear(self, owner: str, request: CancelRequest) -> None:
        """The store has told of a cancel itself."""
        if self.closing:  # the store says so when it takes the end
            return
        if owner != self.owner or self.lease is None or self._run.at_rest:
            # It may be someone else's by now, or be another run of that id: the store knows.
            self._keeper.look([self._run.run_id])
        else:
            self._run.ask(request)

    async def save(self) -> None:
        """Wait until what the run has done so far is written."""
        size = _size(self._run.so_far())
        await self._keeper.writer.flushed(self, lambda: self._noted is not None and self._noted >= size)

    async def take_up(self, request_key: RequestKey | None = None) -> bool:
        """Hold the run again after a pause. False if someone else does, or has, or it was asked to stop."""
        self.taking = self.unsure = True
        try:
            known, seconds = len(self._run.journal.events), self._run.bounds.settle_seconds
            taken = await take_paused_for(self._keeper, self._run.run_id, known, seconds, request_key)
            try:
                if taken is not None:
                    self.hold(*taken)
                    self._keeper.leases.look([self._run.run_id])  # it may have been asked to stop in between
            except BaseException:  # a Ctrl-C, say: nobody would go on with it
                if taken is not None:
                    self.release()
                    give_back(self._keeper, self._run.run_id, taken)
                raise
            self.unsure = False
        finally:
            self.taking = False
        return taken is not None

    # -- the end ------------------------------------------------------------------------------------------------------

    async def finish(self, record: RunRecord, messages: list[Message], last: Event) -> RunRecord | CancelRequest | None:
        """See `SharedStore.finish`. A run that was cancelled before it was entered, or taken up, is that first."""
        store = self._keeper.store
        if self.lease is None or self.unsure:
            if not self.restoring and self.lease is None:
                fresh = msgspec.structs.replace(record, status=RunStatus.pending, stop_reason=None, receipt=None)
                lease = await store.enter(fresh, self._keeper.owner, self._keeper.seconds, "queue")
                self.hold(lease, lease.since, self._keeper.owner)
            elif not await self.take_up():
                return await store.find(record.run_id)
        assert self.lease is not None
        self.closing = True
        # First the children: if this process dies once the end is stored, nobody comes back to the run for them.
        are_nobodys = record.status.final and bool(self.waiting) and await self._cancel_children(self.lease)
        answer = await store.finish(self.lease, record, messages, [*self._run.journal.events[self.written :], last])
        if answer is None and are_nobodys:  # they end with it, and not when some keeper comes by
            with contextlib.suppress(StoreError, TimeoutError):  # there may be many others to end
                async with asyncio.timeout(self._run.bounds.settle_seconds):
                    await self._keeper.end_orphans()
        return answer

    async def _cancel_children(self, lease: Lease) -> bool:
        """Cancel the runs that wait below this one: nobody will answer them. True if no worker has one of them.

        Those that this run has gone on with have ended before it. If another worker has this run by now, the children
        are that one's.
        """
        store, are_nobodys = self._keeper.store, False
        if (await store.renew([lease], None)).lost:
            return False
        for child in self.waiting:
            request = CancelRequest.make(CancelCause.parent, f"run {lease.run_id} ended")
            are_nobodys |= (await store.request_cancel(Selection(child), request)).nobodys
        return are_nobodys

    async def follow(self, record: RunRecord, request: CancelRequest | None) -> RunRecord:
        """Wait until whoever has the run now has ended it. What was asked of it here is asked there."""
        self.release()
        if request is not None:
            await self._keeper.ask(lambda: self._keeper.store.request_cancel(Selection(record.run_id), request))
        return await follow(self._keeper, record.run_id) or record

    def let_go(self) -> None:
        """Someone else goes on with the run: only cancels of it still go through here."""
        self.lease, self.closing = None, False

    async def left(self) -> list[Message]:
        """What whoever has ended the run has left of it in its session."""
        return await self._keeper.ask(lambda: self._keeper.store.added(self._run.run_id)) or []

    def rest(self) -> None:
        """The run is paused: its lease is given up, but it is still known here."""
        self.closing = False
        self._keeper.look([self._run.run_id])  # meanwhile nobody has looked whether it was asked to stop

    def release(self) -> None:
        self._keeper.leases.release(self)


class _Stirring:
    """What the journal wakes, in place of a thread's lock."""

    __slots__ = ("_tenure",)

    def __init__(self, tenure: Tenure) -> None:
        self._tenure = tenure

    def release(self) -> None:
        self._tenure.heard()


def _size(messages: list[Message]) -> tuple[int, int]:
    """Messages are only ever added, and results to the last one: so their number tells whether there are new ones."""
    return len(messages), len(messages[-1].content) if messages else 0
