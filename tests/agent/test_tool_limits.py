# SPDX-License-Identifier: Apache-2.0
"""Limits around tools and pauses: a tool's own time, a run's time and turns while a person is asked.

In virtual time, so that seconds are exact and nothing waits for them.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from andon import Agent, CancelCause, RunEvent, RunResult, RunStatus, Runtime, ToolContext, tool
from andon.errors import ToolDefinitionError
from andon.messages import Text
from andon.models.scripted import Call, Item, Pause
from andon.testing import probe, virtual_run
from andon.testing.validators import next_prompt_accepted, validate
from tests.support import (
    Flag,
    Silence,
    all_with,
    asked,
    check_events,
    check_paused,
    make,
    paused,
    play,
    results_of,
    until,
)
from tests.support.clock import StoppedClock, time_is_up


def now() -> float:
    return asyncio.get_running_loop().time()


@tool(timeout=2)
async def hurried(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "made it"


@tool
async def patient(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "waited"


@tool(approval=True)
async def delete() -> str:
    return "deleted"


# -- a tool's own time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [False, True])
def test_a_call_that_is_cut_alone_is_undone_while_an_earlier_one_goes_on(alone: bool) -> None:
    """Out of time, or cancelled alone: it does not wait for the calls before it."""

    async def main() -> None:
        undone, told = list[float](), list[tuple[str, float]]()

        async def undo() -> None:
            undone.append(now())

        @tool(timeout=None if alone else 2, on_cancel=undo)
        async def reserve() -> str:
            await asyncio.sleep(60)
            return "never"

        class Hook:
            def after_tool(self, event: Any) -> None:
                told.append((event.call.id, now()))

        calls = [
            Call("patient", {"seconds": 30}, id="a"),
            Call("reserve", id="b"),
            Call("patient", {"seconds": 1}, id="c"),
        ]
        agent = make(calls, "Well.", tools=[patient, reserve], hooks=[Hook()])
        async with agent.start("go") as run:
            if alone:
                asyncio.get_running_loop().call_later(2, run.cancel_tool, "b")
            result = await run.result()
        assert (result.status, result.content) == (RunStatus.completed, "Well.")
        assert undone == [2]
        assert told == [("a", 30), ("b", 30), ("c", 30)]  # hooks are told in the order of the calls
        assert [each.call_id for each in result.messages[2].tool_results] == ["a", "b", "c"]
        check_events(probe(run).events)

    virtual_run(main())


@pytest.mark.parametrize("last", [False, True])
def test_a_question_that_is_withdrawn_is_told_and_undone_while_another_call_goes_on(last: bool) -> None:
    async def main() -> None:
        undone, told, hooked = list[float](), list[tuple[str, float]](), list[tuple[str, str, float]]()

        async def undo() -> None:
            undone.append(now())

        @tool(on_cancel=undo)
        async def pay(ctx: ToolContext) -> str:
            return f"paid {ctx.interrupt('pay?')}"

        class Hook:
            def after_tool(self, event: Any) -> None:
                hooked.append((event.call.id, event.outcome, now()))

        questions, work = [Call("pay", id="p"), Call("delete", id="d")], Call("patient", {"seconds": 30}, id="w")
        calls = [work, *questions] if last else [*questions, work]
        agent = make(calls, "Well.", tools=[patient, pay, delete], hooks=[Hook()])
        async with agent.start("go") as run:
            asyncio.get_running_loop().call_later(2, run.cancel_tool, "p")
            asyncio.get_running_loop().call_later(3, run.cancel_tool, "d")
            async for event in run:
                if event.event is RunEvent.tool_call_cancelled and event.tool is not None:
                    told.append((event.tool.call_id, now()))
            result = await run.result()
        assert (undone, told) == ([2], [("p", 2), ("d", 3)])
        when = (30, 30) if last else (2, 3)  # hooks are told in the order of the calls
        ends = [("p", "compensated", when[0]), ("d", "not_started", when[1])]
        assert hooked == ([("w", "completed", 30), *ends] if last else [*ends, ("w", "completed", 30)])
        assert (result.status, result.content) == (RunStatus.completed, "Well.")
        assert "undone" in results_of(agent)["p"].content
        check_events(probe(run).events)
        assert validate(result.messages) == []

    virtual_run(main())


def test_a_tools_timeout_ends_that_call_alone() -> None:
    async def main() -> None:
        calls = [Call("hurried", {"seconds": 60}, id="a"), Call("patient", {"seconds": 5}, id="b"),
                 Call("hurried", {"seconds": 1}, id="c")]  # fmt: skip
        agent = make(calls, "Well.", tools=[hurried, patient])
        async with agent.start("go") as run:
            result = await run.result()
        assert now() == 5
        assert (result.status, result.content, result.receipt) == (RunStatus.completed, "Well.", None)
        told = results_of(agent)
        assert told["a"].status == "error"
        assert "timed out after 2 s: it was cut; its outcome is unknown" in told["a"].content
        assert (told["b"].content, told["c"].content) == ("waited", "made it")
        [error] = [event for event in probe(run).events if event.event is RunEvent.tool_call_error]
        assert error.tool is not None
        assert (error.tool.call_id, error.tool.outcome, error.tool.result) == ("a", "failed", told["a"].content)
        check_events(probe(run).events)
        assert validate(result.messages) == []

    virtual_run(main())


def test_each_of_several_calls_has_its_own_time() -> None:
    async def main() -> None:
        calls: list[str | Item] = [Call("hurried", {"seconds": 1.5}, id=name) for name in "abc"]
        agent = make(calls, tools=[hurried], parallel_tools=False)
        assert (await agent.invoke_async("go")).status is RunStatus.completed
        assert now() == 4.5
        assert {each.content for each in results_of(agent).values()} == {"made it"}

    virtual_run(main())


def test_a_tool_may_clean_up_when_its_time_is_up() -> None:
    async def main() -> None:
        did: list[str] = []

        @tool(timeout=2)
        async def tidy(ctx: ToolContext) -> str:
            ctx.on_cancel(lambda: did.append("told"))
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.5)
                did.append("rolled back")
                return "all is well"
            return "never"

        agent = make(Call("tidy", id="t"), tools=[tidy])
        assert (await agent.invoke_async("go")).status is RunStatus.completed
        assert did == ["told", "rolled back"]
        assert now() == 2.5
        assert results_of(agent)["t"].status == "error"  # it ended too late to be believed

    virtual_run(main())


def test_a_tool_that_ignores_its_timeout_is_abandoned_and_named() -> None:
    async def main() -> None:
        go = asyncio.Event()

        @tool(timeout=2)
        async def stubborn() -> str:
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    continue
            return "late"

        agent = make(Call("stubborn", id="s"), tools=[stubborn])
        async with agent.start("go") as run:
            assert (await run.result()).status is RunStatus.completed
            assert now() == 4  # cut after 2 s, again after 1 s more, abandoned after 2
            assert run.leftovers == ["tool stubborn (s)"]
            [error] = [event for event in probe(run).events if event.event is RunEvent.tool_call_error]
            assert error.tool is not None
            assert error.tool.outcome == "abandoned"
            go.set()
        await until(lambda: not run.leftovers)
        assert "may still be running" in results_of(agent)["s"].content
        assert "late" not in str(agent.messages)

    virtual_run(main())


def test_a_sync_tools_timeout_leaves_its_thread_and_names_it() -> None:
    async def main() -> None:
        go = Flag()

        @tool(timeout=0.01)
        def block() -> str:
            go.wait()
            return "late"

        agent = make(Call("block", id="b"), tools=[block])
        async with agent.start("go") as run:
            result = await run.result()
            assert result.status is RunStatus.completed
            assert run.leftovers == ["thread of block (b)"]
            go.set()
            await until(lambda: not run.leftovers)
        assert "may still be running" in results_of(agent)["b"].content
        assert "late" not in str(agent.messages)

    play(main)


def test_a_sync_tool_that_heeds_is_gone_when_its_time_is_up() -> None:
    async def main() -> None:
        listens = Flag()

        @tool(timeout=1)
        def heed(ctx: ToolContext) -> str:
            stop = threading.Event()
            ctx.on_cancel(stop.set)
            listens.set()
            stop.wait(60)
            ctx.check_cancelled()
            return "never"

        agent = make(Call("heed", id="h"), tools=[heed])
        async with agent.start("go") as run:
            await time_is_up(listens)
            assert (await run.result()).status is RunStatus.completed
            assert run.leftovers == []
        assert "timed out after" in results_of(agent)["h"].content

    play(main, loop=StoppedClock)


def test_the_time_of_a_tool_begins_with_each_attempt() -> None:
    """A person may take longer than a tool."""

    async def main() -> None:
        @tool(timeout=2)
        async def order(ctx: ToolContext) -> str:
            await asyncio.sleep(1.5)
            answer = ctx.interrupt("which one?")
            return f"ordered {answer}"

        agent = make(Call("order", id="o"), tools=[order])
        run, result = await paused(agent)
        await asyncio.sleep(3600)
        final = await agent.continue_run(run.run_id, answers=all_with("red", result))
        assert final.status is RunStatus.completed
        assert results_of(agent)["o"].content == "ordered red"

    virtual_run(main())


def test_an_attempt_that_is_out_of_time_after_the_answer_ends_that_call() -> None:
    async def main() -> None:
        @tool(timeout=2)
        async def order(ctx: ToolContext) -> str:
            ctx.interrupt("which one?")
            await asyncio.sleep(60)
            return "never"

        agent = make(Call("order", id="o"), "Well.", tools=[order])
        run, result = await paused(agent)
        final = await agent.continue_run(run.run_id, answers=all_with("red", result))
        assert (final.status, final.content) == (RunStatus.completed, "Well.")
        assert "timed out after" in results_of(agent)["o"].content
        check_events(probe(run).events)

    virtual_run(main())


def test_a_cancel_of_the_run_wins_over_the_tools_own_end() -> None:
    async def main() -> None:
        agent = make(Call("hurried", {"seconds": 60}, id="a"), tools=[hurried])
        async with agent.start("go", timeout=1) as run:
            result = await run.result()
        assert now() == 1
        assert result.receipt is not None
        assert result.receipt.cause is CancelCause.deadline
        assert [(each.call_id, each.outcome) for each in result.receipt.tools] == [("a", "cut")]

    virtual_run(main())


def test_a_later_receipt_says_what_became_of_the_call() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(Call("hurried", {"seconds": 60}, id="a"), [silence], tools=[hurried])
        async with agent.start("go") as run:
            await silence.reached.arrived()
            run.cancel()
            result = await run.result()
        assert result.receipt is not None
        assert [(each.call_id, each.outcome) for each in result.receipt.tools] == [("a", "failed")]
        kinds = [event.event for event in probe(run).events]
        assert RunEvent.tool_call_cancelled not in kinds  # it had ended before, by its own time
        assert validate(result.messages) == []

    virtual_run(main())


@pytest.mark.parametrize("timeout", [-1, "2", [], float("nan")])
def test_a_timeout_that_is_none_is_refused_where_the_tool_is_defined(timeout: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="timeout"):
        tool(timeout=timeout)(len)


# -- a run's time and a pause -----------------------------------------------------------------------------------------


class Slow:
    """A tool that asks after so many seconds, and takes so many more with the answer."""

    def __init__(self, before: float, after: float) -> None:
        self.deadlines: list[float | None] = []

        @tool
        async def ask(ctx: ToolContext) -> str:
            self.deadlines.append(ctx.deadline)
            if len(self.deadlines) == 1:
                await asyncio.sleep(before)
            answer = ctx.interrupt("well?")
            await asyncio.sleep(after)
            return str(answer)

        self.ask = ask


async def answered_after(agent: Agent, seconds: float, timeout: float) -> RunResult:
    run, result = await paused(agent, timeout=timeout)
    await asyncio.sleep(seconds)
    check_paused(run, await run.result())
    return await agent.continue_run(run.run_id, answers=all_with("yes", result))


def test_a_pause_does_not_count() -> None:
    async def main() -> None:
        slow = Slow(4, 5)
        result = await answered_after(make(Call("ask", id="c"), tools=[slow.ask]), 3600, timeout=10)
        assert result.status is RunStatus.completed
        assert now() == 3609
        assert slow.deadlines[0] is not None
        assert slow.deadlines[1] is not None

    virtual_run(main())


def test_what_is_left_of_the_time_counts_on_after_the_pause() -> None:
    async def main() -> None:
        agent = make(Call("ask", id="c"), tools=[Slow(4, 60).ask])
        result = await answered_after(agent, 3600, timeout=10)
        assert result.status is RunStatus.cancelled
        assert result.receipt is not None
        assert result.receipt.cause is CancelCause.deadline
        assert result.message.content[-1] == Text("Cancelled: out of time")
        assert now() == pytest.approx(3610)
        assert validate(result.messages) == []
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    virtual_run(main())


def test_two_pauses_do_not_count_either() -> None:
    async def main() -> None:
        @tool
        async def ask(ctx: ToolContext) -> str:
            for question in ("one?", "two?"):
                ctx.interrupt(question)
            return "done"

        agent = make([Pause(3), Call("ask", id="c")], [Pause(6), "Done."], [Pause(60)], tools=[ask])
        run, result = await paused(agent, timeout=10)
        while result.status is RunStatus.paused:
            await asyncio.sleep(100)
            result = await agent.continue_run(run.run_id, answers=all_with(True, result))
        assert (result.status, result.content) == (RunStatus.completed, "Done.")
        assert now() == 209

    virtual_run(main())


def test_a_run_that_is_cancelled_in_its_pause_has_no_timer_left() -> None:
    async def main() -> None:
        agent = make(Call("delete", id="d"), tools=[delete])
        run, _ = await paused(agent, timeout=1)
        run.cancel()
        result = await run.result()
        assert result.receipt is not None
        assert result.receipt.cause is CancelCause.user

    play(main, loop=StoppedClock)


def test_a_queued_runs_time_counts_behind_a_paused_one() -> None:
    async def main() -> None:
        agent = make(Call("delete", id="d"), tools=[delete])
        run, result = await paused(agent)
        queued = await agent.invoke_async("hello", on_busy="queue", timeout=0.02)
        assert queued.receipt is not None
        assert queued.receipt.cause is CancelCause.deadline
        check_paused(run, await run.result())
        assert (await agent.continue_run(run.run_id, answers=all_with(True, result))).status is RunStatus.completed

    play(main)


@pytest.mark.parametrize("make_event", [asyncio.Event, threading.Event])
def test_cancel_on_that_was_set_in_the_pause_cancels_what_goes_on(make_event: Any) -> None:
    """Nothing watches for it while the run is paused; but nothing starts any more, either."""

    async def main() -> None:
        did: list[str] = []

        @tool(approval=True)
        async def wipe() -> str:
            did.append("wiped")
            return "wiped"

        stop = make_event()
        agent = make(Call("wipe", id="w"), tools=[wipe])
        run, result = await paused(agent, cancel_on=stop)
        stop.set()
        final = await agent.continue_run(run.run_id, answers=all_with(True, result))
        assert final.status is RunStatus.cancelled
        assert did == []
        check_events(probe(run).events)

    play(main)


@pytest.mark.parametrize("make_event", [asyncio.Event, threading.Event])
def test_cancel_on_is_watched_again_after_the_pause(make_event: Any) -> None:
    async def main() -> None:
        silence, stop = Silence(), make_event()
        agent = make(Call("delete", id="d"), [silence], tools=[delete])
        run, result = await paused(agent, cancel_on=stop)
        task = asyncio.create_task(agent.continue_run(run.run_id, answers=all_with(True, result)))
        await silence.reached.arrived()
        stop.set()
        assert (await task).status is RunStatus.cancelled

    play(main)


# -- turns ------------------------------------------------------------------------------------------------------------


def test_a_pause_uses_up_no_turn() -> None:
    async def main() -> None:
        agent = make(Call("delete", id="d"), "Done.", tools=[delete])
        run, result = await paused(agent, max_turns=2)
        final = await agent.continue_run(run.run_id, answers=all_with(True, result))
        assert (final.status, final.stop_reason, final.content) == (RunStatus.completed, "end_turn", "Done.")

    play(main)


def test_the_last_turn_may_ask_and_its_answer_is_heard() -> None:
    async def main() -> None:
        agent = make(Call("delete", id="d"), "Never said.", tools=[delete])
        run, result = await paused(agent, max_turns=1)
        final = await agent.continue_run(run.run_id, answers=all_with(True, result))
        assert (final.status, final.stop_reason, final.receipt) == (RunStatus.completed, "max_turns", None)
        assert len(asked(agent)) == 1
        [told] = [each for message in final.messages for each in message.tool_results]
        assert told.content == "deleted"
        assert validate(final.messages) == []
        assert next_prompt_accepted(final.messages) == []
        check_events(probe(run).events)
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_max_turns_counts_on_over_pauses() -> None:
    async def main() -> None:
        calls = [Call("delete", id=f"d{number}") for number in range(5)]
        agent = make(*calls, tools=[delete], runtime=Runtime())
        run, result = await paused(agent, max_turns=3)
        pauses = 0
        while result.status is RunStatus.paused:
            pauses += 1
            result = await agent.continue_run(run.run_id, answers=all_with(True, result))
        assert (pauses, result.stop_reason, len(asked(agent))) == (3, "max_turns", 3)

    play(main)
