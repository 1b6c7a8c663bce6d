# SPDX-License-Identifier: Apache-2.0
"""anyio around a run: its scopes cancel again and again, and that is one cancellation by the host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from andon import Agent, Run, RunStatus
from andon.messages import Text
from andon.models.scripted import Stall
from tests.support import Silence, make, play
from tests.support.clock import StoppedClock, time_is_up

Use = Callable[[Agent], Coroutine[Any, Any, object]]


async def invoke(agent: Agent) -> object:
    return await agent.invoke_async("go", run_id="r")


async def read(agent: Agent) -> object:
    return [event async for event in agent.stream_async("go", run_id="r")]


async def hold(agent: Agent) -> object:
    async with agent.start("go", run_id="r") as run:
        return await run.result()


each_use = pytest.mark.parametrize("use", [invoke, read, hold])


def stalled() -> Agent:
    return make(["Once ", Stall()])


async def has_said(agent: Agent) -> Run:
    """Wait until the run has streamed its first words."""
    while (run := agent.runtime.run("r")) is None:
        await anyio.lowlevel.checkpoint()
    async for event in run:
        if event.content:
            break
    return run


async def check_caller(agent: Agent) -> None:
    """The host's cancellation was told as such, what was said is kept, and nothing of it is left in this task."""
    assert agent.messages[-1].content == [Text("Once "), Text("Cancelled by the caller")]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert (await agent.invoke_async("go on")).status is RunStatus.completed


@each_use
def test_a_scope_that_is_cancelled(use: Use) -> None:
    async def main() -> None:
        agent = stalled()

        async def cancel(scope: anyio.CancelScope) -> None:
            await has_said(agent)
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                tasks.start_soon(cancel, scope)
                await use(agent)
        assert scope.cancelled_caught
        await check_caller(agent)

    play(main)


@each_use
def test_move_on_after_and_fail_after(use: Use) -> None:
    async def main() -> None:
        agent, clock = out_of_time()
        with anyio.move_on_after(1) as scope:
            await use(agent)
        await clock
        assert scope.cancelled_caught
        await check_caller(agent)
        agent, clock = out_of_time()
        with pytest.raises(TimeoutError), anyio.fail_after(1):
            await use(agent)
        await clock
        await check_caller(agent)

    play(main, loop=StoppedClock)


def out_of_time() -> tuple[Agent, asyncio.Task[None]]:
    """An agent that stalls, and the task that moves the stopped clock then."""
    silence = Silence()
    return make(["Once ", silence]), asyncio.create_task(time_is_up(silence.reached))


@each_use
def test_a_task_group_whose_other_task_fails(use: Use) -> None:
    async def main() -> None:
        agent = stalled()

        async def fail() -> None:
            await has_said(agent)
            raise ValueError("the other one")

        with pytest.raises(ExceptionGroup) as caught:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(use, agent)
                tasks.start_soon(fail)
        assert [type(error) for error in caught.value.exceptions] == [ValueError]
        await check_caller(agent)

    play(main)


def test_a_users_cancel_is_not_the_scopes() -> None:
    async def main() -> None:
        agent = stalled()

        async def cancel() -> None:
            (await has_said(agent)).cancel()

        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel)
                result = await agent.invoke_async("go", run_id="r")
        assert result.status is RunStatus.cancelled
        assert not scope.cancelled_caught
        assert agent.messages[-1].content[-1] == Text("Cancelled by user")

    play(main)


def test_a_shielded_scope_lets_the_run_finish() -> None:
    async def main() -> None:
        agent = make("Fine.")
        with anyio.CancelScope() as outer:
            outer.cancel()
            with anyio.CancelScope(shield=True):
                result = await agent.invoke_async("go")
        assert result.content == "Fine."

    play(main)
