# SPDX-License-Identifier: Apache-2.0
"""The host's own cancellation: it cleans up as a user's does, with cause `caller`, and goes on as what it was."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from andon import Agent, CancelCause, CancelOutcome, Run, RunStatus, Runtime, ToolContext, tool
from andon.messages import Text
from andon.models.scripted import Call
from andon.testing.validators import validate
from tests.support import Flag, Silence, check_events, eventually, forever, make, play, read_all, record_of
from tests.support.clock import StoppedClock, time_is_up

MARKER = Text("Cancelled by the caller")


async def check_left_by_caller(agent: Agent, run_id: str) -> None:
    """The run is over, the record says by whom, and the session is sound and free."""
    record = await record_of(agent, run_id)
    assert record.status is RunStatus.cancelled
    assert record.stop_reason == "cancelled"
    assert record.receipt is not None
    assert record.receipt.cause is CancelCause.caller
    assert agent.cancel_run(run_id) is CancelOutcome.already_finished
    assert agent.messages[-1].content[-1] == MARKER
    assert validate(agent.messages) == []
    assert (await agent.invoke_async("and now?")).status is RunStatus.completed


async def drain(agent: Agent, **options: Any) -> None:
    async for _ in agent.stream_async("go", **options):
        pass


async def enter(agent: Agent, **options: Any) -> None:
    async with agent.start("go", **options) as run:
        await run.result()


async def invoke(agent: Agent, **options: Any) -> None:
    await agent.invoke_async("go", **options)


WAYS = [invoke, drain, enter]
Way = Callable[..., Awaitable[None]]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


@every_way
def test_wait_for(way: Way) -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", silence])
        clock = asyncio.create_task(time_is_up(silence.reached))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(way(agent, run_id="r"), 1)
        await clock
        assert silence.cuts == 1
        await check_left_by_caller(agent, "r")

    play(main, loop=StoppedClock)


@every_way
def test_timeout(way: Way) -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", silence])
        clock = asyncio.create_task(time_is_up(silence.reached))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await way(agent, run_id="r")
        await clock
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0
        await check_left_by_caller(agent, "r")

    play(main, loop=StoppedClock)


@every_way
def test_task_group(way: Way) -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", silence])

        async def break_down() -> None:
            await silence.reached.arrived()
            raise ValueError("the sibling's own")

        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(way(agent, run_id="r"))  # type: ignore[arg-type]
                group.create_task(break_down())
        assert [str(error) for error in caught.value.exceptions] == ["the sibling's own"]
        assert silence.cuts == 1
        await check_left_by_caller(agent, "r")

    play(main)


@every_way
def test_task_cancel(way: Way) -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", silence])
        task = asyncio.ensure_future(way(agent, run_id="r"))
        await silence.reached.arrived()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert silence.cuts == 1
        await check_left_by_caller(agent, "r")

    play(main)


@every_way
def test_task_cancel_keeps_its_message(way: Way) -> None:
    """It propagates as what it was."""

    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        seen: list[tuple[Any, ...]] = []

        async def host() -> None:
            try:
                await way(agent, run_id="r")
            except asyncio.CancelledError as error:
                seen.append(error.args)
                raise

        task = asyncio.create_task(host())
        await silence.reached.arrived()
        task.cancel("the house is closing")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == [("the house is closing",)]

    play(main)


@every_way
def test_a_second_host_cancel_while_cleaning_up(way: Way) -> None:
    async def main() -> None:
        started, cleaning, clean = Flag(), Flag(), Flag()
        seen: list[str] = []

        @tool
        async def slow() -> str:
            started.set()
            try:
                await forever()
            except asyncio.CancelledError:
                cleaning.set()
                await clean.arrived()
                seen.append("cleaned up")
                raise

        agent = make(Call("slow", id="c"), tools=[slow])
        task = asyncio.ensure_future(way(agent, run_id="r"))
        await started.arrived()
        task.cancel()
        await cleaning.arrived()
        task.cancel()  # it must not cut the cleaning up
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        clean.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["cleaned up"]
        await check_left_by_caller(agent, "r")

    play(main)


@every_way
def test_cleaning_up_for_the_host_is_bounded(way: Way) -> None:
    async def main() -> None:
        started, enough = Flag(), asyncio.Event()

        @tool
        async def deaf() -> str:
            started.set()
            while not enough.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await enough.wait()
            return "late"

        agent = make(Call("deaf"), tools=[deaf], runtime=Runtime(cut_seconds=0.02, abandon_seconds=0.05))
        task = asyncio.ensure_future(way(agent, run_id="r"))
        await started.arrived()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        record = await record_of(agent, "r")
        assert record.receipt is not None
        assert [each.outcome for each in record.receipt.tools] == ["abandoned"]
        await check_left_by_caller(agent, "r")
        late = asyncio.all_tasks() - {asyncio.current_task()}
        enough.set()
        await asyncio.wait(late)

    play(main)


@every_way
def test_the_host_after_a_users_cancel(way: Way) -> None:
    """The cause is the first one; the host still gets its own cancellation back."""

    async def main() -> None:
        started, clean = Flag(), Flag()

        @tool
        async def slow() -> str:
            started.set()
            try:
                await forever()
            finally:
                await clean.arrived()

        agent = make(Call("slow"), tools=[slow])
        task = asyncio.ensure_future(way(agent, run_id="r"))
        await started.arrived()
        assert agent.cancel_run("r", "enough") is CancelOutcome.requested
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        clean.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        record = await record_of(agent, "r")
        assert record.receipt is not None
        assert (record.receipt.cause, record.receipt.reason) == (CancelCause.user, "enough")

    play(main)


def test_a_users_cancel_is_not_the_hosts() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([silence])

        async def host() -> str:
            result = await agent.invoke_async("go", run_id="r")
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            return result.stop_reason

        task = asyncio.create_task(host())
        await silence.reached.arrived()
        assert agent.cancel()
        assert await task == "cancelled"  # it returns; it does not raise

    play(main)


def test_a_stray_cancelled_error_is_that_parts_failure() -> None:
    """One that nobody asked for, out of a tool or a model, is no cancel, of the run or of the host."""

    async def main() -> None:
        @tool
        async def stray() -> str:
            raise asyncio.CancelledError

        agent = make(Call("stray", id="c"), tools=[stray])
        result = await agent.invoke_async("go")
        assert result.status is RunStatus.completed
        assert result.messages[2].tool_results[0].status == "error"

    play(main)


# -- asyncio.run is torn down -----------------------------------------------------------------------------------------


def tear_down(agent: Agent, begin: Callable[[], Awaitable[object]]) -> None:
    """A program whose main function returns while a run is in flight; then the agent in another program."""
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        await begin()

    asyncio.run(main())
    gc.collect()
    assert not complaints
    eventually(lambda: agent.cancel_run("r") is CancelOutcome.already_finished)
    play(lambda: check_left_by_caller(agent, "r"))


@every_way
def test_asyncio_run_is_torn_down(way: Way) -> None:
    silence = Silence()
    agent = make(["Half a ", silence])
    tasks = []

    async def begin() -> None:
        tasks.append(asyncio.ensure_future(way(agent, run_id="r")))
        await silence.reached.arrived()

    tear_down(agent, begin)
    assert silence.cuts == 1
    assert tasks[0].cancelled()


@pytest.mark.parametrize("exits", [False, True])
def test_asyncio_run_is_torn_down_before_the_runs_first_step(exits: bool) -> None:
    agent = make()
    runs: list[Run] = []

    async def begin() -> None:
        runs.append(await agent.start("go", run_id="r").__aenter__())  # begun; its task has not taken a step
        if exits:
            raise SystemExit(3)  # leaves the loop on the spot
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    with pytest.raises(SystemExit) if exits else contextlib.nullcontext():
        asyncio.run(begin())
    tear_down(agent, lambda: asyncio.sleep(0))
    run = runs[0]
    assert run.status is RunStatus.cancelled

    async def look() -> None:
        events = await read_all(run)
        check_events(events)
        assert events[-1].status is RunStatus.cancelled
        assert (await run.result()).receipt is not None

    play(look)


def test_asyncio_run_is_torn_down_before_the_callers_first_step() -> None:
    """Then there is no run: it would have been registered at the coroutine's first step."""
    agent = make()

    async def main() -> None:
        task = asyncio.create_task(agent.invoke_async("go", run_id="r"))
        assert not task.done()
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert agent.cancel_run("r") is CancelOutcome.unknown
    assert agent.messages == []
    assert agent.run("and now?").status is RunStatus.completed


