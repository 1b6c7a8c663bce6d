# SPDX-License-Identifier: Apache-2.0
"""What a run leaves in its caller's hands: the request that cancelled it, the receipt, the result.

All are frozen. A receipt says what was true when the run ended; `cancel_and_wait` gives a copy with later leftovers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self

import msgspec
from msgspec import Struct

from andon.core.states import CancelCause, CancelMode, Phase, RunStatus, StopReason, ToolOutcome
from andon.errors import say
from andon.messages import Message, ToolCall, Usage
from andon.plain import Plain

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    OutputT = TypeVar("OutputT", default=object, covariant=True)
else:  # the default is for type checkers; before Python 3.13 the standard library's has none
    from typing import TypeVar

    OutputT = TypeVar("OutputT")


def is_seconds(value: object) -> bool:
    """Whether it is None, or a number of seconds that a timer takes."""
    if value is None:
        return True
    try:
        return isinstance(value, int | float) and float(value) >= 0
    except OverflowError:
        return False


class CancelRequest(Struct, frozen=True, gc=False):
    """One call to cancel, as it was asked."""

    cause: CancelCause
    reason: str | None
    by: str | None
    mode: CancelMode
    grace: float | None
    requested_at: float

    @classmethod
    def make(
        cls,
        cause: CancelCause = CancelCause.user,
        reason: str | None = None,
        by: str | None = None,
        mode: CancelMode | str = CancelMode.now,
        grace: float | None = None,
    ) -> CancelRequest:
        """Check what a caller asked for. Raises only for a mode or a grace that means nothing."""
        try:
            mode = CancelMode(mode)
        except ValueError:
            raise ValueError(f"mode is {mode!r}; use one of {', '.join(m.value for m in CancelMode)}") from None
        if not is_seconds(grace):
            raise ValueError(f"grace is {grace!r}; it is a number of seconds, 0 or more")
        # What else it may be is a signal handler's number and frame: `signal.signal(SIGINT, agent.cancel)`.
        reason = reason if isinstance(reason, str | None) else say(reason)
        by = by if isinstance(by, str) else None
        return cls(cause, reason, by, mode, grace, time.time())


class ToolReceipt(Plain, frozen=True, gc=False, omit_defaults=True):
    """What became of one tool call."""

    call_id: str
    name: str
    outcome: ToolOutcome
    receipt: Receipt | None = None
    """If the tool is a sub-agent whose run was cancelled: the receipt of that run."""


class Receipt(Plain, frozen=True, gc=False):
    """What a cancel found and cut, with its timings."""

    cause: CancelCause
    reason: str | None
    by: str | None
    mode: CancelMode
    requested_at: float
    stopped_at: float
    latency: float
    phase: Phase
    tools: list[ToolReceipt]
    usage: Usage
    leftovers: list[str]

    @classmethod
    def of(
        cls,
        request: CancelRequest,
        mode: CancelMode,
        phase: Phase,
        tools: list[ToolReceipt],
        usage: Usage,
        leftovers: list[str],
    ) -> Receipt:
        """Write it, now. The clock may have been set back since the request; a latency is never negative."""
        now = time.time()
        latency = max(0.0, now - request.requested_at)
        return cls(
            request.cause,
            request.reason,
            request.by,
            mode,
            request.requested_at,
            now,
            latency,
            phase,
            tools,
            usage,
            leftovers,
        )


class Interrupt(Plain, frozen=True, gc=False):
    """A question to a person, for which a run waits."""

    id: str
    name: str
    payload: Any = None
    call_id: str | None = None
    approval: bool = False
    """The call itself is to be approved: the answer is True, False, or `Deny("why")`."""
    call: ToolCall | None = None
    """The tool call that asks, as the model wants it: its name and its arguments."""


def describe_open(interrupts: Sequence[Interrupt]) -> str:
    """The questions that are open, in one line."""
    return ", ".join(f"{interrupt.id!r} ({interrupt.name})" for interrupt in interrupts) or "no questions"


class Deny(Struct, frozen=True, gc=False):
    """An answer to an interrupt that refuses, and says why."""

    reason: str = ""


_WRITE = "write"


class RunResult(Plain, Generic[OutputT], frozen=True, dict=True):
    """How a run ended. A cancelled or failed run returns one too; see `status` and `stop_reason`."""

    run_id: str
    session_id: str
    agent_id: str
    status: RunStatus
    stop_reason: StopReason
    message: Message
    """The conversation's last message."""
    content: str
    """The text that was streamed."""
    messages: list[Message]
    """The whole conversation, as the next run of the session will find it; of a run that was cancelled while it queued,
    what it will add to the conversation when those ahead of it have ended."""
    usage: Usage
    interrupts: list[Interrupt]
    receipt: Receipt | None
    """What the cancel found, if the run was cancelled."""
    error: Exception | None
    """What went wrong, if the run failed."""
    warnings: list[str]
    """What went wrong beside the run's work: hooks that failed or hung, a store that didn't answer."""
    metadata: dict[str, Any]
    output: OutputT | None = None
    """The answer as an `output_type`, if the run was given one and has completed."""

    def to_dict(self) -> dict[str, Any]:
        write: Callable[[Any], Any] | None = self.__dict__.get(_WRITE)
        if write is None:  # read from JSON, copied, or without an output
            return Plain.to_dict(self)
        return Plain.to_dict(msgspec.structs.replace(self, output=None)) | {"output": write(self.output)}

    def with_writer(self, write: Callable[[Any], Any] | None) -> Self:
        """The same, which knows how its output is written as JSON. Only its type says that, and a result has none."""
        if write is not None:
            self.__dict__[_WRITE] = write
        return self

    def raise_for_error(self) -> Self:
        """Raise what made the run fail; otherwise return this result. A cancelled or paused run raises nothing.

        >>> answer = agent.run("Hello").raise_for_error().content
        """
        if self.error is not None:
            raise self.error
        return self
