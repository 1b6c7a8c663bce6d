# SPDX-License-Identifier: Apache-2.0
"""Start, cancel, finish, talk on, in any order, from several threads and loops: a state machine with a simple twin.

The model does nothing but what the machine tells it to, so after every step it is known where each run must be. What
the twin can't foresee, a race between a cancel and the end, it learns from what the cancelling threads were told.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from andon import Agent, CancelOutcome, Event, Run, RunEvent, RunResult, RunStatus, Runtime, ToolContext, tool
from andon.core.records import SessionKey
from andon.errors import ModelError, SessionBusyError
from andon.messages import Message
from andon.models.base import ModelRequest, Sink
from andon.testing.validators import next_prompt_accepted, validate
from tests.support import HANG, Flag, Worker, check_events

pytestmark = pytest.mark.no_cover  # others cover what it reaches, and two thirds of its time would be the tracer's

T = TypeVar("T")
RANK = {"after_turn": 1, "after_tools": 2, "now": 3}
OWN = "own"
"""The agent's own conversation, of which no run names the session: the only one that an armed cancel is for."""
SESSIONS = [OWN, "two"]
MARKERS = {"user": "Cancelled by user", "superseded": "Cancelled: superseded by a newer request"}


class Control:
    """One run, as the machine drives it; and its twin: where it must be."""

    def __init__(self, prompt: str, session: str) -> None:
        self.prompt, self.session = prompt, session
        self.news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.release = Flag()
        self.run: Run
        self.keeper: Future[tuple[list[Event], RunResult]]
        self._loop: asyncio.AbstractEventLoop
        self._orders: asyncio.Queue[str]
        self.state = "queued"
        self.rank = 0
        """How much is to be stopped, if a cancel was asked for."""
        self.cause = ""

    async def answer(self, sink: Sink) -> None:
        """The model's part."""
        self._loop, self._orders = asyncio.get_running_loop(), asyncio.Queue()
        self.news.put("asked")
        while True:
            order = await self._orders.get()
            if order == "finish":
                return sink.text("The end.")
            if order == "fail":
                raise ModelError("told to fail")
            if order in ("wait", "block"):
                return sink.tool_call(f"{self.prompt}-{next(numbers)}", order, {})
            sink.text(order)

    def order(self, what: str) -> None:
        self._loop.call_soon_threadsafe(self._orders.put_nowait, what)

    def expect(self, news: str) -> None:
        assert self.news.get(timeout=HANG) == news


numbers = itertools.count()


class Directed:
    """A model that does as it is told, by whoever holds the prompt's control."""

    id = "directed"

    def __init__(self) -> None:
        self.controls: dict[str, Control] = {}

    def of(self, messages: list[Message]) -> Control:
        return self.controls[next(message.text for message in reversed(messages) if message.role == "user")]

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        assert validate(request.messages) == []  # what is sent is accepted, whatever was cut before
        await self.of(request.messages).answer(sink)


