# SPDX-License-Identifier: Apache-2.0
"""A deadline in each state that a run can be in, and the explorer on top of it: whoever comes first is the cause.

Each scenario is played undisturbed first: its deadline must find the run in the state that it is there for.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from andon import Agent, CancelCause, CancelMode, RunResult, RunStatus, Runtime, ToolContext, tool
from andon.core.states import Phase
from andon.errors import AnswersError, ModelError, NotContinuableError
from andon.models.scripted import Call, Fail, Pause, Say, ScriptedModel
from andon.testing import explore
from andon.testing.virtual import virtual_run
from tests.explorer.parts import NEXT, AsyncHooks, SlowStore, at_once, look_up, roll_back, script, sign

pytestmark = pytest.mark.no_cover  # many thousand disturbances, which the tracer would slow down by more than half

Scenario = Callable[[], Coroutine[Any, Any, RunResult]]


async def queued() -> RunResult:
    agent = Agent("A", script([Say("On and on.", pace=0.5)]))
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.invoke_async("first"))
        second = group.create_task(agent.invoke_async("second", on_busy="queue", timeout=1))
    return second.result()


async def loading() -> RunResult:
    return await Agent("A", script("Hello."), runtime=Runtime(SlowStore())).invoke_async("Go", timeout=0.15)


async def waiting_for_the_model() -> RunResult:
    return await Agent("A", script([Pause(2), "Hello."])).invoke_async("Go", timeout=1)


async def streaming_text() -> RunResult:
    return await Agent("A", script([Say("Once upon a time.", pace=0.5)])).invoke_async("Go", timeout=1)


async def streaming_a_call() -> RunResult:
    pieces = Call("at_once", {"word": "x"}, pieces=5, pace=0.5)
    return await Agent("A", script(["Well, ", pieces]), tools=[at_once]).invoke_async("Go", timeout=1)


async def backing_off() -> RunResult:
    wait = Fail(ModelError("slow down", retryable=True, retry_after=3))
    return await Agent("A", ScriptedModel(wait, "Now it works.")).invoke_async("Go", timeout=1)


async def in_an_async_tool() -> RunResult:
    calls = [Call("look_up", {"word": "abc"}), Call("at_once", {"word": "x"})]
    return await Agent("A", script(calls, "So."), tools=[look_up, at_once]).invoke_async("Go", timeout=1)


async def in_a_tool_that_cleans_up() -> RunResult:
    return await Agent("A", script([Call("roll_back")], "So."), tools=[roll_back]).invoke_async("Go", timeout=1)


@tool
def blocking(ctx: ToolContext) -> str:
    """Works until it is told to stop; the virtual clock moves on meanwhile."""
    told = threading.Event()
    ctx.on_cancel(told.set)
    told.wait()
    ctx.check_cancelled()
    return "never"


async def in_a_sync_tool() -> RunResult:
    return await Agent("A", script([Call("blocking")], "So."), tools=[blocking]).invoke_async("Go", timeout=1)


async def between_two_tools() -> RunResult:
    """At the very moment at which the first ends and the second would begin."""
    calls = [Call("look_up", {"word": "a"}), Call("look_up", {"word": "bb"})]
    agent = Agent("A", script(calls, "So."), tools=[look_up], parallel_tools=False)
    return await agent.invoke_async("Go", timeout=1)


async def with_a_child() -> RunResult:
    child = Agent("Child", script([Call("look_up", {"word": "abc"})], "Aha."), tools=[look_up])
    agent = Agent("A", script([Call("child", {"prompt": "x"})], "So."), tools=[child.as_tool()])
    return await agent.invoke_async("Go", timeout=1)


async def in_a_hook() -> RunResult:
    agent = Agent("A", script("Hello."), hooks=[AsyncHooks()])
    return await agent.invoke_async("Go", timeout=0.15)


async def in_a_hook_of_a_tool() -> RunResult:
    agent = Agent("A", script([Call("at_once", {"word": "x"})]), tools=[at_once], hooks=[AsyncHooks()])
    return await agent.invoke_async("Go", timeout=0.45)


async def after_the_answer_to_a_question() -> RunResult:
    agent = Agent("A", script([Call("sign", {"word": "x"})], [Say("Once upon a time.", pace=0.5)]), tools=[sign])
    result = await agent.invoke_async("Go", timeout=1)
    await asyncio.sleep(5)  # which does not count
    with contextlib.suppress(NotContinuableError, AnswersError):
        return await agent.continue_run(result.run_id, {each.id: True for each in result.interrupts})
    return result


async def under_a_soft_cancel() -> RunResult:
    """It lets the tool finish; the deadline does not."""
    agent = Agent("A", script([Call("look_up", {"word": "abc"})], "So."), tools=[look_up])
    asyncio.get_running_loop().call_later(0.5, lambda: agent.cancel(mode="after_tools"))
    return await agent.invoke_async("Go", timeout=1)


async def in_settling() -> RunResult:
    """The answer is complete, and is being stored: too late for a deadline."""
    return await Agent("A", script("Hello."), runtime=Runtime(SlowStore())).invoke_async("Go", timeout=0.3)


SCENARIOS: dict[Scenario, tuple[Phase | None, dict[str, Any]]] = {
    queued: (Phase.queued, {}),
    loading: (Phase.loading, {"within": 1.0}),
    waiting_for_the_model: (Phase.waiting, {}),
    streaming_text: (Phase.streaming, {}),
    streaming_a_call: (Phase.streaming, {}),
    backing_off: (Phase.backoff, {}),
    in_an_async_tool: (Phase.tools, {}),
    in_a_tool_that_cleans_up: (Phase.tools, {"within": 0.5}),
    between_two_tools: (Phase.tools, {}),
    with_a_child: (Phase.tools, {}),
    in_a_hook: (Phase.hook, {}),
    in_a_hook_of_a_tool: (Phase.tools, {}),
    after_the_answer_to_a_question: (Phase.streaming, {}),
    under_a_soft_cancel: (Phase.tools, {}),
    in_settling: (None, {"within": 1.0}),
}


ALL = [*SCENARIOS, in_a_sync_tool]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_deadline_finds_it_there_and_every_step_can_be_cancelled(scenario: Scenario) -> None:
    phase, options = SCENARIOS[scenario]
    cause = CancelCause.user if scenario is under_a_soft_cancel else CancelCause.deadline
    check_undisturbed(virtual_run(scenario()), phase, cause)
    report = explore(scenario, **{"within": 0.0, "next_prompt": NEXT, **options})
    report.raise_for_problems()
    assert report.repeatable
    assert report.missed == 0


def check_undisturbed(result: RunResult, phase: Phase | None, cause: CancelCause = CancelCause.deadline) -> None:
    if phase is None:
        assert result.status is RunStatus.completed
        return
    assert result.receipt is not None
    assert (result.receipt.cause, result.receipt.mode, result.receipt.phase) == (cause, CancelMode.now, phase)


def test_a_deadline_in_a_sync_tool() -> None:
    # Its thread is real, so the steps may differ from one time to the next.
    check_undisturbed(virtual_run(in_a_sync_tool()), Phase.tools)
    explore(in_a_sync_tool, next_prompt=NEXT).raise_for_problems()
