# SPDX-License-Identifier: Apache-2.0
"""What must hold for every run that has ended or is paused, as functions.

Each yields a sentence for each thing that is wrong. What must stay true: they change nothing, look at what a user could
see as well (events, status, result, receipt, conversation, store), and never raise for a broken run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from andon.agent.call_record import ASKING, NOT_APPROVED, OUT_OF_TIME, UNDONE_ASKING
from andon.agent.settle import MARKERS
from andon.core.events import TERMINAL_EVENT, Event, RunEvent
from andon.core.receipt import Receipt, RunResult
from andon.core.records import RunRecord
from andon.core.run.run import LocalRun
from andon.core.run.waits import make_result
from andon.core.states import CancelMode, RunStatus, StopReason, ToolOutcome
from andon.errors import describe
from andon.messages import Message, Text, ToolResult
from andon.testing.validators import next_prompt_accepted, validate

STOP_REASONS = {
    RunStatus.completed: {StopReason.end_turn, StopReason.max_turns},
    RunStatus.cancelled: {StopReason.cancelled},
    RunStatus.error: {StopReason.error},
}
ENDS = (RunEvent.tool_call_completed, RunEvent.tool_call_error, RunEvent.tool_call_cancelled)
NEWS = {RunEvent.run_content, RunEvent.reasoning, RunEvent.tool_call_started}
"""The events that must not come after a cancel, unless its mode lets the turn finish."""

OWN_ENDS = {ToolOutcome.completed, ToolOutcome.failed, ToolOutcome.refused}
"""The possible outcomes of a call that no cancel cut."""

ERRORS = {ToolOutcome.failed, ToolOutcome.refused, ToolOutcome.abandoned, ToolOutcome.compensated}
"""The possible outcomes in `tool_call_error`. A call that was out of time and did not stop is abandoned; one that was
undone then is compensated.
"""

KEPT = {ToolOutcome.completed, ToolOutcome.refused, ToolOutcome.not_started}
"""The outcomes that a call can't have once it is being undone."""

LETS = {
    CancelMode.after_tools: {*OWN_ENDS, ToolOutcome.not_started},
    CancelMode.after_turn: OWN_ENDS,
}
"""The possible outcomes of a call if no stronger mode was requested. A call that asks a person ends in every mode."""

_objections: dict[bytes, list[str]] = {}


def check_run(run: LocalRun) -> Iterator[str]:
    """All checks of one run that has ended or is paused."""
    if not (run.status.final or run.is_paused):
        yield f"the run has not ended: it is {run.status.name}, in phase {run.phase.name}"
        return
    yield from check_events(run, list(run.journal.events))
    events = [event for event in run.journal.events if event.run_id == run.run_id]
    if run.is_paused:
        yield from check_paused(run, make_result(run), events)
        return
    try:
        result, own = make_result(run), run.settlement.messages
    except Exception as error:  # noqa: BLE001 - reported: a run without a result is a problem
        yield f"the run has no result: {describe(error)}"
        return
    yield from check_result(run, result, events)
    yield from check_calls(own, events, carried=run.continues is not None)
    yield from check_conversation(result.messages)
    if run.status is RunStatus.cancelled:
        yield from check_cancelled(run, result, own, events)
    elif result.receipt is not None:
        yield f"the run is {run.status.name} and has a receipt of a cancel"


# -- events -----------------------------------------------------------------------------------------------------------


def check_events(run: LocalRun, events: Sequence[Event]) -> Iterator[str]:
    """One start, one end, no gaps, and no events of other runs, except of children that show their events here."""
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        yield f"the sequence numbers are {[event.seq for event in events]}"
    shown = {event.run_id for event in events if event.parent_run_id is not None} - {run.run_id}
    events = [event for event in events if event.run_id not in shown]
    kinds = [event.event for event in events]
    if kinds[:1] != [RunEvent.run_started] or kinds.count(RunEvent.run_started) != 1:
        yield "run_started is not the first event, or not the only one of its kind"
    terminal = [kind.name for kind in kinds if kind.terminal]
    if not run.is_paused and (len(terminal) != 1 or not kinds[-1].terminal):
        yield f"there must be one terminal event, the last one; there are {terminal}, the last is {kinds[-1].name}"
    if run.journal.closed is run.is_paused:
        yield f"the run {'is paused' if run.is_paused else 'has ended'}, but its readers are not told so"
    turns = [kind for kind in kinds if kind in (RunEvent.run_paused, RunEvent.run_continued)]
    if any((kind is RunEvent.run_continued) is not bool(place % 2) for place, kind in enumerate(turns)):
        yield f"pauses and continuations must take turns; there are {', '.join(kind.name for kind in turns)}"
    ids = {(event.run_id, event.session_id, event.agent_id) for event in events}
    if ids != {(run.run_id, run.session_id, run.agent_id)}:
        yield f"the events name other runs, sessions or agents: {sorted(ids)}"


