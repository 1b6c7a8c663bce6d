# SPDX-License-Identifier: Apache-2.0
"""`@tool(on_cancel=undo)` and `ctx.on_undo`: a call that was cut is undone once it has ended, and never kept."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import threading
import weakref
from typing import Any

import pytest

from andon import (
    Agent,
    CancelOutcome,
    Receipt,
    Run,
    RunEvent,
    RunResult,
    RunStatus,
    Runtime,
    ToolContext,
    ToolDefinitionError,
    ToolOutcome,
    tool,
)
from andon.agent.call_record import LATER
from andon.agent.hooks import AfterTool
from andon.core.run.handle import local_run
from andon.models.scripted import Call, ScriptedModel
from andon.testing import probe
from tests.support import Flag, eventually, forever, make, paused, play, times, until


class Bank:
    """A tool with an undo function, and what that was called with."""

    def __init__(self, **options: Any) -> None:
        self.started, self.go, self.undone = Flag(), Flag(), Flag()
        self.undos: list[Any] = []

        async def refund(amount: int, call_id: str) -> None:
            self.undos.append((amount, call_id))
            self.undone.set()

        @tool(on_cancel=refund, **options)
        async def pay(amount: int) -> str:
            self.started.set()
            await self.go.arrived()
            return "paid"

        @tool(on_cancel=refund, **options)
        def pay_blocking(amount: int) -> str:
            self.started.set()
            self.go.wait()
            return "paid"

        self.tools: list[Any] = [pay, pay_blocking]


def receipt_of(result: RunResult) -> Receipt:
    assert result.receipt is not None
    return result.receipt


async def cancelled(tools: list[Any], started: Flag, *calls: Call, **agent: Any) -> RunResult:
    """The result of a run that was cancelled while these calls were at work."""
    async with make([*calls], tools=tools, **agent).start("go") as run:
        await started.arrived()
        run.cancel()
        return await run.result()


def test_a_call_that_was_cut_is_undone_and_the_model_is_told() -> None:
    async def main() -> None:
        bank = Bank()
        agent = make(Call("pay", {"amount": 7}, id="p"), tools=bank.tools)
        async with agent.start("go") as run:
            await bank.started.arrived()
            run.cancel()
            result = await run.result()
            events = probe(run).events
        assert bank.undos == [(7, "p")]
        [call] = receipt_of(result).tools
        assert (call.outcome, call.undo) == (ToolOutcome.compensated, None)
        [told] = result.messages[2].tool_results
        assert told.content == "This call was cancelled while it was running. What it had done was undone."
        assert told.status == "error"
        [event] = [event for event in events if event.event is RunEvent.tool_call_cancelled]
        assert event.tool is not None
        assert event.tool.outcome is ToolOutcome.compensated
        assert [event.event for event in events].count(RunEvent.tool_undo_started) == 1
        assert result.warnings == []

    play(main)


def test_a_call_that_completed_or_failed_by_itself_is_not_undone() -> None:
    async def refund(word: str) -> None:
        undos.append(word)

    @tool(on_cancel=refund)
    async def pay(word: str, ctx: ToolContext) -> str:
        ctx.on_undo(lambda: undos.append("a step"))
        if word == "fail":
            raise ValueError(word)
        return word

    undos: list[str] = []

    async def main() -> None:
        waits = Flag()

        @tool
        async def wait() -> str:
            waits.set()
            await forever()

        calls = Call("pay", {"word": "fail"}), Call("pay", {"word": "ok"}), Call("wait")
        result = await cancelled([pay, wait], waits, *calls)
        assert [each.outcome for each in receipt_of(result).tools] == ["failed", "completed", "cut"]

    play(main)
    assert undos == []


def test_a_call_that_never_started_is_not_undone() -> None:
    async def main() -> None:
        bank = Bank()
        calls = Call("pay", {"amount": 1}, id="1"), Call("pay", {"amount": 2}, id="2")
        result = await cancelled(bank.tools, bank.started, *calls, parallel_tools=False)
        assert [each.outcome for each in receipt_of(result).tools] == ["compensated", "not_started"]
        assert bank.undos == [(1, "1")]

    play(main)


def test_registered_steps_are_undone_in_reverse_and_then_the_function() -> None:
    undos: list[Any] = []
    threads: list[str] = []

    def undo(ctx: ToolContext, **arguments: Any) -> None:
        assert not ctx.cancelled
        threads.append(threading.current_thread().name)
        undos.append((ctx.call_id, ctx.deps, arguments))

    async def main() -> None:
        started = Flag()

        async def second() -> None:
            await asyncio.sleep(0)
            undos.append("second")

        @tool(on_cancel=undo)
        async def build(word: str, count: int = 3, *, ctx: ToolContext) -> str:
            ctx.on_undo(lambda: undos.append("first"))
            ctx.on_undo(lambda: undos.append("removed"))()
            ctx.on_undo(second)
            await asyncio.get_running_loop().run_in_executor(None, ctx.on_undo, lambda: undos.append("third"))
            started.set()
            await forever()

        agent = make(Call("build", {"word": "x"}, id="b"), tools=[build])
        async with agent.start("go", deps="mine") as run:
            await started.arrived()
            run.cancel()
            await run.result()

    play(main)
    assert undos == ["third", "second", "first", ("b", "mine", {"call_id": "b", "word": "x", "count": 3})]
    assert threads == ["andon-undo-undo of build (b)"]


def test_a_step_can_be_registered_while_the_call_is_being_cut_and_not_later() -> None:
    undos: list[str] = []
    contexts: list[ToolContext] = []

    async def main() -> None:
        started = Flag()

        @tool
        async def build(ctx: ToolContext) -> str:
            contexts.append(ctx)
            try:
                started.set()
                await forever()
            finally:
                ctx.on_undo(lambda: undos.append("late"))

        await cancelled([build], started, Call("build"))

    play(main)
    assert undos == ["late"]
    with pytest.raises(Exception, match="has ended"):
        contexts[0].on_undo(lambda: None)


def test_it_waits_until_the_call_has_really_ended() -> None:
    order: list[str] = []

    async def refund() -> None:
        order.append("undone")

    async def main() -> None:
        started = Flag()

        @tool(on_cancel=refund)
        async def pay() -> str:
            started.set()
            try:
                await forever()
            finally:
                await asyncio.sleep(0)
                order.append("ended")

        await cancelled([pay], started, Call("pay"))

    play(main)
    assert order == ["ended", "undone"]


def test_a_thread_that_goes_on_is_undone_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "andon")

    async def main() -> None:
        bank = Bank()
        agent = make(Call("pay_blocking", {"amount": 7}, id="p"), tools=bank.tools)
        async with agent.start("go") as run:
            await bank.started.arrived()
            run.cancel()
            result = await run.result()
            [call] = receipt_of(result).tools
            assert (call.outcome, call.undo) == (ToolOutcome.abandoned, LATER)
            assert "is undone when it has ended" in result.messages[2].tool_results[0].content
            assert bank.undos == []
            bank.go.set()
            receipt = await run.cancel_and_wait()
        assert receipt is not None
        assert receipt.leftovers == []
        assert bank.undos == [(7, "p")], "cancel_and_wait waits for it"
        assert receipt.tools[0].outcome is ToolOutcome.abandoned, "that stays: the model was told so"

    play(main)
    assert any("is done" in record.message for record in caplog.records)


def test_a_thread_that_ends_after_its_loop_is_undone_by_the_portal() -> None:
    bank = Bank()

    async def main() -> None:
        result = await cancelled(bank.tools, bank.started, Call("pay_blocking", {"amount": 7}, id="p"))
        assert [each.outcome for each in receipt_of(result).tools] == [ToolOutcome.abandoned]

    asyncio.run(main())  # not `play`, which would wait for the thread
    bank.go.set()
    eventually(lambda: bank.undos == [(7, "p")])


def test_a_task_that_swallows_its_cancel_is_undone_when_it_ends() -> None:
    async def main() -> None:
        started, go, undone = Flag(), Flag(), Flag()

        async def refund() -> None:
            undone.set()

        @tool(on_cancel=refund)
        async def stubborn() -> str:
            started.set()
            while not go.is_set():
                try:
                    await go.arrived()
                except asyncio.CancelledError:
                    continue
            return "paid after all"

        runtime = Runtime(cut_seconds=0.01, abandon_seconds=0.02)
        agent = make(Call("stubborn"), tools=[stubborn], runtime=runtime)
        async with agent.start("go") as run:
            await started.arrived()
            run.cancel()
            result = await run.result()
            assert receipt_of(result).tools[0].outcome is ToolOutcome.abandoned
            assert not undone.is_set()
            go.set()
            await run.cancel_and_wait()
            assert undone.is_set()

    play(main)


@pytest.mark.parametrize("kind", ["raises", "slow", "slow thread", "cancelled", "exits"])
def test_an_undo_that_fails_is_told(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    hold = threading.Event()

    async def refund() -> None:
        if kind == "raises":
            raise ValueError("the bank is closed")
        if kind == "exits":
            raise SystemExit(1)
        if kind == "cancelled":
            raise asyncio.CancelledError
        await forever()

    def refund_slowly() -> None:
        hold.wait(60)

    async def main() -> None:
        started = Flag()

        @tool(on_cancel=refund_slowly if kind == "slow thread" else refund)
        async def pay() -> str:
            started.set()
            await forever()

        agent = make(Call("pay", id="p"), tools=[pay], runtime=Runtime(undo_seconds=0.05))
        async with agent.start("go") as run:
            await started.arrived()
            run.cancel()
            result = await run.result()
            [call] = receipt_of(result).tools
            assert call.outcome is ToolOutcome.cut
            why = {"raises": "the bank is closed", "exits": "SystemExit", "cancelled": "CancelledError"}.get(kind)
            why = why or "it took longer than 0.05 s"
            assert call.undo is not None
            assert why in call.undo
            assert f"could not be undone: {call.undo}" in result.messages[2].tool_results[0].content
            [warning] = result.warnings
            assert why in warning
            assert receipt_of(result).leftovers == (["thread of undo of pay (p)"] if kind == "slow thread" else [])
            hold.set()
            receipt = await run.cancel_and_wait()
            assert receipt is not None
            assert receipt.leftovers == []

    play(main)
    assert any("undo of pay (p) failed" in record.message for record in caplog.records)


def test_one_step_that_fails_does_not_stop_the_others() -> None:
    undos: list[str] = []

    async def refund() -> None:
        undos.append("function")

    async def main() -> None:
        started = Flag()

        @tool(on_cancel=refund)
        async def pay(ctx: ToolContext) -> str:
            ctx.on_undo(lambda: undos.append("first"))
            ctx.on_undo(lambda: 1 / 0)
            started.set()
            await forever()

        result = await cancelled([pay], started, Call("pay"))
        assert "division" in (receipt_of(result).tools[0].undo or "")

    play(main)
    assert undos == ["first", "function"]


def test_a_call_that_was_out_of_time_or_cancelled_alone_is_undone_too() -> None:
    told: list[tuple[str, str]] = []

    class Hook:
        def after_tool(self, event: AfterTool) -> None:
            told.append((event.outcome.value, event.result.content))

    async def main(how: str) -> None:
        bank = Bank(timeout=0.01) if how == "timeout" else Bank()
        agent = make(Call("pay", {"amount": 7}, id="p"), "Well.", tools=bank.tools, hooks=[Hook()])
        async with agent.start("go") as run:
            await bank.started.arrived()
            if how == "alone":
                assert run.cancel_tool("p") is CancelOutcome.requested
            result = await run.result()
        assert result.status is RunStatus.completed
        assert bank.undos == [(7, "p")]

    play(lambda: main("timeout"))
    play(lambda: main("alone"))
    assert [outcome for outcome, _ in told] == ["compensated", "compensated"]
    assert "what it had done was undone" in told[0][1]
    assert "What it had done was undone." in told[1][1]


@pytest.mark.parametrize("end", ["cancel", "alone"])
def test_a_call_that_had_asked_a_person_is_undone_when_its_run_is_cancelled(end: str) -> None:
    undos: list[str] = []

    def unreserve(call_id: str) -> None:
        undos.append(call_id)

    @tool(on_cancel=unreserve)
    async def reserve(ctx: ToolContext) -> str:
        ctx.on_undo(lambda: undos.append("a step"))
        return str(ctx.interrupt("sure?"))

    @tool(on_cancel=unreserve, approval=True)
    async def approved() -> str:
        return "done"

    agent = make([Call("reserve", id="r"), Call("approved", id="a")], "Fine.", tools=[reserve, approved])

    async def main() -> None:
        run, result = await paused(agent)
        if end == "cancel":
            run.cancel()
            result = await run.result()
            outcomes = {each.call_id: each.outcome for each in receipt_of(result).tools}
            assert outcomes == {"r": ToolOutcome.compensated, "a": ToolOutcome.not_started}
            assert "waited for a person's answer. What it had done was undone" in str(result.messages[2])
        else:
            run.cancel_tool("r")
            answers = {each.id: True for each in result.interrupts if each.call_id == "a"}
            result = await agent.continue_run(run.run_id, answers=answers)
            assert result.status is RunStatus.completed

    play(main)
    assert undos == ["a step", "r"]


def test_a_paused_run_whose_loop_is_closed_is_undone_by_the_portal() -> None:
    undos: list[str] = []

    async def unreserve(call_id: str) -> None:
        undos.append(threading.current_thread().name)

    @tool(on_cancel=unreserve)
    async def reserve(ctx: ToolContext) -> str:
        return str(ctx.interrupt("sure?"))

    agent = make(Call("reserve", id="r"), tools=[reserve])
    runs: list[Run] = []

    async def pause() -> None:
        runs.append((await paused(agent))[0])

    async def see() -> None:
        result = await runs[0].result()
        assert receipt_of(result).tools[0].outcome is ToolOutcome.compensated

    play(pause)
    runs[0].cancel()
    play(see)
    assert undos == ["andon-portal"]


def test_it_is_shielded_when_asyncio_run_ends() -> None:
    """The loop is torn down while the call is being undone: that gets through, once."""
    undos: list[str] = []

    async def main() -> None:
        started, undoing = Flag(), Flag()

        async def refund() -> None:
            undos.append("begun")
            undoing.set()
            async with asyncio.timeout(60):  # a time limit of its own works
                for _ in range(5):
                    await asyncio.sleep(0.001)
            undos.append("done")

        @tool(on_cancel=refund)
        async def pay() -> str:
            started.set()
            await forever()

        run = make(Call("pay"), tools=[pay]).start("go")
        await run.begin()
        await started.arrived()
        run.cancel()
        await undoing.arrived()
        runs.append(run)

    runs: list[Any] = []
    asyncio.run(main())
    assert undos == ["begun", "done"]
    receipt = probe(runs[0]).events[-1].receipt
    assert receipt is not None
    assert receipt.tools[0].outcome is ToolOutcome.compensated


def test_a_time_limit_inside_the_undo_function_works() -> None:
    async def refund() -> None:
        async with asyncio.timeout(0.01):
            await forever()

    async def main() -> None:
        started = Flag()

        @tool(on_cancel=refund)
        async def pay() -> str:
            started.set()
            await forever()

        result = await cancelled([pay], started, Call("pay"))
        assert "TimeoutError" in (receipt_of(result).tools[0].undo or "")

    play(main)


def test_a_run_that_the_undo_function_starts_is_not_cancelled_with_the_cut_one() -> None:
    answers: list[str] = []

    async def main() -> None:
        started = Flag()
        helper = Agent("Helper", ScriptedModel("undone by a model"))

        async def refund() -> None:
            answers.append((await helper.invoke_async("undo it")).content)

        @tool(on_cancel=refund)
        async def pay() -> str:
            started.set()
            await forever()

        await cancelled([pay], started, Call("pay"))

    play(main)
    assert answers == ["undone by a model"]


# -- the race between a call's own end and its cut --------------------------------------------------------------------

RACES = times(5_000)
"""In two ways: 10,000 in all."""


@pytest.mark.no_cover  # many repetitions of what other tests cover
@pytest.mark.parametrize("threads", [False, True])
def test_never_undone_and_kept_at_once(threads: bool) -> None:
    """A cancel and the tool's own end come in the same instant. Each call is either kept or undone."""
    kept, undone = set[str](), set[str]()

    async def refund(call_id: str) -> None:
        undone.add(call_id)

    @tool(on_cancel=refund)
    async def pay(turns: int, ctx: ToolContext) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        return "paid"

    @tool(on_cancel=refund)
    def pay_blocking(turns: int, ctx: ToolContext) -> str:
        return "paid"

    async def race(number: int) -> None:
        name = "pay_blocking" if threads else "pay"
        agent = Agent("A", ScriptedModel(Call(name, {"turns": number % 4}, id=f"c{number}")), tools=[pay, pay_blocking])
        async with agent.start("go", max_turns=1) as run:
            async for event in run:
                if event.event is RunEvent.tool_call_started:
                    for _ in range(number // 4 % 8):
                        await asyncio.sleep(0)
                    if number % 3:
                        run.cancel()
                    else:
                        run.cancel_tool(f"c{number}")
                    break
            result = await run.result()
            call_id = f"c{number}"
            [told] = [each for message in result.messages for each in message.tool_results]
            if told.status == "ok":
                kept.add(call_id)
                assert call_id not in undone
            elif "What it had done was undone" in told.content:
                assert call_id in undone
            else:  # it was cut before its own code began, or its thread goes on for a moment
                await run.gone()
            await until(lambda: not run.leftovers)

    async def races(first: int) -> None:
        for number in range(first, first + 500):
            await race(number)

    for first in range(0, RACES, 500):  # each has the guard's time for itself
        play(functools.partial(races, first))
    assert not kept & undone
    assert kept, "no call won the race"
    assert undone, "no cancel won the race"


# -- definitions ------------------------------------------------------------------------------------------------------


def _with(undo: Any) -> Any:
    @tool(on_cancel=undo)
    async def pay(amount: int, call: str = "x") -> str:
        return "paid"

    return pay


def _misnamed(amont: int) -> None: ...


def _positional(amount: int, /) -> None: ...


def _variadic(*amount: int) -> None: ...


async def _generator(amount: int) -> Any:
    yield amount


@pytest.mark.parametrize(
    ("undo", "problem"),
    [
        (_misnamed, "takes 'amont', which the tool does not have; it may take amount, call, call_id"),
        (_positional, "name each parameter"),
        (_variadic, "name each parameter"),
        (_generator, "generator function"),
    ],
)
def test_a_function_that_can_not_undo_is_refused_at_the_definition(undo: Any, problem: str) -> None:
    with pytest.raises(ToolDefinitionError, match=problem):
        _with(undo)


def test_functions_that_can() -> None:
    def nothing() -> None: ...

    def some(amount: int, other: int = 3) -> None: ...

    def everything(**arguments: Any) -> None: ...

    def with_context(anything: ToolContext, call_id: str) -> None: ...

    for undo in (nothing, some, everything, with_context, tool(some)):
        _with(undo)


def test_an_argument_of_the_tool_may_be_named_call_id() -> None:
    seen: list[str] = []

    async def main() -> None:
        started = Flag()

        def undo(call_id: str) -> None:
            seen.append(call_id)

        @tool(on_cancel=undo)
        async def hang_up(call_id: str) -> str:
            started.set()
            await forever()

        await cancelled([hang_up], started, Call("hang_up", {"call_id": "555"}, id="c"))

    play(main)
    assert seen == ["555"]


@pytest.mark.parametrize("kind", ["async", "sync", "step", "fails", "fails in a thread"])
def test_a_run_whose_call_was_undone_is_freed_without_the_garbage_collector(kind: str) -> None:
    async def main() -> None:
        started = Flag()

        async def undo() -> None:
            if kind == "fails":
                raise ValueError(kind)

        def undo_in_thread() -> None:
            if kind == "fails in a thread":
                raise ValueError(kind)

        @tool(on_cancel=undo if kind in ("async", "fails") else "cut" if kind == "step" else undo_in_thread)
        async def pay(ctx: ToolContext) -> str:
            ctx.on_undo(undo)
            started.set()
            await forever()

        run = make(Call("pay"), tools=[pay]).start("go")
        await run.begin()
        gone = weakref.ref(local_run(run))
        await started.arrived()
        run.cancel()
        await run.result()
        del run
        await until(lambda: gone() is None)

    logging.disable(logging.WARNING)  # a log record holds the traceback of a failure
    gc.disable()
    try:
        play(main)
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)


def test_a_keyboard_interrupt_in_the_undo_function_is_told_and_not_waited_for() -> None:
    async def undo() -> None:
        raise KeyboardInterrupt

    runs = list[Run]()

    async def main() -> None:
        started = Flag()

        @tool(on_cancel=undo)
        async def pay() -> str:
            started.set()
            await forever()

        async with make(Call("pay"), tools=[pay], runtime=Runtime(undo_seconds=600)).start("go") as run:
            runs.append(run)
            await started.arrived()
            run.cancel()
            await run.result()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    eventually(lambda: runs[0].status is RunStatus.cancelled)
    assert runs[0].receipt is not None
    [call] = runs[0].receipt.tools
    assert (call.outcome, call.undo) == (ToolOutcome.cut, "a KeyboardInterrupt stopped it")
