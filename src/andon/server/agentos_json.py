# SPDX-License-Identifier: Apache-2.0
"""Events and results as JSON of the AgentOS family, with additional keys.

Its clients ignore unknown keys, but complain about unknown events: those are only sent if the request asks for all
events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from andon.agent.agent import Agent
from andon.core.events import ContextView, Event, ProgressView, RunEvent, ToolView
from andon.core.receipt import Interrupt, Receipt, RunResult
from andon.core.records import RunRecord
from andon.core.run.run import LocalRun
from andon.core.run.waits import make_result
from andon.core.states import FinishReason, RunStatus, StopReason, ToolOutcome
from andon.errors import confide, say
from andon.messages import Message, Reasoning, Text, ToolCall, ToolResult, Usage
from andon.server.responses import to_json
from andon.server.sse import escape_line_separators

UNKNOWN_TO_AGENTOS = frozenset(
    {RunEvent.cancel_requested, RunEvent.model_retry, RunEvent.store_waiting, RunEvent.tool_call_cancelled}
    | {RunEvent.context_reduced, RunEvent.tool_undo_started, RunEvent.tool_progress, RunEvent.tool_output}
)
"""Events that the client of the AgentOS family complains about."""

_TOOL_EVENTS = frozenset(
    {
        RunEvent.tool_call_started,
        RunEvent.tool_call_completed,
        RunEvent.tool_call_error,
        RunEvent.tool_call_cancelled,
        RunEvent.tool_undo_started,
        RunEvent.tool_progress,
    }
)
_HEADS = {kind: f"\nevent: {kind.value}\ndata: ".encode() for kind in RunEvent}


class WireTool(Struct, gc=False, omit_defaults=True):
    tool_call_id: str
    tool_name: str
    tool_args: dict[str, Any]
    created_at: int
    tool_call_error: bool | None = None
    result: str | None = None
    outcome: ToolOutcome | None = None
    requires_confirmation: bool | None = None


class WireMetrics(Struct, gc=False, omit_defaults=True):
    """Unknown counts are left out: they are not zero."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cache_read_tokens: int | None = None
    reasoning_tokens: int | None = None


class Requirement(Struct, gc=False):
    """A question in the format of the AgentOS family."""

    id: str
    tool_execution: WireTool
    created_at: int


class WireEvent(Struct, gc=False, omit_defaults=True):
    created_at: int
    event: RunEvent
    agent_id: str
    agent_name: str
    run_id: str
    session_id: str
    seq: int
    event_index: int
    content: str | None = None
    content_type: str | None = None
    reasoning_content: str | None = None
    tool: WireTool | None = None
    model: str | None = None
    model_provider: str | None = None
    reason: str | None = None
    status: RunStatus | None = None
    usage: Usage | None = None
    metrics: WireMetrics | None = None
    receipt: Receipt | None = None
    error: str | None = None
    delay: float | None = None
    parent_run_id: str | None = None
    interrupts: list[Interrupt] | None = None
    tools: list[WireTool] | None = None
    requirements: list[Requirement] | None = None
    output: Any = None
    context: ContextView | None = None
    progress: ProgressView | None = None
    call_id: str | None = None
    finish_reason: FinishReason | None = None
    timestamp: float | None = None
    """`created_at`, exactly. Pieces of text don't have it."""


