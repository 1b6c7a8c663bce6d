# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of runs: states, modes, causes and outcomes, and the table of legal steps.

Member names are what programs use, values are what goes over the wire. All are strings too, so `mode="now"` and
`CancelMode.now` are the same thing.
"""

from __future__ import annotations

from enum import StrEnum

from andon.errors import IllegalTransitionError


class Word(StrEnum):
    """A word of the vocabulary. It equals its value on the wire, so it must hash like it too (and fast)."""

    __hash__ = str.__hash__


class RunStatus(Word):
    """Where a run is. The last three are final."""

    pending = "PENDING"
    running = "RUNNING"
    paused = "PAUSED"
    cancelling = "CANCELLING"
    completed = "COMPLETED"
    cancelled = "CANCELLED"
    error = "ERROR"

    @property
    def final(self) -> bool:
        return self in _FINAL


_FINAL = frozenset({RunStatus.completed, RunStatus.cancelled, RunStatus.error})

LEGAL: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.pending: frozenset({RunStatus.running, RunStatus.cancelling, RunStatus.error}),
    RunStatus.running: frozenset({RunStatus.paused, RunStatus.cancelling, RunStatus.completed, RunStatus.error}),
    RunStatus.paused: frozenset({RunStatus.running, RunStatus.cancelling}),
    RunStatus.cancelling: frozenset({RunStatus.cancelled}),
    RunStatus.completed: frozenset(),
    RunStatus.cancelled: frozenset(),
    RunStatus.error: frozenset(),
}


def check_step(before: RunStatus, after: RunStatus) -> None:
    """Raise for a step that the state table does not have."""
    if after not in LEGAL[before]:
        raise IllegalTransitionError(f"a run can't go from {before.name} to {after.name}")


class StopReason(Word):
    """Why a run went no further."""

    end_turn = "end_turn"
    cancelled = "cancelled"
    interrupt = "interrupt"
    max_turns = "max_turns"
    error = "error"


class CancelMode(Word):
    """How much may still finish; each mode stops more than the one before it."""

    after_turn = "after_turn"
    after_tools = "after_tools"
    now = "now"

    @property
    def rank(self) -> int:
        return _RANK[self]


_RANK = {CancelMode.after_turn: 1, CancelMode.after_tools: 2, CancelMode.now: 3}


class CancelCause(Word):
    """Why a run was cancelled."""

    user = "user"
    caller = "caller"
    disconnect = "disconnect"
    deadline = "deadline"
    budget = "budget"
    superseded = "superseded"
    parent = "parent"
    shutdown = "shutdown"
    lost = "lost"


class CancelOutcome(Word):
    """What a call to cancel achieved. True if the run is, or will be, cancelled by it or by an earlier one."""

    requested = "requested"
    already_requested = "already_requested"
    armed = "armed"
    already_finished = "already_finished"
    unknown = "unknown"

    def __bool__(self) -> bool:
        return self not in (CancelOutcome.already_finished, CancelOutcome.unknown)


class ToolOutcome(Word):
    """What became of a tool call.

    `failed`: the tool raised, took too long, or gave a result that can't be used. `refused`: by a person, by a hook, or
    because no such call is possible (an unknown tool, arguments that don't fit). `abandoned` may still be running.
    """

    completed = "completed"
    failed = "failed"
    refused = "refused"
    cut = "cut"
    abandoned = "abandoned"
    not_started = "not_started"
    compensated = "compensated"


class Phase(Word):
    """What a run is doing. `waiting` is for the model's first event; `backoff` before its next try."""

    pending = "pending"
    queued = "queued"
    loading = "loading"
    hook = "hook"
    waiting = "waiting"
    streaming = "streaming"
    backoff = "backoff"
    tools = "tools"
    paused = "paused"
    ending = "ending"
