# SPDX-License-Identifier: Apache-2.0
"""Trees of runs, deep and wide: they stop at a limit, and a cancel at the top reaches every leaf."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from andon import Agent, CancelCause, ConfigurationError, Run, RunStatus, Runtime
from andon.models.base import ModelRequest
from andon.models.scripted import Call, ScriptedModel, Stall
from andon.testing import probe
from tests.support import Flag, forever, play


def nested(depth: int, reached: Flag, runtime: Runtime) -> Agent:
    """An agent that calls itself, so often; the last one waits for ever."""
    calls = 0

    def script(_: ModelRequest) -> Any:
        nonlocal calls
        calls += 1
        if calls < depth:
            return Call("again", {"prompt": "more"})
        reached.set()
        return Stall()

    agent = Agent("Self", ScriptedModel(then=script), runtime=runtime)
    agent.tools.append(agent.as_tool("again"))
    return agent


def test_a_tree_deeper_than_the_stack_is_cancelled_and_settled() -> None:
    depth = sys.getrecursionlimit() // 2  # the cancel of each level takes several frames

    async def main() -> None:
        reached = Flag()
        runtime = Runtime(max_depth=depth, cut_seconds=60, abandon_seconds=60, child_seconds=60)
        agent = nested(depth, reached, runtime)
        async with agent.start("go", timeout=1000, budget=10**9) as run:
            await reached.arrived()
            runs = runtime.runs
            assert len(runs) == depth
            assert agent.cancel()
            result = await run.result()
            assert result.status is RunStatus.cancelled
            assert result.receipt is not None
            assert result.receipt.leftovers == []
            assert {each.status for each in runs} == {RunStatus.cancelled}
            assert runtime.live == 0
            assert max(probe(each).depth for each in runs) == depth

    play(main)


def test_a_cancel_by_the_handle_reaches_the_leaves_of_a_wide_tree() -> None:
    width = 40

    async def main() -> None:
        runtime = Runtime(cut_seconds=60, abandon_seconds=60, child_seconds=60)  # it may be a slow machine
        arrived: list[int] = []
        full = Flag()

        def leaf(_: ModelRequest) -> Any:
            arrived.append(1)
            if len(arrived) == width * width:
                full.set()
            return Stall()

        def calls(level: str) -> list[Call]:
            return [Call("child", {"prompt": "go"}, id=f"{level}{n}") for n in range(width)]

        below = Agent("Leaf", ScriptedModel(then=leaf), runtime=runtime)
        middle = Agent("Middle", ScriptedModel(then=calls("m")), tools=[below.as_tool("child")], runtime=runtime)
        top = Agent("Top", ScriptedModel(then=calls("t")), tools=[middle.as_tool("child")], runtime=runtime)
        async with top.start("go") as run:
            await full.arrived()
            runs = runtime.runs
            assert len(runs) == 1 + width + width * width
            run.cancel("enough")
            result = await run.result()
        assert result.receipt is not None
        assert {tool.outcome for tool in result.receipt.tools} == {"cut"}
        assert {each.status for each in runs} == {RunStatus.cancelled}
        causes = [each.receipt.cause for each in runs if each.receipt is not None]
        assert sorted(causes) == sorted([CancelCause.user, *[CancelCause.parent] * (len(runs) - 1)])

    play(main)


def test_the_model_is_told_that_the_tree_is_too_deep_and_goes_on() -> None:
    async def main() -> None:
        told: list[str] = []

        def script(request: ModelRequest) -> Any:
            if request.messages[-1].role == "tool":
                told.append(request.messages[-1].tool_results[0].content)
                return "Then I answer myself."
            return Call("again", {"prompt": "more"})

        runtime = Runtime(max_depth=3)
        agent = Agent("Self", ScriptedModel(then=script), runtime=runtime)
        agent.tools.append(agent.as_tool("again"))
        result = await agent.invoke_async("go")
        assert result.status is RunStatus.completed
        assert "3 runs are at work" in told[0]  # the innermost one is told first
        assert "max_depth" in told[0]
        assert told[1:] == ["Then I answer myself."] * 2
        assert runtime.live == 0

    play(main)


def test_fifty_levels_are_the_default_and_a_detached_run_begins_a_tree_of_its_own() -> None:
    assert Runtime().max_depth == 50
    for wrong in (0, -1, 2.5, "many", True):
        with pytest.raises(ConfigurationError, match="max_depth"):
            Runtime(max_depth=wrong)  # type: ignore[arg-type]

    async def main() -> None:
        runtime = Runtime(max_depth=1)
        inner = Agent("Inner", ScriptedModel(then="Hi."), runtime=runtime)
        begun: list[Run] = []

        async def detach() -> str:
            run = inner.start("go", detached=True)
            begun.append(run)
            await run.begin()
            return (await run.result()).content

        outer = Agent("Outer", ScriptedModel(Call("detach"), then="OK."), tools=[detach], runtime=runtime)
        assert (await outer.invoke_async("go")).status is RunStatus.completed
        assert begun[0].status is RunStatus.completed
        assert probe(begun[0]).depth == 1

    play(main)


# -- whose child a run is ---------------------------------------------------------------------------------------------


def test_a_worker_that_a_tool_started_starts_runs_without_a_parent_when_the_call_has_ended() -> None:
    async def main() -> None:
        runtime = Runtime()
        mailer = Agent("Mailer", ScriptedModel(then="Sent."), runtime=runtime)
        jobs: asyncio.Queue[tuple[str, asyncio.Future[Any]]] = asyncio.Queue()
        workers: list[asyncio.Task[None]] = []

        async def work() -> None:
            while True:
                job, done = await jobs.get()
                done.set_result(await mailer.invoke_async(job, session_id=job))

        async def enqueue() -> str:
            workers.append(asyncio.create_task(work()))  # lazily, as singletons are made
            return "queued"

        async def job(name: str) -> Any:
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            await jobs.put((name, done))
            return await done

        silent = Flag()

        def script(request: ModelRequest) -> Any:
            if request.messages[-1].role == "tool":
                silent.set()
                return ["and ", Stall()]
            return Call("enqueue")

        agent = Agent("A", ScriptedModel(then=script), tools=[enqueue], runtime=runtime)
        async with agent.start("go") as run:
            await silent.arrived()
            during = await job("while its run goes on")
            run.cancel()
            await run.result()
            after = await job("after that was cancelled")
        workers[0].cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        assert (during.status, after.status) == (RunStatus.completed, RunStatus.completed)

    play(main)


def test_a_run_that_a_tool_starts_after_its_cancel_is_cancelled_as_long_as_the_tool_is_at_work() -> None:
    async def main() -> None:
        started = Flag()
        inner = Agent("Inner", ScriptedModel(then="Hi."))
        late: list[RunStatus] = []

        async def cleans_up() -> str:
            started.set()
            try:
                await forever()
            finally:
                late.append((await inner.invoke_async("tidy up")).status)

        agent = Agent("A", ScriptedModel(then=Call("cleans_up")), tools=[cleans_up])
        async with agent.start("go") as run:
            await started.arrived()
            run.cancel()
            await run.result()
        assert late == [RunStatus.cancelled]

    play(main)


# -- waiting for oneself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deep", [False, True])
def test_a_tool_that_queues_a_run_in_its_own_session_is_told_that_it_would_wait_for_itself(deep: bool) -> None:
    async def main() -> None:
        agent = Agent("A", ScriptedModel(Call("nested"), then="OK."))

        async def queue() -> str:
            return (await agent.invoke_async("after this", on_busy="queue", session_id="s")).content

        between = Agent("Between", ScriptedModel(Call("queue"), then="It refused."), tools=[queue])

        async def nested() -> str:
            return await queue() if not deep else str((await between.invoke_async("go")).messages[-2].content)

        agent.tools += Agent("x", tools=[nested]).tools
        result = await agent.invoke_async("go", session_id="s")
        assert result.status is RunStatus.completed
        [answer] = result.messages[2].tool_results
        assert "would wait for itself" in answer.content
        assert "detached=True" in answer.content

    play(main)


def test_a_detached_run_may_queue_behind_the_run_that_starts_it() -> None:
    async def main() -> None:
        agent = Agent("A", ScriptedModel(Call("later"), then="OK."))
        queued: list[Run] = []

        async def later() -> str:
            run = agent.start("after this", on_busy="queue", session_id="s", detached=True)
            await run.begin()
            queued.append(run)
            return "queued"

        agent.tools += Agent("x", tools=[later]).tools
        assert (await agent.invoke_async("go", session_id="s")).status is RunStatus.completed
        assert (await queued[0].result()).status is RunStatus.completed

    play(main)


def test_the_same_session_id_in_another_store_is_another_session() -> None:
    async def main() -> None:
        inner = Agent("A", ScriptedModel(then="inner"), runtime=Runtime())

        async def ask() -> str:
            return (await inner.invoke_async("go", on_busy="queue", session_id="s")).content

        outer = Agent("A", ScriptedModel(Call("ask"), then="OK."), tools=[ask], runtime=Runtime())
        result = await outer.invoke_async("go", session_id="s")
        assert result.messages[2].tool_results[0].content == "inner"

    play(main)
