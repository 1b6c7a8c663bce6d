# SPDX-License-Identifier: Apache-2.0
"""THE loop: model turn → tools → model turn → … until the model asks for no more tools.

A cancel lands in one of two places. Whatever waits is a step of the run (`run.step`), and is cut by the modes that it
names; and before anything new begins there is a gate (`run.gate`). Both raise Cut, which nothing here catches for
good: it unwinds to the run, which has `settle` make the best of what was seen so far. So between two lines without
an `await` nothing can come, and after any line with one, the fields below say all that is true.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from andon.agent import settle
from andon.agent.calls import OUT_OF_TIME, CallRecord
from andon.agent.carry import Earlier, reopen
from andon.agent.hooks import AfterModel, AfterTool, BeforeModel, BeforeTool, Happening, Hooks, MessageAdded, RunEnded
from andon.agent.retry import Retry
from andon.agent.turn import Turn
from andon.core.events import RunEvent
from andon.core.family import current
from andon.core.run import Run
from andon.core.signal import Failed, Fate
from andon.core.states import CancelMode, CancelOutcome, Phase, StopReason
from andon.core.step import Cut, CutAloneError
from andon.core.store import Store
from andon.core.work import Settlement
from andon.errors import BadResultError, ToolBlockedError, ToolInterrupted, ToolTimeoutError, UnknownToolError, describe
from andon.messages import Block, Message, ToolCall, Usage, assistant
from andon.models.base import Model, ModelRequest, ToolSpec
from andon.tools.base import NO_OUTPUT, Tool, ToolContext, traits_of


class Plan(Struct, frozen=True):
    """What an agent brings to each of its runs."""

    model: Model
    instructions: str | None
    tools: Mapping[str, Tool]
    hooks: Hooks
    parallel_tools: bool
    retry: Retry
    store: Store


class Loop:
    """One run of an agent, and all that it has seen."""

    __slots__ = (
        "_announced",
        "_earlier",
        "_max_turns",
        "_opened",
        "_plan",
        "_run",
        "_spent",
        "_text",
        "_turns",
        "calls",
        "messages",
        "open_calls",
        "turn",
    )

    def __init__(
        self, plan: Plan, run: Run, messages: list[Message], max_turns: int | None, earlier: Earlier | None = None
    ) -> None:
        self._plan, self._run, self._max_turns, self._earlier = plan, run, max_turns, earlier
        self.messages = messages
        """What the run has added to the conversation."""
        self.turn: Turn | None = None
        """The model call that has not ended yet."""
        self.open_calls: Sequence[CallRecord] = ()
        """The calls that have no message of results yet."""
        self.calls: Sequence[CallRecord] = ()
        """Every call so far."""
        self._spent = Usage()
        self._text = ""
        self._announced = self._turns = 0
        self._opened = False

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def perform(self) -> StopReason:
        if not self._opened:
            await self._open_session()
        while True:
            if self.open_calls and not await self._use_tools():
                return StopReason.interrupt
            if self._turns == self._max_turns:
                return StopReason.max_turns
            self._turns += 1
            await self._model_turn()
            if not self.open_calls:
                return StopReason.end_turn

    async def _open_session(self) -> None:
        session, store = self._run.session, self._plan.store
        self._run.phase = Phase.loading
        base = session.base
        if not session.ahead:
            base = await self._run.step(lambda: store.load(session.key), name="the store", cut_by=CancelMode.after_turn)
        if self._earlier is not None:
            base = self._earlier.lift(base)
            self.open_calls = self.calls = reopen(self.messages, self._run, self._plan.tools)
            self._announced = len(self.messages)
        session.open(base, self.messages)
        self._opened = True
        await self._announce()

    async def _model_turn(self) -> None:
        """Ask the model, and take what it answers."""
        self._count()
        self._run.gate(CancelMode.after_turn)
        request = self._request()
        await self._tell(BeforeModel, request=request)
        self._run.gate(CancelMode.after_turn)
        attempt = 0
        while True:
            attempt += 1
            turn = self.turn = Turn(self._run, request)
            self._run.phase = Phase.waiting
            try:
                await self._run.step(
                    functools.partial(turn.play, self._plan.model),
                    name="the model",
                    cut_by=CancelMode.after_tools,
                    on_cut=turn.shut,
                )
                break
            except Exception as error:
                turn.shut()
                delay = None if turn.shown else self._plan.retry.delay(error, attempt)
                if delay is None:
                    raise
                self._spent += turn.spent_failed()
                self.turn = None
                await self._back_off(delay)
        await self._take(turn)

    async def _use_tools(self) -> bool:
        """Run the calls of a turn, and answer each of them. False if a person has to be asked first."""
        self._count()
        self._run.phase = Phase.tools
        records = self.open_calls
        for group in [records] if self._plan.parallel_tools else [[record] for record in records]:
            await self._call(group)
            for record in group:
                if record.interrupt is not None and not record.asks:  # cancelled alone while the others were at work
                    await self._end(record)
            if any(record.asks for record in group):
                return False
        self.messages.append(Message("tool", [record.result() for record in records]))
        self.open_calls = ()
        await self._announce()
        return True

    # -- one model call -----------------------------------------------------------------------------------------------

    def _request(self) -> ModelRequest:
        specs = [ToolSpec(tool.name, tool.description, tool.parameters) for tool in self._plan.tools.values()]
        return ModelRequest(self._run.session.messages, self._plan.instructions, specs)

    async def _back_off(self, seconds: float) -> None:
        self._run.phase = Phase.backoff
        await self._run.step(lambda: asyncio.sleep(seconds), name="back-off", cut_by=CancelMode.after_turn)

    async def _take(self, turn: Turn) -> None:
        """From here on, the turn is what it has left: a message, tokens, calls."""
        blocks = settle.answer(turn.blocks(cut=False))
        usage = turn.spent()
        turn.shut()  # what a model's own task says later is not part of the answer
        self.turn = None
        self.messages.append(assistant(*blocks))
        self.open_calls = self._records(turn, blocks)
        self.calls = [*self.calls, *self.open_calls]
        self._text += turn.content()
        self._spent += usage
        if self._run.meter is not None:
            known = usage.total_tokens
            self._run.meter.spend(turn.spent_cut().total_tokens or 0 if known is None else known)
        await self._tell(AfterModel, message=self.messages[-1], usage=usage)
        await self._announce()

    def _records(self, turn: Turn, blocks: Sequence[Block]) -> list[CallRecord]:
        return [CallRecord(self._run, block, turn.problem(block.id)) for block in blocks if isinstance(block, ToolCall)]

    # -- tool calls ---------------------------------------------------------------------------------------------------

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
        except Cut:
            for record in records:
                if record.step is not None:  # nothing that was begun is left to itself
                    await record.step.wait()
            raise

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
                record.ask(call.name, _copy(call.arguments))
                return
            verdict = await self._tell(BeforeTool, call=call)
            if isinstance(verdict, BeforeTool) and verdict.refusal is not None:
                raise ToolBlockedError(verdict.refusal)
        except Exception as error:  # noqa: BLE001 - the boundary: the model is told
            self._fail(record, error)
            return
        self._count(calls=1)
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
        # A copy: the conversation has the original, and a tool may change what it is given.
        return tool, tool.bind(_copy(record.call.arguments))

    async def _invoke(self, record: CallRecord, tool: Tool, bound: Any) -> None:
        """Run in the call's own task, so that it is known to have ended the moment it has, whatever the others do."""
        try:
            current.set(self._run)  # runs that the tool starts are this run's children
            text = await tool.invoke(bound, self._context(record))
            if not isinstance(text, str):
                raise BadResultError(f"tool {record.call.name} returned {type(text).__name__} where text was due")
        except ToolInterrupted as question:
            if not record.scope.cancelled:
                record.ask(question.name, question.payload)
        except Exception as error:  # noqa: BLE001 - the boundary: the model is told
            if not record.scope.cancelled:
                self._fail(record, error)
        else:
            # After a cut it ended too late to be believed.
            if not record.scope.cancelled and record.finish(text if text.strip() else NO_OUTPUT):
                self._run.journal.add(RunEvent.tool_call_completed, tool=record.ended_view())

    async def _end(self, record: CallRecord) -> None:
        if record.step is not None:
            await record.step.wait()
            try:
                record.step.outcome()
            except CutAloneError:
                if record.cancelled_alone is None:
                    self._fail(record, ToolTimeoutError(OUT_OF_TIME[record.outcome]))
            except Exception as error:  # noqa: BLE001 - the boundary: the model is told
                self._fail(record, error)
        if record.cancelled_alone is not None:
            record.close()
            tool, reason = record.ended_view(record.outcome), record.cancelled_alone.reason
            self._run.journal.add(RunEvent.tool_call_cancelled, tool=tool, reason=reason)
        if record.interrupt is None:
            await self._tell(AfterTool, call=record.call, result=record.result())

    def _fail(self, record: CallRecord, error: Exception) -> None:
        if record.finish(describe(error), "error"):
            self._run.journal.add(RunEvent.tool_call_error, tool=record.ended_view(record.outcome))

    def cancel_call(self, call_id: str, reason: str | None) -> CancelOutcome:
        record = next((record for record in self.calls if record.call.id == call_id), None)
        if record is None:
            return CancelOutcome.unknown
        outcome = record.cancel(reason)
        if outcome is CancelOutcome.requested:
            with contextlib.suppress(RuntimeError):  # its loop is closed: nothing of it runs any more
                self._run.loop.call_soon_threadsafe(record.cut)
        return outcome

    def _count(self, calls: int = 0) -> None:
        """Look whether the budget has room for what comes next."""
        if self._run.meter is not None:
            self._run.meter.check(calls=calls)
            self._run.meter.spend(calls=calls)

    # -- asking a person ----------------------------------------------------------------------------------------------

    def progress(self) -> Settlement:
        asking = [record.interrupt for record in self.open_calls if record.interrupt is not None and record.asks]
        ends = [record.receipt(record.outcome) for record in self.calls]
        return Settlement(list(self.messages), self._text, self._spent, ends, [], asking)

    def answer(self, answers: Mapping[str, Any]) -> None:
        for record in self.open_calls:
            if record.asks and (question := record.interrupt) is not None:
                tool = self._plan.tools[record.call.name]
                record.answer(answers[question.id], approval=traits_of(tool).approval and not record.approved)

    def _context(self, record: CallRecord) -> ToolContext:
        run = self._run
        return ToolContext(
            record.scope,
            run_id=run.run_id,
            session_id=run.session_id,
            user_id=run.user_id,
            deadline=run.limits.deadline,
            answers=record.answers,
        )

    # -- its end ------------------------------------------------------------------------------------------------------

    @property
    def continues(self) -> str | None:
        """The run that this one has taken up."""
        return self._earlier.run_id if self._earlier is not None and self._opened else None

    def settle(self, fate: Fate) -> Settlement:
        if self._earlier is not None and not self._opened:
            return Settlement([], "", Usage(), [], [])  # all is as the earlier run left it
        blocks, open_calls, calls, text, spent = [], self.open_calls, self.calls, self._text, self._spent
        if (turn := self.turn) is not None:
            blocks = turn.blocks(cut=True)
            open_calls = self._records(turn, blocks)
            calls = [*calls, *open_calls]
            text += turn.content()
            spent += turn.spent_failed() if isinstance(fate, Failed) else turn.spent_cut()
        # A thread may end at any moment: what is said of its call is decided once, so that all say the same.
        ends = {record: record.outcome for record in calls}
        return Settlement(
            settle.settle(self.messages, blocks, [record.result(ends[record]) for record in open_calls], fate),
            text,
            spent,
            [record.receipt(end) for record, end in ends.items()],
            [record.ended_view(end) for record, end in ends.items() if not record.has_result],
        )

    async def farewell(self) -> None:
        """What only the end decided is announced after it; then the end itself."""
        self.messages = self._run.settlement.messages
        await self._announce(cut_by=None)
        if self._plan.hooks.wants(RunEnded):
            await self._tell(RunEnded, cut_by=None, result=self._run.make_result())

    # -- hooks --------------------------------------------------------------------------------------------------------

    async def _announce(self, cut_by: CancelMode | None = CancelMode.now) -> None:
        """Tell of the messages that are new since the last time."""
        if not self._plan.hooks.wants(MessageAdded):
            return
        while self._announced < len(self.messages):
            self._announced += 1
            await self._tell(MessageAdded, cut_by=cut_by, message=self.messages[self._announced - 1])

    async def _tell(
        self, kind: type[Happening], cut_by: CancelMode | None = CancelMode.now, **facts: Any
    ) -> Happening | None:
        if not self._plan.hooks.wants(kind):
            return None
        run, phase = self._run, self._run.phase
        happening = kind(
            run_id=run.run_id, session_id=run.session_id, agent_id=run.agent_id, user_id=run.user_id, **facts
        )
        if phase not in (Phase.tools, Phase.ending):
            run.phase = Phase.hook
        await self._plan.hooks.tell(run, happening, cut_by)
        run.phase = phase
        return happening


def _copy(arguments: dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(arguments))
