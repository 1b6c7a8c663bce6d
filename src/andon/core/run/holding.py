# SPDX-License-Identifier: Apache-2.0
"""What a run on a shared store does more than another one: it is entered there, and agrees with it on its end.

Nobody is told an end that is not stored. If the store can't be reached, readers are told that, and it is tried again,
for as long as it takes; only where the run's own loop is being ended is that given up, and then the store says `lost`.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from andon.core.events import TERMINAL_EVENT, Event, RunEvent
from andon.core.receipt import CancelRequest
from andon.core.run.children import Kin
from andon.core.run.work import Settlement
from andon.core.signal import Completed, Failed, Fate
from andon.core.states import CancelCause, CancelMode, Phase, RunStatus, StopReason
from andon.core.steps import STRAY_CANCELS, CutAloneError, StrayCancelError
from andon.errors import ConfigurationError, LeaseLostError, StartError, StoreError, confide
from andon.messages import UNKNOWN_USAGE, Usage

if TYPE_CHECKING:
    from andon.core.journal import Journal
    from andon.core.records import RunRecord
    from andon.core.session import OnBusy
    from andon.core.shared.leased_run import Tenure
    from andon.messages import Message

T = TypeVar("T")


class Holding(Kin):
    """A run's dealings with a shared store. Without one, `tenure` is None, and there are none."""

    __slots__ = ("_last", "_on_busy", "journal", "store_is_away", "tenure")

    journal: Journal
    tenure: Tenure | None
    _on_busy: OnBusy
    _last: Event | None
    store_is_away: bool
    """The run's end waits for the store, and has waited for long."""

    def so_far(self) -> list[Message]:
        """What the run has added to its session, with the results of those of its calls that have one."""
        raise NotImplementedError

    @property
    def was_refused(self) -> bool:
        """The store has not taken the run in: it never was, and nothing of it is recorded."""
        return self.tenure is not None and self.tenure.refusal is not None

    def wake_waiters(self) -> None:
        self._waiters.wake()

    async def _take_in(self, tenure: Tenure) -> None:
        """Be entered, and wait for the turn."""
        record = self._make_record(RunStatus.pending, Settlement([], "", Usage(), [], []))
        record = msgspec.structs.replace(record, usage=None)  # from here on it may spend some
        await self.step(lambda: tenure.enter(record, self._on_busy), name="the store", cut_by=CancelMode.after_turn)
        if not (tenure.restoring or tenure.has_turn):  # a run that was paused has kept its place
            self.phase = Phase.queued
            await self.step(tenure.turn, name="queue", cut_by=CancelMode.after_turn)

    async def saved(self) -> None:
        """Wait until what was done so far is stored: before anything is done that can't be taken back."""
        if self.tenure is not None:
            await self.step(self.tenure.save, name="the store", cut_by=CancelMode.now)

    async def _put_away(self, status: RunStatus) -> None:
        if self.was_refused:  # it leaves nothing
            self._record = self._make_record(status, self.settlement)
            await self._pass_on()
        else:
            await super()._put_away(status)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _agree(self, status: RunStatus) -> RunStatus:
        """Have the store take the run's end, or take the end that the store has."""
        tenure = self.tenure
        if tenure is None or self.was_refused:
            return status
        while True:
            assert self._settlement is not None
            answer = await self._offer(tenure, self._make_record(status, self._settlement), self._settlement.messages)
            if answer is None:
                tenure.release()
                return status
            if isinstance(answer, CancelRequest):
                self._overrule(answer)
                status = RunStatus.cancelled
            else:
                return await self._adopt(tenure, answer)

    async def _offer(
        self, tenure: Tenure, record: RunRecord, messages: list[Message]
    ) -> RunRecord | CancelRequest | None:
        """Ask the store to take the record, until it has answered."""
        tries, began, self._last = 0, time.monotonic(), None
        while True:
            last = self._last_event(record)
            try:
                answer = await self._unstoppable(functools.partial(tenure.finish, record, messages, last))
            except (StartError, ConfigurationError) as error:
                tenure.refusal = error  # it was cancelled before it was entered, and would have been refused
                return None
            except Exception as error:  # noqa: BLE001 - the boundary to the store
                waited = time.monotonic() - began
                if self._gives_up(tenure, error, tries, waited):
                    self.warn("the store could not take the run's end", error=error)
                    return None
                if tries == 0:
                    self.journal.add(RunEvent.store_waiting, error=confide(error))
                if waited > self.bounds.settle_seconds and not self.store_is_away:
                    self.store_is_away = True
                    self._waiters.wake()
                with contextlib.suppress(StoreError):
                    await self._unstoppable(functools.partial(tenure.keeper.pause_before_retry, tries))
                tries += 1
            else:
                if answer is None:
                    self._last = last
                return answer

    def _gives_up(self, tenure: Tenure, error: Exception, tries: int, waited: float) -> bool:
        """Is there no use in trying again, or nobody left to do it?"""
        if isinstance(error, LeaseLostError):  # the store has nothing of the run any more
            return True
        if not isinstance(error, StoreError):  # not that it could not be asked: it is broken
            return tries > 5
        return tenure.keeper.closed or (self.host_has_cancelled and waited > self.bounds.settle_seconds)

    async def _unstoppable(self, make: Callable[[], Awaitable[T]]) -> T:
        """Do what no cancel cuts. A host that ends its loop can't stop it either, but then it has only so long."""
        for _ in range(STRAY_CANCELS):
            seconds = self.bounds.settle_seconds if self.host_has_cancelled else None
            try:
                return await self.step(make, name="the store", cut_by=None, timeout=seconds)
            except StrayCancelError:
                continue
            except CutAloneError:
                raise StoreError(f"the store took longer than {seconds:g} s") from None
        raise StoreError("what the store was asked was cancelled again and again, though nobody of ours did that")

    def _last_event(self, record: RunRecord) -> Event:
        if record.status is RunStatus.paused:
            return self.journal.draft(RunEvent.run_paused, interrupts=record.interrupts)
        return self.journal.draft(
            TERMINAL_EVENT[record.status],
            record.content,
            status=record.status,
            usage=record.usage,
            receipt=record.receipt,
            reason=record.receipt.reason if record.receipt else None,
            error=record.error,
            output=record.output,
        )

    def _overrule(self, request: CancelRequest) -> None:
        """A cancel was accepted elsewhere before the run had ended: then that is how it ends."""
        self.signal.overrule(request)
        self.journal.add(RunEvent.cancel_requested, reason=request.reason)
        self._settle_as(request)

    def _settle_as(self, fate: Fate) -> None:
        """Bring what was seen so far into its final form."""
        raise NotImplementedError

    async def _adopt(self, tenure: Tenure, record: RunRecord) -> RunStatus:
        """Someone else has the run: its end is theirs."""
        asked = self.signal.request
        try:
            if not record.status.final:
                self.runtime.part_from(self)  # type: ignore[arg-type]
                request = None if asked is None or asked.cause is CancelCause.lost else asked
                record = await self._unstoppable(lambda: tenure.follow(record, request))
            left = await self._unstoppable(tenure.left)
        except StoreError as error:  # nobody is left to wait for it
            self.warn("how another worker ends the run is not known", error=error)
            if asked is None:
                self._overrule(CancelRequest.make(CancelCause.lost))
            return RunStatus.cancelled
        self._take_over(record, left)
        tenure.release()
        return record.status

    def _take_over(self, record: RunRecord, left: list[Message]) -> None:
        """Have ended as the store says, and left what is there."""
        tools = [] if record.receipt is None else record.receipt.tools
        self.signal.overrule(_fate_of(record))
        self._receipt = record.receipt
        self._settlement = Settlement(
            left, record.content, record.usage or UNKNOWN_USAGE, tools, [], output_data=record.output
        )


def _fate_of(record: RunRecord) -> Fate:
    if (receipt := record.receipt) is not None:
        return CancelRequest(receipt.cause, receipt.reason, receipt.by, receipt.mode, None, receipt.requested_at)
    if record.status is RunStatus.completed:
        return Completed(record.stop_reason or StopReason.end_turn)
    if record.status is RunStatus.error:
        return Failed(StoreError(record.error or "it failed elsewhere"))
    return CancelRequest.make(CancelCause.lost)
