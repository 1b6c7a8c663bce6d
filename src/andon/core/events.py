# SPDX-License-Identifier: Apache-2.0
"""The events of a run, as its readers get them: one frozen struct per event.

Every run's events are numbered from 1 without gaps, begin with `run_started`, and end with exactly one terminal event.
"""

from __future__ import annotations

from typing import Any

from andon.core.receipt import Interrupt, Receipt
from andon.core.states import FinishReason, RunStatus, ToolOutcome, Word
from andon.errors import show
from andon.messages import Usage
from andon.plain import Plain


class RunEvent(Word):
    """The kinds of event; the values are the names on the wire."""

    run_started = "RunStarted"
    run_content = "RunContent"
    reasoning = "ReasoningContentDelta"
    tool_call_started = "ToolCallStarted"
    tool_output = "ToolCallOutput"
    tool_call_completed = "ToolCallCompleted"
    tool_call_error = "ToolCallError"
    tool_call_cancelled = "ToolCallCancelled"
    tool_undo_started = "ToolUndoStarted"
    tool_progress = "ToolCallProgress"
    run_paused = "RunPaused"
    run_continued = "RunContinued"
    cancel_requested = "CancelRequested"
    model_retry = "ModelRetry"
    context_reduced = "ContextReduced"
    store_waiting = "StoreWaiting"
    run_completed = "RunCompleted"
    run_cancelled = "RunCancelled"
    run_error = "RunError"

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL = frozenset({RunEvent.run_completed, RunEvent.run_cancelled, RunEvent.run_error})

TERMINAL_EVENT = {
    RunStatus.completed: RunEvent.run_completed,
    RunStatus.cancelled: RunEvent.run_cancelled,
    RunStatus.error: RunEvent.run_error,
}


class ToolView(Plain, frozen=True, gc=False, omit_defaults=True):
    """A tool call, as events show it."""

    call_id: str
    name: str
    arguments: dict[str, Any]
    result: str | None = None
    outcome: ToolOutcome | None = None


class ContextView(Plain, frozen=True, gc=False):
    """The size of a conversation, and of the part that is sent to the model. Tokens are an estimate."""

    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int


class ProgressView(Plain, frozen=True, gc=False, omit_defaults=True):
    """How far a tool call is, as the tool itself says."""

    progress: float
    """Grows with each event of the call."""
    total: float | None = None
    """The `progress` at which the call will be done, if the tool knows it."""
    message: str | None = None


class Event(Plain, frozen=True, gc=False, omit_defaults=True):
    """One event of a run.

    `content` is the text of content events; on terminal events it is the whole text. `tool` is set on tool events.
    `tool_undo_started`: the call was cut, and what it has done is being undone; its end tells how that went.
    `tool_progress`: a tool says how far its call is. `progress` has it, and `tool` names the call, without its
    arguments. `tool_output`: a tool in a process has printed `content`; of the call it has the `call_id` alone.
    `status`, `usage` and, after a cancel, `receipt` are set on terminal events. `model_retry`: a model call failed, and
    is tried again. `error` says why it failed, and `delay` in how many seconds the next try begins. `store_waiting`:
    the run's end could not be stored; `error` says why. It is tried again, and the terminal event comes once it is
    stored. `context_reduced`: the conversation is too long for the model. `context` says how much of it is sent.
    """

    event: RunEvent
    run_id: str
    session_id: str
    agent_id: str
    seq: int
    created_at: float
    content: str = ""
    tool: ToolView | None = None
    status: RunStatus | None = None
    usage: Usage | None = None
    receipt: Receipt | None = None
    reason: str | None = None
    error: str | None = None
    parent_run_id: str | None = None
    """The run inside which this one was started, on `run_started`."""
    interrupts: list[Interrupt] | None = None
    """The questions that are open, on `run_paused`."""
    delay: float | None = None
    output: Any = None
    """The answer as JSON, on `run_completed`, if an `output_type` or a schema asked for one."""
    context: ContextView | None = None
    progress: ProgressView | None = None
    call_id: str | None = None
    """The call that has printed the `content`, on `tool_output`."""
    finish_reason: FinishReason | None = None
    """Why the model ended its last answer, on terminal events, if it has said so."""


EVENT_BYTES = 250
"""The memory of an event without its text, in bytes, roughly."""


def approximate_size(event: Event) -> int:
    """The memory of an event, in bytes, roughly."""
    if event.tool is None and event.interrupts is None:
        return EVENT_BYTES + len(event.content)
    tool = event.tool
    of_tool = 0 if tool is None else len(show(tool.arguments)) + len(tool.result or "")
    return EVENT_BYTES + len(event.content) + of_tool + sum(len(show(each.payload)) for each in event.interrupts or ())
