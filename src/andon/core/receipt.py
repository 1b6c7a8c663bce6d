# SPDX-License-Identifier: Apache-2.0
"""The data that a run gives to its caller: the cancel request, the receipt, the result.

All are frozen. A receipt says what was true when the run ended; `cancel_and_wait` gives a copy with later leftovers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self

import msgspec
from msgspec import Struct

from andon.core.states import (
    FORCE,
    CancelCause,
    CancelMode,
    FinishReason,
    Phase,
    RunStatus,
    Stopped,
    StopReason,
    ToolOutcome,
)
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
    """True for None, and for a number of seconds that a timer accepts."""
    if value is None:
        return True
    try:
        return isinstance(value, int | float) and float(value) >= 0
    except OverflowError:
        return False


class CancelRequest(Struct, frozen=True, gc=False, omit_defaults=True):
    """One call to cancel, with its arguments."""

    cause: CancelCause
    reason: str | None
    by: str | None
    mode: CancelMode
    grace: float | None
    requested_at: float
    force: bool = False
    """Also cut the calls that a cancel lets finish. Older versions ignore it: then it is a cancel with mode `now`."""

    @property
    def rank(self) -> int:
        return FORCE.rank if self.force else self.mode.rank

    @classmethod
    def make(
        cls,
        cause: CancelCause = CancelCause.user,
        reason: str | None = None,
        by: str | None = None,
        mode: CancelMode | str = CancelMode.now,
        grace: float | None = None,
        force: bool = False,
    ) -> CancelRequest:
        """Check the arguments of a caller. Raises only for an invalid mode or grace."""
        try:
            mode = CancelMode(mode)
        except ValueError:
            raise ValueError(f"mode is {mode!r}; use one of {', '.join(m.value for m in CancelMode)}") from None
        if not is_seconds(grace):
            raise ValueError(f"grace is {grace!r}; it is a number of seconds, 0 or more")
        if force and (mode is not CancelMode.now or grace is not None):
            raise ValueError("force=True cuts everything at once: leave out mode and grace, or leave out force")
        # They may also be the number and frame of a signal: `signal.signal(SIGINT, agent.cancel)`.
        reason = reason if isinstance(reason, str | None) else say(reason)
        by = by if isinstance(by, str) else None
        return cls(cause, reason, by, mode, grace, time.time(), bool(force))


class ToolReceipt(Plain, frozen=True, gc=False, omit_defaults=True):
    """How one tool call ended."""

    call_id: str
    name: str
    outcome: ToolOutcome
    receipt: Receipt | None = None
    """If the tool is a sub-agent whose run was cancelled: the receipt of that run."""
    let_finish: bool = False
    """It was running when the run was cancelled. `on_cancel="finish"` let it end by itself."""
    undo: str | None = None
    """If the call can be undone and its outcome is not `compensated`: why it was not undone, or not yet."""
    stopped: Stopped | None = None
    """If the tool's process was ended: whether it ended when it was asked to, or had to be killed."""


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
        """Make the receipt, now. The clock may have been set back since the request; a latency is never negative."""
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
    """A question to a person. The run waits for the answer."""

    id: str
    name: str
    payload: Any = None
    call_id: str | None = None
    approval: bool = False
    """The question is whether the call may run. The answer is True, False, or `Deny("why")`."""
    call: ToolCall | None = None
    """The tool call that asks: its name and its arguments, as the model gave them."""


def describe_open(interrupts: Sequence[Interrupt]) -> str:
    """The questions that are open, in one line."""
    return ", ".join(f"{interrupt.id!r} ({interrupt.name})" for interrupt in interrupts) or "no questions"


class Deny(Struct, frozen=True, gc=False):
    """An answer to an interrupt that refuses, with a reason."""

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
    """The whole conversation, as the next run of the session will see it. If the run was cancelled in the queue: the
    messages that it will add to the conversation when the runs ahead of it have ended."""
    usage: Usage
    interrupts: list[Interrupt]
    receipt: Receipt | None
    """What the cancel found and cut, if the run was cancelled."""
    error: Exception | None
    """The error, if the run failed."""
    warnings: list[str]
    """Problems outside the run's own work: hooks that failed or hung, a store that didn't answer."""
    metadata: dict[str, Any]
    output: OutputT | None = None
    """The answer as an `output_type`, if the run was given one and has completed."""
    finish_reason: FinishReason | None = None
    """Why the model ended its last answer: `length` and `refusal`, for example. None if it was cut, or did not say."""

    def to_dict(self) -> dict[str, Any]:
        write: Callable[[Any], Any] | None = self.__dict__.get(_WRITE)
        if write is None:  # read from JSON, copied, or without an output
            return Plain.to_dict(self)
        return Plain.to_dict(msgspec.structs.replace(self, output=None)) | {"output": write(self.output)}

    def with_writer(self, write: Callable[[Any], Any] | None) -> Self:
        """This result, with a function that converts its output to JSON: only the `output_type` knows how."""
        if write is not None:
            self.__dict__[_WRITE] = write
        return self

    def raise_for_error(self) -> Self:
        """Raise the error of a failed run; otherwise return this result. A cancelled or paused run raises nothing.

        >>> answer = agent.run("Hello").raise_for_error().content
        """
        if self.error is not None:
            raise self.error
        return self
