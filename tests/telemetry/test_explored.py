# SPDX-License-Identifier: Apache-2.0
"""The explorer over runs that are traced: at every step at which they are disturbed, every span ends, and ends once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from andon import Run, RunStatus, ToolContext, tool
from andon.core.run.handle import local_run
from andon.errors import AndonError, ModelError
from andon.models.scripted import Call, Fail, Say, ScriptedModel, Spend
from andon.testing import explore, probe, reading
from andon.testing.explorer import MAX_STEPS
from tests.explorer import test_deadlines, test_families, test_people
from tests.explorer.parts import (
    NEXT,
    THREE,
    AsyncHooks,
    SlowStore,
    at_once,
    break_down,
    in_a_thread,
    look_up,
    script,
    stubborn,
)
from tests.telemetry.watching import Complaints, Watch, facts

pytestmark = pytest.mark.no_cover  # many thousand disturbances, which the tracer would slow down by more than half

watch = Watch(content=True)


@pytest.fixture(autouse=True)
def _no_complaints() -> Iterator[None]:
    with Complaints().listening() as complaints:
        yield
    assert complaints.texts == []


# -- scenarios --------------------------------------------------------------------------------------------------------


async def plain_text() -> None:
    agent = watch.agent("A", script([Say("Once upon a time.", pace=0.1), Spend(input_tokens=5, output_tokens=4)]))
    async for _ in reading(agent.stream_async("Tell me")):
        pass


async def three_parallel_tools() -> None:
    await watch.agent("A", script(THREE, "There."), tools=[look_up, at_once]).invoke_async("Go")


async def three_sequential_tools() -> None:
    agent = watch.agent("A", script(THREE, "There."), tools=[look_up, at_once], parallel_tools=False)
    await agent.invoke_async("Go")


@tool
async def roll_back() -> str:
    """Has spans of its own, also while it cleans up."""
    try:
        with watch.tracer.start_as_current_span("own work"):
            await asyncio.sleep(2)
    finally:
        with watch.tracer.start_as_current_span("own cleaning up"):
            await asyncio.sleep(0.25)
    return "done"


async def awaiting_finally() -> None:
    await watch.agent("A", script([Call("roll_back")], "Done."), tools=[roll_back]).invoke_async("Go")


async def retries() -> None:
    overloaded = Fail(ModelError("overloaded", retryable=True))
    await watch.agent("A", ScriptedModel(overloaded, overloaded, "Now it works.")).invoke_async("Go")


async def failures() -> None:
    calls = [Call("break_down"), Call("nothing_like_it"), Call("at_once", {"wrong": 1})]
    agent = watch.agent("A", script(calls, ["I was ", Fail(ModelError("gone"))]), tools=[break_down, at_once])
    await agent.invoke_async("Go")


async def stubborn_tool() -> None:
    agent = watch.agent("A", script([Call("stubborn"), Call("at_once", {"word": "x"})]), tools=[stubborn, at_once])
    await agent.invoke_async("Go")


async def sync_tool() -> None:
    agent = watch.agent("A", script([Call("in_a_thread", {"word": "x"})]), tools=[in_a_thread])
    await agent.invoke_async("Go")


async def slow_hooks_and_store() -> None:
    agent = watch.agent("A", script(THREE), tools=[look_up, at_once], hooks=[AsyncHooks()])
    agent.runtime.store = SlowStore()
    await agent.invoke_async("Go")


async def queued() -> None:
    agent = watch.agent("A", script([Call("look_up", {"word": "tea"})]), tools=[look_up])
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.invoke_async("first"))
        group.create_task(agent.invoke_async("second", on_busy="queue"))


async def child_agent() -> None:
    helper = watch.agent("Helper", script([Call("look_up", {"word": "tea"})], "Tea it is."), tools=[look_up])
    agent = watch.agent("A", script([Call("helper", {"prompt": "Find tea"})], "There."), tools=[helper.as_tool()])
    await agent.invoke_async("Go")


@tool(approval=True)
async def pay(amount: int) -> str:
    await asyncio.sleep(1)
    return f"paid {amount}"


@tool
async def ask(ctx: ToolContext) -> str:
    return f"they said {ctx.interrupt('which')}"


async def pause(*turn: Call, answer: bool = True) -> None:
    agent = watch.agent("A", script(list(turn), "Done."), tools=[pay, ask, look_up])
    try:
        result = await agent.invoke_async("Go")
        with contextlib.suppress(AndonError):  # cancelled meanwhile
            if result.status is RunStatus.paused:
                await agent.continue_run(result.run_id, {each.id: answer for each in result.interrupts})
    finally:
        agent.cancel()


async def paused_and_continued() -> None:
    await pause(Call("pay", {"amount": 5}), Call("look_up", {"word": "a"}))


async def paused_inside() -> None:
    await pause(Call("ask"), Call("look_up", {"word": "a"}))


async def refused() -> None:
    await pause(Call("pay", {"amount": 5}), Call("pay", {"amount": 6}), answer=False)


async def out_of_its_time() -> None:
    @tool(timeout=0.5)
    async def too_long() -> str:
        await asyncio.sleep(1)
        return "never"

    await watch.agent("A", script([Call("too_long")], "Oh."), tools=[too_long]).invoke_async("Go")


SCENARIOS: list[Callable[[], Coroutine[Any, Any, None]]] = [
    plain_text,
    three_parallel_tools,
    three_sequential_tools,
    awaiting_finally,
    retries,
    failures,
    stubborn_tool,
    sync_tool,
    slow_hooks_and_store,
    queued,
    child_agent,
    paused_and_continued,
    paused_inside,
    refused,
    out_of_its_time,
]


# -- what must hold after each ----------------------------------------------------------------------------------------


def check(runs: Sequence[Run]) -> None:
    watch.check()
    for run in runs:
        check_run(run)
    for span in watch.named("own work"):
        assert span.parent is not None
        assert span.parent.span_id in {each.context.span_id for each in watch.named("execute_tool roll_back")}


def check_run(run: Run) -> None:
    """Each run has one span that tells its end, and each of its calls a span or a word on its turn's."""
    result = probe(run).result
    mine = [span for span in watch.spans if facts(span).get("andon.run.id") == run.run_id]
    spans = [span for span in mine if span.name.startswith("invoke_agent")]
    ends = [facts(span)["andon.run.status"] for span in spans]
    assert ends[-1:] == [result.status.name], f"the run is {result.status.name}, its spans say {ends}"
    assert set(ends[:-1]) <= {"paused"}, ends
    for before, after in itertools.pairwise(spans):
        assert [link.context.span_id for link in after.links] == [before.context.span_id]
    if result.receipt is not None:
        assert facts(spans[-1])["andon.cancel.cause"] == result.receipt.cause.value
        assert facts(spans[-1])["andon.cancel.latency"] == result.receipt.latency
    turns = [span for span in mine if span.name == "turn"]
    ids = {span.context.span_id for span in turns}
    told = [dict(event.attributes or {}) for span in turns for event in span.events]
    told += [facts(span) for span in watch.spans if span.parent is not None and span.parent.span_id in ids]
    known = {each.get("gen_ai.tool.call.id") for each in told}
    if not probe(run).is_paused:  # what waits for a person is told when it is known what became of it
        calls = {call.call_id for call in local_run(run).settlement.tools}
        assert calls <= known, f"of {calls - known} nothing is told"


