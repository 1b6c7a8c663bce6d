# SPDX-License-Identifier: Apache-2.0
"""What ends a run from its own side: a time limit, a number of turns, an event that the caller sets."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from andon import Agent, CancelCause, CancelOutcome, RunStatus, ToolContext, Usage, tool
from andon.messages import Text
from andon.models.scripted import Call, ScriptedModel, Spend
from andon.testing.validators import validate
from tests.support import Flag, Hold, Reach, Silence, Worker, asked, forever, make, play, until
from tests.support.clock import StoppedClock, time_is_up


@tool
async def echo() -> str:
    return "x"


# -- timeout ----------------------------------------------------------------------------------------------------------


def test_a_timeout_cancels_with_cause_deadline() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", silence])
        clock = asyncio.create_task(time_is_up(silence.reached))
        result = await agent.invoke_async("go", timeout=1)
        await clock
        assert silence.cuts == 1
        assert result.status is RunStatus.cancelled
        assert result.receipt is not None
        assert result.receipt.cause is CancelCause.deadline
        assert result.message.content == [Text("Half a "), Text("Cancelled: out of time")]
        assert (await agent.invoke_async("and now?", timeout=10)).status is RunStatus.completed

    play(main, loop=StoppedClock)


def test_waiting_in_a_queue_counts() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        async with agent.start("go") as run:
            await silence.reached.arrived()
            result = await agent.invoke_async("second", timeout=0.02, on_busy="queue")
            assert result.receipt is not None
            assert result.receipt.cause is CancelCause.deadline
            assert run.status is RunStatus.running

    play(main)


def test_a_timeout_of_0_sends_nothing_that_lasts() -> None:
    async def main() -> None:
        agent = make([Silence()])
        result = await agent.invoke_async("go", timeout=0)
        assert result.status is RunStatus.cancelled

    play(main)


def test_a_run_in_time_leaves_no_timer() -> None:
    async def main() -> None:
        agent = make()
        assert (await agent.invoke_async("go", timeout=3600)).status is RunStatus.completed

    play(main)


def test_tools_know_the_deadline() -> None:
    async def main() -> None:
        seen: list[float | None] = []

        @tool
        async def look(ctx: ToolContext) -> str:
            seen.append(ctx.deadline)
            return "x"

        agent = make(Call("look"), "Done.", Call("look"), tools=[look])
        before = time.time()
        await agent.invoke_async("go", timeout=100)
        await agent.invoke_async("go")
        assert seen[0] is not None
        assert before + 100 <= seen[0] <= time.time() + 100
        assert seen[1] is None

    play(main)


# -- max_turns --------------------------------------------------------------------------------------------------------


def test_max_turns_is_no_cancel() -> None:
    async def main() -> None:
        agent = make(Call("echo"), Call("echo"), Call("echo"), tools=[echo])
        result = await agent.invoke_async("go", max_turns=2)
        assert (result.status, result.stop_reason) == (RunStatus.completed, "max_turns")
        assert result.receipt is None
        assert len(asked(agent)) == 2
        assert validate(result.messages) == []
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed
        assert validate(agent.messages) == []

    play(main)


def test_an_answer_in_the_last_turn_is_an_ordinary_end() -> None:
    agent = make(Call("echo"), "Done.", tools=[echo])
    assert agent.run("go", max_turns=2).stop_reason == "end_turn"


# -- cancel_on --------------------------------------------------------------------------------------------------------


def test_an_asyncio_event() -> None:
    async def main() -> None:
        silence, stop = Silence(), asyncio.Event()
        agent = make([silence])
        async with agent.start("go", cancel_on=stop) as run:
            await silence.reached.arrived()
            assert run.status is RunStatus.running
            stop.set()
            result = await run.result()
        assert result.status is RunStatus.cancelled
        assert result.receipt is not None
        assert result.receipt.cause is CancelCause.user
        assert result.message.content == [Text("Cancelled by user")]
        assert silence.cuts == 1
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_a_threading_event_set_by_another_thread() -> None:
    async def main() -> None:
        silence, stop = Silence(), threading.Event()
        agent = make([silence])
        async with agent.start("go", cancel_on=stop) as run:
            await silence.reached.arrived()
            worker = Worker(stop.set)
            result = await run.result()
            await asyncio.to_thread(worker.done)
        assert result.status is RunStatus.cancelled

    play(main)


def test_a_threading_event_in_a_blocking_call() -> None:
    silence, stop = Silence(), threading.Event()
    agent = make([silence])

    def set_it() -> None:
        silence.reached.wait()
        stop.set()

    setter = Worker(set_it)
    assert agent.run("go", cancel_on=stop).status is RunStatus.cancelled
    setter.done()


@pytest.mark.parametrize("make_event", [asyncio.Event, threading.Event])
def test_one_event_serves_several_runs(make_event: type[asyncio.Event] | type[threading.Event]) -> None:
    async def main() -> None:
        stop = make_event()
        silences = [Silence() for _ in range(5)]
        agents = [make([silence]) for silence in silences]
        tasks = [asyncio.create_task(agent.invoke_async("go", cancel_on=stop)) for agent in agents]
        for silence in silences:
            await silence.reached.arrived()
        stop.set()
        assert {(await task).status for task in tasks} == {RunStatus.cancelled}

    play(main)


@pytest.mark.parametrize("make_event", [asyncio.Event, threading.Event])
def test_an_event_that_is_set_already(make_event: type[asyncio.Event] | type[threading.Event]) -> None:
    async def main() -> None:
        stop = make_event()
        stop.set()
        agent = make()
        assert (await agent.invoke_async("go", cancel_on=stop)).status is RunStatus.cancelled
        assert asked(agent) == []

    play(main)


@pytest.mark.parametrize("make_event", [asyncio.Event, threading.Event])
def test_an_event_that_is_never_set(make_event: type[asyncio.Event] | type[threading.Event]) -> None:
    async def main() -> None:
        agent = make()
        stop = make_event()
        assert (await agent.invoke_async("go", cancel_on=stop)).status is RunStatus.completed
        stop.set()  # too late for anyone
        assert (await agent.invoke_async("go")).status is RunStatus.completed

    play(main)


def test_an_event_also_ends_a_queued_run() -> None:
    async def main() -> None:
        silence, stop = Silence(), asyncio.Event()
        agent = make([silence])
        async with agent.start("go") as holder:
            await silence.reached.arrived()
            async with agent.start("second", cancel_on=stop, on_busy="queue") as run:
                await until(lambda: run.phase == "queued")
                stop.set()
                assert (await run.result()).status is RunStatus.cancelled
            assert holder.status is RunStatus.running

    play(main)


def test_what_comes_first_is_the_cause() -> None:
    async def main() -> None:
        started, clean, stop = Flag(), Flag(), asyncio.Event()

        @tool
        async def slow() -> str:
            started.set()
            try:
                await forever()
            finally:
                await clean.arrived()

        agent = make(Call("slow"), tools=[slow])
        async with agent.start("go", cancel_on=stop, timeout=1) as run:
            await time_is_up(started)
            await until(lambda: run.status is RunStatus.cancelling)  # out of time
            stop.set()
            assert run.cancel("too late") is CancelOutcome.already_requested
            clean.set()
            result = await run.result()
        assert result.receipt is not None
        assert result.receipt.cause is CancelCause.deadline

    play(main, loop=StoppedClock)


def test_an_event_set_in_the_last_moment_changes_nothing_or_all() -> None:
    """Set while the last piece is on its way: the run completes or is cancelled, and says which."""

    async def main() -> None:
        reached, go_on, stop = Flag(), Flag(), asyncio.Event()
        agent = make(["Hello.", Reach(reached), Hold(go_on)])
        async with agent.start("go", cancel_on=stop) as run:
            await reached.arrived()
            go_on.set()
            stop.set()
            result = await run.result()
        assert (result.receipt is None) is (result.status is RunStatus.completed)

    play(main)


def test_the_receipt_of_a_wait_that_was_too_short_says_no_untruth() -> None:
    """Unknown is not zero: the run has called a tool and spent tokens, whatever is left of it."""

    async def main() -> None:
        started, finish = asyncio.Event(), asyncio.Event()

        @tool
        async def slow() -> str:
            started.set()
            try:
                await asyncio.sleep(1000)
            finally:
                await finish.wait()
            return "never"

        agent = Agent("A", ScriptedModel([Spend(Usage(10, 5)), Call("slow", id="c")]), tools=[slow])
        async with agent.start("go") as run:
            await started.wait()
            early = await run.cancel_and_wait(timeout=0)
            finish.set()
            final = (await run.result()).receipt
        assert early is not None
        assert final is not None
        assert early.leftovers == ["tool slow (c)"]
        assert early.usage in (final.usage, Usage(None, None, None, None))
        assert [each.call_id for each in early.tools] == ["c"]

    play(main)
