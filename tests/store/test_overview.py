# SPDX-License-Identifier: Apache-2.0
"""What a database tells those who watch all of its runs."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator

from andon import Agent, Event, Run, RunStatus, Runtime
from andon.core.shared.overview import OverviewStore
from andon.core.shared.store import SharedStore
from andon.models.scripted import Call, ScriptedModel, Stall
from andon.store import open_store
from tests.support.checks import paused
from tests.support.till import DELETE, Till


def overview(runtime: Runtime) -> OverviewStore:
    store = runtime.store
    assert isinstance(store, OverviewStore)
    return store


def test_what_goes_on_and_what_has_ended(url: str) -> None:
    async def main() -> None:
        runtime = Runtime(open_store(url))
        child = Agent("Child", ScriptedModel(["Hm. ", Stall()]))
        call = Call("child", {"prompt": "look"}, id="c")
        agent = Agent(
            "Helper",
            ScriptedModel("Hello.", call, DELETE),
            tools=[child.as_tool(events=True), *Till().tools],
            runtime=runtime,
        )
        begun = time.time()
        await agent.invoke_async("Hi", session_id="s1", run_id="over", user_id="ada")
        async with agent.start("Hi", session_id="s2", run_id="going") as going:
            await check(runtime, agent, going, begun)
        await runtime.close()

    asyncio.run(main())


async def check(runtime: Runtime, agent: Agent, going: Run, begun: float) -> None:
    store = overview(runtime)
    assert any([event.content == "Hm. " async for event in up_to_text(going)])
    asks, _ = await paused(agent, session_id="s3", run_id="asks")
    assert runtime.worker is not None
    assert await runtime.worker.read("going.c", 0).batch(), "they are written"
    live = {each.record.run_id: each for each in await store.live_runs(10)}
    assert live["going.c"].record.parent_run_id == "going"
    assert live["going"].owner == live["going.c"].owner is not None
    assert (live["asks"].record.status, live["asks"].owner) == (RunStatus.paused, None)
    assert [each.name for each in live["asks"].record.interrupts] == ["delete"]
    assert all(each.ended_at is None for each in live.values())
    assert [each.record.run_id for each in await store.live_runs(1)] == ["asks"]

    (ended,) = await store.ended_runs(begun - 60, math.inf, 10)
    assert (ended.record.run_id, ended.record.status) == ("over", RunStatus.completed)
    assert ended.record.session == ("helper", "ada", "s1")
    assert ended.ended_at is not None
    assert await store.ended_runs(ended.ended_at + 1, math.inf, 10) == []

    assert [each.record.run_id for each in await store.run_tree("going", 10)] == ["going", "going.c"]
    assert [each.record.run_id for each in await store.run_tree("going", 1)] == ["going"]
    assert [each.record.run_id for each in await store.run_tree("going.c", 10)] == ["going.c"]
    assert await store.run_tree("nothing", 10) == []

    found = await store.new_events({"going.c": 0, "asks": 1, "nothing": 0}, 1)
    assert [event.event.value for event in found["going.c"]] == ["RunStarted"]
    assert [event.seq for event in found["asks"]] == [2]
    assert found["nothing"] == []

    await going.cancel_and_wait(reason="enough")
    await asks.cancel_and_wait()
    last = {each.record.run_id: each.record for each in await store.ended_runs(begun - 60, math.inf, 10)}
    assert last.keys() == {"over", "going", "going.c", "asks"}
    receipt = last["going"].receipt
    assert receipt is not None
    assert (receipt.reason, [tool.name for tool in receipt.tools]) == ("enough", ["child"])
    assert [each.record.run_id for each in await store.run_tree("going", 10)] == ["going", "going.c"]
    assert await store.ended_runs(begun - 60, ended.ended_at, 10) == [ended]
    assert await store.live_runs(10) == []


async def up_to_text(run: Run) -> AsyncIterator[Event]:
    async for event in run:
        yield event
        if event.content:
            break


def test_an_entire_store_is_more_than_a_shared_one() -> None:
    """A shared store of one's own need not have what only boards need."""
    needed = {name for name in vars(SharedStore) if not name.startswith("_")}
    assert needed.isdisjoint(name for name in vars(OverviewStore) if not name.startswith("_"))
