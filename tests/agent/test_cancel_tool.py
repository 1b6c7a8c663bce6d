# SPDX-License-Identifier: Apache-2.0
"""Cancelling one tool call and keeping the run: the model is told the truth, and the turn goes on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections import Counter
from functools import partial
from typing import Any

import pytest

from andon import Agent, CancelOutcome, Run, RunEvent, RunStatus, Runtime, ToolContext, tool
from andon.models.scripted import Call
from andon.testing import probe
from andon.testing.validators import validate
from tests.support import (
    Ended,
    Flag,
    Silence,
    Worker,
    all_with,
    check_cancelled,
    check_events,
    check_goes_on,
    check_paused,
    forever,
    make,
    outcomes,
    paused,
    play,
    read_all,
    results_of,
    until,
)


class Bench:
    """Tools that work until they are told to stop working, and say how they are."""

    def __init__(self) -> None:
        self.started, self.go = Flag(), Flag()
        self.cuts = 0

        @tool
        async def work(name: str = "") -> str:
            self.started.set()
            try:
                await self.go.arrived()
            except asyncio.CancelledError:
                self.cuts += 1
                raise
            return f"worked {name}"

        @tool
        def grind(ctx: ToolContext) -> str:
            stop = threading.Event()
            ctx.on_cancel(stop.set)
            self.started.set()
            stop.wait(60)
            self.cuts += ctx.cancelled
            ctx.check_cancelled()
            return "ground"

        @tool
        def block() -> str:
            self.started.set()
            self.go.wait()
            return "blocked"

        @tool
        async def look() -> str:
            return "seen"

        @tool(approval=True)
        async def delete() -> str:
            return "deleted"

        @tool
        async def pay(ctx: ToolContext) -> str:
            return f"paid {ctx.interrupt('pay?')}"

        self.tools = [work, grind, block, look, delete, pay]


def check_told(agent: Agent, run: Run, call_id: str, outcome: str, reason: str | None = None) -> None:
    """The model has an honest error result, and readers one event that says the same."""
    sent = results_of(agent)[call_id]
    assert sent.status == "error"
    assert "cancelled" in sent.content
    truth = {"not_started": "before it started", "cut": "unknown", "abandoned": "may still be running"}
    assert truth[outcome] in sent.content
    if reason is not None:
        assert reason not in sent.content  # the prompt is no place for it
    mine = [event for event in probe(run).events if event.tool is not None and event.tool.call_id == call_id]
    [told] = [event for event in mine if event.event is not RunEvent.tool_call_started]
    assert told.event is RunEvent.tool_call_cancelled
    assert told.tool is not None
    assert (told.tool.outcome, told.tool.result) == (outcome, sent.content)
    assert told.reason == reason
    check_events(probe(run).events)


# -- a call that runs -------------------------------------------------------------------------------------------------


def test_an_async_tool_is_cut_and_the_turn_goes_on() -> None:
    async def main() -> None:
        bench = Bench()
        agent = make(["On it. ", Call("work", id="w")], "Never mind.", tools=bench.tools)
        async with agent.start("go") as run:
            await bench.started.arrived()
            assert run.cancel_tool("w", reason="too slow") is CancelOutcome.requested
            result = await run.result()
        assert (result.status, result.stop_reason, result.receipt) == (RunStatus.completed, "end_turn", None)
        assert result.content == "On it. Never mind."
        assert bench.cuts == 1
        check_told(agent, run, "w", "cut", "too slow")
        assert validate(result.messages) == []
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_the_other_calls_of_the_turn_are_left_alone() -> None:
    async def main() -> None:
        bench, other = Bench(), Bench()

        @tool
        async def wait() -> str:
            other.started.set()
            await other.go.arrived()
            return "waited"

        calls = [Call("wait", id="a"), Call("work", id="b"), Call("look", id="c")]
        agent = make(calls, tools=[*bench.tools, wait])
        async with agent.start("go") as run:
            await bench.started.arrived()
            await other.started.arrived()
            assert run.cancel_tool("b") is CancelOutcome.requested
            await until(lambda: bench.cuts == 1)
            assert run.status is RunStatus.running
            other.go.set()
            result = await run.result()
        assert result.status is RunStatus.completed
        check_told(agent, run, "b", "cut")
        told = results_of(agent)
        assert list(told) == ["a", "b", "c"]
        assert (told["a"].content, told["c"].content) == ("waited", "seen")

    play(main)


def test_a_sync_tool_that_heeds_is_cut() -> None:
    async def main() -> None:
        bench = Bench()
        agent = make(Call("grind", id="g"), tools=bench.tools)
        async with agent.start("go") as run:
            await bench.started.arrived()
            assert run.cancel_tool("g") is CancelOutcome.requested
            result = await run.result()
        assert result.status is RunStatus.completed
        assert bench.cuts == 1
        check_told(agent, run, "g", "cut")
        assert run.leftovers == []

    play(main)


def test_a_sync_tool_that_does_not_is_abandoned_and_named() -> None:
    async def main() -> None:
        bench = Bench()
        agent = make(Call("block", id="b"), tools=bench.tools)
        async with agent.start("go") as run:
            await bench.started.arrived()
            assert run.cancel_tool("b") is CancelOutcome.requested
            result = await run.result()
            assert run.leftovers == ["thread of block (b)"]
            bench.go.set()
        assert result.status is RunStatus.completed
        check_told(agent, run, "b", "abandoned")
        await until(lambda: not run.leftovers)  # its late result is dropped
        assert "blocked" not in str(agent.messages)

    play(main)


def test_an_async_tool_that_swallows_it_is_abandoned() -> None:
    async def main() -> None:
        started, go = Flag(), Flag()

        @tool
        async def stubborn() -> str:
            started.set()
            while not go.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await go.arrived()
            return "still here"

        runtime = Runtime(cut_seconds=0.01, abandon_seconds=0.02)
        agent = make(Call("stubborn", id="s"), tools=[stubborn], runtime=runtime)
        async with agent.start("go") as run:
            await started.arrived()
            run.cancel_tool("s")
            result = await run.result()
            assert result.status is RunStatus.completed
            check_told(agent, run, "s", "abandoned")
            go.set()
            await until(lambda: not run.leftovers)

    play(main)


@pytest.mark.parametrize("how", ["returns", "raises", "asks"])
def test_whatever_a_cancelled_call_still_does_it_was_cut(how: str) -> None:
    async def main() -> None:
        started = Flag()

        @tool
        async def stubborn(ctx: ToolContext) -> str:
            started.set()
            try:
                await forever()
            except asyncio.CancelledError:
                if how == "raises":
                    raise ValueError("no") from None
                return "all is well" if how == "returns" else str(ctx.interrupt("really?"))

        agent = make(Call("stubborn", id="s"), tools=[stubborn])
        async with agent.start("go") as run:
            await started.arrived()
            run.cancel_tool("s")
            result = await run.result()
        assert result.status is RunStatus.completed
        check_told(agent, run, "s", "cut")

    play(main)


def test_hooks_are_told_of_its_end() -> None:
    async def main() -> None:
        bench, told = Bench(), list[tuple[str, str]]()

        class Hook:
            def before_tool(self, event: Any) -> None:
                told.append(("before", event.call.id))

            def after_tool(self, event: Any) -> None:
                told.append((event.result.status, event.call.id))

        agent = make([Call("work", id="w"), Call("look", id="l")], tools=bench.tools, hooks=[Hook()])
        async with agent.start("go") as run:
            await bench.started.arrived()
            run.cancel_tool("w")
            await run.result()
        assert told == [("before", "w"), ("before", "l"), ("error", "w"), ("ok", "l")]

    play(main)


# -- a call that does not run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["look", "delete"])
def test_a_call_whose_turn_has_not_come_never_starts(name: str) -> None:
    async def main() -> None:
        bench, told = Bench(), list[str]()

        class Hook:
            def before_tool(self, event: Any) -> None:
                told.append(event.call.id)

        calls = [Call("work", id="a"), Call(name, id="b"), Call("look", id="c")]
        agent = make(calls, tools=bench.tools, parallel_tools=False, hooks=[Hook()])
        async with agent.start("go") as run:
            await bench.started.arrived()
            assert run.cancel_tool("b", "not needed") is CancelOutcome.requested
            assert run.cancel_tool("b") is CancelOutcome.already_requested
            bench.go.set()
            result = await run.result()
        assert result.status is RunStatus.completed  # also where it would have asked for an approval
        check_told(agent, run, "b", "not_started", "not needed")
        assert told == ["a", "c"]
        assert [each.status for each in results_of(agent).values()] == ["ok", "error", "ok"]

    play(main)


def test_a_call_that_has_finished_is_finished() -> None:
    async def main() -> None:
        bench = Bench()
        agent = make([Call("look", id="l"), Call("work", id="w")], tools=bench.tools)
        async with agent.start("go") as run:
            await bench.started.arrived()
            await until(lambda: any(e.event is RunEvent.tool_call_completed for e in probe(run).events))
            assert run.cancel_tool("l") is CancelOutcome.already_finished
            bench.go.set()
            assert (await run.result()).status is RunStatus.completed
        assert results_of(agent)["l"].content == "seen"

    play(main)


def test_ids_that_are_not_there_are_unknown() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        run = agent.start("go")
        assert run.cancel_tool("x") is CancelOutcome.unknown
        async with run:
            await silence.reached.arrived()
            assert run.cancel_tool("x") is CancelOutcome.unknown
            assert not run.cancel_tool("x")
            assert run.status is RunStatus.running

    play(main)


@pytest.mark.parametrize("how", ["completed", "cancelled"])
def test_of_a_run_that_has_ended_all_is_finished(how: str) -> None:
    async def main() -> None:
        bench, silence = Bench(), Silence()
        agent = make(Call("look", id="l"), [silence] if how == "cancelled" else "Done.", tools=bench.tools)
        async with agent.start("go") as run:
            if how == "cancelled":
                await silence.reached.arrived()
                run.cancel()
            assert (await run.result()).status.name == how
        before = list(probe(run).events)
        assert run.cancel_tool("l") is CancelOutcome.already_finished
        assert probe(run).events == before
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_a_call_of_an_earlier_turn_is_finished() -> None:
    async def main() -> None:
        bench, silence = Bench(), Silence()
        agent = make(Call("look", id="l"), [silence], tools=bench.tools)
        async with agent.start("go") as run:
            await silence.reached.arrived()
            assert run.cancel_tool("l") is CancelOutcome.already_finished
            assert run.status is RunStatus.running

    play(main)


# -- a call that asks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "outcome"), [("delete", "not_started"), ("pay", "cut")])
def test_while_it_is_paused_the_question_is_withdrawn(name: str, outcome: str) -> None:
    async def main() -> None:
        bench = Bench()
        agent = make([Call(name, id="a"), Call("pay", id="b")], tools=bench.tools)
        run, result = await paused(agent)
        one, other = (question.id for question in result.interrupts)
        assert run.cancel_tool("a", "never mind") is CancelOutcome.requested
        assert run.status is RunStatus.paused
        assert [question.id for question in run.interrupts] == [other]
        final = await agent.continue_run(run.run_id, answers={other: "now"})
        assert final.status is RunStatus.completed
        check_told(agent, run, "a", outcome, "never mind")
        assert results_of(agent)["b"].content == "paid now"
        assert one != other

    play(main)


def test_an_answer_to_a_withdrawn_question_does_no_harm() -> None:
    async def main() -> None:
        bench = Bench()
        agent = make([Call("delete", id="a"), Call("pay", id="b")], tools=bench.tools)
        run, result = await paused(agent)
        run.cancel_tool("a")
        assert (await agent.continue_run(run.run_id, answers=all_with(True, result))).status is RunStatus.completed
        check_told(agent, run, "a", "not_started")

    play(main)


def test_with_its_only_question_withdrawn_a_run_goes_on_without_answers() -> None:
    async def main() -> None:
        bench = Bench()
        agent = make(Call("delete", id="a"), tools=bench.tools)
        run, _ = await paused(agent)
        run.cancel_tool("a")
        assert run.status is RunStatus.paused
        assert (await agent.continue_run(run.run_id)).status is RunStatus.completed
        check_told(agent, run, "a", "not_started")

    play(main)


def test_a_question_withdrawn_while_others_work_pauses_nothing() -> None:
    async def main() -> None:
        bench = Bench()
        agent = make([Call("pay", id="p"), Call("delete", id="d"), Call("work", id="w")], tools=bench.tools)
        async with agent.start("go") as run:
            await bench.started.arrived()
            for _ in range(10):
                await asyncio.sleep(0)  # both have asked
            assert run.cancel_tool("p") is CancelOutcome.requested
            assert run.cancel_tool("d") is CancelOutcome.requested
            bench.go.set()
            result = await run.result()
        assert result.status is RunStatus.completed
        assert RunEvent.run_paused not in [event.event for event in probe(run).events]
        check_told(agent, run, "p", "cut")
        check_told(agent, run, "d", "not_started")

    play(main)


def test_a_finished_call_of_a_paused_run_is_finished() -> None:
    async def main() -> None:
        bench = Bench()
        agent = make([Call("look", id="l"), Call("delete", id="d")], tools=bench.tools)
        run, result = await paused(agent)
        assert run.cancel_tool("l") is CancelOutcome.already_finished
        assert run.cancel_tool("x") is CancelOutcome.unknown
        check_paused(run, await run.result())
        await agent.continue_run(run.run_id, answers=all_with(True, result))
        assert results_of(agent)["l"].content == "seen"

    play(main)


def test_after_an_answer_the_next_attempt_can_be_cancelled() -> None:
    async def main() -> None:
        started = Flag()

        @tool
        async def pay(ctx: ToolContext) -> str:
            ctx.interrupt("pay?")
            started.set()
            await forever()

        agent = make(Call("pay", id="p"), tools=[pay])
        run, result = await paused(agent)
        task = asyncio.create_task(agent.continue_run(run.run_id, answers=all_with(True, result)))
        await started.arrived()
        assert run.cancel_tool("p") is CancelOutcome.requested
        assert (await task).status is RunStatus.completed
        check_told(agent, run, "p", "cut")

    play(main)


# -- with a cancel of the run -----------------------------------------------------------------------------------------


def test_the_receipt_of_a_later_cancel_says_what_became_of_it() -> None:
    async def main() -> None:
        bench, silence = Bench(), Silence()
        agent = make([Call("work", id="w"), Call("look", id="l")], [silence], tools=bench.tools)
        async with agent.start("go") as run:
            await bench.started.arrived()
            run.cancel_tool("w")
            await silence.reached.arrived()
            run.cancel("enough", "ann")
            result = await run.result()
        check_cancelled(Ended(run, await read_all(run), result), phase="waiting", tools={"w": "cut", "l": "completed"})
        await check_goes_on(agent, Ended(run, await read_all(run), result))

    play(main)


@pytest.mark.parametrize("first", ["tool", "run"])
def test_both_at_once(first: str) -> None:
    async def main() -> None:
        bench = Bench()
        agent = make([Call("work", id="w"), Call("look", id="l")], tools=bench.tools)
        async with agent.start("go") as run:
            await bench.started.arrived()
            await until(lambda: any(e.event is RunEvent.tool_call_completed for e in probe(run).events))
            for what in ("tool", "run") if first == "tool" else ("run", "tool"):
                assert run.cancel_tool("w") if what == "tool" else run.cancel("enough", "ann")
            result = await run.result()
        check_cancelled(Ended(run, await read_all(run), result), phase="tools", tools={"w": "cut", "l": "completed"})
        assert bench.cuts == 1
        await check_goes_on(agent, Ended(run, await read_all(run), result))

    play(main)


def test_a_paused_run_with_a_withdrawn_question_can_be_cancelled() -> None:
    async def main() -> None:
        bench = Bench()
        agent = make([Call("delete", id="d"), Call("pay", id="p")], tools=bench.tools)
        run, _ = await paused(agent)
        run.cancel_tool("d")
        run.cancel("enough", "ann")
        result = await run.result()
        ended = Ended(run, await read_all(run), result)
        check_cancelled(ended, phase="paused", tools={"d": "not_started", "p": "cut"})
        await check_goes_on(agent, ended)

    play(main)


# -- from anywhere ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["thread", "signal handler", "another tool", "itself"])
def test_from_anywhere(where: str) -> None:
    async def main() -> None:
        bench, told = Bench(), list[CancelOutcome]()

        def cancel() -> None:
            told.append(agent.runtime.runs[0].cancel_tool("w"))

        @tool
        async def helper() -> str:
            await bench.started.arrived()
            cancel()
            return "helped"

        @tool(name="work")
        async def suicidal() -> str:
            cancel()
            await forever()

        tools = [suicidal] if where == "itself" else [*bench.tools, helper]
        calls = [Call("work", id="w")] + ([Call("helper", id="h")] if where == "another tool" else [])
        agent = make(calls, tools=tools)
        async with agent.start("go") as run:
            if where in ("thread", "signal handler"):
                await bench.started.arrived()
            if where == "thread":
                Worker(cancel).done()
            elif where == "signal handler":
                before = signal.signal(signal.SIGUSR1, lambda *_: cancel())
                try:
                    signal.raise_signal(signal.SIGUSR1)
                finally:
                    signal.signal(signal.SIGUSR1, before)
            result = await run.result()
        assert told == [CancelOutcome.requested]
        assert result.status is RunStatus.completed
        check_told(agent, run, "w", "cut")

    play(main)


def test_100_threads_cancel_one_call() -> None:
    async def main() -> None:
        bench, together = Bench(), threading.Barrier(101)
        told: Counter[CancelOutcome] = Counter()
        agent = make(Call("work", id="w"), tools=bench.tools)
        async with agent.start("go") as run:
            await bench.started.arrived()

            def cancel() -> None:
                together.wait(20)
                outcome = run.cancel_tool("w")
                with lock:
                    told[outcome] += 1

            lock = threading.Lock()
            workers = [Worker(cancel) for _ in range(100)]
            await asyncio.to_thread(together.wait, 20)
            for worker in workers:
                await asyncio.to_thread(worker.done)
            assert (await run.result()).status is RunStatus.completed
        assert told[CancelOutcome.requested] == 1
        assert set(told) <= {
            CancelOutcome.requested,
            CancelOutcome.already_requested,
            CancelOutcome.already_finished,
        }
        assert bench.cuts == 1
        check_told(agent, run, "w", "cut")

    play(main)


def test_against_its_own_end_300_times() -> None:
    """What the caller was told, and what the model is told, are the same thing."""

    async def main() -> None:
        seen: Counter[CancelOutcome] = Counter()
        for number in range(300):
            begun = Flag()

            @tool
            def quick() -> str:
                begun.set()  # noqa: B023
                return "done"

            agent = make(Call("quick", id="b"), tools=[quick])
            async with agent.start("go") as run:
                told: list[CancelOutcome] = []
                worker = Worker(partial(_cancel_when, begun, run, told))
                for _ in range(number % 3):
                    await asyncio.sleep(0)
                result = await run.result()
                await asyncio.to_thread(worker.done)
            assert result.status is RunStatus.completed
            check_events(probe(run).events)
            [outcome] = told
            sent = results_of(agent)["b"]
            if outcome is CancelOutcome.requested:
                assert "cancelled" in sent.content
            else:
                assert outcome is CancelOutcome.already_finished
                assert sent.content == "done"
            seen[outcome] += 1
        assert sum(seen.values()) == 300

    play(main)


def _cancel_when(begun: Flag, run: Run, told: list[CancelOutcome]) -> None:
    begun.wait()
    told.append(run.cancel_tool("b"))


def test_a_reader_knows_the_id_from_the_event() -> None:
    async def main() -> None:
        bench = Bench()
        agent = make(Call("work"), tools=bench.tools)
        async with agent.start("go") as run:
            async for event in run:
                if event.event is RunEvent.tool_call_started:
                    assert event.tool is not None
                    assert run.cancel_tool(event.tool.call_id) is CancelOutcome.requested
        assert run.status is RunStatus.completed

    play(main)


def test_outcomes_are_those_of_the_receipt() -> None:
    """One that was cancelled alone and one that was cut with the run."""

    async def main() -> None:
        bench = Bench()
        agent = make([Call("look", id="l"), Call("work", id="w"), Call("look", id="m")], tools=bench.tools,
                     parallel_tools=False)  # fmt: skip
        async with agent.start("go") as run:
            await bench.started.arrived()
            run.cancel_tool("m")
            run.cancel("enough", "ann")
            result = await run.result()
        assert outcomes(result) == {"l": "completed", "w": "cut", "m": "not_started"}
        check_cancelled(Ended(run, await read_all(run), result), phase="tools", tools=outcomes(result))

    play(main)


def test_an_outcome_abandoned_stays() -> None:
    async def main() -> None:
        bench, silence = Bench(), Silence()
        agent = make(Call("block", id="b"), [silence], tools=bench.tools)
        async with agent.start("go") as run:
            await bench.started.arrived()
            run.cancel_tool("b")
            await silence.reached.arrived()
            bench.go.set()
            await until(lambda: not run.leftovers)
            run.cancel("enough", "ann")
            result = await run.result()
        assert outcomes(result) == {"b": "abandoned"}
        check_told(agent, run, "b", "abandoned")

    play(main)
