# SPDX-License-Identifier: Apache-2.0
"""How a run ends: it is settled, agrees with its storage, is stored, and gives its session to the next run.

Each part is done once. If the task that does it is stopped in between, the portal goes on with what is missing. What
decides how a run ends is its signal, and where several processes share a store, that store.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Protocol

from andon.core.events import TERMINAL_EVENT, Event, RunEvent
from andon.core.journal import Journal
from andon.core.log_text import cut_line
from andon.core.receipt import CancelRequest, Receipt
from andon.core.records import RequestKey, RunRecord
from andon.core.run.storage import EndedElsewhere, RunStorage
from andon.core.run.work import Settlement, Work
from andon.core.session import Place, Session
from andon.core.signal import CancelSignal, Completed, Failed, Fate, stop_reason_of
from andon.core.states import CancelCause, Phase, RunStatus, StopReason
from andon.core.steps import StepRunner
from andon.errors import StoreError, confide, describe
from andon.messages import UNKNOWN_USAGE, Message

log = logging.getLogger(__name__)


class Ending:
    """What is known of a run's end so far. Made at the first cut, or at the end of a run that was not cut.

    The run's own task fills it in. If that task is stopped in between, the portal goes on with what is missing.
    """

    __slots__ = ("conversation", "cut_phase", "is_committed", "last_event", "receipt", "record", "settlement", "status")

    def __init__(self, cut_phase: Phase | None = None) -> None:
        self.cut_phase = cut_phase
        """What the run was doing when it was cancelled."""
        self.settlement: Settlement | None = None
        """What the run leaves, in its final form."""
        self.receipt: Receipt | None = None
        self.record: RunRecord | None = None
        self.last_event: Event | None = None
        """The terminal event, if it is stored already."""
        self.status: RunStatus | None = None
        """How the run has ended, once that is told."""
        self.conversation: list[Message] = []
        """All that was said in the session when the run ended."""
        self.is_committed = False
        """What the run leaves is part of its session, in this process."""


class EndingRun(Protocol):
    """A run, as its end sees it."""

    created_at: float
    request_key: RequestKey | None
    output_schema: dict[str, Any] | None
    phase: Phase
    place: Place | None
    ending: Ending | None
    signal: CancelSignal
    journal: Journal
    steps: StepRunner
    storage: RunStorage
    session: Session
    work: Work | None

    @property
    def run_id(self) -> str: ...

    @property
    def parent_run_id(self) -> str | None: ...

    @property
    def continues(self) -> str | None: ...

    @property
    def given_metadata(self) -> dict[str, Any]: ...


# -- settling ---------------------------------------------------------------------------------------------------------


async def undo_and_settle(run: EndingRun, ending: Ending, fate: Fate) -> None:
    """Undo the calls that were cut, and then settle, which tells what became of them."""
    assert run.work is not None
    await run.work.undo()
    settle_as(run, ending, fate)


def settle_as(run: EndingRun, ending: Ending, fate: Fate) -> None:
    """Bring what was seen of the run so far into its final form."""
    assert run.work is not None
    # A run that failed may be overruled by a cancel, and is settled again: the end of a call is told once.
    told = set() if ending.settlement is None else {call.call_id for call in ending.settlement.cancelled}
    settlement = ending.settlement = run.work.settle(fate)
    if isinstance(fate, CancelRequest):
        ending.receipt = make_receipt(run)
    elif isinstance(fate, Failed) and run.storage.refusal is None:
        why, facts = cut_line(describe(fate.error)), {"facts": run.steps.facts}
        log.error("run %s failed: %s", run.run_id, why, exc_info=fate.error, extra=facts)
    if untold := [call for call in settlement.cancelled if call.call_id not in told]:
        for call in untold:
            run.journal.append(RunEvent.tool_call_cancelled, tool=call)
        run.journal.waiters.wake()


async def agree(run: EndingRun, ending: Ending, fate: Fate) -> RunStatus:
    """Agree with the storage on how the run ends."""
    status = RunStatus.error if isinstance(fate, Failed) else RunStatus.completed
    if isinstance(fate, CancelRequest):
        status = RunStatus.cancelled
    while True:
        assert ending.settlement is not None
        ending.record = make_record(run, status, ending.settlement)
        stored = await run.storage.finish(ending.record, ending.settlement.messages)
        if isinstance(stored, CancelRequest):  # another process has accepted it before the run had ended
            run.signal.overrule(stored)
            run.journal.add(RunEvent.cancel_requested, reason=stored.reason)
            settle_as(run, ending, stored)
            status = RunStatus.cancelled
        elif isinstance(stored, EndedElsewhere):
            adopt_end(run, ending, stored)
            return stored.record.status
        else:
            ending.last_event = stored
            return status


def adopt_end(run: EndingRun, ending: Ending, end: EndedElsewhere) -> None:
    """Another process has ended the run: its end is this run's."""
    record = end.record
    tools = [] if record.receipt is None else record.receipt.tools
    run.signal.overrule(_fate_of(record))
    ending.receipt, ending.last_event = record.receipt, end.last_event
    ending.settlement = Settlement(
        end.messages, record.content, record.usage or UNKNOWN_USAGE, tools, [], output_data=record.output
    )
    ending.record = make_record(run, record.status, ending.settlement)


