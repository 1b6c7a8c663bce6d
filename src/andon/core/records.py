# SPDX-License-Identifier: Apache-2.0
"""What is kept of sessions and runs: frozen data, without behaviour."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Struct

from andon.core.budget import Budget
from andon.core.receipt import Interrupt, Receipt, ToolReceipt
from andon.core.states import RunStatus, StopReason
from andon.messages import Usage


class SessionKey(NamedTuple):
    """What makes a session: two users' `s1` never meet."""

    agent_id: str
    user_id: str | None
    session_id: str


class OpenCall(Struct, frozen=True, gc=False):
    """A tool call that waits for a person, or for others of its turn that do."""

    call_id: str
    asked: int = 0
    approved: bool = False
    answers: list[Any] = []
    started: bool = False
    sources: dict[str, str] = {}
    """The questions that it passes on, and the ids that the runs below it gave to them."""
    passed_on: dict[str, Any] = {}
    """The answers to such questions, by those ids."""


class Bookmark(Struct, frozen=True):
    """Where a paused run goes on, if not in the process that paused it."""

    turns: int
    max_turns: int | None = None
    timeout: float | None = None
    tokens: int | None = None
    """What is left of its budget."""
    tool_calls: int | None = None
    calls: list[OpenCall] = []
    ended: list[ToolReceipt] = []
    """What became of the calls that have ended, of all turns so far."""
    output_schema: dict[str, Any] | None = None
    """The JSON schema that its answer must fit, if it was given as one."""
    budget: Budget | None = None
    """All of its budget, what is spent included."""

    @property
    def spent(self) -> tuple[int, int]:
        """The tokens and tool calls that are spent, of a budget that has them."""
        whole = self.budget or Budget()
        return (whole.tokens or 0) - (self.tokens or 0), (whole.tool_calls or 0) - (self.tool_calls or 0)


class Shortened(Struct, frozen=True, gc=False):
    """A summary that models are sent in place of a conversation's beginning, which itself is kept."""

    covers: int
    """Of how many messages, from the first one on, it is a summary."""
    digest: str
    """Of those messages: once they are others, it is no summary of them."""
    summary: str


class RequestKey(Struct, frozen=True, gc=False):
    """The idempotency key of a request: who sends the same one again, with the same key, starts nothing anew."""

    key: str
    said: str
    """A digest of what was asked for."""


class RunRecord(Struct, frozen=True):
    """What is kept of a run."""

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
    """The run that this one goes on with: what that one added is part of what this one adds."""
    parent_run_id: str | None = None
    """The run inside which this one was started."""
    cut_calls: list[ToolReceipt] = []
    """The tool calls that the run's end cut off, with what is known of each: what whoever goes on has to deal with."""
    bookmark: Bookmark | None = None
    """Where it goes on, if it is paused."""
    output: Any = None
    """The answer as JSON, if an `output_type` or a schema asked for one."""
    shortened: Shortened | None = None
    """The summary that the run has made of its session's beginning, for those that come after it."""
    request_key: RequestKey | None = None
    """The idempotency key of the request that started it, if that had one."""
    output_schema: dict[str, Any] | None = None
    """The JSON schema that a server's client asked for, so that a run that goes on after a cut is asked for it too."""


class SessionRecord(Struct, frozen=True, gc=False):
    """What is kept of a session besides its conversation. The state is its users' own; no run reads it."""

    key: SessionKey
    state: dict[str, Any]
    created_at: float
    updated_at: float


def brought(record: SessionRecord) -> RunRecord:
    """Stands for who has put messages into a session, where those of runs have the run's record."""
    return RunRecord("", record.key, RunStatus.completed, record.created_at, {}, StopReason.end_turn)
