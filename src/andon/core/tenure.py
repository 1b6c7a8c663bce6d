# SPDX-License-Identifier: Apache-2.0
"""One run's place in a shared store, for as long as this process holds it.

What the run does is written by the keeper, in batches, beside the run; the run itself waits for the store at its
beginning, before its tools start, where it pauses, and at its end. The store has the last word on how a run ends: a
cancel that it has accepted makes every other end a cancel, and an end that someone else has written is the run's own.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import msgspec

from andon.core.family import orphaned_by
from andon.core.following import follow
from andon.core.receipt import CancelRequest
from andon.core.selection import Selection
from andon.core.shared import Lease, Progress
from andon.core.states import RunStatus
from andon.core.taking import give_back, take_paused_for
from andon.errors import AndonError, SessionBusyError

if TYPE_CHECKING:
    from andon.core.events import Event
    from andon.core.keeper import Keeper
    from andon.core.run import Run
    from andon.core.session import OnBusy
    from andon.core.store import RunRecord
    from andon.messages import Message

EVENTS_AT_ONCE = 5_000
"""How many events of a run one transaction takes."""


class Tenure:
    """The hold that this process has on a run."""

    __slots__ = (
        "_keeper",
        "_noted",
        "_run",
        "closing",
        "lease",
        "noticed",
        "owner",
        "refusal",
        "restoring",
        "taking",
        "told",
        "unsure",
        "valid_until",
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
        self.told = False
        """The store has answered that it knows of the run's cancel. What was only heard of there is told again if the
        run takes its time: a database may let others see what it loses then, with its power say.
        """
        self.noticed = False
        """The keeper has seen that the run was cancelled, in a round of its writing."""
        self.restoring = False
        """It was paused, and not here: it was not entered, but taken up."""
        self.taking = self.unsure = False
        """The store is being asked to give the run back after a pause; it was, and what it did is not known."""
        self._noted: tuple[int, int] | None = None

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
        while True:
            began = time.monotonic()
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
                self.hold(lease, began, self._keeper.owner)
                return

    async def take_turn(self) -> bool:
        """Look whether nobody is ahead in the line. A run that was paused has kept its place."""
        lease = self.lease
        assert lease is not None
        return self.restoring or await self._keeper.ask(lambda: self._keeper.store.take_turn(lease))

    async def turn(self) -> None:
        """Wait until all that are ahead in the line have ended."""
        while True:
            seen = self._keeper.changes
            if await self.take_turn():
                return
            await self._keeper.changed(seen)

    async def base(self) -> list[Message]:
        """The conversation before this run: what it has added itself may be there already."""
        said: list[Message] = []
        for record, messages in await self._keeper.ask(lambda: self._keeper.store.history(self._run.session.key)):
            if record.run_id == self._run.run_id:
                break
            said += messages
        return said

    def hold(self, lease: Lease, began: float, owner: str) -> None:
        """From now on the run is this process's own, under that name: it was given the lease when it asked, `began`."""
        self.owner, self.lease, self.valid_until, self.closing = owner, lease, self._keeper.validity(began), False
        self._keeper.hold(self)

    # -- what it does -------------------------------------------------------------------------------------------------

    def progress(self) -> Progress | None:
        """What is new since the last time, if anything is. Called by the keeper, on another thread than the run's."""
        if (lease := self.lease) is None:  # someone else goes on with it
            return None
        events = self._run.journal.events[self.written : self.written + EVENTS_AT_ONCE]
        messages = self._run.so_far()
        noted = _size(messages)
        if not events and noted == self._noted:
            return None
        return Progress(lease, None if noted == self._noted else messages, events, self._run.goes_on_with)

    def note(self, progress: Progress) -> None:
        """That much is written."""
        self.written = max(self.written, progress.events[-1].seq if progress.events else 0)
        if progress.messages is not None:
            self._noted = _size(progress.messages)

    def hear(self, owner: str, request: CancelRequest) -> None:
        """The store has told of a cancel itself."""
        if self.closing:  # the store says so when it takes the end
            return
        if owner != self.owner or self.lease is None or self._run.at_rest:
            # It may be someone else's by now, or be another run of that id: the store knows.
            self._keeper.wake()
        else:
            self._run.ask(request)

    async def save(self) -> None:
        """Wait until what the run has done so far is written."""
        size = _size(self._run.so_far())
        await self._keeper.flushed(lambda: self._noted is not None and self._noted >= size)

    async def take_up(self) -> bool:
        """Hold the run again after a pause. False if someone else does, or has, or it was asked to stop."""
        self.taking = self.unsure = True
        try:
            known, seconds = len(self._run.journal.events), self._run.bounds.settle_seconds
            taken = await take_paused_for(self._keeper, self._run.run_id, known, seconds)
            try:
                if taken is not None:
                    self.hold(*taken)
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
                began = time.monotonic()
                fresh = msgspec.structs.replace(record, status=RunStatus.pending, stop_reason=None, receipt=None)
                lease = await store.enter(fresh, self._keeper.owner, self._keeper.seconds, "queue")
                self.hold(lease, began, self._keeper.owner)
            elif not await self.take_up():
                return await store.find(record.run_id)
        assert self.lease is not None
        self.closing = True
        answer = await store.finish(self.lease, record, messages, [*self._run.journal.events[self.written :], last])
        if answer is None and self.restoring and record.status is RunStatus.cancelled:
            await self._cancel_children(record)
        return answer

    async def _cancel_children(self, record: RunRecord) -> None:
        """Those that were paused with it elsewhere are not known here, and nobody will go on with them."""
        for which, request in orphaned_by(record):
            await self._keeper.store.request_cancel(which, request)

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
        self._keeper.wake()  # meanwhile nobody has looked whether it was asked to stop

    def release(self) -> None:
        self._keeper.release(self)


def _size(messages: list[Message]) -> tuple[int, int]:
    """Messages are only ever added, and results to the last one: so their number tells whether there are new ones."""
    return len(messages), len(messages[-1].content) if messages else 0
