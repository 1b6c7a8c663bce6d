# SPDX-License-Identifier: Apache-2.0
"""The record of one tool call, from the model's request to its outcome.

It is correct at every moment: it says what is true now, and what the model may be told. How a call ends is decided
once: by the tool's own end, or by a cancel of this call alone, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from andon.core.events import ToolView
from andon.core.receipt import Deny, Interrupt, ToolReceipt
from andon.core.records import OpenCall
from andon.core.run.run import LocalRun
from andon.core.run.tool_call import ToolCallScope
from andon.core.states import CancelOutcome, ToolOutcome
from andon.core.steps import Step
from andon.errors import ToolError
from andon.messages import Media, ToolCall, ToolResult, sendable

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


_NO_RESULT = {ToolOutcome.not_started: NOT_STARTED, ToolOutcome.cut: CUT, ToolOutcome.abandoned: ABANDONED}


class CallCancel(Struct, frozen=True, gc=False):
    """A cancel of one call alone."""

    reason: str | None


class CallRecord:
    """What is known of one tool call."""

    __slots__ = (
        "_answers",
        "_approved",
        "_child_answers",
        "_ended_as",
        "_fate",
        "_questions_asked",
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

    def __init__(self, run: LocalRun, call: ToolCall, problem: ToolError | None = None) -> None:
        self._run, self.call = run, call
        self.problem = problem
        """What is wrong with the call as the model sent it."""
        self.scope = ToolCallScope(run, call.id, call.name)
        self.step: Step[None] | None = None
        """The step that runs the tool, once it has started."""
        self.interrupts: list[Interrupt] = []
        """The questions that wait for an answer."""
        self.refusal: str | None = None
        """What the model is told if a person refused the call."""
        self.error: Exception | None = None
        """What went wrong. Set to None once the hooks were told: its frames hold this record."""
        self._questions_asked = 0
        self._answers: list[Any] = []
        self._sources: dict[str, str] = {}  # by question id: the id that a child run gave to the same question
        self._child_answers: dict[str, Any] = {}
        self._approved = self._started = False
        self._fate: dict[str, CallCancel | None] = {}
        self._result: ToolResult | None = None
        self._ended_as: ToolOutcome | None = None

    # -- how it ends --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._started = True

    def finish(
        self,
        text: str,
        status: Any = "ok",
        outcome: ToolOutcome = ToolOutcome.completed,
        attachments: Sequence[Media] = (),
    ) -> bool:
        """The call ended by itself. False if it was cancelled alone before, or has a result already."""
        if self._result is not None or self._fate.setdefault("end", None) is not None:
            return False
        self._ended_as = outcome
        self._result = ToolResult(self.call.id, self.call.name, sendable(text), status, list(attachments))
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
        """Cut the step, if it has started. Called on the run's loop."""
        if self.step is not None:
            self.step.cut_alone()

    def close(self) -> None:
        """It was cancelled alone, and has stopped. From now on that is its result."""
        if self._result is None:
            self._ended_as = self.outcome
            self._result = self.result(self._ended_as)
        self.interrupts = []

    # -- questions for a person ---------------------------------------------------------------------------------------

    @property
    def approved(self) -> bool:
        return self._approved

    @property
    def answers(self) -> list[Any]:
        return self._answers

    @property
    def child_answers(self) -> dict[str, Any]:
        """The answers to what its child runs have asked, by the ids that those runs gave to the questions."""
        return self._child_answers

    @property
    def is_waiting(self) -> bool:
        """It waits for a person's answer. A call that was cancelled alone waits for nothing."""
        return bool(self.interrupts) and self.cancelled_alone is None

    def wait_for_person(self, questions: Sequence[Interrupt]) -> None:
        """The call asks these questions, and waits for the answers. A question that has an id is a child run's."""
        self.scope.rest()
        for question in questions:
            self._questions_asked += 1
            own = msgspec.structs.replace(
                question, id=f"{self.call.id}-{self._questions_asked}", call_id=self.call.id, call=self.call
            )
            self._sources[own.id] = question.id
            self.interrupts.append(own)

    def take_answers(self, answers: Mapping[str, Any]) -> None:
        """A person has answered all questions."""
        questions, self.interrupts = self.interrupts, []
        for question in questions:
            value = answers[question.id]
            if source := self._sources[question.id]:  # a refusal too: the child run's model is told
                self._child_answers[source] = value
            elif value is False or isinstance(value, Deny):
                why = value.reason if isinstance(value, Deny) else ""
                self.refusal = f"{DENIED} {why}".strip()
            elif question.approval:
                self._approved = True
            else:
                self._answers.append(value)

    def state(self) -> OpenCall:
        """What another process needs to resume the run in the middle of this call."""
        asked, approved, answers = self._questions_asked, self._approved, list(self._answers)
        return OpenCall(
            self.call.id, asked, approved, answers, self._started, dict(self._sources), dict(self._child_answers)
        )

    def restore(self, state: OpenCall, interrupts: list[Interrupt]) -> None:
        self._questions_asked, self._approved, self._answers = state.asked, state.approved, list(state.answers)
        self._started, self._sources, self._child_answers = state.started, dict(state.sources), dict(state.passed_on)
        self.interrupts = interrupts

    # -- its state and outcome ----------------------------------------------------------------------------------------

    @property
    def has_started(self) -> bool:
        return self._started

    @property
    def has_result(self) -> bool:
        return self._result is not None

    @property
    def is_open(self) -> bool:
        """It has no result, and was not cancelled alone."""
        return self._result is None and self.cancelled_alone is None

    @property
    def outcome(self) -> ToolOutcome:
        if self._ended_as is not None:  # decided once: what the call held may be gone by now
            return self._ended_as
        if not self._started:
            return ToolOutcome.not_started
        left = self.scope.has_resources or (self.step is not None and self.step.abandoned)
        return ToolOutcome.abandoned if left else ToolOutcome.cut

    def result(self, outcome: ToolOutcome | None = None) -> ToolResult:
        """The tool's result, or a text that says why there is none."""
        if self._result is not None:
            return self._result
        return ToolResult(self.call.id, self.call.name, self._no_result_text(outcome or self.outcome), "error")

    def _no_result_text(self, outcome: ToolOutcome) -> str:
        if self.interrupts:
            return NOT_APPROVED if outcome is ToolOutcome.not_started else ASKING
        return _NO_RESULT[outcome]

    def receipt(self) -> ToolReceipt:
        return ToolReceipt(self.call.id, self.call.name, self.outcome, self.scope.receipt)

    def view(self) -> ToolView:
        return ToolView(self.call.id, self.call.name, self.call.arguments)

    def ended_view(self, outcome: ToolOutcome) -> ToolView:
        text = self._no_result_text(outcome) if self._result is None else self._result.content
        return ToolView(self.call.id, self.call.name, self.call.arguments, text, outcome)
