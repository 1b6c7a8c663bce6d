# SPDX-License-Identifier: Apache-2.0
"""The explorer over runs within runs, deadlines, budgets, superseding, going on after a cut, and rolling back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from andon import Agent, RunStatus, tool
from andon.errors import ModelError, NotContinuableError, StartError
from andon.models.scripted import Call, Fail, Pause, Say, Spend
from andon.testing import explore
from tests.explorer.parts import MODES, NEXT, at_once, look_up, roll_back, script

pytestmark = pytest.mark.no_cover  # many thousand disturbances, which the tracer would slow down by more than half


def young() -> Agent:
    return Agent(
        "Young", script([Call("look_up", {"word": "a"}), Call("roll_back")], "I see."), tools=[look_up, roll_back]
    )


async def two_generations_side_by_side() -> None:
    turn = [Call("young", {"prompt": "one"}), Call("young", {"prompt": "two"})]
    middle = Agent("Middle", script(turn, "So."), tools=[young().as_tool()])
    turn = [Call("middle", {"prompt": "x"}), Call("at_once", {"word": "z"})]
    await Agent("Old", script(turn, "Ah."), tools=[middle.as_tool(events=True), at_once]).invoke_async("Go")


async def a_child_without_its_tool() -> None:
    """The tool does not wait for the run that it starts, which is born at every moment there is."""
    child = Agent("Child", script([Say("Here I am.", pace=0.2)]))
    tasks: set[asyncio.Task[Any]] = set()

    @tool
    async def leave_it() -> str:
        tasks.add(asyncio.create_task(child.invoke_async("Go", session_id="c")))
        await asyncio.sleep(0.3)
        return "left"

    try:
        await Agent("Parent", script([Call("leave_it")], "Well."), tools=[leave_it]).invoke_async("Go")
    finally:
        await asyncio.gather(*tasks, return_exceptions=True)


async def a_deadline() -> None:
    agent = Agent("A", script([Say("Let me. ", pace=0.3), Call("look_up", {"word": "abc"})], "So."), tools=[look_up])
    await agent.invoke_async("Go", timeout=2.0)


async def a_budget() -> None:
    turns = [[Call("look_up", {"word": "a"}), Spend(input_tokens=20, output_tokens=20)]] * 3
    await Agent("A", script(*turns, "So."), tools=[look_up]).invoke_async("Go", budget=70)


async def superseded() -> None:
    agent = Agent("A", script([Say("On and on.", pace=0.5)]))
    first = asyncio.ensure_future(agent.invoke_async("One"))
    await asyncio.sleep(0.7)
    second = asyncio.ensure_future(agent.invoke_async("Two", on_busy="cancel"))
    await asyncio.gather(first, second)


async def going_on_after_a_cut() -> None:
    agent = Agent(
        "A", script([Call("look_up", {"word": "ab"}), Call("at_once", {"word": "c"})], "So."), tools=[look_up, at_once]
    )
    result = await agent.invoke_async("Go", timeout=1.0)
    if result.status is RunStatus.cancelled:
        with contextlib.suppress(NotContinuableError):  # it was cut before it had a message
            await agent.continue_run(result.run_id)


async def going_on_in_mid_sentence() -> None:
    agent = Agent("A", script([Say("Once upon ", pace=0.4), Pause(5), "a time."]))
    result = await agent.invoke_async("Go", timeout=2.0)
    if result.status is RunStatus.cancelled:
        with contextlib.suppress(StartError):
            await agent.continue_run(result.run_id)


async def going_on_after_a_failure() -> None:
    calls = [Call("look_up", {"word": "a"}), Call("at_once", {"word": "c"})]
    agent = Agent("A", script(calls, ["I was ", Fail(ModelError("gone"))]), tools=[look_up, at_once])
    result = await agent.invoke_async("Go")
    if result.status in (RunStatus.cancelled, RunStatus.error):
        with contextlib.suppress(StartError):
            await agent.continue_run(result.run_id)


async def going_on_twice() -> None:
    """The second time with a call that may be repeated, and is cut again."""

    @tool(idempotent=True)
    async def again() -> str:
        await asyncio.sleep(1)
        return "done"

    agent = Agent("A", script([Call("again"), Call("at_once", {"word": "c"})], "So."), tools=[again, at_once])
    result = await agent.invoke_async("Go", timeout=0.5)
    for timeout in (0.5, None):
        if result.status is RunStatus.cancelled:
            with contextlib.suppress(StartError):
                result = await agent.continue_run(result.run_id, timeout=timeout)


async def taking_back_what_had_gone_on() -> None:
    agent = Agent("A", script([Call("look_up", {"word": "ab"})], "So."), tools=[look_up])
    first = await agent.invoke_async("Go", timeout=1.0)
    with contextlib.suppress(StartError):
        second = await agent.continue_run(first.run_id)
        await agent.rollback_run(second.run_id)
        await agent.continue_run(first.run_id)


async def taking_it_back() -> None:
    agent = Agent("A", script([Say("Well, well.", pace=0.2)]))
    await agent.invoke_async("One")
    result = await agent.invoke_async("Two")
    with contextlib.suppress(StartError):
        await agent.rollback_run(result.run_id)
    await agent.invoke_async("Three")


SCENARIOS: dict[Callable[[], Coroutine[Any, Any, None]], dict[str, Any]] = {
    two_generations_side_by_side: {"within": 1.0, "inject": ("cancel", "host")},
    a_child_without_its_tool: {"cancels": MODES},
    a_deadline: {"cancels": MODES},
    a_budget: {},
    superseded: {},
    going_on_after_a_cut: {},
    going_on_in_mid_sentence: {},
    going_on_after_a_failure: {},
    going_on_twice: {},
    taking_back_what_had_gone_on: {},
    taking_it_back: {},
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_step_can_be_cancelled(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    options = {"within": 0.0, "next_prompt": NEXT, **SCENARIOS[scenario]}
    report = explore(scenario, **options)
    report.raise_for_problems()
    assert report.injections > 0
    assert report.missed == 0
