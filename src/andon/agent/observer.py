# SPDX-License-Identifier: Apache-2.0
"""Tells telemetry what a loop does: a span around the run, each turn, each model call and each tool call.

A loop has an observer only if telemetry is on. The observer is called per turn and per call, never per token.

Each span begins and ends in the task that does the work. A task that was cancelled can't always know by whom: a host
that ends its event loop may cancel it before the run hears of that. Then its span stays open, until the failure of that
part or the end of the run ends it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from andon.agent.call_record import CallRecord
from andon.agent.turn import Turn
from andon.core.run.run import LocalRun
from andon.core.run.work import Settlement
from andon.core.signal import Failed
from andon.core.states import CancelCause, RunStatus, StopReason
from andon.errors import AndonError
from andon.messages import Message, ToolCall, Usage
from andon.telemetry.spans import MODEL, Tracing
from andon.telemetry.tracing import RunTrace


class LoopObserver:
    """Watches the loop of one run."""

    __slots__ = ("_run", "_trace")

    def __init__(
        self, tracing: Tracing, run: LocalRun, name: str, description: str | None, model: object, continues: str | None
    ) -> None:
        self._run = run
        self._trace = RunTrace(tracing, run, name, description, model, continues)

    # -- the run ------------------------------------------------------------------------------------------------------

    def run_begins(self, messages: Sequence[Message]) -> None:
        """Called where the run is started or resumed, outside the run's own task."""
        self._trace.begin(messages)

    def loop_begins(self) -> None:
        """Called in the run's own task, each time that the loop begins or goes on after a pause."""
        self._trace.enter()

    def loop_ends(self, reason: StopReason, progress: Callable[[], Settlement]) -> None:
        if reason is StopReason.interrupt:
            self._trace.pause(progress())
        else:
            self._trace.end_turn()

    def run_ended(self, spent_in_flight: Callable[[], Usage | None]) -> None:
        """`spent_in_flight` returns what the model call that was cut has cost."""
        run, fate = self._run, self._run.signal.fate
        error = fate.error if isinstance(fate, Failed) else None
        if error is None and run.status is RunStatus.error:
            error = AndonError("could not be ended properly")
        self._trace.end(run.settlement, run.receipt, error, spent_in_flight)

    # -- its turns ----------------------------------------------------------------------------------------------------

    def turn_begins(self) -> None:
        self._trace.begin_turn()

    async def play(self, turn: Turn) -> None:
        """Make the model call, inside a span of its own."""
        self._trace.begin_model(turn.request, turn.model, _key_of(turn))
        try:
            await turn.play()
        except Exception as error:
            self._model_ended(turn, error)
            raise
        except BaseException:
            if turn.is_shut:
                self._model_ended(turn)
            raise
        self._model_ended(turn)

    def _model_ended(self, turn: Turn, error: Exception | None = None) -> None:
        key = _key_of(turn)
        if turn.is_shut:  # it was cut, whether or not it raised an error afterwards
            self._trace.end_model(turn.spent_cut, functools.partial(turn.blocks, cut=True), key=key, cut=True)
        elif error is not None:
            self._trace.end_model(turn.spent_failed, functools.partial(turn.blocks, cut=True), key=key, error=error)
        else:
            self._trace.end_model(turn.spent, functools.partial(turn.blocks, cut=False), key=key)

    # -- their tool calls ---------------------------------------------------------------------------------------------

    def tools_begin(self) -> None:
        self._trace.need_turn()

    def call_begins(self, call: ToolCall, description: str) -> None:
        """Called in the call's own task."""
        self._trace.begin_call(call, description)

    def call_failed(self, record: CallRecord, error: Exception) -> None:
        if record.refusal is not None:
            self._trace.deny_call(record.call)
        elif record.cancelled_alone is None:
            self._trace.fail_call(record.call, record.outcome, error)

    def call_ended(self, record: CallRecord) -> None:
        """End the call's span, if its outcome is known by now. May be called more than once."""
        call, outcome = record.call, record.outcome
        if record.interrupts and record.cancelled_alone is None:
            self._trace.interrupt_call(call)
        elif record.may_be_undone:
            return  # its outcome is known when it was undone
        elif record.cancelled_alone is not None:
            self._trace.cancel_call(call, outcome, CancelCause.user)
        elif record.has_result:
            self._trace.end_call(call, outcome.value, record.result().content)
        elif record.scope.cancelled and self._run.signal.request is not None:
            self._trace.cancel_call(call, outcome)


def _key_of(turn: Turn) -> str:
    """The key of the model call's span. Of the agent's own calls one runs at a time; a context policy may make more."""
    return f"{MODEL} {id(turn):x}" if turn.quiet else MODEL