def check_paused(run: LocalRun, result: RunResult, events: Sequence[Event]) -> Iterator[str]:
    """There is no terminal event yet, and the open questions are in the last event."""
    last = events[-1]
    if ends := [event.event.name for event in events if event.event.terminal]:
        yield f"the run is paused, but there is {', '.join(ends)}"
    if last.event is not RunEvent.run_paused or not run.journal.resting:
        yield f"the run is paused, but its last event is {last.event.name}, or its readers don't end there"
    said = (result.status, result.stop_reason, result.receipt, result.error)
    if said != (RunStatus.paused, StopReason.interrupt, None, None):
        yield f"the run is paused, but its result says {said}"
    asked = [question.call_id for question in last.interrupts or ()]
    if not asked or not {question.call_id for question in run.interrupts} <= set(asked):
        yield f"run_paused asks {last.interrupts}, but open are {run.interrupts}"
    calls = {call.id for message in result.messages for call in message.tool_calls}
    ended = {_call_id(event) for event in events if event.event in ENDS}
    if wrong := [call_id for call_id in asked if call_id not in calls or call_id in ended]:
        yield f"it asks for the calls {wrong}, which are not there, or have ended"


def check_result(run: LocalRun, result: RunResult, events: Sequence[Event]) -> Iterator[str]:
    """Status, terminal event and result say the same."""
    last = events[-1]
    if last.event is not TERMINAL_EVENT[run.status]:
        yield f"the run is {run.status.name}, but its last event is {last.event.name}"
    if not run.status is result.status is last.status:
        yield f"the run is {run.status.name}, its result {result.status.name}, its last event says {last.status}"
    if result.stop_reason not in STOP_REASONS[run.status]:
        yield f"the run is {run.status.name} with stop reason {result.stop_reason.value!r}"
    shown = "".join(event.content for event in events if event.event is RunEvent.run_content)
    if not shown == result.content == last.content:
        yield f"shown was {shown!r}, the result has {result.content!r}, the last event {last.content!r}"
    if result.usage != last.usage:
        yield f"the result counts {result.usage}, the last event {last.usage}"
    if result.receipt != last.receipt:
        yield "the result and the last event have different receipts"
    if (result.error is None) is (run.status is RunStatus.error):
        yield f"the run is {run.status.name} and its error is {result.error!r}"
    if result.message is not result.messages[-1]:
        yield "result.message is not the conversation's last message"


# -- tools ------------------------------------------------------------------------------------------------------------


def check_calls(own: Sequence[Message], events: Sequence[Event], carried: bool = False) -> Iterator[str]:
    """Each call of the conversation has one end, and the result in the conversation is that end's.

    With `carried`, the run continues an earlier one, and some calls ended there.
    """
    starts = Counter(_call_id(event) for event in events if event.event is RunEvent.tool_call_started)
    undone = Counter(_call_id(event) for event in events if event.event is RunEvent.tool_undo_started)
    asked = _pauses(events)
    ends: dict[str, list[Event]] = {}
    for event in events:
        if event.event in ENDS:
            ends.setdefault(_call_id(event), []).append(event)
    calls = [call.id for message in own for call in message.tool_calls]
    results = {result.call_id: result for message in own for result in message.tool_results}
    for call_id in sorted((starts.keys() | ends.keys()) - set(calls)):
        yield f"there are events of the tool call {call_id!r}, which the conversation does not have"
    for call_id in calls:
        mine = ends.get(call_id, [])
        if starts[call_id] > 1 + asked[call_id]:  # with an answer it is started again
            yield f"the tool call {call_id!r} started {starts[call_id]} times"
        if carried and not mine and starts[call_id] == 0 and call_id in results:
            continue
        if len(mine) != 1:
            yield f"the tool call {call_id!r} must have one end; it has {[event.event.name for event in mine]}"
        elif call_id in results:
            yield from _check_end(mine[0], starts[call_id] > 0, results[call_id])
            yield from _check_undo(mine[0], undone[call_id], results[call_id])


