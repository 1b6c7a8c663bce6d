# SPDX-License-Identifier: Apache-2.0
"""What a run that was cut leaves to one that goes on with it.

The marker goes, since it is no longer true. What tools had answered is kept and never asked for again. Calls that never
started are run now. Calls of which nobody knows what they did are told to the model as such, or run again where the
tool says that this does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from andon.agent.call_record import CallRecord
from andon.agent.output import Form
from andon.agent.settle import FAILED, MARKERS
from andon.core.receipt import ToolReceipt
from andon.core.records import OpenCall, RunRecord
from andon.core.run.run import Run
from andon.core.states import ToolOutcome
from andon.errors import NotContinuableError
from andon.messages import Message, Text, ToolResult, assistant, user
from andon.tools.base import Tool, traits_of

GO_ON = "You were cut off here. Go on from where you stopped, and do not repeat what you have said."
_LAST_WORDS = {*MARKERS.values(), FAILED}


KEPT: Any = object()
"""In place of what may be given anew when a paused run goes on: keep what it has."""


class Anew(Struct, frozen=True):
    """What may be given anew to a paused run that goes on: what no store keeps."""

    deps: Any = KEPT
    output: Form | None = None
    """The form of its answer; None for the one that it has."""


class Earlier(Struct, frozen=True):
    """A run that was cut, and is gone on with."""

    run_id: str
    left: list[Message]
    cut_calls: Sequence[ToolReceipt]
    """The calls that its end cut off. One that was cancelled alone is not among them: that was meant."""

    def lift(self, conversation: list[Message]) -> list[Message]:
        """The conversation without what the run left in it, which must be its end."""
        before = len(conversation) - len(self.left)
        if before < 0 or conversation[before:] != self.left:
            raise NotContinuableError(f"run {self.run_id!r} can't be continued: later runs build on it")
        return conversation[:before]


def take_up(left: Sequence[Message]) -> list[Message]:
    """The messages of a run that was cut, in a form to go on from: without its last words."""
    messages = list(left)
    if messages and messages[-1].role == "assistant":
        *blocks, last = messages.pop().content
        if not (isinstance(last, Text) and last.text in _LAST_WORDS):
            blocks.append(last)
        if blocks:
            messages += [assistant(*blocks), user(GO_ON)]
    return messages


def reopen(earlier: Earlier, messages: list[Message], run: Run, tools: Mapping[str, Tool]) -> list[CallRecord]:
    """The calls that the run was cut in, if those were its last; their message of results is taken off."""
    if len(messages) < 2 or messages[-1].role != "tool":
        return []
    results = {result.call_id: result for result in messages.pop().tool_results}
    cut = {each.call_id: each.outcome for each in earlier.cut_calls}
    records = []
    for call in messages[-1].tool_calls:
        record, result, outcome = CallRecord(run, call), results[call.id], cut.get(call.id)
        tool = tools.get(call.name)
        again = outcome is ToolOutcome.not_started or (tool is not None and traits_of(tool).idempotent)
        if outcome is None or tool is None or not again:
            record.finish(result.content, result.status, outcome or outcome_of(result))
        records.append(record)
    return records


def outcome_of(result: ToolResult) -> ToolOutcome:
    """What became of a call, where only its result is known: that it failed is all that an error says."""
    return ToolOutcome.completed if result.status == "ok" else ToolOutcome.failed


def restore_calls(record: RunRecord, messages: list[Message], run: Run) -> tuple[list[Message], list[CallRecord]]:
    """A paused run's messages, and the calls of its last one, as far as each had come."""
    messages, results = list(messages), {}
    if messages[-1].role == "tool":
        results = {result.call_id: result for result in messages.pop().tool_results}
    states = {} if record.bookmark is None else {state.call_id: state for state in record.bookmark.calls}
    ended = {} if record.bookmark is None else {each.call_id: each.outcome for each in record.bookmark.ended}
    calls = []
    for call in messages[-1].tool_calls:
        restored = CallRecord(run, call)
        if (result := results.get(call.id)) is not None:
            restored.finish(result.content, result.status, ended.get(call.id) or outcome_of(result))
        else:
            questions = [interrupt for interrupt in record.interrupts if interrupt.call_id == call.id]
            restored.restore(states.get(call.id, OpenCall(call.id)), questions)
        calls.append(restored)
    return messages, calls