# -- leaving the session ----------------------------------------------------------------------------------------------


async def put_away(run: EndingRun, ending: Ending) -> None:
    """Store what the run leaves, and give the session to the next run."""
    place = run.place
    if place is None:  # done before, by a task that was stopped right after it
        return
    assert ending.settlement is not None
    if run.storage.refusal is not None:  # it leaves nothing
        await pass_on(run)
    elif run.session.defer_write(place, functools.partial(write, run)):  # still queued: the run ahead writes it
        ending.conversation, run.place = ending.settlement.messages, None
    else:
        await write(run, run.steps)
        ending.conversation = run.session.base
        await pass_on(run)


async def pass_on(run: EndingRun) -> None:
    """Give the session to the next run. What cancelled runs in between have left is written first.

    Should this task be stopped here, the portal goes on with the place that was reached.
    """
    while (place := run.place) is not None:
        if place.pending_write is not None:
            await place.pending_write(run.steps)
        following = run.session.leave(place)
        run.place = following if following is not None and following.pending_write is not None else None


async def write(run: EndingRun, steps: StepRunner) -> None:
    """Add what the run leaves to its session, here and in the store. `steps` are those of the run that does it."""
    ending, session = run.ending, run.session
    assert ending is not None
    assert ending.record is not None
    assert ending.settlement is not None
    own = ending.settlement.messages
    if not ending.is_committed:
        ending.is_committed = True
        session.commit(own)
    if not await run.storage.save(steps, ending.record, own):
        session.ahead = True
    if not session.loaded:  # it ended before it had read the conversation
        load = functools.partial(run.storage.load_session, session.key)
        base = await steps.bounded(load, "the store", steps.bounds.settle_seconds)
        if base is not None:
            if own and base[-len(own) :] != own:  # behind runs that have not ended, it is no part of it yet
                session.show(own)
            else:
                session.begin_turn(base, [])


# -- what is written of it --------------------------------------------------------------------------------------------


def make_record(run: EndingRun, status: RunStatus, left: Settlement) -> RunRecord:
    fate = run.signal.fate
    return RunRecord(
        run.run_id,
        run.session.key,
        status,
        run.created_at,
        run.given_metadata,
        _stop_reason(status, fate),
        left.content,
        left.usage,
        None if run.ending is None else run.ending.receipt,
        confide(fate.error) if isinstance(fate, Failed) else None,
        left.interrupts,
        run.continues,
        run.parent_run_id,
        left.cut_calls,
        left.bookmark,
        left.output_data,
        left.shortened,
        run.request_key,
        run.output_schema,
        left.finish_reason,
    )


def make_receipt(run: EndingRun) -> Receipt:
    """The receipt of the run's cancel, as things stand now."""
    request, ending = run.signal.request, run.ending
    assert request is not None
    seen = None if ending is None else ending.settlement
    work = run.work
    if seen is None and work is not None and run.steps.runs_here():
        seen = work.settle(request)
    tools, usage = ([], UNKNOWN_USAGE) if seen is None else (seen.tools, seen.usage)
    phase = run.phase if ending is None else ending.cut_phase or run.phase
    return Receipt.of(request, run.signal.mode or request.mode, phase, tools, usage, run.steps.leftovers)


def end_event(journal: Journal, record: RunRecord) -> Event:
    """The event that ends a run, or pauses it, as its record says."""
    if record.status is RunStatus.paused:
        return journal.draft(RunEvent.run_paused, interrupts=record.interrupts)
    return journal.draft(
        TERMINAL_EVENT[record.status],
        record.content,
        status=record.status,
        usage=record.usage,
        receipt=record.receipt,
        reason=record.receipt.reason if record.receipt else None,
        error=record.error,
        output=record.output,
        finish_reason=record.finish_reason,
    )


def _stop_reason(status: RunStatus, fate: Fate | None) -> StopReason | None:
    if status is RunStatus.paused:
        return StopReason.interrupt
    return stop_reason_of(fate) if status.final else None


def _fate_of(record: RunRecord) -> Fate:
    """How a run has ended that another process has ended."""
    if (receipt := record.receipt) is not None:
        return CancelRequest(receipt.cause, receipt.reason, receipt.by, receipt.mode, None, receipt.requested_at)
    if record.status is RunStatus.completed:
        return Completed(record.stop_reason or StopReason.end_turn)
    if record.status is RunStatus.error:
        return Failed(StoreError(record.error or "it failed elsewhere"))
    return CancelRequest.make(CancelCause.lost)
