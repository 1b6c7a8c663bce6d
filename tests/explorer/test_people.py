# SPDX-License-Identifier: Apache-2.0
"""The explorer over runs that ask a person, and over calls that end alone: each scenario is disturbed at each step.

A person takes a virtual second to answer, so that the pause has steps of its own. A run that was cancelled in its pause
is ended by the portal, in real time: what comes after the cancel may differ from one performance to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from andon import Agent, Deny, Run, RunEvent, RunResult, RunStatus, Runtime, Tool, tool
from andon.errors import AnswersError, NotContinuableError
from andon.models.scripted import Call, Item, Say, Spend
from andon.testing import explore, probe, reading
from tests.explorer.parts import (
    MODES,
    NEXT,
    TWICE,
    SlowStore,
    SyncHooks,
    ask,
    at_once,
    look_up,
    script,
    sign,
    stubborn,
)

pytestmark = pytest.mark.no_cover  # many thousand disturbances, which the tracer would slow down by more than half

SIGN, ASK = Call("sign", {"word": "here"}, id="s"), Call("ask", {"word": "tea"}, id="a")
TOOLS: list[Tool] = [sign, ask, look_up, at_once]


async def answer(agent: Agent, result: RunResult, value: object = True) -> RunResult:
    """Have a person answer all questions, a second later each time, unless the run was cancelled meanwhile."""
    while result.status is RunStatus.paused:
        await asyncio.sleep(1)
        with contextlib.suppress(NotContinuableError, AnswersError):
            answers = {question.id: value for question in result.interrupts}
            result = await agent.continue_run(result.run_id, answers=answers)
            continue
        break
    return result


# -- scenarios --------------------------------------------------------------------------------------------------------


async def approval() -> None:
    agent = Agent("A", script(["Well, ", SIGN, Spend(input_tokens=5, output_tokens=4)], "Done."), tools=TOOLS)
    await answer(agent, await agent.invoke_async("Go"))


async def approval_refused() -> None:
    agent = Agent("A", script([SIGN], "Done."), tools=TOOLS)
    await answer(agent, await agent.invoke_async("Go"), Deny("not today"))


async def question() -> None:
    agent = Agent("A", script([ASK], "Done."), tools=TOOLS)
    await answer(agent, await agent.invoke_async("Go"), "yes")


async def question_read() -> None:
    agent = Agent("A", script(["Well, ", ASK], "Done."), tools=TOOLS)
    stream = agent.stream_async("Go")
    run = stream.run
    events = reading(stream)
    del stream
    async for _ in events:
        pass
    del events
    if probe(run).is_paused:
        await answer(agent, await run.result(), "yes")


async def two_at_once() -> None:
    calls: list[str | Item] = [SIGN, Call("look_up", {"word": "bb"}), ASK, Call("at_once", {"word": "x"})]
    agent = Agent("A", script(calls, "Done."), tools=TOOLS)
    await answer(agent, await agent.invoke_async("Go"))


async def two_in_a_row() -> None:
    calls: list[str | Item] = [SIGN, Call("at_once", {"word": "x"}), ASK]
    agent = Agent("A", script(calls, "Done."), tools=TOOLS, parallel_tools=False)
    await answer(agent, await agent.invoke_async("Go"))


async def left_paused() -> None:
    agent = Agent("A", script([SIGN, ASK, Call("at_once", {"word": "x"})], "Done."), tools=TOOLS)
    await agent.invoke_async("Go")
    await asyncio.sleep(1)


async def asked_again() -> None:
    agent = Agent("A", script([SIGN], [ASK], "Done."), tools=TOOLS, hooks=[SyncHooks()])
    await answer(agent, await agent.invoke_async("Go"))


async def asked_with_a_time_limit() -> None:
    agent = Agent("A", script([SIGN], [ASK], [Say("Once upon a time.", pace=0.5)]), tools=TOOLS)
    await answer(agent, await agent.invoke_async("Go", timeout=3))


async def asked_with_a_slow_store() -> None:
    agent = Agent("A", script([SIGN], "Done."), tools=TOOLS, runtime=Runtime(SlowStore()))
    await answer(agent, await agent.invoke_async("Go"))


async def asked_and_superseded() -> None:
    agent = Agent("A", script([SIGN, ASK], "Done."), tools=TOOLS)
    await agent.invoke_async("first")
    await asyncio.sleep(1)
    result = await agent.invoke_async("second", on_busy="cancel")
    await answer(agent, result)


async def asked_and_cancelled() -> None:
    agent = Agent("A", script([SIGN, ASK], "Done."), tools=TOOLS)
    await agent.invoke_async("Go")
    agent.cancel(mode="after_turn")
    await agent.invoke_async(NEXT)


async def cancelled_behind_a_pause() -> None:
    agent = Agent("A", script(["Well, ", ASK], "Done."), tools=TOOLS)
    await agent.invoke_async("Go")
    async with asyncio.TaskGroup() as group:
        await _queue_and_cancel(agent, group)


async def cancelled_behind_a_pause_that_ends() -> None:
    agent = Agent("A", script(["Well, ", ASK], "Done."), tools=TOOLS)
    result = await agent.invoke_async("Go")
    async with asyncio.TaskGroup() as group:
        await _queue_and_cancel(agent, group)
        group.create_task(agent.invoke_async(NEXT, on_busy="queue"))  # its turn comes after those that were cancelled
        await answer(agent, result, "yes")


async def cancelled_behind_a_pause_that_is_cancelled() -> None:
    agent = Agent("A", script(["Well, ", ASK], "Done."), tools=TOOLS)
    await agent.invoke_async("Go")
    async with asyncio.TaskGroup() as group:
        await _queue_and_cancel(agent, group)
    agent.cancel()
    await asyncio.sleep(1)


async def _queue_and_cancel(agent: Agent, group: asyncio.TaskGroup) -> None:
    for run_id in ("second", "third"):
        group.create_task(agent.invoke_async("Me too", run_id=run_id, on_busy="queue"))
    await asyncio.sleep(1)
    for run_id in ("second", "third"):
        agent.cancel_run(run_id)


async def one_of_three_cancelled() -> None:
    calls: list[str | Item] = [Call("look_up", {"word": "a"}), Call("look_up", {"word": "bb"}, id="b"),
                               Call("at_once", {"word": "c"})]  # fmt: skip
    agent = Agent("A", script(calls, "Done."), tools=TOOLS)
    await _cancel_one(agent, after=1.5)


async def one_of_three_in_a_row_cancelled() -> None:
    calls: list[str | Item] = [Call("look_up", {"word": "a"}), Call("look_up", {"word": "bb"}, id="b"),
                               Call("at_once", {"word": "c"})]  # fmt: skip
    agent = Agent("A", script(calls, "Done."), tools=TOOLS, parallel_tools=False)
    await _cancel_one(agent, after=0.5)


async def stubborn_one_cancelled() -> None:
    calls = [Call("stubborn", id="b"), Call("at_once", {"word": "c"})]
    await _cancel_one(Agent("A", script(calls, "Done."), tools=[stubborn, at_once]), after=0.5)


async def question_cancelled() -> None:
    agent = Agent("A", script([SIGN, Call("ask", {"word": "tea"}, id="b")], "Done."), tools=TOOLS)
    async with agent.start("Go") as run:
        result = await run.result()
        run.cancel_tool("b", "never mind")
        await answer(agent, result)


async def _cancel_one(agent: Agent, after: float) -> None:
    async with agent.start("Go") as run:
        await asyncio.sleep(after)
        run.cancel_tool("b", "never mind")
        await run.result()


async def asked_from_two_levels_below() -> None:
    young = Agent("Young", script([SIGN, ASK], "I see."), tools=TOOLS)
    turn = [Call("young", {"prompt": "x"}), Call("sign", {"word": "too"})]
    middle = Agent("Middle", script(turn, "So."), tools=[young.as_tool(), sign])
    old = Agent("Old", script([Call("middle", {"prompt": "x"}), Call("at_once", {"word": "z"})], "Ah."),
                tools=[middle.as_tool(events=True), at_once])  # fmt: skip
    await answer(old, await old.invoke_async("Go"))


async def asked_cancelled_and_gone_on_with() -> None:
    agent = Agent("A", script([SIGN, Call("at_once", {"word": "x"})], "Done."), tools=TOOLS)
    result = await agent.invoke_async("Go")
    agent.cancel_run(result.run_id)
    if (run := agent.runtime.run(result.run_id)) is not None:
        await probe(run).settled()
    with contextlib.suppress(NotContinuableError):
        await answer(agent, await agent.continue_run(result.run_id))


async def tool_out_of_time() -> None:
    @tool(timeout=1)
    async def hurried(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "made it"

    calls = [Call("hurried", {"seconds": 0.5}), Call("hurried", {"seconds": 5}), Call("at_once", {"word": "c"})]
    await Agent("A", script(calls, "Done."), tools=[hurried, at_once]).invoke_async("Go")


# -- the exploration --------------------------------------------------------------------------------------------------


def went_on(runs: Sequence[Run]) -> None:
    """What a person was asked is done no more than once, however the run ended."""
    for run in runs:
        done = [(event.run_id, event.tool.call_id) for event in probe(run).events
                if event.event is RunEvent.tool_call_completed and event.tool is not None]  # fmt: skip
        assert len(done) == len(set(done)), done


SCENARIOS: dict[Callable[[], Coroutine[Any, Any, None]], dict[str, Any]] = {
    approval: {"cancels": MODES + TWICE},
    approval_refused: {},
    question: {"cancels": MODES + TWICE},
    question_read: {},
    two_at_once: {"cancels": MODES},
    two_in_a_row: {"cancels": MODES},
    left_paused: {"cancels": MODES},
    asked_again: {"cancels": ("now", "after_turn")},
    asked_with_a_time_limit: {},
    asked_with_a_slow_store: {"inject": "cancel", "cancels": ("now", "after_tools"), "within": 1.0},
    cancelled_behind_a_pause: {"cancels": MODES},
    cancelled_behind_a_pause_that_ends: {"cancels": ("now", "after_turn")},
    one_of_three_cancelled: {"cancels": MODES},
    one_of_three_in_a_row_cancelled: {"cancels": MODES},
    stubborn_one_cancelled: {"within": 2.0},
    question_cancelled: {"cancels": ("now", "after_turn")},
    tool_out_of_time: {"cancels": MODES},
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_step_can_be_cancelled(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    options = {"within": 0.0, "next_prompt": NEXT, "check": went_on, **SCENARIOS[scenario]}
    report = explore(scenario, **options)
    report.raise_for_problems()
    assert report.repeatable
    assert report.missed == 0
    assert report.injections > report.steps


ENDED_ELSEWHERE = [
    asked_and_superseded,
    asked_and_cancelled,
    cancelled_behind_a_pause_that_is_cancelled,
    asked_cancelled_and_gone_on_with,
    asked_from_two_levels_below,
]


@pytest.mark.parametrize("scenario", ENDED_ELSEWHERE, ids=lambda each: each.__name__)
def test_runs_that_are_cancelled_in_their_pause(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    # The portal's thread is real, so the steps may differ from one time to the next.
    explore(scenario, next_prompt=NEXT, check=went_on).raise_for_problems()
