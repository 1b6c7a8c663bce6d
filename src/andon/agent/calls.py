# SPDX-License-Identifier: Apache-2.0
"""The record of one tool call, from the model's wish to what became of it.

It is honest at every moment: whoever looks finds what is true right now, and what the model may be told of it.
"""

from __future__ import annotations

from andon.core.events import ToolView
from andon.core.receipt import ToolReceipt
from andon.core.run import Run
from andon.core.scope import CallScope
from andon.core.states import ToolOutcome
from andon.core.step import Step
from andon.errors import ToolError
from andon.messages import ToolCall, ToolResult, sendable

NOT_STARTED = "This call was cancelled before it started."
CUT = "This call was cancelled while it was running. Its outcome is unknown."
ABANDONED = "This call was cancelled while it was running, and may still be running. Its outcome is unknown."


_TRUTH = {ToolOutcome.not_started: NOT_STARTED, ToolOutcome.cut: CUT, ToolOutcome.abandoned: ABANDONED}


class CallRecord:
    """What is known of one tool call."""

    __slots__ = ("_result", "_started", "call", "problem", "scope", "step")

    def __init__(self, run: Run, call: ToolCall, problem: ToolError | None = None) -> None:
        self.call = call
        self.problem = problem
        """What is wrong with the call as the model sent it."""
        self.scope = CallScope(run, call.id, call.name)
        self.step: Step[None] | None = None
        """The work itself, once it has begun."""
        self._started = False
        self._result: ToolResult | None = None

    def start(self) -> None:
        self._started = True

    def finish(self, text: str) -> None:
        self._result = ToolResult(self.call.id, self.call.name, sendable(text))

    def fail(self, text: str) -> None:
        self._result = ToolResult(self.call.id, self.call.name, sendable(text), "error")

    @property
    def outcome(self) -> ToolOutcome:
        if self._result is not None:
            return ToolOutcome.completed
        if not self._started:
            return ToolOutcome.not_started
        left = self.scope.thread_running or (self.step is not None and self.step.abandoned)
        return ToolOutcome.abandoned if left else ToolOutcome.cut

    def result(self, outcome: ToolOutcome | None = None) -> ToolResult:
        """The real result, or the truth about why there is none."""
        if self._result is not None:
            return self._result
        return ToolResult(self.call.id, self.call.name, _TRUTH[outcome or self.outcome], "error")

    def receipt(self, outcome: ToolOutcome) -> ToolReceipt:
        return ToolReceipt(self.call.id, self.call.name, outcome)

    def view(self) -> ToolView:
        return ToolView(self.call.id, self.call.name, self.call.arguments)

    def ended_view(self, outcome: ToolOutcome = ToolOutcome.completed) -> ToolView:
        return ToolView(self.call.id, self.call.name, self.call.arguments, self.result(outcome).content, outcome)
