# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of runs: states, modes, causes and outcomes, and the table of legal steps.

Programs use the member names; the values are sent over the wire. All members are strings too, so `mode="now"` and
`CancelMode.now` are the same.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Protocol

from andon.errors import IllegalTransitionError


class Word(StrEnum):
    """A word of the vocabulary. It equals its value on the wire, so it must have the same hash (and a fast one)."""

    __hash__ = str.__hash__


class RunStatus(Word):
    """The status of a run. The last three are final."""

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


class RunState(Enum):
    """The state of a run of this process. The public `RunStatus` follows from it, from the signal and from the end.

    `pending`: made, or waiting for its turn. `ending`: it only ends. `ended`: its terminal event is
    written. `released`: its last hooks have been called too, and nothing refers to the run any more.
    """

    pending = 1
    running = 2
    paused = 3
    ending = 4
    ended = 5
    released = 6

    __hash__ = object.__hash__  # the hash of an Enum is written in Python, and slow


RUN_STEPS: dict[RunState, frozenset[RunState]] = {
    RunState.pending: frozenset({RunState.running, RunState.ending, RunState.released}),
    RunState.running: frozenset({RunState.paused, RunState.ending}),
    RunState.paused: frozenset({RunState.running, RunState.ending}),
    RunState.ending: frozenset({RunState.ending, RunState.ended}),
    RunState.ended: frozenset({RunState.released}),
    RunState.released: frozenset({RunState.released}),
}
"""The legal steps. From `pending` to `released`: the run was refused. From `ending` to `ending`: the task that ended
the run was stopped, and the portal goes on with the end. From `released` to `released`: two threads found that the loop
of an ended run was closed.
"""


STATUS_OF = {
    RunState.pending: RunStatus.pending,
    RunState.running: RunStatus.running,
    RunState.paused: RunStatus.paused,
    RunState.ending: RunStatus.running,
}
"""The status of a run that was not cancelled and has not ended."""


def check_step(before: RunState, after: RunState) -> None:
    """Raise for a step that is not in the table."""
    if after not in RUN_STEPS[before]:
        raise IllegalTransitionError(f"a run can't go from {before.name} to {after.name}")


class StopReason(Word):
    """Why a run stopped."""

    end_turn = "end_turn"
    cancelled = "cancelled"
    interrupt = "interrupt"
    max_turns = "max_turns"
    error = "error"


class FinishReason(Word):
    """Why the model ended its answer. The provider's own word for it is in the warning, if there is one.

    `length`: the limit of output tokens. `context_window`: the conversation and the answer fill the model's window.
    `refusal`: the model declines to answer. `content_filter`: a filter of the provider cut or blocked the answer.
    """

    end_turn = "end_turn"
    tool_calls = "tool_calls"
    stop_sequence = "stop_sequence"
    length = "length"
    context_window = "context_window"
    refusal = "refusal"
    content_filter = "content_filter"
    other = "other"


class CancelMode(Word):
    """How much may still finish. Each mode stops more than the one before it."""

    after_turn = "after_turn"
    after_tools = "after_tools"
    now = "now"

    @property
    def rank(self) -> int:
        return _RANK[self]


_RANK = {CancelMode.after_turn: 1, CancelMode.after_tools: 2, CancelMode.now: 3}


class Rank(Protocol):
    """How strong a cancel has to be to cut something: a mode, or `FORCE`."""

    @property
    def rank(self) -> int: ...


class Force:
    """One rank above `now`: for what only a cancel with `force=True` cuts. The mode of such a cancel is `now`."""

    rank = 4

    def __repr__(self) -> str:
        return "FORCE"


FORCE = Force()


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
    """The result of a call to cancel. True if this call or an earlier one has cancelled the run, or will."""

    requested = "requested"
    already_requested = "already_requested"
    armed = "armed"
    already_finished = "already_finished"
    unknown = "unknown"

    def __bool__(self) -> bool:
        return self not in (CancelOutcome.already_finished, CancelOutcome.unknown)


class ToolOutcome(Word):
    """How a tool call ended.

    `failed`: the tool raised, took too long, or gave a result that can't be used. `refused`: by a person, by a hook, or
    because such a call is not possible (an unknown tool, arguments that don't fit). `abandoned`: the tool may still be
    running. `compensated`: it was cut, and what it had done was undone.
    """

    completed = "completed"
    failed = "failed"
    refused = "refused"
    cut = "cut"
    abandoned = "abandoned"
    not_started = "not_started"
    compensated = "compensated"


class Stopped(Word):
    """How what a cut call held was ended. `asked`: it ended when it was asked to. `killed`: it had to be killed."""

    asked = "asked"
    killed = "killed"


class Phase(Word):
    """What a run is doing. `waiting`: for the model's first event. `backoff`: until the next try of a model call."""

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