def _check_end(end: Event, started: bool, result: ToolResult) -> Iterator[str]:
    assert end.tool is not None
    name = f"the tool call {result.call_id!r}"
    if result.content != end.tool.result:
        yield f"{name} ended with {end.tool.result!r}, but the conversation has {result.content!r}"
    if (result.status == "ok") is not (end.event is RunEvent.tool_call_completed):
        yield f"{name} ended with {end.event.name}, but its result has status {result.status}"
    if end.event is RunEvent.tool_call_completed and not started:
        yield f"{name} completed, though it never started"
    if end.event is RunEvent.tool_call_cancelled:
        if "cancelled" not in result.content:
            yield f"{name} was cancelled, which its result does not say: {result.content!r}"
        if (end.tool.outcome is ToolOutcome.not_started) is started:
            yield f"{name} has the outcome {end.tool.outcome}, but {'did' if started else 'did not'} start"
    elif end.tool.outcome not in (ERRORS if end.event is RunEvent.tool_call_error else {ToolOutcome.completed}):
        yield f"{name} ended with {end.event.name} and the outcome {end.tool.outcome}"
    elif end.tool.outcome is ToolOutcome.failed and not started:
        yield f"{name} failed, though it never started"
    elif end.tool.outcome is ToolOutcome.abandoned and OUT_OF_TIME[end.tool.outcome] not in result.content:
        yield f"{name} has the outcome {end.tool.outcome}, which its result does not say: {result.content!r}"


def _check_undo(end: Event, undone: int, result: ToolResult) -> Iterator[str]:
    """A call is undone once at most, and one that was undone is never kept."""
    assert end.tool is not None
    name, outcome = f"the tool call {result.call_id!r}", end.tool.outcome
    if undone > 1:
        yield f"{name} was undone {undone} times"
    if undone and (outcome in KEPT or result.status == "ok"):
        yield f"{name} was undone and kept: its outcome is {outcome}, its result {result.content!r}"
    if outcome is ToolOutcome.compensated and not undone:
        yield f"{name} has the outcome compensated, but nothing was undone"


def _call_id(event: Event) -> str:
    return "" if event.tool is None else event.tool.call_id


# -- a cancel ---------------------------------------------------------------------------------------------------------


def check_cancelled(run: LocalRun, result: RunResult, own: Sequence[Message], events: Sequence[Event]) -> Iterator[str]:
    """The marker, the receipt, and nothing new after the cancel."""
    receipt = result.receipt
    if receipt is None:
        yield "the run was cancelled and has no receipt"
        return
    marker = Text(MARKERS[receipt.cause])
    texts = [block for block in result.message.content if isinstance(block, Text)]
    # Without messages of its own it was to continue an earlier run, whose marker is the last block.
    if own and (result.message.role != "assistant" or texts[-1:] != [marker]):
        yield f"the conversation must end with {marker.text!r}; its last message is {result.message}"
    yield from _check_receipt(run, receipt, result, own, events)
    kinds = [event.event for event in events]
    if kinds.count(RunEvent.cancel_requested) != 1:
        yield f"there must be one cancel_requested; there are {kinds.count(RunEvent.cancel_requested)}"
    elif (asked := run.signal.request) is not None and asked.mode is not CancelMode.after_turn:
        after = kinds[kinds.index(RunEvent.cancel_requested) :]
        if late := [kind.name for kind in after if kind in NEWS]:
            yield f"after a cancel with mode {asked.mode.value} there still came {', '.join(late)}"


