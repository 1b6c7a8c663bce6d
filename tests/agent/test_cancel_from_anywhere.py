# SPDX-License-Identifier: Apache-2.0
"""A cancel works from wherever it is called. Races and signals: `test_cancel_races.py`; arming: `test_arming.py`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from andon import Agent, CancelOutcome, Receipt, Run, RunEvent, RunStatus, Runtime, ToolContext, tool
from andon.agent.hooks import HookEvent
from andon.models.scripted import Call, Item, ScriptedModel
from tests.support import (
    Flag,
    Silence,
    Worker,
    check_cancelled,
    check_goes_on,
    cut,
    forever,
    make,
    play,
    read_all,
)


async def talking(agent: Agent, silence: Silence, stack: contextlib.AsyncExitStack, **options: object) -> Run:
    """A run that has begun to talk and will not stop by itself."""
    run: Run = await stack.enter_async_context(agent.start("go", **options))  # type: ignore[call-overload]
    await silence.reached.arrived()
    silence.reached = Flag()
    return run


# -- where from -------------------------------------------------------------------------------------------------------


def test_from_the_same_task() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        ended = await cut(agent, silence.reached)
        check_cancelled(ended, phase="waiting")
        await check_goes_on(agent, ended)

    play(main)


@pytest.mark.parametrize("way", ["agent", "agent run", "handle"])
def test_from_another_thread(way: str) -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        async with agent.start("go") as run:
            await silence.reached.arrived()
            ways: dict[str, Callable[[], CancelOutcome]] = {
                "agent": lambda: agent.cancel("enough"),
                "agent run": lambda: agent.cancel_run(run.run_id, "enough"),
                "handle": lambda: run.cancel("enough"),
            }
            cancel = ways[way]
            outcomes: list[CancelOutcome] = []
            worker = Worker(lambda: outcomes.append(cancel()))  # the loop sleeps in its selector: it must be woken
            result = await run.result()
            await asyncio.to_thread(worker.done)
        assert outcomes == [CancelOutcome.requested]
        assert result.status is RunStatus.cancelled
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_from_another_loop() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        async with agent.start("go") as run:
            await silence.reached.arrived()

            async def elsewhere() -> Receipt | None:
                assert agent.cancel() is CancelOutcome.requested
                return await run.cancel_and_wait(reason="too late to matter")

            receipt = await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
            assert receipt is not None
            assert (receipt.reason, receipt.leftovers) == (None, [])
            assert run.status is RunStatus.cancelled

    play(main)


@pytest.mark.parametrize("wait", [False, True])
def test_from_an_async_tool_of_the_run(wait: bool) -> None:
    async def main() -> None:
        seen: list[object] = []

        @tool
        async def stop_it(ctx: ToolContext) -> str:
            seen.append(agent.cancel_run(ctx.run_id, "enough", "ann"))
            seen.append(agent.cancel())
            try:
                if wait:
                    run = agent.runtime.run(ctx.run_id)
                    assert run is not None
                    await run.cancel_and_wait()  # it would wait for itself, but it is cut as well
                await forever()
            except asyncio.CancelledError:
                seen.append("cut")
                raise

        agent = make(Call("stop_it", id="c"), tools=[stop_it])
        async with agent.start("go") as run:
            result = await run.result()
        assert seen == [CancelOutcome.requested, CancelOutcome.already_requested, "cut"]
        assert result.receipt is not None
        assert [each.outcome for each in result.receipt.tools] == ["cut"]
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_from_a_sync_tool_of_the_run() -> None:
    async def main() -> None:
        seen: list[object] = []
        cancelled = Flag()

        @tool
        def stop_it(ctx: ToolContext) -> str:
            ctx.on_cancel(cancelled.set)
            seen.append(agent.cancel("enough", "ann"))
            cancelled.wait()
            seen.append(ctx.cancelled)
            ctx.check_cancelled()
            raise AssertionError

        agent = make(Call("stop_it", id="c"), tools=[stop_it])
        async with agent.start("go") as run:
            result = await run.result()
            receipt = await run.cancel_and_wait()
        assert seen == [CancelOutcome.requested, True]
        assert result.status is RunStatus.cancelled
        assert receipt is not None
        assert receipt.leftovers == []
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


@pytest.mark.parametrize("point", ["message_added", "before_model", "after_model", "before_tool", "after_tool"])
@pytest.mark.parametrize("is_async", [False, True])
def test_from_a_hook_of_the_run(point: str, is_async: bool) -> None:
    async def main() -> None:
        seen: list[CancelOutcome] = []
        started: list[str] = []

        class Hook:
            def stop_it(self, event: HookEvent) -> None:
                if not seen:
                    seen.append(agent.cancel_run(event.run_id, "enough"))

            async def stop_it_async(self, event: HookEvent) -> None:
                self.stop_it(event)

        setattr(Hook, point, Hook.stop_it_async if is_async else Hook.stop_it)

        @tool
        async def echo() -> str:
            started.append("echo")
            return "x"

        agent = make(Call("echo", id="c"), tools=[echo], hooks=[Hook()])
        result = await agent.invoke_async("go")
        assert seen == [CancelOutcome.requested]
        assert result.status is RunStatus.cancelled
        assert started == (["echo"] if point == "after_tool" else [])
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_from_the_readers_loop() -> None:
    async def main() -> None:
        agent = make(["Half a ", Silence()])
        seen: list[CancelOutcome] = []
        kinds: list[RunEvent] = []
        async for event in agent.stream_async("go"):
            kinds.append(event.event)
            if event.event is RunEvent.run_content:
                seen.append(agent.cancel_run(event.run_id))
        assert seen[0] is CancelOutcome.requested
        assert kinds[-2:] == [RunEvent.cancel_requested, RunEvent.run_cancelled]

    play(main)


def test_from_an_on_cancel_callback() -> None:
    async def main() -> None:
        seen: list[CancelOutcome] = []
        started = Flag()

        @tool
        async def wait(ctx: ToolContext) -> str:
            ctx.on_cancel(lambda: seen.append(agent.cancel()))
            started.set()
            await forever()

        agent = make(Call("wait", id="c"), tools=[wait])
        ended = await cut(agent, started)
        check_cancelled(ended, phase="tools", tools={"c": "cut"})
        assert seen == [CancelOutcome.already_requested]

    play(main)


# -- which runs -------------------------------------------------------------------------------------------------------


def test_agent_cancel_hits_every_run_of_the_agent_and_no_other() -> None:
    async def main() -> None:
        runtime = Runtime()
        silence, other_silence = Silence(), Silence()
        agent = make([silence], [silence], [silence], runtime=runtime)
        other = make([other_silence], name="Other", runtime=runtime)
        async with contextlib.AsyncExitStack() as stack:
            runs = [await talking(agent, silence, stack, session_id=str(number)) for number in range(2)]
            queued = await stack.enter_async_context(agent.start("go", session_id="0", on_busy="queue"))
            bystander = await talking(other, other_silence, stack)
            assert agent.cancel("enough") is CancelOutcome.requested
            for run in [*runs, queued]:
                assert (await run.result()).status is RunStatus.cancelled
            assert bystander.status is RunStatus.running
            bystander.cancel()

    play(main)


def test_agent_cancel_is_requested_if_any_run_was_newly_asked() -> None:
    async def main() -> None:
        clean, silence = Flag(), Silence()
        started = Flag()

        @tool
        async def slow() -> str:
            started.set()
            try:
                await forever()
            finally:
                await clean.arrived()

        agent = make(Call("slow"), [silence], tools=[slow])
        async with agent.start("go", session_id="a") as first:
            await started.arrived()
            assert agent.cancel() is CancelOutcome.requested
            assert agent.cancel() is CancelOutcome.already_requested
            async with contextlib.AsyncExitStack() as stack:
                second = await talking(agent, silence, stack, session_id="b")
                assert agent.cancel() is CancelOutcome.requested
                assert agent.cancel() is CancelOutcome.already_requested
                await second.result()
            assert first.status is RunStatus.cancelling
            clean.set()

    play(main)


def test_cancel_run_finds_any_run_of_the_runtime() -> None:
    async def main() -> None:
        runtime, silence = Runtime(), Silence()
        agent, other, stranger = make([silence], runtime=runtime), make(name="Other", runtime=runtime), make()
        async with agent.start("go") as run:
            await silence.reached.arrived()
            assert stranger.cancel_run(run.run_id) is CancelOutcome.unknown
            assert run.status is RunStatus.running
            assert other.cancel_run(run.run_id) is CancelOutcome.requested
            await run.result()
            assert other.cancel_run(run.run_id) is CancelOutcome.already_finished

    play(main)


@pytest.mark.parametrize(
    ("selector", "hit"),
    [
        ({"run_id": "a1"}, "a1"),
        ({"session_id": "one"}, "a1 b1"),
        ({"user_id": "ann"}, "a1 a2"),
        ({"agent_id": "agent-b"}, "b1"),
        ({"all": True}, "a1 a2 b1"),
        ({"user_id": "ann", "session_id": "one"}, "a1"),
        ({"run_id": "nobody"}, ""),
        ({"session_id": "nowhere"}, ""),
    ],
)
def test_runtime_cancel(selector: dict[str, object], hit: str) -> None:
    async def main() -> None:
        runtime = Runtime()
        silences = [Silence(), Silence()]
        a = make([silences[0]], [silences[0]], name="Agent A", runtime=runtime)
        b = make([silences[1]], name="Agent B", runtime=runtime)
        async with contextlib.AsyncExitStack() as stack:
            runs = [
                await talking(a, silences[0], stack, run_id="a1", session_id="one", user_id="ann"),
                await talking(a, silences[0], stack, run_id="a2", session_id="two", user_id="ann"),
                await talking(b, silences[1], stack, run_id="b1", session_id="one", user_id="bob"),
            ]
            outcomes = await runtime.cancel(**selector, reason="enough", by="ops")  # type: ignore[arg-type]
            assert outcomes == dict.fromkeys(hit.split(), CancelOutcome.requested)
            for run in runs:
                if run.run_id in hit.split():
                    result = await run.result()
                    assert result.receipt is not None
                    assert (result.receipt.reason, result.receipt.by) == ("enough", "ops")
                else:
                    assert run.status is RunStatus.running

    play(main)


def test_runtime_cancel_of_an_ended_run() -> None:
    async def main() -> None:
        agent = make("Hello.")
        await agent.invoke_async("go", run_id="r")
        assert await agent.runtime.cancel(run_id="r") == {"r": CancelOutcome.already_finished}
        with pytest.raises(ValueError, match="all=True"):
            await agent.runtime.cancel()  # says nothing, and so means nothing

    play(main)


def test_an_unknown_run_leaves_nothing_behind() -> None:
    agent = make("Hello.")
    agent.cancel_run("warm-up")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(10_000):
            assert agent.cancel_run(f"nobody-{number}") is CancelOutcome.unknown
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 50_000
    assert agent.run("go", run_id="nobody-7").status is RunStatus.completed


def test_a_cancel_is_exact() -> None:
    """Two runs of one agent: the one that is named ends, the other never hears of it."""

    async def main() -> None:
        silence = Silence()
        agent = make([silence], [silence])
        async with contextlib.AsyncExitStack() as stack:
            one = await talking(agent, silence, stack, session_id="1")
            two = await talking(agent, silence, stack, session_id="2")
            assert agent.cancel_run(one.run_id) is CancelOutcome.requested
            await one.result()
            assert two.status is RunStatus.running
            two.cancel("the second")
            events = await read_all(two)
            assert [event.reason for event in events if event.event is RunEvent.cancel_requested] == ["the second"]

    play(main)


def test_cancel_itself_as_a_signal_handler() -> None:
    """`signal.signal(…, agent.cancel)` gives it a number and a frame, which can't be kept or written as JSON."""

    class Ready(Item):
        async def play(self, sink: Any, model: ScriptedModel) -> None:
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGUSR1)  # it waits there, and handlers run there
            await asyncio.get_running_loop().create_future()

    agent = Agent("A", ScriptedModel(Ready()))
    before = signal.signal(signal.SIGUSR1, agent.cancel)  # type: ignore[arg-type]  # a slip, easily made
    try:
        result = agent.run("go")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert result.receipt is not None
    assert (result.receipt.reason, result.receipt.by) == (str(int(signal.SIGUSR1)), None)
    msgspec.json.encode(result.receipt)
