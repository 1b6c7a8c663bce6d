# SPDX-License-Identifier: Apache-2.0
"""The types of the responses, for the OpenAPI document only: the routes write JSON without them.

What must stay true: every response matches its type. The tests check it against a real server, for every route.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from types import NoneType
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

from andon.core.events import RunEvent
from andon.core.receipt import Interrupt, Receipt
from andon.core.selection import BlockKind
from andon.core.states import CancelCause, CancelMode, CancelOutcome, FinishReason, Phase, RunStatus, StopReason
from andon.messages import Usage
from andon.server.agentos_json import WireEvent, WireMetrics, WireTool

Json = dict[str, Any]


class ProblemDetail(Struct):
    """What is wrong, and what to do. Some problems have the id of their run."""

    detail: str
    run_id: str | None = None
    call_id: str | UnsetType = UNSET
    status: RunStatus | UnsetType = UNSET
    outcome: CancelOutcome | UnsetType = UNSET
    interrupts: list[Json] | UnsetType = UNSET


# -- runs -------------------------------------------------------------------------------------------------------------


class RunMessage(Struct):
    """A message of the conversation. Each tool result is a separate message."""

    role: Literal["user", "assistant", "tool"]
    content: str
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[Json] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    tool_name: str | UnsetType = UNSET
    tool_call_error: bool | UnsetType = UNSET


class RunOutput(Struct):
    """The current state of a run; after its end its result, and after a cancel its receipt."""

    run_id: str
    agent_id: str
    agent_name: str
    session_id: str
    user_id: str | None
    status: RunStatus
    created_at: int
    model: str
    model_provider: str
    content_type: str
    content: str
    """The text so far."""
    metadata: Json | None = None
    parent_run_id: str | None = None
    continues: str | None = None
    """The id of the run that it continues."""
    stop_reason: StopReason | None = None
    finish_reason: FinishReason | None = None
    """Why the model ended its last answer, if the run has ended and the model has said so."""
    receipt: Receipt | None = None
    error: str | None = None
    output: Any = None
    """The answer as JSON, if the request had a schema."""
    usage: Usage | None = None
    metrics: WireMetrics | None = None
    messages: list[RunMessage] | UnsetType = UNSET
    tools: list[WireTool] | UnsetType = UNSET
    interrupts: list[Interrupt] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
    phase: Phase | UnsetType = UNSET


class RunLine(Struct):
    """A run in a list."""

    run_id: str
    agent_id: str
    session_id: str
    user_id: str | None
    status: RunStatus
    phase: Phase | None
    created_at: int
    held_by: str | None
    """The worker process, or the process of a server, that executes it; null if none does, and without a database."""


class RunStartedAnswer(Struct):
    """A run that was started in the background."""

    run_id: str
    session_id: str
    status: RunStatus


class Ticket(Struct):
    """Gives access to the events of one run for a while: see `url`."""

    ticket: str
    url: str
    expires_at: int


# -- cancels and blocks -----------------------------------------------------------------------------------------------


class CancelAnswer(Struct):
    """The result of a cancel. `receipt` is set if the request waited."""

    run_id: str
    outcome: CancelOutcome
    status: RunStatus
    receipt: Receipt | None = None
    stored: bool | UnsetType = UNSET
    """False: the run is stopped, and the database does not know yet."""


class CancelledRun(Struct):
    """One of several runs that were asked to stop."""

    agent_id: str
    run_id: str
    outcome: CancelOutcome
    status: RunStatus | None
    receipt: Receipt | None = None


class Blocked(Struct):
    kind: BlockKind
    id: str


class CancelManyAnswer(Struct):
    cancelled: list[CancelledRun]
    blocked: Blocked | UnsetType = UNSET


class CancelSessionAnswer(Struct):
    session_id: str
    cancelled: list[str]
    runs: list[CancelledRun] | UnsetType = UNSET


class RollbackAnswer(Struct):
    run_id: str
    session_id: str
    rolled_back: bool


class CancelCallAnswer(Struct):
    run_id: str
    call_id: str
    outcome: CancelOutcome
    status: RunStatus


class UnblockAnswer(Struct):
    kind: BlockKind
    id: str
    unblocked: bool


class DrainAnswer(Struct):
    name: str
    draining: bool


class CancelLine(Struct):
    """An entry of the log of cancels."""

    run_id: str
    agent_id: str | None
    session_id: str | None
    user_id: str | None
    cause: CancelCause
    reason: str | None
    by: str | None
    mode: CancelMode
    requested_at: float


# -- the server -------------------------------------------------------------------------------------------------------


class ModelSummary(Struct):
    id: str
    provider: str


class AgentSummary(Struct):
    id: str
    name: str
    description: str | None
    model: ModelSummary
    db_id: str | None = None
    metadata: Json | None = None


class ToolSummary(Struct):
    name: str
    description: str


class ToolList(Struct):
    tools: list[ToolSummary]


class AgentDetail(AgentSummary, kw_only=True):
    tools: ToolList


class ServerConfig(Struct):
    os_id: str
    name: str
    available_models: list[ModelSummary]
    agents: list[AgentSummary]
    databases: list[str]
    teams: list[str]
    workflows: list[str]
    interfaces: list[str]


class ServerStatus(Struct):
    status: Literal["ok", "ready"]


class ServerVersion(Struct):
    version: str
    language: str
    language_version: str


# -- by session, in ADK's format --------------------------------------------------------------------------------------


class SessionContent(Struct):
    role: Literal["user", "model"]
    parts: list[Json]


class SessionUsage(Struct):
    promptTokenCount: int | UnsetType = UNSET  # noqa: N815 - ADK's names
    candidatesTokenCount: int | UnsetType = UNSET  # noqa: N815
    totalTokenCount: int | UnsetType = UNSET  # noqa: N815


class SessionEvent(Struct):
    """A message of an invocation, or, if `partial`, a piece of one. An aborted invocation ends with an `errorCode`."""

    id: str
    invocationId: str  # noqa: N815
    author: str
    timestamp: float
    actions: Json
    content: SessionContent | UnsetType = UNSET
    partial: bool | UnsetType = UNSET
    turnComplete: bool | UnsetType = UNSET  # noqa: N815
    interrupted: bool | UnsetType = UNSET
    errorCode: str | UnsetType = UNSET  # noqa: N815
    errorMessage: str | UnsetType = UNSET  # noqa: N815
    longRunningToolIds: list[str] | UnsetType = UNSET  # noqa: N815
    usageMetadata: SessionUsage | UnsetType = UNSET  # noqa: N815
    customMetadata: Json | UnsetType = UNSET  # noqa: N815


class Session(Struct):
    id: str
    appName: str  # noqa: N815
    userId: str  # noqa: N815
    state: Json
    events: list[SessionEvent]
    lastUpdateTime: float  # noqa: N815


# -- the events of a run ----------------------------------------------------------------------------------------------

_HEAD = ("created_at", "agent_id", "agent_name", "run_id", "session_id", "seq", "event_index")
_SAID = ("content", "content_type")
_TOOL = (("tool",), ())
_END = (*_SAID, "status")
_KNOWN_AT_END = ("usage", "metrics", "receipt", "reason", "finish_reason")
_TEXT = (RunEvent.run_content, RunEvent.reasoning)
_FIELDS: dict[RunEvent, tuple[tuple[str, ...], tuple[str, ...]]] = {
    RunEvent.run_started: (("model", "model_provider"), ("parent_run_id",)),
    RunEvent.run_content: (_SAID, ()),
    RunEvent.reasoning: (("content", "reasoning_content"), ()),
    RunEvent.tool_call_started: _TOOL,
    RunEvent.tool_call_completed: _TOOL,
    RunEvent.tool_call_error: _TOOL,
    RunEvent.tool_call_cancelled: _TOOL,
    RunEvent.tool_undo_started: _TOOL,
    RunEvent.tool_progress: (("tool", "progress"), ()),
    RunEvent.tool_output: ((*_SAID, "call_id"), ()),
    RunEvent.run_paused: (("interrupts", "tools", "requirements"), ()),
    RunEvent.run_completed: (_END, (*_KNOWN_AT_END, "output")),
    RunEvent.run_cancelled: (_END, _KNOWN_AT_END),
    RunEvent.run_error: ((*_END, "error"), _KNOWN_AT_END),
}
"""The fields that a kind of event always has, beside `_HEAD`, and those that it may have. Other kinds may have any."""


def _event(kind: RunEvent) -> type[Struct]:
    fields = {field.name: field.type for field in msgspec.structs.fields(WireEvent) if field.name != "event"}
    always, maybe = _FIELDS.get(kind, ((), tuple(fields)))
    required = {*_HEAD, *always, *(() if kind in _TEXT else ("timestamp",))}
    optional = {*maybe} - required
    known = [(name, _without_none(of)) for name, of in fields.items() if name in required]
    others = [(name, _without_none(of) | UnsetType, UNSET) for name, of in fields.items() if name in optional]
    return msgspec.defstruct(kind.value, [*known, *others], tag_field="event", tag=kind.value)


def _without_none(kind: Any) -> Any:
    """The type without None: fields that are None are left out of an event."""
    members = [member for member in get_args(kind) if member is not NoneType]
    return reduce(or_, members) if NoneType in get_args(kind) else kind


EVENTS: Any = reduce(or_, [_event(kind) for kind in RunEvent])
"""Any event. The field `event` tells them apart."""