def test_asyncio_run_is_torn_down_around_a_tool_that_cleans_up() -> None:
    started = Flag()
    seen: list[str] = []

    @tool
    async def slow() -> str:
        started.set()
        try:
            await forever()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            seen.append("cleaned up")

    agent = make(Call("slow", id="c"), tools=[slow])
    kept = []

    async def begin() -> None:
        kept.append(asyncio.create_task(agent.invoke_async("go", run_id="r")))
        await started.arrived()

    tear_down(agent, begin)
    assert seen == ["cancelled", "cleaned up"]
    assert [each.content for each in agent.messages[2].tool_results] != ["late"]


def test_asyncio_run_is_torn_down_around_a_blocked_thread(caplog: pytest.LogCaptureFixture) -> None:
    started, go_on, over = Flag(), Flag(), Flag()

    @tool
    def block(ctx: ToolContext) -> str:
        started.set()
        go_on.wait()
        over.set()
        return "late"

    agent = make(Call("block", id="c"), tools=[block])
    kept = []

    async def begin() -> None:
        kept.append(asyncio.create_task(agent.invoke_async("go", run_id="r")))
        await started.arrived()

    with caplog.at_level(logging.INFO, "andon"):
        tear_down(agent, begin)  # does not wait for the thread
        assert "may still be running" in agent.messages[2].tool_results[0].content
        go_on.set()
        over.wait()
        eventually(lambda: "late result" in caplog.text)
    assert "late" not in [each.content for each in agent.messages[2].tool_results]
