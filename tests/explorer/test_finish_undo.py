# SPDX-License-Identifier: Apache-2.0
"""The explorer over calls that are let finish and calls that are undone, in every mode and with every injection.

`check_run` looks at each run: no call is undone and kept. Here the tools also note what was really done and undone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from andon import Agent, Run, RunEvent, ToolContext, ToolOutcome, tool
from andon.agent.call_record import CallRecord
from andon.models.scripted import Call
from andon.testing import Cancel, explore, probe, reading
from tests.explorer.parts import MODES, NEXT, TWICE, AsyncHooks, look_up, script, stubborn
from tests.explorer.test_people import answer

pytestmark = pytest.mark.no_cover  # many thousand disturbances, which the tracer would slow down by more than half

did: list[str] = []
undone: list[str] = []


async def unpay(word: str, call_id: str) -> None:
    await asyncio.sleep(0.5)
    undone.append(call_id)


@tool(on_cancel=unpay)
async def pay(word: str) -> str:
    await asyncio.sleep(1)
    return f"paid {word}"


@tool(on_cancel=unpay)
async def pay_at_once(word: str) -> str:
    """Ends in the very step in which it begins."""
    return f"paid {word}"


@tool(on_cancel="finish", finish_within=5)
async def send(word: str) -> str:
    await asyncio.sleep(1)
    did.append(word)
    return f"sent {word}"


@tool(on_cancel="finish", finish_within=0.5)
async def send_slowly(word: str) -> str:
    await asyncio.sleep(1)
    return f"sent {word}"


@tool
async def build(word: str, ctx: ToolContext) -> str:
    """Registers two steps; what comes later is undone first."""
    ctx.on_undo(_step(f"{ctx.call_id} first"))
    await asyncio.sleep(0.5)
    ctx.on_undo(_step(f"{ctx.call_id} second"))
    try:
        await asyncio.sleep(0.5)
    except asyncio.CancelledError:
        await asyncio.sleep(0.25)
        raise
    return f"built {word}"


def _step(name: str) -> Callable[[], Coroutine[Any, Any, None]]:
    async def step() -> None:
        await asyncio.sleep(0.1)
        undone.append(name)

    return step


async def unpay_asked(word: str, call_id: str) -> None:
    """A paused run is undone by the portal, in real time: so it takes little of it."""
    await asyncio.sleep(0.01)
    undone.append(call_id)


@tool(on_cancel=unpay_asked)
async def pay_if_asked(ctx: ToolContext, word: str) -> str:
    await asyncio.sleep(0.5)
    said = ctx.interrupt("pay?", word)
    await asyncio.sleep(0.5)
    return f"paid {word}: {said}"


async def fail_to_undo(word: str) -> None:
    raise ValueError("the bank is closed")


@tool(on_cancel=fail_to_undo, timeout=3)
async def pay_for_good(word: str) -> str:
    await asyncio.sleep(1)
    return f"paid {word}"


@tool(on_cancel=unpay, timeout=0.5)
async def pay_too_slowly(word: str) -> str:
    await asyncio.sleep(1)
    return f"paid {word}"


inner_sends = Agent("Inner", script([Call("send", {"word": "inner"}, id="i")], "Sent."), tools=[send])


@tool(on_cancel="finish", finish_within=8)
async def delegate(word: str) -> str:
    agent = Agent("Inner", script([Call("look_up", {"word": "x"}, id="i")], "Found."), tools=[look_up])
    return (await agent.invoke_async(word)).content


TOOLS: list[Any] = [
    pay,
    pay_at_once,
    send,
    send_slowly,
    build,
    look_up,
    stubborn,
    pay_if_asked,
    pay_for_good,
    pay_too_slowly,
    delegate,
]


def _calls(*names: str) -> list[Any]:
    return [Call(name, {"word": name}, id=f"{name}-{number}") for number, name in enumerate(names)]


async def _play(*names: str, **options: Any) -> None:
    did.clear()
    undone.clear()
    agent = Agent("A", script(_calls(*names), "Done."), tools=TOOLS, **options)
    result = await agent.invoke_async("Go")
    await answer(agent, result)


async def undoing() -> None:
    await _play("pay", "build")


async def undoing_at_once() -> None:
    await _play("pay_at_once", "pay")


async def finishing() -> None:
    await _play("send", "send_slowly", "look_up")


async def both_in_sequence() -> None:
    await _play("send", "pay", "build", parallel_tools=False)


async def with_hooks() -> None:
    await _play("send", "pay", hooks=[AsyncHooks()])


async def asking() -> None:
    await _play("pay_if_asked", "send")


async def failing() -> None:
    await _play("pay_for_good", "pay_too_slowly")


async def delegating() -> None:
    await _play("delegate", "pay")


async def sub_agents() -> None:
    did.clear()
    undone.clear()
    inner = Agent("Inner", script(_calls("send", "pay"), "Sent."), tools=[send, pay])
    agent = Agent("A", script([Call("inner", {"prompt": "Do it"}, id="c")], "Done."), tools=[inner.as_tool()])
    async for _ in reading(agent.stream_async("Go")):
        pass


async def alone() -> None:
    """One call is cancelled alone: the payment is undone, what is sent is let finish."""
    did.clear()
    undone.clear()
    agent = Agent("A", script(_calls("pay", "send"), "Done."), tools=TOOLS)
    async with agent.start("Go") as run:
        async for event in run:
            if event.event is RunEvent.tool_call_started:
                assert event.tool is not None
                await asyncio.sleep(0.25)
                run.cancel_tool(event.tool.call_id, "not this one")
        await run.result()


SCENARIOS = [
    undoing,
    undoing_at_once,
    finishing,
    both_in_sequence,
    with_hooks,
    asking,
    failing,
    delegating,
    sub_agents,
    alone,
]


def consistent(runs: Sequence[Run]) -> None:
    """What was done and undone is what the runs tell."""
    ends = {}
    for run in runs:
        for event in probe(run).events:
            if event.tool is not None and event.tool.outcome is not None:
                ends[event.tool.call_id] = event.tool.outcome
    for call_id, outcome in ends.items():
        mine = [each for each in undone if each.startswith(call_id)]
        if outcome is ToolOutcome.compensated:
            assert mine, (call_id, undone)
        elif outcome not in (ToolOutcome.cut, ToolOutcome.abandoned, ToolOutcome.failed):
            assert not mine, (call_id, outcome, undone)
        assert len(set(mine)) == len(mine), undone
        if call_id.startswith("build") and len(mine) == 2:
            assert mine == [f"{call_id} second", f"{call_id} first"]
    for run in runs:
        for each in [] if (receipt := probe(run).events[-1].receipt) is None else receipt.tools:
            assert each.undo is None or each.outcome in (ToolOutcome.cut, ToolOutcome.abandoned, ToolOutcome.failed)


CANCELS = (*MODES, *TWICE, Cancel("now", grace=0.25), Cancel("now", again="now", later=2))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_wherever_it_is_disturbed_no_call_is_undone_and_kept(scenario: Callable[[], Any]) -> None:
    explore(scenario, next_prompt=NEXT, check=consistent, cancels=CANCELS[:2]).raise_for_problems()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_in_every_mode(scenario: Callable[[], Any]) -> None:
    explore(scenario, inject="cancel", next_prompt=NEXT, check=consistent, cancels=CANCELS[2:]).raise_for_problems()


def test_with_force_nothing_is_let_finish() -> None:
    forced = Cancel("now", force=True)
    explore(
        finishing, inject="cancel", next_prompt=NEXT, cancels=[forced, Cancel("now", again="now", later=1)], within=None
    ).raise_for_problems()
    report = explore(finishing, inject="cancel", next_prompt=NEXT, cancels=forced, within=0)
    report.raise_for_problems()


def test_it_sees_a_call_that_is_undone_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision is taken away: a call that has a result of its own is undone as well."""
    monkeypatch.setattr(CallRecord, "decide_cut", lambda record: record.has_started)
    report = explore(undoing_at_once, inject="cancel", next_prompt=NEXT)
    assert any("was undone and kept" in problem.text for problem in report.problems), report
