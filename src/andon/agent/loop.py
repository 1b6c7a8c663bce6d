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
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from andon.agent import settle
from andon.agent.call_record import CallRecord
from andon.agent.continuation import KEPT, Anew, Earlier, reopen, restore_calls
from andon.agent.fitting import Aside, Fitting
from andon.agent.hooks import AfterModel, BeforeModel, MessageAdded, RunEnded
from andon.agent.instructions import instruct
from andon.agent.output import Expected, Form, repair_prompt
from andon.agent.tool_runner import Calling, Plan
from andon.agent.turn import Turn
from andon.core.budget import Budget
from andon.core.events import RunEvent
from andon.core.receipt import ToolReceipt
from andon.core.records import Bookmark, RunRecord
from andon.core.run.run import Run
from andon.core.run.work import Settlement
from andon.core.signal import Completed, Failed, Fate
from andon.core.states import CancelMode, CancelOutcome, Phase, StopReason
from andon.core.steps import Cut
from andon.core.store import SessionStore
from andon.errors import ContextLengthError, describe
from andon.messages import Block, Message, ToolCall, Usage, assistant, user
from andon.models.base import ModelRequest, ToolSpec

log = logging.getLogger(__name__)


class Loop(Calling):
    """One run of an agent, and all that it has seen."""

    __slots__ = (
        "_announced",
        "_aside",
        "_before",
        "_earlier",
        "_expected",
        "_fitting",
        "_max_turns",
        "_opened",
        "_spent",
        "_text",
        "_turns",
        "calls",
        "messages",
        "open_calls",
        "turn",
    )

    def __init__(
        self,
        plan: Plan,
        run: Run,
        messages: list[Message],
        max_turns: int | None = None,
        output: Form | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        super().__init__(plan, run)
        self._max_turns, self._earlier = max_turns, earlier
        self._expected = None if output is None else Expected(output, plan.output_retries)
        self.messages = messages
        """What the run has added to the conversation."""
        self.turn: Turn | None = None
        """The model call that has not ended yet."""
        self.open_calls: Sequence[CallRecord] = ()
        """The calls that have no message of results yet."""
        self.calls: Sequence[CallRecord] = ()
        """Every call so far."""
        self._aside = Aside()
        self._fitting = None if plan.context is None else Fitting(plan.context, plan, run, self._aside, self._ask)
        self._spent = Usage()
        self._text = ""
        self._before: Sequence[ToolReceipt] = ()  # what became of the calls of which there is no record here
        self._announced = self._turns = 0
        self._opened = False

    def begin(self) -> None:
        """Nobody has to be told."""

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
            if not self.open_calls and await self._accept():
                return StopReason.end_turn

    async def _accept(self) -> bool:
        """Take the answer for what was asked for. False if the model has to try again, and was told why."""
        if self._expected is None:
            return True
        error = self._expected.take(self.messages[-1].text, last=self._turns == self._max_turns)
        if error is None:
            return True
        self._run.journal.add(RunEvent.model_retry, error=describe(error), delay=0.0)
        self.messages.append(user(repair_prompt(error)))
        await self._announce()
        return False

    async def _open_session(self) -> None:
        session = self._run.session
        self._run.phase = Phase.loading
        if session.changes:
            await self._run.step(session.unchanged, name="a change of the session", cut_by=CancelMode.after_turn)
        base = session.base
        if self._plan.history is not None:
            session.loaded = False  # should this be cut, nobody knows what was said until it is read again
            base = await self._run.step(self._bring, name="the store", cut_by=CancelMode.after_turn)
            session.ahead = False  # the store has all that was said before
        elif not session.ahead:
            base = await self._run.step(self._load, name="the store", cut_by=CancelMode.after_turn)
        if self._earlier is not None:
            base = self._earlier.lift(base)
            self.open_calls = reopen(self._earlier, self.messages, self._run, self._plan.tools)
            self.calls = [record for record in self.open_calls if not record.has_result]  # the others ended there
            self._announced = len(self.messages)
        session.open(base, self.messages)
        self._opened = True
        if (tenure := self._run.tenure) is not None:
            tenure.stir()  # what it has added so far is new, and no event may come for long
        await self._announce()

    def _load(self) -> Awaitable[list[Message]]:
        tenure = self._run.tenure
        return self._plan.store.load(self._run.session.key) if tenure is None else tenure.base()

    async def _bring(self) -> list[Message]:
        """Put the history that was brought in place of what was said before, for good."""
        history, store, tenure = self._plan.history or [], self._plan.store, self._run.tenure
        if tenure is not None:
            await tenure.bring(history)
        else:
            await cast(SessionStore, store).replace_session(self._run.session.key, history)
        return list(history)

    async def _model_turn(self) -> None:
        """Ask the model, and take what it answers."""
        self._count()
        self._run.gate(CancelMode.after_turn)
        request = await self._prepare()
        try:
            turn = await self._answer(request)
        except ContextLengthError:
            shorter = await self._prepare_shorter(request)
            if shorter is None:
                raise
            turn = await self._answer(shorter)
        await self._take(turn)

    async def _answer(self, request: ModelRequest) -> Turn:
        """Have the model answer, in as many attempts as it may take."""
        attempt = 0
        while True:
            attempt += 1
            turn = self.turn = Turn(self._run, request, self._plan.model)
            self._run.phase = Phase.waiting
            try:
                await self._run.step(
                    functools.partial(self._ask, turn),
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
                delay = None if turn.shown else self._plan.retry.delay(error, attempt)
                if delay is None:
                    raise
                self._spent += turn.spent_failed()
                self.turn = None
                await self._back_off(delay, error)

    async def _use_tools(self) -> bool:
        """Run the calls of a turn, and answer each of them. False if a person has to be asked first."""
        self._count()
        await self._run.saved()  # what is about to be done can't be taken back: it is on record first
        self._run.phase = Phase.tools
        records = self.open_calls
        for group in [records] if self._plan.parallel_tools else [[record] for record in records]:
            await self._call(group)
            asking = [record for record in group if record.interrupts]
            for record in asking.copy():
                if not record.asks:  # cancelled alone while the others were at work
                    asking.remove(record)
                    await self._end(record)
            if asking:
                return False
        self.messages.append(Message("tool", [record.result() for record in records]))
        self.open_calls = ()
        await self._announce()
        return True

    # -- one model call -----------------------------------------------------------------------------------------------

    def _request(self, instructions: str | None) -> ModelRequest:
        specs = [ToolSpec(tool.name, tool.description, tool.parameters) for tool in self._plan.tools.values()]
        output = self._expected.form.spec if self._expected is not None else None
        return ModelRequest(self._run.session.messages, instructions, specs, output)

    async def _prepare(self) -> ModelRequest:
        """What is to be sent, with what the conversation must be to fit, and what hooks have to say to it."""
        request = self._request(await instruct(self._run, self._plan.instructions, self._plan.deps))
        if self._fitting is not None:
            request = await self._fitting.fit(request)
            self._count()  # it may have asked a model
        await self._tell(BeforeModel, request=request)
        self._run.gate(CancelMode.after_turn)
        return request

    async def _prepare_shorter(self, refused: ModelRequest) -> ModelRequest | None:
        """The same with less of the conversation, since the provider found it too long; None if there is no less."""
        fitting, turn = self._fitting, self.turn
        if fitting is None or turn is None or turn.shown:
            return None
        self._spent += turn.spent_failed()
        self.turn = None
        fitting.refused(refused)
        request = await self._prepare()
        return request if fitting.measure(request) < fitting.measure(refused) else None

    def _ask(self, turn: Turn) -> Awaitable[None]:
        """The model call itself, in a task of its own."""
        return turn.play()

    async def _back_off(self, seconds: float, error: Exception) -> None:
        self._run.phase = Phase.backoff
        self._run.journal.add(RunEvent.model_retry, error=describe(error), delay=seconds)
        facts = {"facts": self._run.names}
        log.info("the model failed, and is asked again in %.2g s: %s", seconds, describe(error), extra=facts)
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
        self._charge(turn.spent_cut if usage.total_tokens is None else turn.spent)
        if self._fitting is not None:
            self._fitting.learn(turn.request, usage)
        await self._tell(AfterModel, message=self.messages[-1], usage=usage)
        await self._announce()

    def _charge(self, spent: Callable[[], Usage]) -> None:
        """Take it from the budget, if it was cut or failed too: a run above may go on with what is left."""
        if self._run.meter is not None:
            self._run.meter.spend(spent().total_tokens or 0)

    def _records(self, turn: Turn, blocks: Sequence[Block]) -> list[CallRecord]:
        return [CallRecord(self._run, block, turn.problem(block.id)) for block in blocks if isinstance(block, ToolCall)]

    def cancel_call(self, call_id: str, reason: str | None) -> CancelOutcome:
        record = next((record for record in self.calls if record.call.id == call_id), None)
        if record is None:
            return CancelOutcome.unknown
        outcome = record.cancel(reason)
        if outcome is CancelOutcome.requested:
            with contextlib.suppress(RuntimeError):  # its loop is closed: nothing of it runs any more
                self._run.loop.call_soon_threadsafe(record.cut)
        return outcome

    # -- asking a person ----------------------------------------------------------------------------------------------

    def so_far(self) -> list[Message]:
        if self._earlier is not None and not self._opened:
            return []  # until it is in the session, all is as the earlier run left it
        messages, calls = list(self.messages), self.open_calls
        results: list[Block] = [record.result() for record in calls if record.has_result]
        if results and messages[-1].role == "assistant":  # else they have become a message this very moment
            messages.append(Message("tool", results))
        return messages

    def progress(self) -> Settlement:
        asking = [question for record in self.open_calls if record.asks for question in record.interrupts]
        ends = [*self._before, *(record.receipt() for record in self.calls)]
        ended = [*self._before, *(record.receipt() for record in self.calls if record.has_result)]
        calls = [record.state() for record in self.open_calls if not record.has_result]
        left = self._run.budget_left() or Budget()
        schema = None if self._expected is None else self._expected.form.kept
        limits = self._max_turns, self._run.limits.timeout, left.tokens, left.tool_calls
        mark = Bookmark(self._turns, *limits, calls, ended, schema, self._run.budget)
        spent, made = self._spent + self._aside.spent, self._aside.made
        return Settlement(self.so_far(), self._text, spent, ends, [], [], asking, mark, shortened=made)

    def restore(self, record: RunRecord, base: list[Message], messages: list[Message]) -> None:
        """Be where the run was paused, in another process."""
        self.messages, self.open_calls = restore_calls(record, messages, self._run)
        self.calls = self.open_calls
        here = {each.call.id for each in self.calls}
        ended = [] if record.bookmark is None else record.bookmark.ended
        self._before = [each for each in ended if each.call_id not in here]
        self._text, self._spent = record.content, record.usage or Usage()
        if (mark := record.bookmark) is not None:
            self._turns = mark.turns
            if mark.budget is not None:
                self._run.spent_before = mark.spent
        self._announced, self._opened = len(self.messages), True
        self._run.session.open(base, self.messages)
        self._aside.made = record.shortened

    def answer(self, answers: Mapping[str, Any], anew: Anew | None = None) -> None:
        if anew is not None and anew.deps is not KEPT:
            self._plan = msgspec.structs.replace(self._plan, deps=anew.deps)
        if anew is not None and anew.output is not None:
            self._expected = Expected(anew.output, self._plan.output_retries)
        for record in self.open_calls:
            if record.asks:
                record.answer(answers)

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
        spent += self._aside.spent
        answer = self._expected if isinstance(fate, Completed) else None
        # A thread may end at any moment: what is said of its call is decided once, so that all say the same. (Of those
        # that are open, some may have ended in an earlier run, and have their results.)
        ends = {record: record.receipt() for record in calls}
        results = [record.result(ends[record].outcome if record in ends else None) for record in open_calls]
        return Settlement(
            settle.settle(self.messages, blocks, results, fate),
            text,
            spent,
            [*self._before, *ends.values()],
            [record.ended_view(end.outcome) for record, end in ends.items() if not record.has_result],
            [end for record, end in ends.items() if record.is_open],
            output=None if answer is None else answer.value,
            output_data=None if answer is None else answer.data,
            write_output=None if answer is None else answer.form.dump,
            shortened=self._aside.made,
        )

    def ended(self) -> None:
        """Nobody has to be told but the hooks, and they wait for the terminal event."""

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