def _check_receipt(
    run: LocalRun, receipt: Receipt, result: RunResult, own: Sequence[Message], events: Sequence[Event]
) -> Iterator[str]:
    request = run.signal.request
    if request is not None and (receipt.cause, receipt.reason, receipt.by, receipt.requested_at) != (
        request.cause,
        request.reason,
        request.by,
        request.requested_at,
    ):
        yield f"the receipt {receipt} is not of the cancel that won: {request}"
    if receipt.usage != result.usage:
        yield f"the receipt counts {receipt.usage}, the result {result.usage}"
    if receipt.latency < 0 or receipt.stopped_at < receipt.requested_at:
        yield f"the receipt's latency is {receipt.latency}"
    calls = [call.id for message in own for call in message.tool_calls]
    if run.continues is not None:  # the calls of the earlier run are in that run's receipt
        ended = {_call_id(event) for event in events if event.event in ENDS}
        calls = [call for call in calls if call in ended]
    if sorted(tool.call_id for tool in receipt.tools) != sorted(calls):
        yield f"the receipt names the calls {[tool.call_id for tool in receipt.tools]}, the conversation has {calls}"
    told = {_call_id(event): event.tool.outcome for event in events if event.event in ENDS and event.tool is not None}
    alone = {_call_id(event) for event in events if _ended_alone(event)} | _answered(events)
    waited = (ASKING, NOT_APPROVED, UNDONE_ASKING)
    asking = any(result.content in waited for message in own for result in message.tool_results)
    for tool in receipt.tools:
        if told.get(tool.call_id) != tool.outcome:
            yield f"the receipt says {tool.outcome} of call {tool.call_id!r}, its event {told.get(tool.call_id)}"
        if asking or tool.call_id in alone:
            continue
        if tool.outcome not in LETS.get(receipt.mode, {tool.outcome}):
            yield f"mode {receipt.mode.value} lets calls finish, but {tool.call_id!r} is {tool.outcome.value}"


def _answered(events: Sequence[Event]) -> set[str]:
    """The calls whose tool asked a person, and was not started again with the answer."""
    starts = Counter(_call_id(event) for event in events if event.event is RunEvent.tool_call_started)
    asked = _pauses(events)
    return {call_id for call_id, times in starts.items() if times <= asked[call_id]}


def _pauses(events: Sequence[Event]) -> Counter[str]:
    """How often the run paused for each call, which may have asked several things at once."""
    return Counter(call_id for event in events for call_id in {str(each.call_id) for each in event.interrupts or ()})


def _ended_alone(event: Event) -> bool:
    """The call was out of time, or this call alone was cancelled, with a reason."""
    cancelled = event.event is RunEvent.tool_call_cancelled and event.reason is not None
    return cancelled or event.event is RunEvent.tool_call_error


# -- what is left -----------------------------------------------------------------------------------------------------


def check_conversation(messages: Sequence[Message]) -> Iterator[str]:
    """Every provider accepts it, alone and with the next prompt."""
    # The same conversations come again and again: each is validated once.
    key = msgspec.msgpack.encode(messages, enc_hook=repr)
    if key not in _objections:
        _objections[key] = validate(messages) or next_prompt_accepted(messages)
    if problems := _objections[key]:
        yield f"the conversation is not valid: {'; '.join(problems)}; it is {_roles(messages)}"


def check_stored(
    run: LocalRun, others: Sequence[LocalRun], stored: Sequence[Message], record: RunRecord | None
) -> Iterator[str]:
    """The store has the run's messages, once, together and in order, and its end."""
    own = _left_by(run)
    holder = next((each for each in (run, *others) if each.is_paused), None)  # its finished calls are stored already
    known = run.session.messages if holder is None else [*run.session.base, *_left_by(holder)]
    if stored != known:
        yield f"the session has {_roles(known)}, the store {_roles(stored)}"
    wanted = 1 + sum(_left_by(other) == own for other in others)  # two runs may have said the same
    found = sum(list(stored[n : n + len(own)]) == own for n in range(len(stored) - len(own) + 1))
    if own and found != wanted:
        yield f"the store must have {_roles(own)} {_times(wanted)}, but has it {_times(found)}: {_roles(stored)}"
    if record is None:
        yield "the store has no record of the run"
    elif (record.status, record.receipt) != (run.status, make_result(run).receipt):
        yield f"the run is {run.status.name}, the store's record says {record.status.name}, or has another receipt"


def _left_by(run: LocalRun) -> list[Message]:
    """The messages that a run has added to its session so far."""
    return run.so_far() if run.is_paused else run.settlement.messages


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _roles(messages: Sequence[Message]) -> str:
    return " → ".join(f"{m.role}[{', '.join(block.type for block in m.content)}]" for m in messages) or "empty"