def watched(scenario: Callable[[], Coroutine[Any, Any, object]]) -> Callable[[], Coroutine[Any, Any, None]]:
    async def watched() -> None:
        watch.forget()
        await scenario()

    return watched


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_span_ends_once(scenario: Callable[[], Coroutine[Any, Any, object]]) -> None:
    explore(watched(scenario), name=scenario.__name__, next_prompt=NEXT, check=check).raise_for_problems()


# -- the explored scenarios of people, trees and limits, watched ------------------------------------------------------


EXPLORED: list[Callable[[], Coroutine[Any, Any, object]]] = [
    *test_people.SCENARIOS,
    *test_people.ENDED_ELSEWHERE,
    *test_families.SCENARIOS,
    *test_deadlines.ALL,
]

DISTANCE = 3
"""Every step of them is tried in their own files. With telemetry, it is each third one, and every way to leave."""


@pytest.mark.parametrize("scenario", EXPLORED, ids=lambda scenario: f"{scenario.__module__}:{scenario.__name__}")
def test_every_span_of_every_explored_scenario_ends_once(
    scenario: Callable[[], Coroutine[Any, Any, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their agents know of no telemetry, as if the program had set its providers."""
    monkeypatch.setattr("andon.agent.agent.AUTOMATIC", watch.telemetry)
    steps = range(1 + EXPLORED.index(scenario) % DISTANCE, MAX_STEPS, DISTANCE)
    named: dict[str, Any] = {"name": scenario.__name__, "next_prompt": NEXT, "check": check}
    report = explore(watched(scenario), inject=("cancel", "host", "teardown"), steps=steps, **named)
    report.raise_for_problems()
    assert report.injections >= report.steps // DISTANCE
    assert watch.spans
    explore(watched(scenario), inject="leave", **named).raise_for_problems()