class EventWriter:
    """Writes the events of an agent as server-sent events."""

    def __init__(self, agent: Agent, *, everything: bool) -> None:
        self._id, self._name = agent.id, agent.name
        self._model, self._provider = model_of(agent)
        self._hidden = frozenset() if everything else UNKNOWN_TO_AGENTOS

    def __call__(self, events: Sequence[Event]) -> bytes:
        frames = b"".join(
            [
                b"id: %d%b%b\n\n" % (event.seq, _HEADS[event.event], to_json(self.view(event)))
                for event in events
                if event.event not in self._hidden
            ]
        )
        return escape_line_separators(frames)

    def view(self, event: Event) -> WireEvent:
        kind = event.event
        view = WireEvent(
            int(event.created_at),
            kind,
            event.agent_id,
            self._name if event.agent_id == self._id else event.agent_id,
            event.run_id,
            event.session_id,
            event.seq,
            event.seq - 1,
        )
        if kind is not RunEvent.run_content and kind is not RunEvent.reasoning:
            view.timestamp = event.created_at
        if kind is RunEvent.run_content:
            view.content, view.content_type = event.content, "str"
        elif kind is RunEvent.tool_output:
            view.content, view.content_type, view.call_id = event.content, "str", event.call_id
        elif kind is RunEvent.reasoning:
            view.reasoning_content = view.content = event.content
        elif kind is RunEvent.run_started:
            view.model, view.model_provider = self._model, self._provider
            view.parent_run_id = event.parent_run_id
        elif kind is RunEvent.run_paused:
            view.interrupts = event.interrupts
            view.tools = waiting_tools(event.interrupts or (), event.created_at)
            view.requirements = [
                Requirement(each.id, tool, view.created_at)
                for each, tool in zip(event.interrupts or (), view.tools, strict=True)
            ]
        elif event.tool is not None:
            view.tool, view.progress = wire_tool(event.tool, event), event.progress
        elif kind.terminal:
            view.content, view.content_type = event.content, "str"
            view.status, view.usage, view.receipt = event.status, event.usage, event.receipt
            view.metrics = None if event.usage is None else metrics_of(event.usage)
            view.reason, view.output, view.finish_reason = event.reason, event.output, event.finish_reason
            if event.error is not None:
                view.content = view.error = event.error  # the family's clients show `content`
        else:
            view.reason, view.error, view.delay, view.context = event.reason, event.error, event.delay, event.context
        return view


def wire_tool(tool: ToolView, event: Event) -> WireTool:
    runs = event.event in (RunEvent.tool_call_started, RunEvent.tool_progress)
    failed = None if runs else event.event is not RunEvent.tool_call_completed
    return WireTool(tool.call_id, tool.name, tool.arguments, int(event.created_at), failed, tool.result, tool.outcome)


def waiting_tools(interrupts: Iterable[Interrupt], at: float) -> list[WireTool]:
    """The calls that wait for a person, in the format of the AgentOS family."""
    return [
        WireTool(
            each.call_id or each.id,
            each.name,
            each.payload if isinstance(each.payload, dict) else {"payload": each.payload},
            int(at),
            requires_confirmation=True,
        )
        for each in interrupts
    ]


def metrics_of(usage: Usage) -> WireMetrics:
    return WireMetrics(
        usage.input_tokens, usage.output_tokens, usage.total_tokens, usage.cached_tokens, usage.reasoning_tokens
    )


def model_of(agent: Agent) -> tuple[str, str]:
    model = agent.model
    return say(getattr(model, "id", "")), say(getattr(model, "provider", type(model).__name__))


# -- the state and the result of a run --------------------------------------------------------------------------------


def run_output(agent: Agent, run: LocalRun) -> dict[str, Any]:
    """The state of a run: its result if it has ended, else its text so far."""
    events = [event for event in run.journal.events if event.run_id == run.run_id]  # not those of sub-agents
    said = "".join(event.content for event in events if event.event is RunEvent.run_content)
    output = _head(agent, run.run_id, run.session_id, run.user_id, run.status, run.created_at)
    output |= {"content": said, "tools": _tools(events), "metadata": run.metadata}
    output |= {"parent_run_id": run.parent_run_id, "continues": run.continues}
    if run.status.final:
        output |= _result(make_result(run)) | {"output": run.settlement.output_data}
    elif interrupts := run.interrupts:
        output |= {"stop_reason": StopReason.interrupt, "interrupts": interrupts, "messages": []}
        # A call that has begun and asks is listed once, with its question.
        calls = [*output["tools"], *waiting_tools(interrupts, run.created_at)]
        output["tools"] = list({call.tool_call_id: call for call in calls}.values())
    else:
        output |= {"phase": run.phase, "messages": [], "stop_reason": None, "receipt": None, "error": None}
    return output


