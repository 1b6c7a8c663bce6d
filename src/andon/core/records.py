# SPDX-License-Identifier: Apache-2.0
"""What is kept of sessions and runs: frozen data, without behaviour."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Struct

from andon.core.budget import Budget
from andon.core.receipt import Interrupt, Receipt, ToolReceipt
from andon.core.states import FinishReason, RunStatus, StopReason
from andon.messages import Usage


class SessionKey(NamedTuple):
    """Identifies a session. Two users may both have a session `s1`; these are different sessions."""

    agent_id: str
    user_id: str | None
    session_id: str


class OpenCall(Struct, frozen=True, gc=False):
    """A tool call that waits for a person, or for other calls of its turn that wait for a person."""

    call_id: str
    asked: int = 0
    approved: bool = False
    answers: list[Any] = []
    started: bool = False
    sources: dict[str, str] = {}
    """The questions of child runs that it passes on: their ids, and the ids that the child runs gave to them."""
    passed_on: dict[str, Any] = {}
    """The answers to these questions, by the ids of the child runs."""


class Bookmark(Struct, frozen=True):
    """Where a paused run continues, if it continues in another process."""

    turns: int
    max_turns: int | None = None
    timeout: float | None = None
    tokens: int | None = None
    """The tokens that are left of its budget."""
    tool_calls: int | None = None
    calls: list[OpenCall] = []
    ended: list[ToolReceipt] = []
    """The outcomes of the calls that have ended, of all turns so far."""
    output_schema: dict[str, Any] | None = None
    """The JSON schema of its answer, if it was given as a schema."""
    budget: Budget | None = None
    """Its whole budget, with what is spent."""

    @property
    def spent(self) -> tuple[int, int]:
        """The tokens and tool calls that are spent. 0 for a part that the budget does not limit."""
        whole = self.budget or Budget()
        return (whole.tokens or 0) - (self.tokens or 0), (whole.tool_calls or 0) - (self.tool_calls or 0)


class Shortened(Struct, frozen=True, gc=False):
    """A summary that is sent to models in place of a conversation's beginning. The store keeps the original."""

    covers: int
    """How many messages it summarises, from the first one on."""
    digest: str
    """A digest of those messages: if it does not match any more, the summary is not used."""
    summary: str


class RequestKey(Struct, frozen=True, gc=False):
    """The idempotency key of a request: the same request with the same key, sent again, starts no second run."""

    key: str
    said: str
    """A digest of the request."""


class RunRecord(Struct, frozen=True):
    """What a store keeps of a run."""

    run_id: str
    session: SessionKey
    status: RunStatus
    created_at: float
    metadata: dict[str, Any]
    stop_reason: StopReason | None = None
    content: str = ""
    usage: Usage | None = None
    receipt: Receipt | None = None
    error: str | None = None
    interrupts: list[Interrupt] = []
    """The questions that are open, if the run is paused."""
    continues: str | None = None
    """The run that this one continues. The messages of that run are part of the messages of this one."""
    parent_run_id: str | None = None
    """The run inside which this one was started."""
    cut_calls: list[ToolReceipt] = []
    """The tool calls that the run's end cut off, with what is known of each. A run that continues it needs them."""
    bookmark: Bookmark | None = None
    """Where it continues, if it is paused."""
    output: Any = None
    """The answer as JSON, if an `output_type` or a schema asked for one."""
    shortened: Shortened | None = None
    """The summary that the run made of its session's beginning. Later runs use it."""
    request_key: RequestKey | None = None
    """The idempotency key of the request that started the run, if it had one."""
    output_schema: dict[str, Any] | None = None
    """The JSON schema that a server's client asked for. A run that continues this one after a cut uses it too."""
    finish_reason: FinishReason | None = None
    """Why the model ended its last answer, if it has said so."""


class SessionRecord(Struct, frozen=True, gc=False):
    """What a store keeps of a session besides its conversation. The state belongs to its users; no run reads it."""

    key: SessionKey
    state: dict[str, Any]
    created_at: float
    updated_at: float


def brought(record: SessionRecord) -> RunRecord:
    """The record for messages of a session that did not come from a run."""
    return RunRecord("", record.key, RunStatus.completed, record.created_at, {}, StopReason.end_turn)
