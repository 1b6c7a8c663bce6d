# SPDX-License-Identifier: Apache-2.0
"""Whatever a run is doing: a cancel that is broken off at any of its lines has taken hold, or has not; nothing between.

Each scenario is tried at some of its steps, with every line of every way to cancel it there. `within=0` says that from
the moment at which somebody comes, the run takes no time to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from andon import Agent
from andon.models.scripted import Call, Say, Stall
from andon.testing import Cancel, explore
from tests.explorer.parts import NEXT, THREE, at_once, in_a_thread, look_up, script, sign

pytestmark = pytest.mark.no_cover  # many thousand disturbances, and tracers of their own


async def silence() -> None:
    await Agent("A", script(Stall())).invoke_async("Go")


async def streaming() -> None:
    await Agent("A", script([Say("Once upon a time.", pace=0.1)])).invoke_async("Go")


async def in_a_tool() -> None:
    await Agent("A", script([Call("look_up", {"word": "tea"})], "There."), tools=[look_up]).invoke_async("Go")


async def three_tools() -> None:
    await Agent("A", script(THREE, "There."), tools=[look_up, at_once]).invoke_async("Go")


async def queued() -> None:
    agent = Agent("A", script([Say("Hello there.", pace=0.1)]))
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.invoke_async("first"))
        group.create_task(agent.invoke_async("second", on_busy="queue"))


async def begun_later() -> None:
    """A cancel of the first one is none of the second one's business."""
    agent = Agent("A", script([Say("Hello there.", pace=0.1)]))
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.invoke_async("first"))
        await asyncio.sleep(0.05)
        group.create_task(agent.invoke_async("second", on_busy="queue"))


async def paused() -> None:
    agent = Agent("A", script([Call("sign", {"word": "x"})], "Done."), tools=[sign])
    await agent.invoke_async("Go")
    await asyncio.sleep(1)


async def with_a_sub_agent() -> None:
    young = Agent("Young", script([Call("look_up", {"word": "tea"})], "I see."), tools=[look_up])
    calls = [Call("young", {"prompt": "x"}), Call("look_up", {"word": "milk"})]
    await Agent("Old", script(calls, "Ah."), tools=[young.as_tool(), look_up]).invoke_async("Go")


async def with_a_deadline() -> None:
    await Agent("A", script(THREE), tools=[look_up, at_once]).invoke_async("Go", timeout=1.5)


async def cancelled_softly() -> None:
    """A second, stronger cancel is broken off, and so is one that comes too late."""
    agent = Agent("A", script([Call("look_up", {"word": "tea"})], "There."), tools=[look_up])
    asyncio.get_running_loop().call_later(0.5, lambda: agent.cancel(mode="after_turn"))
    await agent.invoke_async("Go")


async def in_a_sync_tool() -> None:
    await Agent("A", script([Call("in_a_thread", {"word": "tea"})]), tools=[in_a_thread]).invoke_async("Go")


Scenario = Callable[[], Coroutine[Any, Any, None]]

# The steps are those at which a run waits for what the scenario is named for. Each costs some thousand disturbances.
SCENARIOS: dict[Scenario, dict[str, Any]] = {
    silence: {"steps": [6], "stalls": True},
    streaming: {"steps": [7, 14]},
    in_a_tool: {"steps": [11]},
    three_tools: {"steps": [16]},
    queued: {"steps": [14]},
    begun_later: {"steps": [7]},
    paused: {"steps": [11]},
    with_a_sub_agent: {"steps": [17]},
    with_a_deadline: {"steps": [17]},
    cancelled_softly: {"steps": [11], "cancels": ("now", Cancel("after_tools", grace=0.25))},
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_cancel_may_be_broken_off_at_any_line(scenario: Scenario) -> None:
    options = {"within": 0.0, "next_prompt": NEXT, **SCENARIOS[scenario]}
    report = explore(scenario, inject="broken_cancel", **options)
    report.raise_for_problems()
    assert report.repeatable
    assert report.missed == 0
    assert report.injections > 300


def test_a_cancel_in_a_sync_tool_may_be_broken_off() -> None:
    # Its thread is real, so the steps may differ from one time to the next.
    explore(in_a_sync_tool, inject="broken_cancel", steps=[9], next_prompt=NEXT).raise_for_problems()


@pytest.mark.parametrize(
    "cancel", [Cancel("after_turn", grace=0.2), Cancel("after_tools", again="now", later=2)], ids=str
)
def test_a_cancel_that_lets_something_finish_may_be_broken_off(cancel: Cancel) -> None:
    report = explore(in_a_tool, inject="broken_cancel", cancels=cancel, steps=[9], within=0.0, next_prompt=NEXT)
    report.raise_for_problems()
