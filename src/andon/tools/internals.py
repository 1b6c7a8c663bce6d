# SPDX-License-Identifier: Apache-2.0
"""What Andon's own kinds of tools use of a call, and users' tools don't.

A `ToolContext` has one of these in a private field. Code of ours gets it with `internals_of(ctx)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from andon.core.events import Event, ProgressView, RunEvent, ToolView
from andon.core.receipt import Interrupt
from andon.core.run.tool_call import ToolCallScope
from andon.errors import ToolInterrupted


class CallInternals:
    """The private part of a call's context."""

    __slots__ = ("answers", "child_answers", "scope")

    def __init__(
        self, scope: ToolCallScope, answers: Sequence[Any] = (), child_answers: dict[str, Any] | None = None
    ) -> None:
        self.scope = scope
        """A tool registers here what it holds: `scope.hold` and `scope.release`."""
        self.answers = list(answers)
        """The answers to what the tool itself has asked with `ctx.interrupt`, in the order of its questions."""
        self.child_answers = {} if child_answers is None else child_answers
        """The answers to what a sub-agent's run has asked, by the ids of that run's questions."""

    def ask_for_child(self, questions: Sequence[Interrupt]) -> dict[str, Any]:
        """Return the answers to all questions of a sub-agent's run, refusals included, by the questions' ids.

        Raises `ToolInterrupted` with those that have no answer yet, so that this run pauses and asks them.
        """
        if unanswered := [question for question in questions if question.id not in self.child_answers]:
            raise ToolInterrupted(unanswered)
        return {question.id: self.child_answers[question.id] for question in questions}

    def delivered(self, question_ids: Iterable[str]) -> None:
        """The sub-agent's run has got these answers. A later question may have the same id, and needs a new answer."""
        for question_id in question_ids:
            self.child_answers.pop(question_id, None)

    def show_progress(self, progress: ProgressView) -> None:
        """Add an event that says how far the call is, unless it has ended or was cut. Called on the run's loop."""
        scope = self.scope
        if scope.entered and not scope.cancelled:
            tool = ToolView(scope.call_id, scope.name, {})
            scope.run.journal.add(RunEvent.tool_progress, tool=tool, progress=progress)

    def show_event(self, event: Event) -> None:
        """Show an event of the sub-agent's run in the stream of this one. Called on the run's loop."""
        self.scope.relay(event)
