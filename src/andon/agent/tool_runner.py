# SPDX-License-Identifier: Apache-2.0
"""Runs the tool calls of one turn, from their start to the outcome of each.

Each call is a step of its run, in a task of its own. The record of a call is correct at every moment. So a cancel may
come at any `await` here, and `settle` finds in the records what it has to say.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from andon.agent.call_record import OUT_OF_TIME, CallRecord
from andon.agent.hooks import AfterTool, BeforeTool
from andon.agent.plan import Plan
from andon.agent.undo_cut import undo_calls
from andon.core.events import RunEvent
from andon.core.log_text import cut_line
from andon.core.receipt import Interrupt
from andon.core.run.run import LocalRun
from andon.core.run.tool_call import current
from andon.core.states import FORCE, CancelMode, ToolOutcome
from andon.core.steps import Cut, CutAloneError, as_exception, wait_first
from andon.errors import (
    BadResultError,
    SetupError,
    SubAgentLostError,
    ToolBlockedError,
    ToolError,
    ToolInterrupted,
    ToolTimeoutError,
    UnknownToolError,
    describe,
)
from andon.models.base import check_content
from andon.tools.base import NO_OUTPUT, Tool, ToolContext, ToolOutput, traits_of
from andon.tools.blocked_loop import watch
from andon.tools.internals import CallInternals
from andon.tools.sizes import check_output, check_questions, cut_short

if TYPE_CHECKING:
    from andon.agent.observer import LoopObserver  # it imports opentelemetry, which most programs don't have

log = logging.getLogger(__name__)

E = TypeVar("E", bound=BaseException)


class ToolRunner:
    """Starts, runs and ends the tool calls of one turn, and tells the hooks about them."""

    __slots__ = ("_lost", "_observer", "_plan", "_run")

    def __init__(self, plan: Plan, run: LocalRun, observer: LoopObserver | None) -> None:
        self._plan, self._run, self._observer = plan, run, observer
        self._lost: SubAgentLostError | None = None
        """The outcome of a call is not known and can't become known. The run fails with this once all calls ended."""

    async def run(self, records: Sequence[CallRecord]) -> bool:
        """Run these calls until each has a result. False if a person has to be asked first.

        Raises Cut if the run is cancelled meanwhile, when nothing that was started is left alone.
        """
        for group in [records] if self._plan.parallel_tools else [[record] for record in records]:
            await self._run_together(group)
            waiting = [record for record in group if record.interrupts]
            for record in waiting.copy():
                if not record.is_waiting:  # it was cancelled alone while the others were at work
                    waiting.remove(record)
                    await self._end(record)
                    await self._tell_hooks(record)
            if waiting:
                return False
        return True

    async def _run_together(self, records: Sequence[CallRecord]) -> None:
        """Run calls at the same time, each to its end or its question. A cancel leaves their records as they are.

        A call whose time is over, or that is cancelled alone, is undone while the others go on. Hooks are told of one
        call after the other, in the order of the calls. So two hooks of a run never run at the same time.
        """
        records = [record for record in records if not record.has_result]  # the others ended before a pause
        try:
            for record in records:
                await self._start(record)
            going, untold = list(records), list(records)
            asking: list[CallRecord] = []
            while going:
                record = await _first_ended(going, asking)
                if record in asking:  # it was cancelled alone while it waited for a person
                    asking.remove(record)
                    if record not in untold:
                        untold.insert(0, record)
                else:
                    going.remove(record)
                await self._end(record)
                if record.interrupts:
                    asking.append(record)
                while untold and untold[0] not in going:
                    await self._tell_hooks(untold.pop(0))
            if self._lost is not None:
                raise self._lost
        except Cut:
            for record in records:
                if record.step is not None:
                    await record.step.wait()
                if record.let_finish:
                    await self._tell_end(record)
            raise
        finally:
            for record in records:
                record.error = None

    # -- the start of a call ------------------------------------------------------------------------------------------

    async def _start(self, record: CallRecord) -> None:
        self._run.steps.gate(CancelMode.after_tools)
        call = record.call
        if record.cancelled_alone is not None:
            return
        try:
            if record.refusal is not None:
                raise ToolBlockedError(record.refusal)
            tool, bound = self._find_tool(record)
            traits = traits_of(tool)
            if traits.approval and not record.approved:
                record.wait_for_person([Interrupt("", call.name, _copy(call.arguments), approval=True)])
                return
            verdict = await self._plan.hooks.tell(self._run, self._plan.deps, BeforeTool, call=call)
            if verdict is not None and verdict.refusal is not None:
                raise ToolBlockedError(verdict.refusal)
        except Exception as error:  # noqa: BLE001 - the boundary: the model is told
            self._refuse(record, error)
            return
        self._charge(0 if record.has_started else 1)  # entered again after a question, it is the same call
        self._run.steps.gate(CancelMode.after_tools)
        if record.cancelled_alone is not None:
            return
        record.start()
        record.has_undo = traits.undo is not None
        record.scope.cut_by = FORCE if traits.finish else CancelMode.now
        self._run.journal.add(RunEvent.tool_call_started, tool=record.view())
        record.step = self._run.steps.start(
            functools.partial(self._invoke, record, tool, bound),
            name=f"tool {call.name} ({call.id})",
            cut_by=record.scope.cut_by,
            timeout=traits.timeout,
            on_cut=record.scope.fire,
            finish_within=traits.finish_within,
            patience=record.scope.patience,
        )

    def _find_tool(self, record: CallRecord) -> tuple[Tool, Any]:
        """The tool that the model called, and the arguments in the form that it takes."""
        if record.problem is not None:
            raise record.problem
        tool = self._plan.tools.get(record.call.name)
        if tool is None:
            known = ", ".join(self._plan.tools) or "none"
            raise UnknownToolError(f"there is no tool {record.call.name!r}; there are: {known}")
        try:
            # A copy: the conversation has the original, and a tool may change what it is given.
            return tool, tool.bind(_copy(record.call.arguments))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the boundary: a user's validator may raise anything
            failure = as_exception(error)
            raise failure from failure.__cause__

    def _charge(self, calls: int) -> None:
        """Take the call from the budget. If the budget has no room for it, the run is cancelled."""
        if self._run.children.meter is not None:
            self._run.children.meter.check(calls=calls)
            self._run.children.meter.spend(calls=calls)

    # -- the call itself ----------------------------------------------------------------------------------------------

    async def _invoke(self, record: CallRecord, tool: Tool, bound: Any) -> None:
        """Run in the call's own task, so that the end of a call is on record at once, while other calls still run."""
        if self._observer is not None:
            self._observer.call_begins(record.call, tool.description)
        watched = 0
        try:
            current.set(record.scope)  # runs that the tool starts are this run's children, until it has ended
            record.scope.entered = True
            if record.has_undo:  # another process that ends the run has to know that it had started
                await self._run.storage.commit_events()
            record.begin()
            watched = watch.enter(record.scope)
            output = self._check_output(record, await tool.invoke(bound, self._make_context(record)))
        except asyncio.CancelledError:  # the most frequent exception that is no failure, so it comes first
            raise
        except BaseException as error:
            if not self._take_error(record, error):
                raise
        else:
            # A result that comes after the cut is dropped: the call counts as cut.
            text = output.text if output.text.strip() else NO_OUTPUT
            if not record.scope.cancelled and record.finish(text, attachments=output.attachments):
                self._run.journal.add(RunEvent.tool_call_completed, tool=record.ended_view(record.outcome))
        finally:
            watch.leave(watched)
            record.scope.leave()
            if self._observer is not None:
                self._observer.call_ended(record)

    def _check_output(self, record: CallRecord, returned: str | ToolOutput) -> ToolOutput:
        """What the tool returned, if it can be sent to the model."""
        name, runtime = record.call.name, self._run.runtime
        output = ToolOutput(returned) if isinstance(returned, str) else returned
        if not isinstance(output, ToolOutput):
            raise BadResultError(f"tool {name} returned {type(returned).__name__} where text was due")
        check_output(name, output, runtime.max_result_bytes, runtime.max_attachment_bytes)
        if output.attachments:
            check_content(self._plan.model, output.attachments, in_result=True)
        return output

    def _take_error(self, record: CallRecord, error: BaseException) -> bool:
        """Note what the tool raised: a question for a person, or a failure. False if it is neither."""
        question = _part_of(error, ToolInterrupted)
        if question is None and not isinstance(error, Exception):
            return False
        if record.scope.cancelled:
            if isinstance(error, Exception):  # a tool that is cut often fails: the call stays cut, the error is logged
                self._log(logging.INFO, record, "raised %s after it was cut", describe(error), error)
        elif question is not None:
            self._wait_for_person(record, question.questions)
        elif isinstance(error, Exception):  # the boundary: the model is told
            self._lost = self._lost or _part_of(error, SubAgentLostError)
            self._fail(record, error)
        return True

    def _wait_for_person(self, record: CallRecord, questions: Sequence[Interrupt]) -> None:
        try:
            check_questions(record.call.name, questions, self._run.runtime.max_result_bytes)
        except BadResultError as error:
            self._fail(record, error)
        else:
            record.wait_for_person(questions)

    def _make_context(self, record: CallRecord) -> ToolContext:
        run = self._run
        return ToolContext(
            CallInternals(record.scope, record.answers, record.child_answers),
            run_id=run.run_id,
            session_id=run.session_id,
            user_id=run.user_id,
            deadline=run.children.deadline,
            metadata=run.metadata,
            deps=self._plan.deps,
        )

    # -- the end of a call --------------------------------------------------------------------------------------------

    async def _end(self, record: CallRecord) -> None:
        """Wait for the call's task, and undo the call if it was cut alone."""
        if record.step is not None:
            await record.step.wait()
            try:
                record.step.outcome()
            except CutAloneError:
                await undo_calls(self._run, self._plan, [record])
                if record.cancelled_alone is None:
                    self._run_out_of_time(record)
            except Exception as error:  # noqa: BLE001 - the boundary: the model is told
                self._fail(record, error)
        if record.cancelled_alone is not None:
            await undo_calls(self._run, self._plan, [record])  # it may have asked a person, and have no step any more
            record.close()
            tool, reason = record.ended_view(record.outcome), record.cancelled_alone.reason
            self._run.journal.add(RunEvent.tool_call_cancelled, tool=tool, reason=reason)

    async def _tell_hooks(self, record: CallRecord) -> None:
        """Tell the hooks that the call has ended, unless it waits for a person."""
        if not record.interrupts:
            await self._tell_end(record)
        if self._observer is not None:
            self._observer.call_ended(record)

    async def _tell_end(self, record: CallRecord) -> None:
        """Tell the hooks of the call's result, once. What cuts the call cuts the hooks too."""
        if record.was_told:
            return
        record.was_told = True
        facts: dict[str, Any] = {"result": record.result(), "outcome": record.outcome, "error": record.error}
        record.error = None
        hooks, cut_by = self._plan.hooks, record.scope.cut_by
        await hooks.tell(self._run, self._plan.deps, AfterTool, cut_by, call=record.call, **facts)

    def _run_out_of_time(self, record: CallRecord) -> None:
        """Its own time was up: it was cut, and maybe undone."""
        left = record.outcome  # read once: what the call holds may end at any moment
        assert record.step is not None
        text = f"timed out after {record.step.timeout:g} s: {OUT_OF_TIME[left]}"
        if record.undoing is not None and (why := record.receipt().undo) is not None:
            text += f"; {why}" if record.is_left_running else f", and it could not be undone: {why}"
        outcome = ToolOutcome.failed if left is ToolOutcome.cut else left
        self._fail(record, ToolTimeoutError(text), outcome, record.scope.so_far)

    def _refuse(self, record: CallRecord, error: Exception) -> None:
        """A call can't start, or can't go on after its question was answered."""
        if not record.has_started or record.refusal is not None:
            self._fail(record, error, ToolOutcome.refused)
            return
        # The tool was removed, or a hook objects now. The call may have done something before it asked, so it does not
        # count as refused.
        text = f"it had begun and asked a person, and can't go on: {describe(error)}. What it did until then is unknown"
        stopped: Exception = ToolError(text)
        if record.child_answers and not isinstance(error, ToolBlockedError):
            stopped = SubAgentLostError(f"tool {record.call.name} has a sub-agent: {text}")
            self._lost = self._lost or stopped
        stopped.__cause__ = error
        self._fail(record, stopped)

    def _fail(
        self, record: CallRecord, error: Exception, outcome: ToolOutcome = ToolOutcome.failed, more: str = ""
    ) -> None:
        """Tell the model the error, and `more`. The log gets only the error."""
        text = cut_short(describe(error) + more, self._run.runtime.max_result_bytes)
        if record.finish(text, "error", outcome):
            record.error = error
            self._run.journal.add(RunEvent.tool_call_error, tool=record.ended_view(outcome))
            self._log_failure(record, error, outcome)
        if self._observer is not None:
            self._observer.call_failed(record, error)

    def _log_failure(self, record: CallRecord, error: Exception, outcome: ToolOutcome) -> None:
        if outcome is ToolOutcome.refused and isinstance(error, ToolError):
            # Only the kind: the model's arguments, and a person's reason for a refusal, must not be in a log.
            self._log(logging.INFO, record, "was refused: %s", type(error).__name__)
        elif self._lost is not None and _part_of(error, SubAgentLostError) is self._lost:
            self._log(logging.INFO, record, "%s", "its sub-agent is lost")  # the run fails with it, and logs that
        else:
            shown = None if isinstance(error, ToolTimeoutError) else error  # a timeout's traceback says nothing
            # A sub-agent that is not set up can't do any call.
            level = logging.ERROR if isinstance(error, SetupError) else logging.WARNING
            self._log(level, record, f"{outcome.value}: %s", describe(error), shown)

    def _log(self, level: int, record: CallRecord, what: str, why: str, error: Exception | None = None) -> None:
        call, facts = record.call, {"facts": self._run.steps.facts}
        log.log(level, f"tool %s (%s) {what}", call.name, call.id, cut_line(why), exc_info=error, extra=facts)


async def _first_ended(going: Sequence[CallRecord], asking: Sequence[CallRecord]) -> CallRecord:
    """Wait for the first call that has ended, never started, or was cancelled alone while it waited for a person."""

    def withdrawn() -> CallRecord | None:
        return next((record for record in asking if not record.is_waiting), None)

    steps = [record.step for record in going if record.step is not None]
    if len(steps) == len(going):
        await wait_first(steps, lambda: withdrawn() is not None)
    return withdrawn() or next(record for record in going if record.step is None or record.step.finished)


def _copy(arguments: dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(arguments))


def _part_of(error: BaseException, kind: type[E]) -> E | None:
    """The error, if it is of this kind. A task group raises it inside a group of errors."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for each in error.exceptions if (found := _part_of(each, kind)) is not None), None)
    return error if isinstance(error, kind) else None
