# SPDX-License-Identifier: Apache-2.0
"""Ends a run whose worker process is gone, from what the store has of it.

The last turn is lost with the worker. Whether the calls without a result had started is not known, so each of them
counts as cut, with an unknown outcome. If its tool has an undo function, and an agent of this process has that tool, a
call that had started is undone (`orphan_undo.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from andon.agent.call_record import ASKING, CUT, NOT_APPROVED, NOT_UNDONE, UNDONE_BY_TOOL
from andon.agent.continuation import outcome_of
from andon.agent.orphan_undo import KnownAgent, LeaseIsLost, undo_orphan
from andon.agent.settle import settle
from andon.core.events import TERMINAL_EVENT, Event, RunEvent, ToolView
from andon.core.receipt import CancelRequest, Receipt, ToolReceipt
from andon.core.records import RunRecord
from andon.core.run.children import orphaned_by
from andon.core.shared.remote import read_all
from andon.core.shared.store import SharedStore, Taken
from andon.core.states import CancelMode, Phase, RunStatus, StopReason, ToolOutcome
from andon.messages import UNKNOWN_USAGE, Message, ToolCall, ToolResult

_ENDS = frozenset({RunEvent.tool_call_completed, RunEvent.tool_call_error, RunEvent.tool_call_cancelled})
_PHASES = {RunStatus.pending: Phase.pending, RunStatus.paused: Phase.paused}


_NOTHING: Mapping[str, str | None] = {}


async def end_orphan(
    store: SharedStore, taken: Taken, request: CancelRequest, agents: Mapping[str, KnownAgent] | None = None
) -> None:
    """End the run as cancelled, and its child runs. If another process has ended it first, that end stays.

    `agents` are those of this process, by id: their tools may have undo functions.
    """
    _, calls, known = _last_calls(taken)
    agent = None if agents is None else agents.get(taken.record.session.agent_id)
    cut = [call for call in calls if call.id not in known]
    try:
        taken, undone = await undo_orphan(store, taken, cut, _started(taken.record), agent)
    except LeaseIsLost:
        return
    told: dict[str, ToolOutcome] = {}
    if any(result.status == "error" for message in taken.messages for result in message.tool_results):
        # Only the events say whether a call failed, was refused, or was cancelled alone.
        told = outcomes_in(taken.record.run_id, await read_all(store, taken.record.run_id))
    record, messages, events = settle_orphan(taken, request, told, undone)
    for which, why in orphaned_by(record):  # first: after its end no process looks at the run again
        await store.request_cancel(which, why)
    if record.cut_calls:  # a call that was cancelled alone is not made again by a run that continues this one
        alone = await store.cancelled_calls(record.run_id)
        kept = [each for each in record.cut_calls if each.call_id not in alone]
        record = msgspec.structs.replace(record, cut_calls=kept)
    await store.finish(taken.lease, record, messages, events)


def settle_orphan(
    taken: Taken,
    request: CancelRequest,
    told: Mapping[str, ToolOutcome] | None = None,
    undone: Mapping[str, str | None] = _NOTHING,
) -> tuple[RunRecord, list[Message], list[Event]]:
    """Its final record, messages and last events. `told` has the known outcomes of calls that ended, `undone` those
    that were to be undone, and why one could not be.
    """
    record = taken.record
    outcomes = {result.call_id: outcome_of(result) for message in taken.messages for result in message.tool_results}
    outcomes |= told or {}
    messages, calls, known = _last_calls(taken)
    # A run that was resumed has the questions of its last pause here, which were answered.
    interrupts = record.interrupts if record.status is RunStatus.paused else []
    asking = {interrupt.call_id for interrupt in interrupts}
    asks_first = {interrupt.call_id for interrupt in interrupts if interrupt.approval} - _started(record)
    cut = {call.id: _outcome(call.id, asks_first, undone) for call in calls if call.id not in known}
    results = [known.get(call.id) or _result(call, asking, asks_first, undone) for call in calls]
    content = record.content or "".join(message.text for message in messages if message.role == "assistant")
    messages = settle(messages, (), results, request) if messages else []
    if record.continues is None:  # else earlier calls may be those of the run that it continues
        calls = [call for message in messages for call in message.tool_calls]
    receipts = [
        ToolReceipt(call.id, call.name, cut.get(call.id) or outcomes[call.id], undo=undone.get(call.id))
        for call in calls
    ]
    # The record has the usage up to the last pause. A run that was at work may have used any number of tokens since.
    usage = record.usage if record.usage and record.status is not RunStatus.running else UNKNOWN_USAGE
    phase = _PHASES.get(record.status) or (Phase.tools if cut else Phase.waiting)
    receipt = Receipt.of(request, CancelMode.now, phase, receipts, usage, [])
    ended = msgspec.structs.replace(
        record,
        status=RunStatus.cancelled,
        stop_reason=StopReason.cancelled,
        content=content,
        usage=usage,
        receipt=receipt,
        interrupts=[],
        bookmark=None,
        cut_calls=[each for each in receipts if each.call_id in cut],
    )
    return ended, messages, _events(taken, ended, [call for call in calls if call.id in cut], results)


def outcomes_in(run_id: str, events: Sequence[Event]) -> dict[str, ToolOutcome]:
    """The outcomes of a run's calls, as far as its events say them. A sub-agent's events may be among the events."""
    outcomes: dict[str, ToolOutcome] = {}
    for event in events:
        if event.event not in _ENDS or event.run_id != run_id or event.tool is None or event.tool.outcome is None:
            continue
        outcome = event.tool.outcome
        if outcome is ToolOutcome.completed and event.event is RunEvent.tool_call_error:
            outcome = ToolOutcome.failed  # written by an older version, which had no `failed`
        outcomes[event.tool.call_id] = outcome
    return outcomes


def _started(record: RunRecord) -> set[str]:
    """The calls that had started before they asked. If they wait for an approval, a child run asks for it."""
    return set() if record.bookmark is None else {call.call_id for call in record.bookmark.calls if call.started}


def _last_calls(taken: Taken) -> tuple[list[Message], list[ToolCall], dict[str, ToolResult]]:
    """The messages without the results of the last calls; these calls; and the results that are known."""
    messages, known = list(taken.messages), dict[str, ToolResult]()
    if messages and messages[-1].role == "tool":
        known = {result.call_id: result for result in messages.pop().tool_results}
    calls = messages[-1].tool_calls if messages and messages[-1].role == "assistant" else []
    return messages, calls, known


def _outcome(call_id: str, asks_first: set[str | None], undone: Mapping[str, str | None]) -> ToolOutcome:
    if call_id in undone and undone[call_id] is None:
        return ToolOutcome.compensated
    return ToolOutcome.not_started if call_id in asks_first else ToolOutcome.cut


def _result(
    call: ToolCall, asking: set[str | None], asks_first: set[str | None], undone: Mapping[str, str | None]
) -> ToolResult:
    truth = NOT_APPROVED if call.id in asks_first else ASKING if call.id in asking else CUT
    if call.id in undone:
        failure = undone[call.id]
        truth = UNDONE_BY_TOOL if failure is None else NOT_UNDONE.format(failure)
    return ToolResult(call.id, call.name, truth, "error")


def _events(taken: Taken, ended: RunRecord, cut: list[ToolCall], results: list[ToolResult]) -> list[Event]:
    said = {result.call_id: result.content for result in results}
    outcomes = {each.call_id: each.outcome for each in ended.cut_calls}
    key, at, events = ended.session, time.time(), list[Event]()

    def add(kind: RunEvent, content: str = "", **facts: Any) -> None:
        seq = taken.last_seq + len(events) + 1
        events.append(Event(kind, ended.run_id, key.session_id, key.agent_id, seq, at, content, **facts))

    if not taken.last_seq:  # its worker has not written any event
        add(RunEvent.run_started, parent_run_id=ended.parent_run_id)
    if taken.last_seq <= 1 and taken.cancel is not None:  # it was cancelled before it began, and no process held it
        add(RunEvent.cancel_requested, reason=taken.cancel.reason)
    for call in cut:
        view = ToolView(call.id, call.name, call.arguments, said[call.id], outcomes[call.id])
        add(RunEvent.tool_call_cancelled, tool=view)
    receipt = ended.receipt
    assert receipt is not None
    facts = {"status": ended.status, "usage": ended.usage, "receipt": receipt, "reason": receipt.reason}
    add(TERMINAL_EVENT[ended.status], ended.content, **facts)
    return events