class Loop(threading.Thread):
    """A thread with an event loop."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="test-loop")
        self.loop = asyncio.new_event_loop()
        self.complaints: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda loop, context: self.complaints.append(context))
        self.start()

    def run(self) -> None:
        self.loop.run_forever()
        self.loop.close()

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the loop."""

        async def there() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(there(), self.loop).result(HANG)

    def end(self) -> None:
        left = self.call(lambda: asyncio.all_tasks() - {asyncio.current_task()})
        assert not left, f"left behind: {left}"
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.join(HANG)
        assert not self.complaints


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loops = [Loop(), Loop()]
        self.model = Directed()
        controls = self.model.controls

        @tool
        async def wait(ctx: ToolContext) -> str:
            control = by_run[ctx.run_id]
            control.news.put("tool")
            await control.release.arrived()
            return "waited"

        @tool
        def block(ctx: ToolContext) -> str:
            control = by_run[ctx.run_id]
            ctx.on_cancel(control.release.set)
            control.news.put("tool")
            control.release.wait()
            return "blocked"

        by_run: dict[str, Control] = {}
        self.by_run = by_run
        self.agent = Agent("Machine", self.model, tools=[wait, block], runtime=Runtime(arm_seconds=1000))
        self.lines: dict[str, list[Control]] = {session: [] for session in SESSIONS}
        self.entered: dict[str, list[str]] = {session: [] for session in SESSIONS}
        self.ended: list[Control] = []
        self.armed = False
        assert not controls

    # -- the twin -----------------------------------------------------------------------------------------------------

    @property
    def live(self) -> list[Control]:
        return [control for line in self.lines.values() for control in line]

    def in_state(self, state: str) -> list[Control]:
        return [control for control in self.live if control.state == state]

    def settle(self, *over: Control, status: str) -> None:
        """These have ended so; whoever was behind them has its turn."""
        for control in over:
            self.lines[control.session].remove(control)
            control.state = "ended"
            self.ended.append(control)
        for control in over:
            self.check_end(control, status)
        for line in self.lines.values():
            if line and line[0].state == "queued":
                line[0].expect("asked")
                line[0].state = "talking"

    def check_end(self, control: Control, status: str) -> None:
        events, result = control.keeper.result(HANG)
        control.release.set()  # a thread that was abandoned may go now
        check_events(events)
        assert result.status.name == control.run.status.name == status
        assert events[-1].status is result.status
        assert [event.event for event in events].count(RunEvent.cancel_requested) == (status == "cancelled")
        assert (result.receipt is not None) is (status == "cancelled")
        if result.receipt is not None:
            assert result.receipt.cause == control.cause
            assert result.message.content[-1].text == MARKERS[control.cause]  # type: ignore[union-attr]
        assert validate(result.messages) == []
        assert next_prompt_accepted(result.messages) == []
        assert control.news.empty()  # nothing was sent or started after the end

    def apply_cancel(self, mode: str, *asked: Control, cause: str = "user") -> None:
        """What a cancel does to each of these; those that stop at once are settled."""
        over = []
        for control in asked:
            control.cause = control.cause or cause
            control.rank = max(control.rank, RANK[mode])
            if control.rank >= {"queued": 1, "talking": 2, "tool": 3}[control.state]:
                over.append(control)
        self.settle(*over, status="cancelled")

    def from_somewhere(self, data: st.DataObject, function: Callable[[], T]) -> T:
        """Call it in this thread, in a new one, or on one of the loops."""
        where = data.draw(st.sampled_from(["here", "thread", 0, 1]), label="from")
        if where == "here":
            return function()
        if isinstance(where, int):
            return self.loops[where].call(function)
        answer: list[T] = []
        Worker(lambda: answer.append(function())).done()
        return answer[0]

    # -- the steps ----------------------------------------------------------------------------------------------------

    @rule(
        session=st.sampled_from(SESSIONS),
        on_busy=st.sampled_from(["reject", "queue", "queue", "cancel"]),
        loop=st.integers(0, 1),
    )
    def start(self, session: str, on_busy: Any, loop: int) -> None:
        line = self.lines[session]
        prompt = f"prompt {len(self.entered[session])} of {session} {next(numbers)}"
        control = self.model.controls[prompt] = Control(prompt, session)
        run = control.run = self.agent.start(prompt, session_id=None if session == OWN else session, on_busy=on_busy)
        self.by_run[run.run_id] = control

        async def begin() -> None:
            await run.__aenter__()

        async def keep() -> tuple[list[Event], RunResult]:
            events = [event async for event in run]
            await run.__aexit__(None, None, None)
            return events, await run.result()

        begun = asyncio.run_coroutine_threadsafe(begin(), self.loops[loop].loop)
        if on_busy == "reject" and any(not ahead.rank for ahead in line):
            assert isinstance(begun.exception(HANG), SessionBusyError)
            assert self.agent.cancel_run(run.run_id) is CancelOutcome.unknown
            return
        begun.result(HANG)
        control.keeper = asyncio.run_coroutine_threadsafe(keep(), self.loops[loop].loop)
        self.entered[session].append(prompt)
        ahead = list(line)
        line.append(control)
        if self.armed and session == OWN:
            self.armed = False
            self.apply_cancel("now", control)
        elif on_busy == "cancel":
            self.apply_cancel("now", *ahead, cause="superseded")
        self.settle(status="")

    @precondition(lambda self: self.in_state("talking"))
    @rule(data=st.data(), what=st.sampled_from(["say", "say", "wait", "block"]))
    def talk_on(self, data: st.DataObject, what: str) -> None:
        control = data.draw(st.sampled_from(self.in_state("talking")))
        if what == "say":
            control.order("And then, ")
        else:
            control.order(what)
            control.expect("tool")
            control.state = "tool"

    @precondition(lambda self: self.in_state("tool"))
    @rule(data=st.data())
    def end_tool(self, data: st.DataObject) -> None:
        control = data.draw(st.sampled_from(self.in_state("tool")))
        control.release.set()
        if control.rank:
            self.settle(control, status="cancelled")
        else:
            control.expect("asked")
            control.release = Flag()
            control.state = "talking"

    @precondition(lambda self: self.in_state("talking"))
    @rule(data=st.data(), how=st.sampled_from(["finish", "finish", "fail"]))
    def finish(self, data: st.DataObject, how: str) -> None:
        control = data.draw(st.sampled_from(self.in_state("talking")))
        control.order(how)
        natural = "completed" if how == "finish" else "error"
        self.settle(control, status="cancelled" if control.rank else natural)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), mode=st.sampled_from(["now", "now", "after_tools", "after_turn"]), by_id=st.booleans())
    def cancel(self, data: st.DataObject, mode: str, by_id: bool) -> None:
        control = data.draw(st.sampled_from(self.live))
        run = control.run
        outcome = self.from_somewhere(
            data, lambda: self.agent.cancel_run(run.run_id, mode=mode) if by_id else run.cancel(mode=mode)
        )
        assert outcome is (CancelOutcome.already_requested if control.rank else CancelOutcome.requested)
        self.apply_cancel(mode, control)

    @rule(data=st.data())
    def cancel_agent(self, data: st.DataObject) -> None:
        live = self.live
        outcome = self.from_somewhere(data, self.agent.cancel)
        if live:
            news = any(not control.rank for control in live)
            assert outcome is (CancelOutcome.requested if news else CancelOutcome.already_requested)
            self.apply_cancel("now", *live)
        elif self.ended:
            assert outcome is CancelOutcome.already_finished
        else:
            assert outcome is CancelOutcome.armed
            self.armed = True

    @precondition(lambda self: any(not control.rank for control in self.in_state("talking")))
    @rule(data=st.data())
    def race(self, data: st.DataObject) -> None:
        """Three threads cancel at the moment in which the run finishes."""
        control = data.draw(st.sampled_from([each for each in self.in_state("talking") if not each.rank]))
        together = threading.Barrier(4)
        outcomes: list[CancelOutcome] = []

        def cancel() -> None:
            together.wait(HANG)
            outcomes.append(control.run.cancel())

        workers = [Worker(cancel) for _ in range(3)]
        together.wait(HANG)
        control.order("finish")
        for worker in workers:
            worker.done()
        asked = outcomes.count(CancelOutcome.requested)
        assert asked <= 1
        if asked:
            control.cause = "user"
        else:
            assert set(outcomes) == {CancelOutcome.already_finished}
        self.settle(control, status="cancelled" if asked else "completed")

    # -- what always holds --------------------------------------------------------------------------------------------

    @invariant()
    def every_run_is_where_it_must_be(self) -> None:
        for control in self.live:
            expected = {"queued": RunStatus.pending}.get(control.state, RunStatus.running)
            assert control.run.status is (RunStatus.cancelling if control.rank else expected)
        assert {run.run_id for run in self.agent.runtime.runs} == {control.run.run_id for control in self.live}
        for control in self.ended[-5:]:
            assert control.run.cancel() is CancelOutcome.already_finished

    def teardown(self) -> None:
        self.agent.cancel()
        self.apply_cancel("now", *self.live)
        assert self.agent.runtime.store is not None
        for session in SESSIONS:
            messages = asyncio.run(load(self.agent, session))
            assert validate(messages) == []
            assert [message.text for message in messages if message.role == "user"] == self.entered[session]
        for loop in self.loops:
            loop.end()


async def load(agent: Agent, session: str) -> list[Message]:
    assert agent.runtime.store is not None
    session_id = agent.session_id if session == OWN else session
    return list(await agent.runtime.store.load(SessionKey(agent.id, None, session_id)))


def test_machine() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
