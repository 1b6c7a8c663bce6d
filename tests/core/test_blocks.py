# SPDX-License-Identifier: Apache-2.0
"""Blocks, the record of cancels and the limit of events, without a server."""

from __future__ import annotations

import asyncio

import pytest

from andon import Agent, ConfigurationError, RunStatus, Runtime, tool
from andon.core.selection import Selection
from andon.core.states import CancelCause
from andon.errors import BlockedError
from andon.models.scripted import Burst, Call, Item, ScriptedModel, Stall, Think


def test_new_runs_of_who_is_blocked_are_refused_in_every_way() -> None:
    runtime = Runtime()
    agent = Agent("Helper", ScriptedModel(), runtime=runtime)

    async def main() -> None:
        await runtime.block("user", "ada", by="ops", reason="a reason")
        with pytest.raises(BlockedError, match=r"user 'ada' are blocked \(a reason\)"):
            await agent.invoke_async("Hi", user_id="ada")
        with pytest.raises(BlockedError):
            async for _ in agent.stream_async("Hi", user_id="ada"):
                pass
        assert (await agent.invoke_async("Hi", user_id="bob")).status is RunStatus.completed
        assert (await agent.invoke_async("Hi")).status is RunStatus.completed
        (block,) = await runtime.blocks()
        assert (block.kind, block.id, block.by, block.reason) == ("user", "ada", "ops", "a reason")
        assert await runtime.unblock("user", "ada")
        assert not await runtime.unblock("user", "ada")
        assert (await agent.invoke_async("Hi", user_id="ada")).status is RunStatus.completed

    asyncio.run(main())
    with pytest.raises(BlockedError, match="agent 'helper'"):
        asyncio.run(runtime.block("agent", "helper"))
        agent.run("Hi")
    assert runtime.runs == []


def test_a_blocked_sub_agent_is_a_failed_call_of_its_parent() -> None:
    runtime = Runtime()
    helper = Agent("Helper", ScriptedModel(), runtime=runtime)
    boss = Agent(
        "Boss", ScriptedModel(Call("helper", {"prompt": "Hi"}), "Done."), runtime=runtime, tools=[helper.as_tool()]
    )
    asyncio.run(runtime.block("agent", "helper"))
    result = boss.run("Go")
    assert result.status is RunStatus.completed
    assert "blocked" in str(result.messages[2])


@pytest.mark.parametrize("script", [Burst("x", 1000), Think("x " * 1000)], ids=["text", "reasoning"])
def test_a_run_that_writes_too_much_is_out_of_budget(script: Item) -> None:
    agent = Agent("Helper", ScriptedModel([script, Stall()], then="OK."), runtime=Runtime(max_events=50))
    result = agent.run("Hi")
    assert result.receipt is not None
    assert result.receipt.cause is CancelCause.budget
    assert "50 events" in str(result.receipt.reason)
    assert agent.run("Hi").status is RunStatus.completed


def test_a_run_of_tool_calls_can_write_too_much_as_well() -> None:
    @tool
    async def look() -> str:
        """Look around."""
        return "Nothing."

    agent = Agent("Helper", ScriptedModel(then=Call("look")), tools=[look], runtime=Runtime(max_events=20))
    result = agent.run("Hi", max_turns=1000)
    assert result.receipt is not None
    assert result.receipt.cause is CancelCause.budget


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_the_smallest_limits_end_a_run_once(limit: int) -> None:
    agent = Agent("Helper", ScriptedModel("OK."), runtime=Runtime(max_events=limit))
    result = agent.run("Hi")  # it writes three events of its own
    assert result.status is (RunStatus.cancelled if limit < 3 else RunStatus.completed)


def test_a_limit_that_means_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_events"):
        Runtime(max_events=-1)


def test_cancels_are_on_record_while_they_are_going_on_and_after() -> None:
    runtime = Runtime()
    runtime.keep_ended(seconds=0)
    agent = Agent("Helper", ScriptedModel(then=Stall()), runtime=runtime)

    async def main() -> None:
        async with agent.start("Hi", run_id="r1", user_id="ada") as run:
            run.cancel(by="ops", reason="a reason")
            (entry,) = await runtime.cancel_log(Selection())
            await run.result()
            assert await runtime.cancel_log(Selection(user_id="ada")) == [entry]
            assert (entry.run_id, entry.request.by, entry.request.reason) == ("r1", "ops", "a reason")
            assert await runtime.cancel_log(Selection(user_id="bob")) == []
            assert runtime.cancel_counts == {CancelCause.user: 1}
            assert sum(runtime.cancel_latencies.counts) == 1

    asyncio.run(main())
