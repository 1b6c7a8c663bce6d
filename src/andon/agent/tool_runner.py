# SPDX-License-Identifier: Apache-2.0
"""The tool calls of one turn, from their beginning to what became of each.

A call is a step of its run, and its record is true at every moment; so a cancel may come at any `await` here, and
`settle` finds all that there is to say. Of the loop this is the half that deals with tools.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from andon.agent.call_record import OUT_OF_TIME, CallRecord
from andon.agent.context import ContextPolicy
from andon.agent.hooks import AfterTool, BeforeTool, HookEvent, Hooks
from andon.agent.instructions import InstructionsFunction
from andon.agent.retry import Retry
from andon.agent.sizes import check_questions, check_size, cut_short
from andon.core.cutting import cut_line
from andon.core.events import RunEvent
from andon.core.receipt import Interrupt
from andon.core.run.children import current
from andon.core.run.run import Run
from andon.core.states import CancelMode, Phase, ToolOutcome
from andon.core.steps import Cut, CutAloneError, as_exception
from andon.core.store import Store
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
from andon.messages import Message
from andon.models.base import Model
from andon.tools.base import NO_OUTPUT, Tool, ToolContext, traits_of
from andon.tools.blocked_loop import watch
from andon.tools.internals import CallInternals

log = logging.getLogger(__name__)

E = TypeVar("E", bound=BaseException)


class Plan(Struct, frozen=True):
    """What an agent, and the call that started it, bring to a run."""

    model: Model
    instructions: str | InstructionsFunction | None
    tools: Mapping[str, Tool]
    hooks: Hooks
    parallel_tools: bool
    retry: Retry
    store: Store
    deps: Any = None
    """What tools, hooks and instructions get as `deps`."""
    history: list[Message] | None = None
    """What is to take the place of what was said in the session before this run."""
    output_retries: int = 2
    context: ContextPolicy | None = None


class Calling:
    """Runs tool calls for a run, and tells the hooks of them."""

    __slots__ = ("_lost", "_plan", "_run")

    def __init__(self, plan: Plan, run: Run) -> None:
        self._plan, self._run = plan, run
        self._lost: SubAgentLostError | None = None
        """A call can't be said to have been done, nor to have failed: the run ends with this, once the others have."""

    async def _call(self, records: Sequence[CallRecord]) -> None:
        """Run calls side by side, each to its end or its question; a cancel leaves their records as they are.

        Hooks are told of one call after the other, so no two of them ever run at once.
        """
        records = [record for record in records if not record.has_result]  # the others ended before a pause
        try:
            for record in records:
                await self._begin(record)
            for record in records:
                await self._end(record)
            if self._lost is not None:
                raise self._lost
        except Cut:
            for record in records:
                if record.step is not None:  # nothing that was begun is left to itself
                    await record.step.wait()
            raise
        finally:
            for record in records:
                record.error = None

    async def _begin(self, record: CallRecord) -> None:
        self._run.gate(CancelMode.after_tools)
        call = record.call
        if record.cancelled_alone is not None:
            return
        try:
            if record.refusal is not None:
                raise ToolBlockedError(record.refusal)
            tool, bound = self._find(record)
            traits = traits_of(tool)
            if traits.approval and not record.approved:
                record.ask([Interrupt("", call.name, _copy(call.arguments), approval=True)])
                return
            verdict = await self._tell(BeforeTool, call=call)
            if isinstance(verdict, BeforeTool) and verdict.refusal is not None:
                raise ToolBlockedError(verdict.refusal)
        except Exception as error:  # noqa: BLE001 - the boundary: the model is told
            self._refuse(record, error)
            return
        self._count(calls=0 if record.has_started else 1)  # entered again after a question, it is the same call
        self._run.gate(CancelMode.after_tools)
        if record.cancelled_alone is not None:
            return
        record.start()
        self._run.journal.add(RunEvent.tool_call_started, tool=record.view())
        record.step = self._run.begin_step(
            functools.partial(self._invoke, record, tool, bound),
            name=f"tool {call.name} ({call.id})",
            cut_by=CancelMode.now,
            timeout=traits.timeout,
            on_cut=record.scope.fire,
        )

    def _find(self, record: CallRecord) -> tuple[Tool, Any]:
        """The tool that is asked for, and the arguments as it takes them."""
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
        except BaseException as error:  # noqa: BLE001 - the boundary: somebody's validator may raise anything
            failure = as_exception(error)
            raise failure from failure.__cause__

    async def _invoke(self, record: CallRecord, tool: Tool, bound: Any) -> None:
        """Run in the call's own task, so that it is known to have ended the moment it has, whatever the others do."""
        watched = 0
        try:
            current.set(record.scope)  # runs that the tool starts are this run's children, until it has ended
            record.scope.entered = True
            watched = watch.enter(record.scope)
            text = await tool.invoke(bound, self._context(record))
            if not isinstance(text, str):
                raise BadResultError(f"tool {record.call.name} returned {type(text).__name__} where text was due")
            text = check_size(record.call.name, text, self._run.runtime.max_result_bytes)
        except asyncio.CancelledError:  # by far the most frequent of those that are no failure: nothing is asked in it
            raise
        except BaseException as error:
            asking = _part_of(error, ToolInterrupted)
            if asking is None and not isinstance(error, Exception):
                raise
            if record.scope.cancelled:
                if isinstance(error, Exception):  # breaking a call off may make it fail: that is no news, but kept
                    self._log(logging.INFO, record, "raised %s after it was cut", describe(error), error)
                return
            if asking is not None:
                self._wait_for_person(record, asking.questions)
            elif isinstance(error, Exception):  # the boundary: the model is told
                self._lost = self._lost or _part_of(error, SubAgentLostError)
                self._fail(record, error)
        else:
            # After a cut it ended too late to be believed.
            if not record.scope.cancelled and record.finish(text if text.strip() else NO_OUTPUT):
                self._run.journal.add(RunEvent.tool_call_completed, tool=record.ended_view(record.outcome))
        finally:
            watch.leave(watched)
            record.scope.entered = False

    def _wait_for_person(self, record: CallRecord, questions: Sequence[Interrupt]) -> None:
        try:
            check_questions(record.call.name, questions, self._run.runtime.max_result_bytes)
        except BadResultError as error:
            self._fail(record, error)
        else:
            record.ask(questions)

    async def _end(self, record: CallRecord) -> None:
        if record.step is not None:
            await record.step.wait()
            try:
                record.step.outcome()
            except CutAloneError:
                if record.cancelled_alone is None:
                    left = record.outcome  # asked once: a thread may end at any moment
                    ended_as = left if left is ToolOutcome.abandoned else ToolOutcome.failed
                    self._fail(record, ToolTimeoutError(OUT_OF_TIME[left]), ended_as)
            except Exception as error:  # noqa: BLE001 - the boundary: the model is told
                self._fail(record, error)
        if record.cancelled_alone is not None:
            record.close()
            tool, reason = record.ended_view(record.outcome), record.cancelled_alone.reason
            self._run.journal.add(RunEvent.tool_call_cancelled, tool=tool, reason=reason)
        if not record.interrupts:
            facts: dict[str, Any] = {"outcome": record.outcome, "error": record.error}
            record.error = None
            await self._tell(AfterTool, call=record.call, result=record.result(), **facts)

    def _refuse(self, record: CallRecord, error: Exception) -> None:
        """A call can't begin, or can't go on after its question was answered."""
        if not record.has_started or record.refusal is not None:
            self._fail(record, error, ToolOutcome.refused)
            return
        # Its tool was removed, or a hook objects now. It may have done something before it asked: it was not refused.
        text = f"it had begun and asked a person, and can't go on: {describe(error)}. What it did until then is unknown"
        stopped: Exception = ToolError(text)
        if record.passed_on and not isinstance(error, ToolBlockedError):
            stopped = SubAgentLostError(f"tool {record.call.name} has a sub-agent: {text}")
            self._lost = self._lost or stopped
        stopped.__cause__ = error
        self._fail(record, stopped)

    def _fail(self, record: CallRecord, error: Exception, outcome: ToolOutcome = ToolOutcome.failed) -> None:
        text = cut_short(describe(error), self._run.runtime.max_result_bytes)
        if not record.finish(text, "error", outcome):
            return
        record.error = error
        self._run.journal.add(RunEvent.tool_call_error, tool=record.ended_view(outcome))
        if outcome is ToolOutcome.refused and isinstance(error, ToolError):
            # Only the kind: what a model asks for, and why a person says no, is no part of a log.
            self._log(logging.INFO, record, "was refused: %s", type(error).__name__)
        elif self._lost is not None and _part_of(error, SubAgentLostError) is self._lost:
            self._log(logging.INFO, record, "%s", "its sub-agent is lost")  # the run fails with it, and logs that
        else:
            shown = None if isinstance(error, ToolTimeoutError) else error  # that one is ours: it says all there is
            # A sub-agent that is not set up can't do any call.
            level = logging.ERROR if isinstance(error, SetupError) else logging.WARNING
            self._log(level, record, f"{outcome.value}: %s", describe(error), shown)

    def _log(self, level: int, record: CallRecord, what: str, why: str, error: Exception | None = None) -> None:
        call, facts = record.call, {"facts": self._run.names}
        log.log(level, f"tool %s (%s) {what}", call.name, call.id, cut_line(why), exc_info=error, extra=facts)

    def _context(self, record: CallRecord) -> ToolContext:
        run = self._run
        return ToolContext(
            CallInternals(record.scope, record.answers, record.passed_on),
            run_id=run.run_id,
            session_id=run.session_id,
            user_id=run.user_id,
            deadline=run.deadline,
            metadata=run.metadata,
            deps=self._plan.deps,
        )

    def _count(self, calls: int = 0) -> None:
        """Look whether the budget has room for what comes next."""
        if self._run.meter is not None:
            self._run.meter.check(calls=calls)
            self._run.meter.spend(calls=calls)

    async def _tell(
        self, kind: type[HookEvent], cut_by: CancelMode | None = CancelMode.now, **facts: Any
    ) -> HookEvent | None:
        if not self._plan.hooks.wants(kind):
            return None
        run, phase = self._run, self._run.phase
        event = kind(
            run_id=run.run_id,
            session_id=run.session_id,
            agent_id=run.agent_id,
            user_id=run.user_id,
            metadata=run.metadata,
            deps=self._plan.deps,
            **facts,
        )
        if phase not in (Phase.tools, Phase.ending):
            run.phase = Phase.hook
        await self._plan.hooks.tell(run, event, cut_by)
        run.phase = phase
        return event


def _copy(arguments: dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(arguments))


def _part_of(error: BaseException, kind: type[E]) -> E | None:
    """The error, if it is of this kind; out of a task group it arrives in a group of errors."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for each in error.exceptions if (found := _part_of(each, kind)) is not None), None)
    return error if isinstance(error, kind) else None