def record_output(agent: Agent, record: RunRecord) -> dict[str, Any]:
    """The same from the record in the store."""
    session = record.session
    output = _head(agent, record.run_id, session.session_id, session.user_id, record.status, record.created_at)
    return output | {
        "content": record.content,
        "metadata": record.metadata,
        "stop_reason": record.stop_reason,
        "finish_reason": record.finish_reason,
        "usage": record.usage,
        "metrics": None if record.usage is None else metrics_of(record.usage),
        "receipt": record.receipt,
        "error": record.error,
        "output": record.output,
        "interrupts": record.interrupts,
        "continues": record.continues,
        "parent_run_id": record.parent_run_id,
    }


def stored_output(agent: Agent, record: RunRecord, events: list[Event], messages: list[Message]) -> dict[str, Any]:
    """The answer to the request that started or continued a run, which another process executes."""
    output = record_output(agent, record)
    tools = _tools(event for event in events if event.run_id == record.run_id)
    if record.interrupts and not record.status.final:
        calls = [*tools, *waiting_tools(record.interrupts, record.created_at)]
        tools, messages = list({call.tool_call_id: call for call in calls}.values()), []
    return output | {"tools": tools, "messages": [each for message in messages for each in messages_of(message)]}


def _head(
    agent: Agent, run_id: str, session_id: str, user_id: str | None, status: RunStatus, created_at: float
) -> dict[str, Any]:
    model, provider = model_of(agent)
    return {
        "run_id": run_id,
        "agent_id": agent.id,
        "agent_name": agent.name,
        "session_id": session_id,
        "user_id": user_id,
        "status": status,
        "created_at": int(created_at),
        "model": model,
        "model_provider": provider,
        "content_type": "str",
    }


def _result(result: RunResult) -> dict[str, Any]:
    return {
        "content": result.content,
        "messages": [each for message in result.messages for each in messages_of(message)],
        "metrics": metrics_of(result.usage),
        "usage": result.usage,
        "stop_reason": result.stop_reason,
        "finish_reason": result.finish_reason,
        "receipt": result.receipt,
        "error": None if result.error is None else confide(result.error),
        "warnings": result.warnings,
    }


def _tools(events: Iterable[Event]) -> list[WireTool]:
    """Each call once, from its last event."""
    tools: dict[str, WireTool] = {}
    for event in events:
        if event.event in _TOOL_EVENTS and event.tool is not None:
            tools[event.tool.call_id] = wire_tool(event.tool, event)
    return list(tools.values())


def messages_of(message: Message) -> list[dict[str, Any]]:
    """A message in the family's format, which has a separate message for each tool result."""
    if message.role == "tool":
        return [_tool_message(result) for result in message.tool_results]
    view: dict[str, Any] = {"role": message.role, "content": message.text}
    # Text blocks are kept apart: after a cancel the last one is the marker, which is not part of the answer.
    if sum(isinstance(block, Text) for block in message.content) > 1:
        view["content"] = "\n\n".join(block.text for block in message.content if isinstance(block, Text))
    if thoughts := [block.text for block in message.content if isinstance(block, Reasoning)]:
        view["reasoning_content"] = "".join(thoughts)
    if calls := message.tool_calls:
        view["tool_calls"] = [_call(call) for call in calls]
    return [view]


def _tool_message(result: ToolResult) -> dict[str, Any]:
    return {
        "role": "tool",
        "content": result.content,
        "tool_call_id": result.call_id,
        "tool_name": result.name,
        "tool_call_error": result.status == "error",
    }


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": to_json(call.arguments).decode()}
    return {"id": call.id, "type": "function", "function": function}
