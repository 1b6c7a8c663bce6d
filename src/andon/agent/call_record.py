# SPDX-License-Identifier: Apache-2.0
"""The record of one tool call, from the model's wish to what became of it.

It is honest at every moment: whoever looks finds what is true right now, and what the model may be told of it. How a
call ends is decided once, by the tool's own end or by a cancel of this call alone, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from andon.core.events import ToolView
from andon.core.receipt import Deny, Interrupt, ToolReceipt
from andon.core.records import OpenCall
from andon.core.run.run import Run
from andon.core.run.tool_call import ToolCallScope
from andon.core.states import CancelOutcome, ToolOutcome
from andon.core.steps import Step
from andon.errors import ToolError
from andon.messages import ToolCall, ToolResult, sendable

NOT_STARTED = "This call was cancelled before it started."
CUT = "This call was cancelled while it was running. Its outcome is unknown."
ABANDONED = "This call was cancelled while it was running, and may still be running. Its outcome is unknown."
ASKING = "This call was cancelled while it waited for a person's answer. What it did until then is unknown."
NOT_APPROVED = "This call was cancelled before it started, while it waited for a person's approval."
DENIED = "A person refused this call."
OUT_OF_TIME = {
    ToolOutcome.cut: "it was cut when its time was up; its outcome is unknown",
    ToolOutcome.abandoned: "its time was up, but it may still be running; its outcome is unknown",
}


_TRUTH = {ToolOutcome.not_started: NOT_STARTED, ToolOutcome.cut: CUT, ToolOutcome.abandoned: ABANDONED}


class CallCancel(Struct, frozen=True, gc=False):
    """A cancel of one call alone."""

    reason: str | None


class CallRecord:
    """What is known of one tool call."""

    __slots__ = (
        "_answers",
        "_approved",
        "_asked",
        "_ended_as",
        "_fate",
        "_passed_on",
        "_result",
        "_run",
        "_sources",
        "_started",
        "call",
        "error",
        "interrupts",
        "problem",
        "refusal",
        "scope",
        "step",
    )

    def __init__(self, run: Run, call: ToolCall, problem: ToolError | None = None) -> None:
        self._run, self.call = run, call
        self.problem = problem
        """What is wrong with the call as the model sent it."""
        self.scope = ToolCallScope(run, call.id, call.name)
        self.step: Step[None] | None = None
        """The work itself, once it has begun."""
        self.interrupts: list[Interrupt] = []
        """The questions for whose answers it waits."""
        self.refusal: str | None = None
        """What a person said who refused it."""
        self.error: Exception | None = None
        """What went wrong, until the hooks were told: it must not outlive that, since its frames know this record."""
        self._asked = 0
        self._answers: list[Any] = []
        self._sources: dict[str, str] = {}  # the ids that other runs gave to the questions that it passes on
        self._passed_on: dict[str, Any] = {}
        self._approved = self._started = False
        self._fate: dict[str, CallCancel | None] = {}
        self._result: ToolResult | None = None
        self._ended_as: ToolOutcome | None = None

    # -- how it ends --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._started = True

    def finish(self, text: str, status: Any = "ok", outcome: ToolOutcome = ToolOutcome.completed) -> bool:
        """It came to an end of its own. False if it was cancelled first."""
        if self._result is not None or self._fate.setdefault("end", None) is not None:
            return False
        self._ended_as = outcome
        self._result = ToolResult(self.call.id, self.call.name, sendable(text), status)
        return True

    def cancel(self, reason: str | None) -> CancelOutcome:
        """Cancel this call alone. Safe from any thread."""
        request = CallCancel(reason)
        winner = self._fate.setdefault("end", request)
        if winner is request:
            self.scope.end_children()
            return CancelOutcome.requested
        ended = winner is None or self._result is not None
        return CancelOutcome.already_finished if ended else CancelOutcome.already_requested

    @property
    def cancelled_alone(self) -> CallCancel | None:
        return self._fate.get("end")

    def cut(self) -> None:
        """Stop the work, if it has begun. Called on the run's loop."""
        if self.step is not None:
            self.step.cut_alone()

    def close(self) -> None:
        """It was cancelled alone, and has stopped: from here on that is its result."""
        if self._result is None:
            self._ended_as = self.outcome
            self._result = self.result(self._ended_as)
        self.interrupts = []

    # -- what it asks -------------------------------------------------------------------------------------------------

    @property
    def approved(self) -> bool:
        return self._approved

    @property
    def answers(self) -> list[Any]:
        return self._answers

    @property
    def passed_on(self) -> dict[str, Any]:
        """The answers to what the runs below it asked, by their own questions' ids."""
        return self._passed_on

    @property
    def asks(self) -> bool:
        """It waits for an answer. A question of a call that was cancelled is not open any more."""
        return bool(self.interrupts) and self.cancelled_alone is None

    def ask(self, questions: Sequence[Interrupt]) -> None:
        """Wait for the answers to these. One that has an id is another run's."""
        self.scope.rest()
        for question in questions:
            self._asked += 1
            own = msgspec.structs.replace(
                question, id=f"{self.call.id}-{self._asked}", call_id=self.call.id, call=self.call
            )
            self._sources[own.id] = question.id
            self.interrupts.append(own)

    def answer(self, answers: Mapping[str, Any]) -> None:
        """Take a person's answers."""
        questions, self.interrupts = self.interrupts, []
        for question in questions:
            value = answers[question.id]
            if source := self._sources[question.id]:  # a refusal too: the model that is told is the other run's
                self._passed_on[source] = value
            elif value is False or isinstance(value, Deny):
                why = value.reason if isinstance(value, Deny) else ""
                self.refusal = f"{DENIED} {why}".strip()
            elif question.approval:
                self._approved = True
            else:
                self._answers.append(value)

    def state(self) -> OpenCall:
        """What whoever goes on with the run in another process must know of it."""
        asked, approved, answers = self._asked, self._approved, list(self._answers)
        return OpenCall(
            self.call.id, asked, approved, answers, self._started, dict(self._sources), dict(self._passed_on)
        )

    def restore(self, state: OpenCall, interrupts: list[Interrupt]) -> None:
        self._asked, self._approved, self._answers = state.asked, state.approved, list(state.answers)
        self._started, self._sources, self._passed_on = state.started, dict(state.sources), dict(state.passed_on)
        self.interrupts = interrupts

    # -- what is known of it ------------------------------------------------------------------------------------------

    @property
    def has_started(self) -> bool:
        return self._started

    @property
    def has_result(self) -> bool:
        return self._result is not None

    @property
    def is_open(self) -> bool:
        """It has no result, and nobody has cancelled it alone."""
        return self._result is None and self.cancelled_alone is None

    @property
    def outcome(self) -> ToolOutcome:
        if self._ended_as is not None:  # said once: a thread that was left behind may be gone by now
            return self._ended_as
        if not self._started:
            return ToolOutcome.not_started
        left = self.scope.has_resources or (self.step is not None and self.step.abandoned)
        return ToolOutcome.abandoned if left else ToolOutcome.cut

    def result(self, outcome: ToolOutcome | None = None) -> ToolResult:
        """The real result, or the truth about why there is none."""
        if self._result is not None:
            return self._result
        return ToolResult(self.call.id, self.call.name, self._truth(outcome or self.outcome), "error")

    def _truth(self, outcome: ToolOutcome) -> str:
        if self.interrupts:
            return NOT_APPROVED if outcome is ToolOutcome.not_started else ASKING
        return _TRUTH[outcome]

    def receipt(self) -> ToolReceipt:
        return ToolReceipt(self.call.id, self.call.name, self.outcome, self.scope.receipt)

    def view(self) -> ToolView:
        return ToolView(self.call.id, self.call.name, self.call.arguments)

    def ended_view(self, outcome: ToolOutcome) -> ToolView:
        text = self._truth(outcome) if self._result is None else self._result.content
        return ToolView(self.call.id, self.call.name, self.call.arguments, text, outcome)
