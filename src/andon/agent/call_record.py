# SPDX-License-Identifier: Apache-2.0
"""The record of one tool call, from the model's request to its outcome.

It is correct at every moment: it says what is true now, and what the model may be told. How a call ends is decided
once: by the tool's own end, by a cancel of this call alone, or by another cut, whichever comes first. Only a call that
was cut is undone, so one that was undone is never kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from andon.agent.undoing import Undoing
from andon.core.events import ToolView
from andon.core.receipt import Deny, Interrupt, ToolReceipt
from andon.core.records import OpenCall
from andon.core.run.run import LocalRun
from andon.core.run.tool_call import ToolCallScope
from andon.core.states import FORCE, CancelOutcome, ToolOutcome
from andon.core.steps import Step
from andon.errors import ToolError
from andon.messages import Media, ToolCall, ToolResult, sendable

NOT_STARTED = "This call was cancelled before it started."
CUT = "This call was cancelled while it was running. Its outcome is unknown."
ABANDONED = "This call was cancelled while it was running, and may still be running. Its outcome is unknown."
UNDONE = "This call was cancelled while it was running. What it had done was undone."
UNDONE_ASKING = "This call was cancelled while it waited for a person's answer. What it had done was undone."
UNDONE_BY_TOOL = (
    "This call was cancelled while it was running. The undo function of its tool was called. What the call itself had"
    " registered to be undone is not known any more."
)
NOT_UNDONE = "This call was cancelled while it was running, and could not be undone: {}. Its outcome is unknown."
UNDONE_LATER = (
    "This call was cancelled while it was running, and may still be running. It is undone when it has ended, unless its"
    " process ends first. Its outcome is unknown."
)
LATER = "it is undone when it has ended, unless its process ends first"
ASKING = "This call was cancelled while it waited for a person's answer. What it did until then is unknown."
NOT_APPROVED = "This call was cancelled before it started, while it waited for a person's approval."
DENIED = "A person refused this call."
OUT_OF_TIME = {
    ToolOutcome.cut: "it was cut; its outcome is unknown",
    ToolOutcome.abandoned: "it may still be running; its outcome is unknown",
    ToolOutcome.compensated: "it was cut, and what it had done was undone",
}


_NO_RESULT = {ToolOutcome.not_started: NOT_STARTED, ToolOutcome.cut: CUT, ToolOutcome.abandoned: ABANDONED}


class CallCancel(Struct, frozen=True, gc=False):
    """A cancel of one call alone."""

    reason: str | None


class _Cut(Struct, frozen=True, gc=False):
    """The call was cut, and not by a cancel of this call alone."""


_CUT = _Cut()


class CallRecord:
    """What is known of one tool call."""

    __slots__ = (
        "_answers",
        "_approved",
        "_begun",
        "_child_answers",
        "_ended_as",
        "_fate",
        "_questions_asked",
        "_restored",
        "_result",
        "_run",
        "_sources",
        "_started",
        "call",
        "error",
        "has_undo",
        "interrupts",
        "is_left_running",
        "let_finish",
        "problem",
        "refusal",
        "scope",
        "step",
        "undoing",
        "was_told",
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
        self.has_undo = False
        """Its tool was defined with an undo function. Known once the call has started."""
        self.undoing: Undoing | None = None
        """How it is undone, if it was cut and can be undone."""
        self.is_left_running = False
        """It still ran when its run had to go on, and is undone when it has ended."""
        self.let_finish = self.was_told = False
        """A cancel has let it finish. The hooks were told of its end."""
        self._questions_asked = 0
        self._answers: list[Any] = []
        self._sources: dict[str, str] = {}  # by question id: the id that a child run gave to the same question
        self._child_answers: dict[str, Any] = {}
        self._approved = self._started = self._begun = self._restored = False
        self._fate: dict[str, CallCancel | _Cut | None] = {}
        self._result: ToolResult | None = None
        self._ended_as: ToolOutcome | None = None

    # -- how it ends --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._started = True

    def begin(self) -> None:
        """The tool's own code begins now. What it does from here on may have to be undone."""
        self._begun = True

    def finish(
        self,
        text: str,
        status: Any = "ok",
        outcome: ToolOutcome = ToolOutcome.completed,
        attachments: Sequence[Media] = (),
    ) -> bool:
        """The call ended by itself, or its time was up. False if it was cancelled alone before, or has a result."""
        if self._result is not None or self._fate.setdefault("end", None) not in (None, _CUT):
            return False
        self.let_finish = self.step is not None and self.step.is_being_let_finish and not self.scope.cancelled
        self._ended_as = outcome
        self._result = ToolResult(self.call.id, self.call.name, sendable(text), status, list(attachments))
        self.scope.undo_steps = None
        return True

    def cancel(self, reason: str | None, force: bool = False) -> CancelOutcome:
        """Cancel this call alone. Safe from any thread."""
        request = CallCancel(reason)
        if not force and self._is_let_finish and "end" not in self._fate:
            winner = self._fate.setdefault("asked", request)
            if self.interrupts:  # it asked a person just now
                self._fate.setdefault("end", winner)
            return CancelOutcome.requested if winner is request else CancelOutcome.already_requested
        winner = self._fate.setdefault("end", request)
        if winner is request:
            self.scope.end_children(force)
            return CancelOutcome.already_requested if "asked" in self._fate else CancelOutcome.requested
        ended = winner is None or self._result is not None
        if force and not ended:  # a run that it has started may be letting something finish
            self.scope.end_children(force)
        return CancelOutcome.already_finished if ended else CancelOutcome.already_requested

    @property
    def _is_let_finish(self) -> bool:
        """It is running, and a cancel of it lets it finish."""
        return self.step is not None and self.step.cut_by is FORCE and not self.step.finished

    @property
    def cancelled_alone(self) -> CallCancel | None:
        end = self._fate.get("end")
        return end if isinstance(end, CallCancel) else None

    def cut(self) -> None:
        """It was cancelled alone: cut the step, or let it finish first. Called on the run's loop."""
        step = self.step
        if self.interrupts:  # it does not run: the task that waits for the other calls ends it
            self._run.steps.look_again()
        if step is not None and self.cancelled_alone is not None:
            step.cut_alone()
        elif step is not None and not step.finished:
            step.cut_in(self._run.steps.finish_seconds(step.finish_within), self._cut_unfinished)

    def _cut_unfinished(self) -> None:
        request = self._fate.get("asked")
        if request is not None and self._fate.setdefault("end", request) is request and self.step is not None:
            self.step.cut_alone()

    def decide_cut(self) -> bool:
        """Decide that the call was cut, if it has begun and has no end of its own. True if that is how it ends."""
        if not self._begun or self.scope.did_nothing or self._result is not None:
            return False
        return self._fate.setdefault("end", _CUT) is not None

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
        if (asked := self._fate.get("asked")) is not None:  # it was let finish, and does not: no answer is needed
            self._fate.setdefault("end", asked)

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
        self._begun = self._restored = state.started
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
        if self.undoing is not None and not self.is_left_running:
            return ToolOutcome.compensated if self.undoing.is_done else ToolOutcome.cut
        left = self.is_left_running or self.scope.has_resources or (self.step is not None and self.step.abandoned)
        return ToolOutcome.abandoned if left else ToolOutcome.cut

    def result(self, outcome: ToolOutcome | None = None) -> ToolResult:
        """The tool's result, or a text that says why there is none."""
        if self._result is not None:
            return self._result
        return ToolResult(self.call.id, self.call.name, self._no_result_text(outcome or self.outcome), "error")

    @property
    def may_be_undone(self) -> bool:
        """It has something that undoes it, and its end is not known yet."""
        return self._result is None and self.undoing is None and (self.has_undo or bool(self.scope.undo_steps))

    @property
    def is_on_closed_loop(self) -> bool:
        """Its task was on a loop that is closed: nothing of it runs any more."""
        return self.step is not None and self.step.task.get_loop().is_closed()

    def _no_result_text(self, outcome: ToolOutcome) -> str:
        if outcome is ToolOutcome.compensated:
            if self._restored:
                return UNDONE_BY_TOOL
            return UNDONE_ASKING if self.interrupts else UNDONE
        if self.undoing is not None and self.undoing.failure is not None:
            return NOT_UNDONE.format(self.undoing.failure)
        if self.interrupts:
            return NOT_APPROVED if outcome is ToolOutcome.not_started else ASKING
        return UNDONE_LATER if self.is_left_running else _NO_RESULT[outcome]

    def receipt(self) -> ToolReceipt:
        late, undoing = self.is_left_running, self.undoing
        undo = None if undoing is None else undoing.failure
        if late and undo is None:
            undo = LATER
        scope, outcome = self.scope, self.outcome
        return ToolReceipt(self.call.id, self.call.name, outcome, scope.receipt, self.let_finish, undo, scope.stopped)

    def view(self) -> ToolView:
        return ToolView(self.call.id, self.call.name, self.call.arguments)

    def ended_view(self, outcome: ToolOutcome) -> ToolView:
        text = self._no_result_text(outcome) if self._result is None else self._result.content
        return ToolView(self.call.id, self.call.name, self.call.arguments, text, outcome)
