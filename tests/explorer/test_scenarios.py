# SPDX-License-Identifier: Apache-2.0
"""The explorer over everything that a run can be doing: each scenario is disturbed at each of its steps.

`within=0` says that a cancel with mode `now` takes no time at all, unless the scenario's own code needs some.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from andon import Agent, Event, Run, RunEvent, Runtime, tool
from andon.core.run.handle import local_run
from andon.errors import ModelError
from andon.models.scripted import Burst, Call, Fail, Item, Pause, Say, ScriptedModel, Spend, Stall, Think
from andon.testing import Cancel, explore, probe, reading
from tests.explorer.parts import (
    MODES,
    NEXT,
    THREE,
    TWICE,
    AsyncHooks,
    BrokenHooks,
    SlowStore,
    SyncHooks,
    at_once,
    break_down,
    gather_all,
    in_a_thread,
    look_up,
    roll_back,
    rolled_back,
    rolled_back_in_full,
    script,
    stubborn,
)

pytestmark = pytest.mark.no_cover  # many thousand disturbances, which the tracer would slow down by more than half

# -- scenarios --------------------------------------------------------------------------------------------------------


async def plain_text() -> None:
    agent = Agent("A", script([Say("Once upon a time.", pace=0.1), Spend(input_tokens=5, output_tokens=4)]))
    async for _ in reading(agent.stream_async("Tell me")):
        pass


async def burst() -> None:
    await Agent("A", script(Burst("x ", 40, every=10))).invoke_async("Go")


async def reasoning() -> None:
    turn: list[str | Item] = [Think("Let me think.", pace=0.1), Say("Yes it is.", pace=0.1), Think("Hm", None), "So."]
    agent = Agent("A", script(turn))
    async for _ in reading(agent.stream_async("Is it?")):
        pass


async def one_tool() -> None:
    agent = Agent("A", script([Call("look_up", {"word": "tea"})], "Here it is."), tools=[look_up])
    async for _ in reading(agent.stream_async("Find tea")):
        pass


async def three_parallel_tools() -> None:
    await Agent("A", script(THREE, "There."), tools=[look_up, at_once]).invoke_async("Go")


async def three_sequential_tools() -> None:
    await Agent("A", script(THREE, "There."), tools=[look_up, at_once], parallel_tools=False).invoke_async("Go")


async def two_turns_of_tools() -> None:
    agent = Agent("A", script(THREE, [Call("look_up", {"word": "d"})], "There."), tools=[look_up, at_once])
    async for _ in reading(agent.stream_async("Go")):
        pass


async def failing_tool() -> None:
    agent = Agent("A", script([Call("break_down"), Call("at_once", {"word": "x"})]), tools=[break_down, at_once])
    await agent.invoke_async("Go")


async def awaiting_finally() -> None:
    rolled_back.clear()
    await Agent("A", script([Call("roll_back")], "Done."), tools=[roll_back]).invoke_async("Go")


async def stubborn_tool() -> None:
    agent = Agent("A", script([Call("stubborn"), Call("at_once", {"word": "x"})]), tools=[stubborn, at_once])
    await agent.invoke_async("Go")


async def tool_with_tasks() -> None:
    await Agent("A", script([Call("gather_all")]), tools=[gather_all]).invoke_async("Go")


async def call_in_pieces() -> None:
    pieces = Call("look_up", {"word": "tea"}, pieces=5, pace=0.1)
    agent = Agent("A", script(["Well, ", pieces, Call("at_once", {"word": "x"}, pieces=3, pace=0.1)]),
                  tools=[look_up, at_once])  # fmt: skip
    async for _ in reading(agent.stream_async("Find tea")):
        pass


async def bad_calls() -> None:
    calls = [Call("nothing_like_it"), Call("at_once", "{broken"), Call("at_once", {"wrong": 1}),
             Call("at_once", {"word": "x"})]  # fmt: skip
    await Agent("A", script(calls), tools=[at_once]).invoke_async("Go")


async def retries() -> None:
    overloaded = Fail(ModelError("overloaded", retryable=True))
    wait = Fail(ModelError("slow down", retryable=True, retry_after=3))
    await Agent("A", ScriptedModel(overloaded, wait, "Now it works.")).invoke_async("Go")


async def failing_model() -> None:
    agent = Agent("A", script(["I was ", Fail(ModelError("gone"))]))
    result = await agent.invoke_async("Go")
    assert result.stop_reason in ("error", "cancelled")


async def failing_model_after_calls() -> None:
    calls = [Call("look_up", {"word": "tea"}, pieces=2, pace=0.1), Call("at_once", {"word": "x"})]
    agent = Agent("A", script([*calls, "And ", Fail(ModelError("gone"))]), tools=[look_up, at_once])
    await agent.invoke_async("Go")


async def out_of_turns() -> None:
    agent = Agent("A", script([Call("at_once", {"word": "x"})], [Call("at_once", {"word": "y"})]), tools=[at_once])
    await agent.invoke_async("Go", max_turns=1)


async def hooks_sync() -> None:
    await Agent("A", script(THREE), tools=[look_up, at_once], hooks=[SyncHooks()]).invoke_async("Go")


async def hooks_async() -> None:
    await Agent("A", script(THREE), tools=[look_up, at_once], hooks=[AsyncHooks()]).invoke_async("Go")


async def hooks_broken() -> None:
    turn = [Call("at_once", {"word": "x"})]
    await Agent("A", script(turn), tools=[at_once], hooks=[BrokenHooks()]).invoke_async("Go")


# -- sessions ---------------------------------------------------------------------------------------------------------


async def queued() -> None:
    agent = Agent("A", script([Call("look_up", {"word": "tea"})]), tools=[look_up])
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.invoke_async("first"))
        group.create_task(agent.invoke_async("second", on_busy="queue"))


async def three_queued() -> None:
    agent = Agent("A", script([Say("Hello there.", pace=0.1)]))
    async with asyncio.TaskGroup() as group:
        for prompt in ("first", "second", "third"):
            group.create_task(agent.invoke_async(prompt, on_busy="queue"))


async def superseded() -> None:
    agent = Agent("A", script([Call("look_up", {"word": "tea"})]), tools=[look_up])
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.invoke_async("first"))
        await asyncio.sleep(1)
        group.create_task(agent.invoke_async("second", on_busy="cancel"))


async def many_sessions() -> None:
    agent = Agent("A", script([Say("Hello there.", pace=0.1)]))
    async with asyncio.TaskGroup() as group:
        for user_id in ("ann", "bob"):
            group.create_task(agent.invoke_async("Hello", session_id="s1", user_id=user_id))


async def talk_after_leaving() -> None:
    agent = Agent("A", script([Say("Hello there.", pace=0.1)]))
    async for _ in reading(agent.stream_async("first")):
        pass
    await agent.invoke_async("second")


async def leave_and_talk() -> None:
    agent = Agent("A", ScriptedModel.story(pace=0.1))
    async for event in agent.stream_async("first"):
        if event.event is RunEvent.run_content:
            break
    await agent.invoke_async("second")


async def talk_at_the_end() -> None:
    """When the terminal event can be read, everything else is final: the session is free, the end is stored."""
    agent = Agent("A", script([Call("look_up", {"word": "tea"})]), tools=[look_up])
    assert agent.runtime.store is not None
    async with agent.start("first") as run:
        async for event in run:
            if event.event.terminal:
                assert run.status is event.status
                assert agent.runtime.runs == []
                assert agent.messages == await agent.runtime.store.load(local_run(run).session.key)
                await agent.invoke_async("second")


async def several_readers() -> None:
    agent = Agent("A", script([Say("Once upon a time.", pace=0.1)]))
    async with agent.start("Go") as run, asyncio.TaskGroup() as group:
        readers = [group.create_task(_read(run, after)) for after in (0, 0, 3)]
    assert [reader.result() for reader in readers] == [probe(run).events, probe(run).events, probe(run).events[3:]]


async def _read(run: Run, after: int) -> list[Event]:
    return [event async for event in run.events(after)]


async def shared_runtime() -> None:
    runtime = Runtime()
    one, other = (Agent(name, script([Say("Hello there.", pace=0.1)]), runtime=runtime) for name in ("One", "Other"))
    async with asyncio.TaskGroup() as group:
        group.create_task(one.invoke_async("Hello", session_id="s1"))
        group.create_task(other.invoke_async("Hello", session_id="s1"))


async def run_in_a_tool() -> None:
    helper = Agent("Helper", script([Call("look_up", {"word": "tea"})], "Tea it is."), tools=[look_up])

    @tool
    async def delegate() -> str:
        return (await helper.invoke_async("Find out")).content

    await Agent("A", script([Call("delegate")], "There."), tools=[delegate]).invoke_async("Go")


# -- cancels of the scenario's own ------------------------------------------------------------------------------------


async def cancel_on_event() -> None:
    agent, event = Agent("A", script([Say("Once upon a time.", pace=0.1)])), asyncio.Event()
    asyncio.get_running_loop().call_later(0.25, event.set)
    await agent.invoke_async("Go", cancel_on=event)


async def cancel_on_unset_event() -> None:
    await Agent("A", script("Short.")).invoke_async("Go", cancel_on=asyncio.Event())


async def out_of_time() -> None:
    agent = Agent("A", script(THREE), tools=[look_up, at_once])
    await agent.invoke_async("Go", timeout=1.5)


async def enough_time() -> None:
    await Agent("A", script("Short.")).invoke_async("Go", timeout=60)


async def armed() -> None:
    agent = Agent("A", script("Never said."))
    assert agent.cancel()
    await agent.invoke_async("Go")


async def cancelled_by_its_tool() -> None:
    @tool
    async def stop_all() -> str:
        agent.cancel(mode="after_tools")
        await asyncio.sleep(1)
        return "stopped"

    agent = Agent("A", script([Call("stop_all"), Call("at_once", {"word": "x"})], "Never."), tools=[stop_all, at_once])
    await agent.invoke_async("Go")


async def cancelled_and_waited_for() -> None:
    agent = Agent("A", script(["Well, ", Stall()]))
    async with agent.start("Go") as run:
        async for event in run:
            if event.event is RunEvent.run_content:
                break
        await run.cancel_and_wait()
        await run.result()


async def handle_left() -> None:
    async with Agent("A", script(THREE), tools=[look_up, at_once]).start("Go") as run:
        async for event in run:
            if event.event is RunEvent.tool_call_started:
                break


async def host_with_a_time_limit() -> None:
    agent = Agent("A", script(THREE), tools=[look_up, at_once])
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.5):
            await agent.invoke_async("Go")


# -- waiting for ever -------------------------------------------------------------------------------------------------


async def silence() -> None:
    async for _ in reading(Agent("A", script(Stall())).stream_async("Go")):
        pass


async def stalled_stream() -> None:
    async for _ in reading(Agent("A", script(["One moment", Think("Hm", None), Stall()])).stream_async("Go")):
        pass


async def stalled_call() -> None:
    @dataclass(frozen=True)
    class Half(Pause):
        async def play(self, sink: Any, model: ScriptedModel) -> None:
            sink.tool_call("half", "at_once", '{"wor')
            await super().play(sink, model)

    turn = [Call("at_once", {"word": "x"}), Half(1), Stall()]
    async for _ in reading(Agent("A", script(turn), tools=[at_once]).stream_async("Go")):
        pass


# -- stores -----------------------------------------------------------------------------------------------------------


async def slow_store() -> None:
    agent = Agent("A", script([Call("at_once", {"word": "x"})]), tools=[at_once], runtime=Runtime(SlowStore()))
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.invoke_async("first"))
        group.create_task(agent.invoke_async("second", on_busy="queue"))


async def sync_tool() -> None:
    calls = [Call("in_a_thread", {"word": "tea"}), Call("at_once", {"word": "x"})]
    await Agent("A", script(calls), tools=[in_a_thread, at_once]).invoke_async("Go")


# -- the exploration --------------------------------------------------------------------------------------------------


SCENARIOS: dict[Callable[[], Coroutine[Any, Any, None]], dict[str, Any]] = {
    plain_text: {"cancels": MODES},
    burst: {},
    reasoning: {"cancels": MODES},
    one_tool: {"cancels": MODES + TWICE},
    three_parallel_tools: {"cancels": MODES + TWICE},
    three_sequential_tools: {"cancels": MODES + TWICE},
    two_turns_of_tools: {"cancels": MODES},
    failing_tool: {"cancels": MODES},
    awaiting_finally: {"cancels": MODES, "within": 0.5, "check": rolled_back_in_full},
    stubborn_tool: {"cancels": MODES, "within": 2.0},
    tool_with_tasks: {"cancels": MODES},
    call_in_pieces: {"cancels": MODES},
    bad_calls: {"cancels": MODES},
    retries: {"cancels": MODES},
    failing_model: {"next_prompt": NEXT},
    failing_model_after_calls: {"next_prompt": NEXT},
    out_of_turns: {"cancels": MODES},
    hooks_sync: {"cancels": MODES},
    hooks_async: {"cancels": ("now", Cancel("after_turn", grace=0.05), Cancel("after_tools", again="now", later=2))},
    hooks_broken: {"cancels": MODES},
    queued: {"cancels": MODES + TWICE},
    three_queued: {"cancels": MODES},
    superseded: {"cancels": MODES},
    many_sessions: {"cancels": MODES},
    talk_after_leaving: {"cancels": MODES},
    leave_and_talk: {},
    talk_at_the_end: {"cancels": MODES},
    several_readers: {"cancels": MODES},
    shared_runtime: {},
    run_in_a_tool: {"cancels": MODES},
    cancel_on_event: {"cancels": MODES},
    cancel_on_unset_event: {},
    out_of_time: {"cancels": MODES},
    enough_time: {},
    armed: {"cancels": MODES},
    cancelled_by_its_tool: {"cancels": MODES + TWICE},
    cancelled_and_waited_for: {},
    handle_left: {"cancels": MODES},
    host_with_a_time_limit: {},
    silence: {"stalls": True, "cancels": ("now", "after_tools", Cancel("after_turn", grace=1))},
    stalled_stream: {"stalls": True, "cancels": ("now", "after_tools", Cancel("after_turn", grace=1))},
    stalled_call: {"stalls": True, "cancels": ("now", "after_tools", Cancel("after_turn", grace=1))},
    slow_store: {"cancels": MODES, "within": 1.0},
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_step_can_be_cancelled(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    options = {"within": 0.0, "next_prompt": NEXT, **SCENARIOS[scenario]}
    report = explore(scenario, **options)
    report.raise_for_problems()
    assert report.repeatable
    assert report.missed == 0
    assert report.injections > report.steps


def test_a_sync_tool_can_be_cancelled_at_every_step() -> None:
    # Its thread is real, so the steps may differ from one time to the next.
    explore(sync_tool, cancels=MODES, next_prompt=NEXT).raise_for_problems()
