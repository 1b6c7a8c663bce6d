# SPDX-License-Identifier: Apache-2.0
"""The loop of an agent: a model turn, its tool calls, the next model turn, … until the model calls no more tools.

`perform` is the whole of it. It uses a `Turn` for each model call, a `ToolRunner` for the tool calls of a turn, and
`settle` at the end. A `ContextFitter` shortens what is sent, if the agent has a context policy.

A cancel lands in one of two places. Everything that waits is a step of the run (`run.step`); a step names the weakest
cancel mode that cuts it. And before anything new begins there is a gate (`run.gate`). Both raise Cut. Nothing here
keeps a Cut: it unwinds to the run, which then calls `settle`. That uses what the fields below hold, so they are correct
at every `await`; between two lines without an `await` no cancel can come.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from andon.agent import settle
from andon.agent.call_record import CallRecord
from andon.agent.context_fitter import ContextFitter, SideWork
from andon.agent.continuation import UNCHANGED, EarlierRun, ResumeOptions, reopen_calls, restore_calls
from andon.agent.hooks import AfterModel, BeforeModel, MessageAdded, RunEnded
from andon.agent.instructions import make_instructions
from andon.agent.output import ExpectedOutput, OutputFormat, repair_prompt
from andon.agent.plan import Plan
from andon.agent.tool_runner import ToolRunner
from andon.agent.tool_sources import ToolFinder
from andon.agent.turn import Turn
from andon.agent.undo_cut import undo_calls
from andon.core.budget import Budget
from andon.core.events import RunEvent
from andon.core.markers import REFUSED
from andon.core.receipt import ToolReceipt
from andon.core.records import Bookmark, RunRecord
from andon.core.run.run import LocalRun
from andon.core.run.waits import make_result
from andon.core.run.work import Settlement
from andon.core.signal import Completed, Failed, Fate
from andon.core.states import CancelMode, CancelOutcome, FinishReason, Phase, StopReason
from andon.core.steps import Cut
from andon.errors import ContextLengthError, describe
from andon.messages import Block, Message, ToolCall, Usage, assistant, user
from andon.models.base import ModelRequest, ToolSpec
from andon.tools.base import Tool

if TYPE_CHECKING:
    from andon.agent.observer import LoopObserver  # it imports opentelemetry, which most programs don't have

log = logging.getLogger(__name__)


class Loop:
    """The work of one run: what the run does, and all that it has seen so far."""

    __slots__ = (
        "_ended_before",
        "_expected",
        "_finder",
        "_finished",
        "_fitter",
        "_messages_told",
        "_opened",
        "_run",
        "_side_work",
        "_spent",
        "_text",
        "_turns",
        "calls",
        "earlier",
        "max_turns",
        "messages",
        "observer",
        "open_calls",
        "plan",
        "turn",
    )

    def __init__(
        self,
        plan: Plan,
        run: LocalRun,
        messages: list[Message],
        max_turns: int | None = None,
        output: OutputFormat | None = None,
        earlier: EarlierRun | None = None,
        observer: LoopObserver | None = None,
    ) -> None:
        self.plan, self._run, self.max_turns, self.earlier = plan, run, max_turns, earlier
        self.observer = observer
        """Told of each turn and each call, if telemetry is on."""
        self.messages = messages
        """What the run has added to the conversation."""
        self.turn: Turn | None = None
        """The model call that has not ended yet."""
        self.open_calls: Sequence[CallRecord] = ()
        """The calls whose results are not in a message yet."""
        self.calls: Sequence[CallRecord] = ()
        """Every call so far."""
        self._expected = None if output is None else ExpectedOutput(output, plan.output_retries)
        self._side_work = SideWork()
        self._fitter = None
        if plan.context is not None:
            self._fitter = ContextFitter(plan.context, plan, run, self._side_work, self._play)
        self._finder = ToolFinder(run, plan.tools, plan.sources) if plan.sources else None
        self._spent = Usage()
        self._text = ""
        self._finished: FinishReason | None = None  # of the last complete answer
        self._ended_before: Sequence[ToolReceipt] = ()  # calls before a pause in another process: no record is here
        self._messages_told = self._turns = 0
        self._opened = False

    def begin(self) -> None:
        if self.observer is not None:
            self.observer.run_begins(self.messages)

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def perform(self) -> StopReason:
        if self.observer is not None:
            self.observer.loop_begins()
        if not self._opened:
            await self._open_session()
        await self._find_tools()
        while True:
            if self.open_calls and not await self._use_tools():
                return self._stop(StopReason.interrupt)
            if self._turns == self.max_turns:
                return self._stop(StopReason.max_turns)
            self._turns += 1
            await self._model_turn()
            if not self.open_calls and await self._accept_output():
                return self._stop(StopReason.end_turn)

    def _stop(self, reason: StopReason) -> StopReason:
        if self.observer is not None:
            self.observer.loop_ends(reason, self.progress)
        return reason

    async def _find_tools(self) -> None:
        """Ask the sources of tools, now that the run begins or goes on."""
        if self._finder is not None:
            self._use(await self._finder.find())

    def _use(self, tools: Mapping[str, Tool]) -> None:
        self.plan = msgspec.structs.replace(self.plan, tools=tools)

    async def _open_session(self) -> None:
        """Load what was said before, and put the run's own messages behind it."""
        session = self._run.session
        self._run.phase = Phase.loading
        if session.changes:
            await self._run.steps.start(session.unchanged, name="a change of the session", cut_by=CancelMode.after_turn)
        base = session.base
        if self.plan.history is not None:
            session.loaded = False  # if the next step is cut, the session has to be read from the store again
            base = await self._run.steps.start(self._replace_history, name="the store", cut_by=CancelMode.after_turn)
            session.ahead = False  # the store has all that was said before
        elif not session.ahead:
            base = await self._run.steps.start(self._load, name="the store", cut_by=CancelMode.after_turn)
        if self.earlier is not None:
            await self._find_tools()  # a call that was cut is made again if its tool may be called twice
            base = self.earlier.remove_from(base)
            self.open_calls = reopen_calls(self.earlier, self.messages, self._run, self.plan.tools)
            self.calls = [record for record in self.open_calls if not record.has_result]  # the others ended there
            self._messages_told = len(self.messages)
        session.begin_turn(base, self.messages)
        self._opened = True
        self._run.storage.changed()  # the store must get these messages, even if no event comes for a long time
        await self._tell_new_messages()

    def _load(self) -> Awaitable[list[Message]]:
        return self._run.storage.load(self._run.session.key)

    async def _replace_history(self) -> list[Message]:
        """Replace what the store has of the session by the messages that the caller gave."""
        history = self.plan.history or []
        await self._run.storage.replace_history(self._run.session.key, history)
        return list(history)

    async def _model_turn(self) -> None:
        """Ask the model, and take its answer."""
        if self.observer is not None:
            self.observer.turn_begins()
        self._check_budget()
        self._run.steps.gate(CancelMode.after_turn)
        if self._finder is not None and (changed := await self._finder.find_changed()) is not None:
            self._use(changed)
        request = await self._prepare()
        try:
            turn = await self._call_model(request)
        except ContextLengthError:
            shorter = await self._prepare_shorter(request)
            if shorter is None:
                raise
            turn = await self._call_model(shorter)
        await self._end_turn(turn)

    async def _use_tools(self) -> bool:
        """Run the tool calls of a turn, and add a message with their results. False if a person has to be asked."""
        if self.observer is not None:
            self.observer.tools_begin()
        self._check_budget()
        await self._run.storage.checkpoint()  # tools may have effects: the calls are in the store before they start
        self._run.phase = Phase.tools
        records = self.open_calls
        if not await ToolRunner(self.plan, self._run, self.observer).run(records):
            return False
        self.messages.append(Message("tool", [record.result() for record in records]))
        self.open_calls = ()
        await self._tell_new_messages()
        return True

    async def _accept_output(self) -> bool:
        """Check the answer against the `output_type`. False if the model has to try again, and was told why."""
        if self._expected is None:
            return True
        refused = self._finished is FinishReason.refusal  # asked again, it would decline again
        text = self.messages[-1].text.removesuffix(REFUSED if refused else "")
        error = self._expected.accept(text, last=refused or self._turns == self.max_turns)
        if error is None:
            return True
        self._run.journal.add(RunEvent.model_retry, error=describe(error), delay=0.0)
        self.messages.append(user(repair_prompt(error)))
        await self._tell_new_messages()
        return False

    # -- one model call -----------------------------------------------------------------------------------------------

    async def _prepare(self) -> ModelRequest:
        """The next request: with the instructions, shortened if the context policy says so, and shown to the hooks."""
        request = self._make_request(await make_instructions(self._run, self.plan.instructions, self.plan.deps))
        if self._fitter is not None:
            request = await self._fitter.fit(request)
            self._check_budget()  # the policy may have used a model
        await self._tell(BeforeModel, request=request)
        self._run.steps.gate(CancelMode.after_turn)
        return request

    def _make_request(self, instructions: str | None) -> ModelRequest:
        specs = [ToolSpec(tool.name, tool.description, tool.parameters) for tool in self.plan.tools.values()]
        output = self._expected.format.spec if self._expected is not None else None
        return ModelRequest(self._run.session.messages, instructions, specs, output)

    async def _prepare_shorter(self, refused: ModelRequest) -> ModelRequest | None:
        """A shorter request, since the provider found this one too long. None if nothing more can be left out."""
        fitter, turn = self._fitter, self.turn
        if fitter is None or turn is None or turn.shown:
            return None
        self._spent += turn.spent_failed()
        self.turn = None
        fitter.refused(refused)
        request = await self._prepare()
        return request if fitter.measure(request) < fitter.measure(refused) else None

    async def _call_model(self, request: ModelRequest) -> Turn:
        """Have the model answer. A call that fails may be tried again, if nothing of it was shown."""
        attempt = 0
        while True:
            attempt += 1
            turn = self.turn = Turn(self._run, request, self.plan.model)
            self._run.phase = Phase.waiting
            try:
                await self._run.steps.start(
                    functools.partial(self._play, turn),
                    name="the model",
                    cut_by=CancelMode.after_tools,
                    on_cut=turn.shut,
                )
                return turn
            except Cut:
                self._charge(turn.spent_cut)
                raise
            except Exception as error:
                turn.shut()
                self._charge(turn.spent_failed)
                delay = None if turn.shown else self.plan.retry.delay(error, attempt)
                if delay is None:
                    raise
                self._spent += turn.spent_failed()
                self.turn = None
                await self._back_off(delay, error)

    def _play(self, turn: Turn) -> Awaitable[None]:
        """The model call itself. It runs in a task of its own."""
        return turn.play() if self.observer is None else self.observer.play(turn)

    async def _back_off(self, seconds: float, error: Exception) -> None:
        self._run.phase = Phase.backoff
        self._run.journal.add(RunEvent.model_retry, error=describe(error), delay=seconds)
        facts = {"facts": self._run.steps.facts}
        log.info("the model failed, and is asked again in %.2g s: %s", seconds, describe(error), extra=facts)
        await self._run.steps.start(lambda: asyncio.sleep(seconds), name="back-off", cut_by=CancelMode.after_turn)

    async def _end_turn(self, turn: Turn) -> None:
        """Turn the model's answer into a message, usage and tool calls."""
        blocks = settle.answer(turn.blocks(cut=False), turn.finish_reason)
        usage = turn.spent()
        turn.shut()  # a task of the model may still push text: that is no part of the answer
        self.turn = None
        self.messages.append(assistant(*blocks))
        self.open_calls = self._make_records(turn, blocks)
        self.calls = [*self.calls, *self.open_calls]
        self._finished = turn.finish_reason
        self._text += turn.content()
        self._spent += usage
        self._charge(turn.spent_cut if usage.total_tokens is None else turn.spent)
        if self._fitter is not None:
            self._fitter.learn(turn.request, usage)
        await self._tell(AfterModel, message=self.messages[-1], usage=usage)
        await self._tell_new_messages()

    def _make_records(self, turn: Turn, blocks: Sequence[Block]) -> list[CallRecord]:
        return [CallRecord(self._run, block, turn.problem(block.id)) for block in blocks if isinstance(block, ToolCall)]

    # -- the budget ---------------------------------------------------------------------------------------------------

    def _check_budget(self) -> None:
        """Cancel the run if its budget, or that of a run above it, is spent."""
        if self._run.children.meter is not None:
            self._run.children.meter.check()

    def _charge(self, spent: Callable[[], Usage]) -> None:
        """Take tokens from the budget, also those of a call that was cut or failed: a run above may go on."""
        if self._run.children.meter is not None:
            self._run.children.meter.spend(spent().total_tokens or 0)

    # -- one call alone -----------------------------------------------------------------------------------------------

    def cancel_call(self, call_id: str, reason: str | None, force: bool = False) -> CancelOutcome:
        record = next((record for record in self.calls if record.call.id == call_id), None)
        if record is None:
            return CancelOutcome.unknown
        outcome = record.cancel(reason, force)
        if outcome:
            with contextlib.suppress(RuntimeError):  # its loop is closed: nothing of it runs any more
                self._run.loop.call_soon_threadsafe(record.cut)
        return outcome

    # -- a pause ------------------------------------------------------------------------------------------------------

    def so_far(self) -> list[Message]:
        if self.earlier is not None and not self._opened:
            return []  # until the session is open, the earlier run's messages are unchanged
        messages, calls = list(self.messages), self.open_calls
        results: list[Block] = [record.result() for record in calls if record.has_result]
        if results and messages[-1].role == "assistant":  # else the loop has just added them as a message
            messages.append(Message("tool", results))
        return messages

    def progress(self) -> Settlement:
        questions = [question for record in self.open_calls if record.is_waiting for question in record.interrupts]
        ends = [*self._ended_before, *(record.receipt() for record in self.calls)]
        ended = [*self._ended_before, *(record.receipt() for record in self.calls if record.has_result)]
        calls = [record.state() for record in self.open_calls if not record.has_result]
        left = self._run.children.budget_left or Budget()
        schema = None if self._expected is None else self._expected.format.kept
        limits = self.max_turns, self._run.limits.timeout, left.tokens, left.tool_calls
        mark = Bookmark(self._turns, *limits, calls, ended, schema, self._run.children.budget)
        spent, summary = self._spent + self._side_work.spent, self._side_work.summary
        return Settlement(self.so_far(), self._text, spent, ends, [], [], questions, mark, shortened=summary)

    def restore(self, record: RunRecord, base: list[Message], messages: list[Message]) -> None:
        """Set all fields to where the run was paused, in another process."""
        self.messages, self.open_calls = restore_calls(record, messages, self._run)
        self.calls = self.open_calls
        here = {each.call.id for each in self.calls}
        ended = [] if record.bookmark is None else record.bookmark.ended
        self._ended_before = [each for each in ended if each.call_id not in here]
        self._text, self._spent = record.content, record.usage or Usage()
        if (mark := record.bookmark) is not None:
            self._turns = mark.turns
        self._messages_told, self._opened = len(self.messages), True
        self._run.session.begin_turn(base, self.messages)
        self._side_work.summary = record.shortened

    def answer(self, answers: Mapping[str, Any], anew: ResumeOptions | None = None) -> None:
        if anew is not None and anew.deps is not UNCHANGED:
            self.plan = msgspec.structs.replace(self.plan, deps=anew.deps)
        if anew is not None and anew.output is not None:
            self._expected = ExpectedOutput(anew.output, self.plan.output_retries)
        for record in self.open_calls:
            if record.is_waiting:
                record.take_answers(answers)
        if self.observer is not None:
            self.observer.run_begins([])

    # -- the end ------------------------------------------------------------------------------------------------------

    @property
    def continues(self) -> str | None:
        """The id of the earlier run, once its messages are part of this one."""
        return self.earlier.run_id if self.earlier is not None and self._opened else None

    async def undo(self) -> None:
        if self.open_calls:
            await undo_calls(self._run, self.plan, self.open_calls)

    def settle(self, fate: Fate) -> Settlement:
        if self.earlier is not None and not self._opened:
            return Settlement([], "", Usage(), [], [])  # the earlier run's messages are unchanged
        blocks, open_calls, calls, text, spent = [], self.open_calls, self.calls, self._text, self._spent
        if (turn := self.turn) is not None:
            blocks = turn.blocks(cut=True)
            if turn.finish_reason is FinishReason.refusal:  # cut between that word and the end
                blocks = settle.answer(blocks, turn.finish_reason)
            open_calls = self._make_records(turn, blocks)
            calls = [*calls, *open_calls]
            text += turn.content()
            spent += turn.spent_failed() if isinstance(fate, Failed) else turn.spent_cut()
        spent += self._side_work.spent
        answer = self._expected if isinstance(fate, Completed) else None
        # What a call holds may end at any moment. So its outcome is read once, and result, event and receipt agree.
        # (Some of the open calls may have ended in an earlier run, and have their results.)
        ends = {record: record.receipt() for record in calls}
        results = [record.result(ends[record].outcome if record in ends else None) for record in open_calls]
        return Settlement(
            settle.settle(self.messages, blocks, results, fate),
            text,
            spent,
            [*self._ended_before, *ends.values()],
            [record.ended_view(end.outcome) for record, end in ends.items() if not record.has_result],
            [end for record, end in ends.items() if record.is_open],
            output=None if answer is None else answer.value,
            output_data=None if answer is None else answer.data,
            write_output=None if answer is None else answer.format.dump,
            shortened=self._side_work.summary,
            finish_reason=self._finished if self.turn is None else None,
        )

    def ended(self) -> None:
        if self.observer is not None:
            self.observer.run_ended(self._spent_in_flight)

    def _spent_in_flight(self) -> Usage | None:
        if (turn := self.turn) is None:
            return None
        return turn.spent_failed() if isinstance(self._run.signal.fate, Failed) else turn.spent_cut()

    async def farewell(self) -> None:
        """Tell the hooks of the messages that only the end has decided, and then of the end."""
        self.messages = self._run.settlement.messages
        await self._tell_new_messages(cut_by=None)
        if self.plan.hooks.wants(RunEnded):
            await self._tell(RunEnded, cut_by=None, result=make_result(self._run))

    # -- hooks --------------------------------------------------------------------------------------------------------

    async def _tell(
        self,
        kind: type[AfterModel] | type[BeforeModel] | type[MessageAdded] | type[RunEnded],
        cut_by: CancelMode | None = CancelMode.now,
        **facts: Any,
    ) -> None:
        await self.plan.hooks.tell(self._run, self.plan.deps, kind, cut_by, **facts)

    async def _tell_new_messages(self, cut_by: CancelMode | None = CancelMode.now) -> None:
        """Tell the hooks of each message that they were not told of before."""
        if not self.plan.hooks.wants(MessageAdded):
            return
        while self._messages_told < len(self.messages):
            self._messages_told += 1
            await self._tell(MessageAdded, cut_by=cut_by, message=self.messages[self._messages_told - 1])
