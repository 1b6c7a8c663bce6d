# SPDX-License-Identifier: Apache-2.0
"""Runs within runs: cancelled with their parent, settled before it, and never missed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from andon import (
    Agent,
    CancelCause,
    CancelOutcome,
    Event,
    Run,
    RunEvent,
    RunResult,
    RunStatus,
    Runtime,
    ToolContext,
    tool,
)
from andon.messages import Text
from andon.models.base import ModelRequest, Sink
from andon.models.scripted import Call, Fail, ScriptedModel
from andon.testing import probe, validate
from tests.support import Flag, Silence, asked, check_goes_on, cut, eventually, forever, make, play, read_all, until
from tests.support.clock import StoppedClock, time_is_up


def family(silence: Silence, **options: Any) -> tuple[Agent, Agent, Agent]:
    """Three generations; the youngest is silent."""
    young = make(["I see", silence], name="Young")
    middle = make(Call("young", {"prompt": "look"}), name="Middle", tools=[young.as_tool()])
    old = make(Call("middle", {"prompt": "look"}, id="c"), name="Old", tools=[middle.as_tool(**options)])
    return old, middle, young


def test_an_agent_as_a_tool_answers() -> None:
    helper = make("Because.", name="Helper")
    agent = make(Call("helper", {"prompt": "Why?"}), tools=[helper.as_tool(name="helper")])
    result = agent.run("go")
    assert result.status is RunStatus.completed
    assert result.messages[2].tool_results[0].content == "Because."
    assert helper.messages == []  # a session of its own
    again = agent.run("go on")
    assert again.status is RunStatus.completed


def test_its_name_and_its_schema() -> None:
    helper = Agent("Great Helper", make("x").model, description="Knows why.")
    plain, named = helper.as_tool(), helper.as_tool("ask", "Ask it.")
    assert (plain.name, plain.description) == ("great-helper", "Knows why.")
    assert (named.name, named.description) == ("ask", "Ask it.")
    assert plain.parameters["required"] == ["prompt"]


@pytest.mark.parametrize("arguments", [{}, {"prompt": " "}, {"prompt": 5}, {"prompt": "x", "more": 1}])
def test_arguments_that_do_not_fit(arguments: dict[str, Any]) -> None:
    helper = make("Because.", name="Helper")
    agent = make(Call("helper", arguments), tools=[helper.as_tool()])
    result = agent.run("go")
    assert "BadArgumentsError" in result.messages[2].tool_results[0].content


def test_cancelling_the_parent_cancels_all_below_it_and_the_deepest_ends_first() -> None:
    async def main() -> None:
        silence = Silence()
        old, _, _ = family(silence)
        ends: list[str] = []
        async with old.start("go", run_id="r") as run:
            await silence.reached.arrived()
            (child,) = probe(run).children
            (grandchild,) = probe(child).children
            assert (child.parent_run_id, grandchild.parent_run_id) == ("r", child.run_id)

            async def note(of: Any) -> None:
                ends.extend([event.agent_id async for event in of if event.event.terminal])

            notes = [asyncio.create_task(note(each)) for each in (run, child, grandchild)]
            await asyncio.sleep(0)
            assert run.cancel("enough") is CancelOutcome.requested
            # In the very call: whoever looks now finds all of them asked.
            assert [each.status for each in (run, child, grandchild)] == [RunStatus.cancelling] * 3
            result = await run.result()
            await asyncio.gather(*notes)
        assert ends == ["young", "middle", "old"]
        assert result.receipt is not None
        assert result.receipt.cause is CancelCause.user
        assert [(each.call_id, each.outcome) for each in result.receipt.tools] == [("c", "cut")]
        for each in (child, grandchild):
            assert isinstance(each, Run)
            below = await each.result()
            assert below.receipt is not None
            assert below.receipt.cause is CancelCause.parent
            assert below.message.content[-1] == Text("Cancelled with its parent")
            assert validate(below.messages) == []
        inner = result.receipt.tools[0].receipt
        assert isinstance(child, Run)
        assert isinstance(grandchild, Run)
        assert inner == (await child.result()).receipt
        assert inner is not None
        assert inner.tools[0].receipt == (await grandchild.result()).receipt
        assert (await old.invoke_async("next")).status is RunStatus.completed

    play(main)


def test_a_child_that_is_born_after_the_cancel() -> None:
    async def main() -> None:
        born: list[Any] = []
        helper = make("Never said.", name="Helper")

        @tool
        async def late() -> str:
            try:
                await forever()
            except asyncio.CancelledError:
                born.append(await helper.invoke_async("too late"))
                raise

        reached = Flag()

        @tool
        async def tell() -> str:
            reached.set()
            return "told"

        agent = make([Call("late"), Call("tell")], tools=[late, tell])
        ended = await cut(agent, reached)
        assert ended.result.status is RunStatus.cancelled
        (result,) = born
        assert (result.status, result.receipt.cause) == (RunStatus.cancelled, CancelCause.parent)
        assert asked(helper) == []
        await check_goes_on(agent, ended)

    play(main)


def test_cancelling_a_child_alone_gives_the_parent_an_error_result() -> None:
    async def main() -> None:
        silence = Silence()
        young = make(["I see", silence], name="Young")
        old = make(Call("young", {"prompt": "look"}), name="Old", tools=[young.as_tool()])
        async with old.start("go") as run:
            await silence.reached.arrived()
            assert young.cancel("not this one")
            result = await run.result()
        assert result.status is RunStatus.completed
        told = result.messages[2].tool_results[0]
        assert told.status == "error"
        assert "cancelled" in told.content
        assert "not this one" not in told.content, "a reason stays out of conversations"

    play(main)


def test_a_child_that_fails_gives_the_parent_an_error_result() -> None:
    young = make([Fail(ValueError("broken"))], name="Young")
    old = make(Call("young", {"prompt": "look"}), name="Old", tools=[young.as_tool()])
    result = old.run("go")
    assert result.status is RunStatus.completed
    assert "broken" in result.messages[2].tool_results[0].content


@pytest.mark.parametrize("mode", ["after_tools", "after_turn"])
def test_a_softer_mode_lets_children_finish(mode: str) -> None:
    async def main() -> None:
        go_on, reached = Flag(), Flag()

        @tool
        async def wait() -> str:
            reached.set()
            await go_on.arrived()
            return "waited"

        young = make(Call("wait"), name="Young", tools=[wait])
        old = make(Call("young", {"prompt": "look"}, id="c"), name="Old", tools=[young.as_tool()])
        async with old.start("go") as run:
            await reached.arrived()
            run.cancel(mode=mode)
            await asyncio.sleep(0)
            assert [child.status for child in probe(run).children] == [RunStatus.running]
            go_on.set()
            result = await run.result()
        assert result.receipt is not None
        assert [each.outcome for each in result.receipt.tools] == ["completed"]

    play(main)


def test_a_run_that_a_tool_did_not_wait_for_ends_with_its_parent() -> None:
    async def main() -> None:
        silence = Silence()
        helper = make(silence, name="Helper")
        tasks: list[asyncio.Task[Any]] = []

        @tool
        async def leave_it() -> str:
            tasks.append(asyncio.create_task(helper.invoke_async("go")))
            await silence.reached.arrived()
            return "left"

        agent = make(Call("leave_it"), tools=[leave_it], runtime=Runtime(child_seconds=0.05))
        result = await agent.invoke_async("go")
        assert result.status is RunStatus.completed
        below = await tasks[0]
        assert (below.status, below.receipt.cause) == (RunStatus.cancelled, CancelCause.parent)

    play(main)


def test_a_detached_run_has_no_parent() -> None:
    async def main() -> None:
        silence, reached = Silence(), Flag()
        helper = make(silence, name="Helper")
        tasks: list[asyncio.Task[Any]] = []

        @tool
        async def leave_it() -> str:
            tasks.append(asyncio.create_task(helper.invoke_async("go", run_id="d", detached=True)))
            await silence.reached.arrived()
            reached.set()
            await forever()

        agent = make(Call("leave_it"), tools=[leave_it])
        ended = await cut(agent, reached)
        assert ended.result.status is RunStatus.cancelled
        (run,) = helper.runtime.runs
        assert (run.status, run.parent_run_id) == (RunStatus.running, None)
        helper.cancel()
        await tasks[0]

    play(main)


def test_a_blocking_run_inside_a_sync_tool_is_a_child() -> None:
    silence = Silence()
    helper = make(silence, name="Helper")
    seen: list[Any] = []

    @tool
    def ask() -> str:
        seen.append(helper.run("go"))
        return "asked"

    agent = make(Call("ask"), tools=[ask])
    stream = agent.run("go", stream=True)
    for event in stream:
        if event.event is RunEvent.tool_call_started:
            silence.reached.wait()
            agent.cancel()
    eventually(lambda: bool(seen))
    assert seen[0].receipt.cause is CancelCause.parent
    eventually(lambda: not any(thread.name.startswith("andon-tool") for thread in threading.enumerate()))


def test_the_events_of_a_child_are_shown_where_that_is_asked_for() -> None:
    async def main() -> None:
        young = make("I see.", name="Young")
        old = make(Call("young", {"prompt": "look"}), name="Old", tools=[young.as_tool(events=True)])
        async with old.start("go") as run:
            events = await read_all(run)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        shown = [event for event in events if event.agent_id == "young"]
        assert "".join(event.content for event in shown if event.event is RunEvent.run_content) == "I see."
        assert {event.run_id for event in shown} == {f"{run.run_id}.call_1"}
        assert shown[0].parent_run_id == run.run_id
        assert events[-1].agent_id == "old"

    play(main)


def test_without_asking_they_are_not_shown() -> None:
    async def main() -> None:
        silence = Silence()
        old, _, _ = family(silence)
        events: list[Event] = []
        async with old.start("go") as run:
            await silence.reached.arrived()
            run.cancel()
            events = await read_all(run)
        assert {event.agent_id for event in events} == {"old"}

    play(main)


def test_a_tool_knows_the_run_that_it_is_in() -> None:
    seen: list[str] = []

    @tool
    async def who(ctx: ToolContext) -> str:
        seen.append(ctx.run_id)
        return "me"

    young = make(Call("who"), name="Young", tools=[who])
    old = make(Call("young", {"prompt": "look"}), name="Old", tools=[young.as_tool()])
    result = old.run("go")
    assert seen == [f"{result.run_id}.call_1"]


def test_two_threads_that_add_the_first_child_at_once() -> None:
    """Neither may be forgotten, or a cancel would miss it."""
    silences = [Silence(), Silence()]
    helpers = [make(silence, name=f"Helper {n}") for n, silence in enumerate(silences)]
    both = threading.Barrier(2)

    @tool
    def ask_from_a_thread() -> str:
        async def begin() -> None:
            both.wait()
            await helpers[0].invoke_async("go")

        asyncio.run(begin())
        return "asked"

    @tool
    def ask_from_another() -> str:
        async def begin() -> None:
            both.wait()
            await helpers[1].invoke_async("go")

        asyncio.run(begin())
        return "asked"

    agent = make([Call("ask_from_a_thread"), Call("ask_from_another")], tools=[ask_from_a_thread, ask_from_another])
    stream = agent.run("go", stream=True)
    next(stream)
    for silence in silences:
        silence.reached.wait()
    assert len(probe(stream.run).children) == 2
    agent.cancel()
    list(stream)
    eventually(lambda: not any(helper.runtime.runs for helper in helpers))


def test_two_children_with_the_same_id_on_two_runtimes() -> None:
    async def main() -> None:
        silences = [Silence(), Silence()]
        helpers = [make(silence, name=f"Helper {n}") for n, silence in enumerate(silences)]

        @tool
        async def ask(number: int) -> str:
            await helpers[number].invoke_async("go", run_id="same")
            return "asked"

        agent = make([Call("ask", {"number": 0}), Call("ask", {"number": 1})], tools=[ask])
        async with agent.start("go") as run:
            for silence in silences:
                await silence.reached.arrived()
            assert len(probe(run).children) == 2
            run.cancel()
        assert not any(helper.runtime.runs for helper in helpers)

    play(main)


def test_a_child_that_is_born_after_a_soft_cancel_has_ended_its_parent() -> None:
    go_on = threading.Event()
    seen: list[Any] = []
    helper = make("Never said.", name="Helper")

    @tool
    def late() -> str:
        go_on.wait()
        seen.append(helper.run("too late"))
        return "late"

    agent = make(Call("late"), tools=[late])
    stream = agent.run("go", stream=True)
    for event in stream:
        if event.event is RunEvent.tool_call_started:
            agent.cancel(mode="after_turn", grace=0)
    go_on.set()
    eventually(lambda: bool(seen))
    assert (seen[0].status, seen[0].receipt.cause) == (RunStatus.cancelled, CancelCause.parent)


def test_a_child_has_its_parents_deadline() -> None:
    seen: list[float | None] = []

    @tool
    async def when(ctx: ToolContext) -> str:
        seen.append(ctx.deadline)
        return "then"

    young = make(Call("when"), "Then.", Call("when"), "Then.", name="Young", tools=[when])

    @tool
    async def ask(ctx: ToolContext) -> str:
        seen.append(ctx.deadline)
        await young.invoke_async("look", session_id="a")
        await young.invoke_async("look", session_id="b", timeout=10)
        return "asked"

    make(Call("ask"), tools=[ask]).run("go", timeout=1000)
    parents, inherited, own = seen
    assert parents is not None
    assert own is not None
    assert inherited == parents
    assert own < parents


@pytest.mark.parametrize("how", ["cancel_tool", "timeout"])
def test_a_call_that_ends_alone_takes_the_runs_that_its_thread_waits_for_with_it(how: str) -> None:
    async def main() -> None:
        silence = Silence()
        young = make(["I see", silence], "Late.", name="Young")

        @tool(timeout=1 if how == "timeout" else None)
        def work() -> str:
            return young.run("look").content

        old = make(Call("work", id="w"), name="Old", tools=[work])
        async with old.start("go") as run:
            await silence.reached.arrived()
            (child,) = young.runtime.runs
            if how == "cancel_tool":
                assert run.cancel_tool("w") is CancelOutcome.requested
            else:
                await time_is_up(silence.reached)
            await probe(child).settled()
            assert child.receipt is not None
            assert child.receipt.cause is CancelCause.parent
            assert child.receipt.reason == f"call w of run {run.run_id} was cancelled"
            assert (await run.result()).status is RunStatus.completed

    play(main, loop=StoppedClock)


def test_a_child_that_is_born_after_its_call_was_cut_alone() -> None:
    async def main() -> None:
        young, begun, go = make("Hello.", name="Young"), Flag(), Flag()
        results: list[RunResult] = []

        @tool
        def late() -> str:
            begun.set()
            go.wait()
            results.append(young.run("look"))
            return "never heard"

        old = make(Call("late", id="l"), name="Old", tools=[late])
        async with old.start("go") as run:
            await begun.arrived()
            assert run.cancel_tool("l") is CancelOutcome.requested
            assert (await run.result()).status is RunStatus.completed
            go.set()
            await probe(run).gone()
        (result,) = results
        assert result.status is RunStatus.cancelled
        assert asked(young) == []

    play(main)


def test_the_cancel_of_a_child_that_is_shown_is_not_taken_for_the_parents_own() -> None:
    """Of the child's end nothing is heard for a while: its cancel is the last event when the parent's cancel comes."""

    async def main() -> None:
        began, go = Flag(), Flag()

        class Slow:
            id = "slow"

            async def stream(self, request: ModelRequest, sink: Sink) -> None:
                began.set()
                try:
                    await forever()
                finally:
                    await go.arrived()

        child = Agent("Child", Slow())
        parent = Agent("Parent", ScriptedModel(Call("child", {"prompt": "go"})), tools=[child.as_tool(events=True)])
        async with parent.start("go") as run:
            await began.arrived()
            child.cancel("too slow")
            await until(lambda: probe(run).events[-1].event is RunEvent.cancel_requested)
            run.cancel("enough")
            go.set()
            asked = [(e.run_id == run.run_id, e.reason) async for e in run if e.event is RunEvent.cancel_requested]
            assert asked == [(False, "too slow"), (True, "enough")]

    play(main)
