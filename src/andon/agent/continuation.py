# SPDX-License-Identifier: Apache-2.0
"""How a new run goes on with a run that was cut, and how a paused run is restored from the store.

The marker is removed, since it is no longer true. Results of tools are kept, and these calls don't run again. Calls
that never started run now. For a call with an unknown outcome, the model is told so, or the call runs again if its tool
is idempotent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from andon.agent.call_record import CallRecord
from andon.agent.output import OutputFormat
from andon.agent.settle import FAILED, MARKERS
from andon.core.receipt import ToolReceipt
from andon.core.records import OpenCall, RunRecord
from andon.core.run.run import LocalRun
from andon.core.states import ToolOutcome
from andon.errors import NotContinuableError
from andon.messages import Message, Text, ToolResult, assistant, user
from andon.tools.base import Tool, traits_of

GO_ON = "You were cut off here. Go on from where you stopped, and do not repeat what you have said."
_END_MARKERS = {*MARKERS.values(), FAILED}


UNCHANGED: Any = object()
"""Stands for `deps` that were not given: the paused run keeps its own."""


class ResumeOptions(Struct, frozen=True):
    """What a caller may replace when it resumes a paused run: what no store keeps."""

    deps: Any = UNCHANGED
    output: OutputFormat | None = None
    """The format of the answer; None to keep the one that the run has."""


class EarlierRun(Struct, frozen=True):
    """A run that was cut, and that a new run continues."""

    run_id: str
    left: list[Message]
    cut_calls: Sequence[ToolReceipt]
    """The calls that its end cut. A call that was cancelled alone is not among them, and does not run again."""

    def remove_from(self, conversation: list[Message]) -> list[Message]:
        """The conversation without the run's messages, which must be the last ones."""
        before = len(conversation) - len(self.left)
        if before < 0 or conversation[before:] != self.left:
            raise NotContinuableError(f"run {self.run_id!r} can't be continued: later runs build on it")
        return conversation[:before]


def messages_to_continue(left: Sequence[Message]) -> list[Message]:
    """The messages of a run that was cut, without its marker, so that the model can go on from them."""
    messages = list(left)
    if messages and messages[-1].role == "assistant":
        *blocks, last = messages.pop().content
        if not (isinstance(last, Text) and last.text in _END_MARKERS):
            blocks.append(last)
        if blocks:
            messages += [assistant(*blocks), user(GO_ON)]
    return messages


def reopen_calls(
    earlier: EarlierRun, messages: list[Message], run: LocalRun, tools: Mapping[str, Tool]
) -> list[CallRecord]:
    """The calls of the run's last message, if it was cut in them. The message with their results is removed."""
    if len(messages) < 2 or messages[-1].role != "tool":
        return []
    results = {result.call_id: result for result in messages.pop().tool_results}
    cut = {each.call_id: each.outcome for each in earlier.cut_calls}
    records = []
    for call in messages[-1].tool_calls:
        record, result, outcome = CallRecord(run, call), results[call.id], cut.get(call.id)
        tool = tools.get(call.name)
        again = outcome is ToolOutcome.not_started or (
            # A call that was undone is the model's to repeat: its id has been used for what was undone.
            tool is not None and traits_of(tool).idempotent and outcome is not ToolOutcome.compensated
        )
        if outcome is None or tool is None or not again:
            record.finish(result.content, result.status, outcome or outcome_of(result))
        records.append(record)
    return records


def outcome_of(result: ToolResult) -> ToolOutcome:
    """The outcome of a call of which only the result is known."""
    return ToolOutcome.completed if result.status == "ok" else ToolOutcome.failed


def restore_calls(record: RunRecord, messages: list[Message], run: LocalRun) -> tuple[list[Message], list[CallRecord]]:
    """A paused run's messages, and the records of its last calls, as they were when it paused."""
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
