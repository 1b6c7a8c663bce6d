# SPDX-License-Identifier: Apache-2.0
"""The loop, with a span around each part of its work.

Each part begins and ends its span in the task that does it. A task that was cancelled can't always know by whom: a host
that ends its loop may have reached it before the run was told. Then the span is left open, for whoever finds out: the
failure of that part, or the end of the run, which ends all that are left.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from andon.agent.call_record import CallRecord
from andon.agent.continuation import Anew, Earlier
from andon.agent.loop import Loop
from andon.agent.output import Form
from andon.agent.tool_runner import Plan
from andon.agent.turn import Turn
from andon.core.run.run import Run
from andon.core.signal import Failed
from andon.core.states import CancelCause, RunStatus, StopReason, ToolOutcome
from andon.errors import AndonError
from andon.messages import Message, Usage
from andon.telemetry.spans import MODEL
from andon.telemetry.tracing import RunTrace
from andon.tools.base import Tool

__all__ = ["RunTrace", "TracedLoop"]


class TracedLoop(Loop):
    """One run of an agent that is traced."""

    __slots__ = ("_trace",)

    def __init__(
        self,
        plan: Plan,
        run: Run,
        messages: list[Message],
        max_turns: int | None,
        output: Form | None,
        earlier: Earlier | None,
        trace: RunTrace,
    ) -> None:
        super().__init__(plan, run, messages, max_turns, output, earlier)
        self._trace = trace

    # -- the run ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._trace.begin(self.messages)

    async def perform(self) -> StopReason:
        self._trace.enter()
        reason = await super().perform()
        if reason is StopReason.interrupt:
            self._trace.pause(self.progress())
        else:
            self._trace.end_turn()
        return reason

    def answer(self, answers: Mapping[str, Any], anew: Anew | None = None) -> None:
        super().answer(answers, anew)
        self._trace.begin([])

    def ended(self) -> None:
        run, fate = self._run, self._run.signal.fate
        error = fate.error if isinstance(fate, Failed) else None
        if error is None and run.status is RunStatus.error:
            error = AndonError("could not be ended properly")
        self._trace.end(run.settlement, run.receipt, error, self._spent_in_flight)

    def _spent_in_flight(self) -> Usage | None:
        if (turn := self.turn) is None:
            return None
        return turn.spent_failed() if isinstance(self._run.signal.fate, Failed) else turn.spent_cut()

    # -- its turns ----------------------------------------------------------------------------------------------------

    async def _model_turn(self) -> None:
        self._trace.begin_turn()
        await super()._model_turn()

    async def _ask(self, turn: Turn) -> None:
        self._trace.begin_model(turn.request, turn.model, _key_of(turn))
        try:
            await super()._ask(turn)
        except Exception as error:
            self._model_over(turn, error)
            raise
        except BaseException:
            if turn.is_shut:
                self._model_over(turn)
            raise
        self._model_over(turn)

    def _model_over(self, turn: Turn, error: Exception | None = None) -> None:
        key = _key_of(turn)
        if turn.is_shut:  # whatever it made of it
            self._trace.end_model(turn.spent_cut, functools.partial(turn.blocks, cut=True), key=key, cut=True)
        elif error is not None:
            self._trace.end_model(turn.spent_failed, functools.partial(turn.blocks, cut=True), key=key, error=error)
        else:
            self._trace.end_model(turn.spent, functools.partial(turn.blocks, cut=False), key=key)

    # -- their tools --------------------------------------------------------------------------------------------------

    async def _use_tools(self) -> bool:
        self._trace.need_turn()
        return await super()._use_tools()

    async def _invoke(self, record: CallRecord, tool: Tool, bound: Any) -> None:
        self._trace.begin_call(record.call, tool.description)
        try:
            await super()._invoke(record, tool, bound)
        finally:
            self._call_over(record)

    async def _end(self, record: CallRecord) -> None:
        await super()._end(record)
        self._call_over(record)

    def _call_over(self, record: CallRecord) -> None:
        """End its span, if it is known by now what became of it."""
        call, outcome = record.call, record.outcome
        if record.cancelled_alone is not None:
            self._trace.cancel_call(call, outcome, CancelCause.user)
        elif record.interrupts:
            self._trace.interrupt_call(call)
        elif record.has_result:
            self._trace.end_call(call, outcome.value, record.result().content)
        elif record.scope.cancelled and self._run.signal.request is not None:
            self._trace.cancel_call(call, outcome)

    def _fail(self, record: CallRecord, error: Exception, outcome: ToolOutcome = ToolOutcome.failed) -> None:
        super()._fail(record, error, outcome)
        if record.refusal is not None:
            self._trace.deny_call(record.call)
        elif record.cancelled_alone is None:
            self._trace.fail_call(record.call, record.outcome, error)


def _key_of(turn: Turn) -> str:
    """A context policy may have several models at work at once; of the agent's own, only one is."""
    return f"{MODEL} {id(turn):x}" if turn.quiet else MODEL
