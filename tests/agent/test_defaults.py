# SPDX-License-Identifier: Apache-2.0
"""An agent's own limits: they hold for each of its runs, and a call's own value wins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from andon import Agent, Budget, CancelCause, ConfigurationError, RunStatus, StopReason, Usage, tool
from andon.models.scripted import Call, ScriptedModel, Spend
from andon.testing import probe
from tests.support import Silence, play
from tests.support.clock import StoppedClock, time_is_up


@tool
async def again() -> str:
    return "again"


def endless(**options: Any) -> tuple[ScriptedModel, Agent]:
    """Asks for a tool for ever."""
    model = ScriptedModel(then=[Call("again"), Spend(Usage(10, 10))])
    return model, Agent("Endless", model, tools=[again], **options)


def test_a_run_has_50_turns_unless_somebody_says_otherwise() -> None:
    async def main() -> None:
        model, agent = endless()
        result = await agent.invoke_async("go")
        assert result.stop_reason is StopReason.max_turns
        assert len(model.requests) == 50

    play(main)


def test_a_call_s_own_number_of_turns_wins() -> None:
    async def main() -> None:
        model, agent = endless(max_turns=3)
        assert (await agent.invoke_async("go")).stop_reason is StopReason.max_turns
        assert len(model.requests) == 3
        assert (await agent.invoke_async("go", max_turns=5)).stop_reason is StopReason.max_turns
        assert len(model.requests) == 3 + 5

    play(main)


def test_none_says_that_a_run_has_no_limit() -> None:
    async def main() -> None:
        model, agent = endless(max_turns=3, budget=30)
        result = await agent.invoke_async("go", max_turns=None, budget=2_000)
        assert result.receipt is not None
        assert result.receipt.cause is CancelCause.budget
        assert len(model.requests) == 100
        assert (await agent.invoke_async("go", budget=None)).stop_reason is StopReason.max_turns

    play(main)


def test_an_agent_s_budget_holds_for_each_of_its_runs() -> None:
    async def main() -> None:
        model, agent = endless(budget=Budget(tool_calls=2))
        for sent in (3, 6):
            result = await agent.invoke_async("go")
            assert result.receipt is not None
            assert result.receipt.cause is CancelCause.budget
            assert len(model.requests) == sent
        assert agent.budget == Budget(tool_calls=2)

    play(main)


def test_an_agent_s_timeout_holds_for_each_of_its_runs() -> None:
    async def main() -> None:
        silence = Silence()
        agent = Agent("Slow", ScriptedModel(then=["Half a ", silence]), timeout=5)
        clock = asyncio.create_task(time_is_up(silence.reached))
        result = await agent.invoke_async("go")
        await clock
        assert result.receipt is not None
        assert result.receipt.cause is CancelCause.deadline
        async with agent.start("go", timeout=None) as run:
            assert probe(run).deadline is None

    play(main, loop=StoppedClock)


def test_a_sub_agent_keeps_to_its_own_limits() -> None:
    async def main() -> None:
        model, child = endless(max_turns=4)
        calls = ScriptedModel(Call("endless", {"prompt": "go"}), then="Done.")
        result = await Agent("Parent", calls, tools=[child.as_tool()], max_turns=2).invoke_async("go")
        assert result.status is RunStatus.completed
        assert len(model.requests) == 4

    play(main)


def test_a_run_that_goes_on_after_a_cut_has_the_agent_s_limits_again() -> None:
    async def main() -> None:
        model, agent = endless(max_turns=3, budget=Budget(tool_calls=1))
        cut = await agent.invoke_async("go")
        assert cut.status is RunStatus.cancelled
        assert (await agent.continue_run(cut.run_id, budget=None)).stop_reason is StopReason.max_turns
        assert len(model.requests) == 2 + 3

    play(main)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_turns": 0}, "max_turns is 0"),
        ({"max_turns": "many"}, "max_turns is 'many'"),
        ({"timeout": -1}, "timeout is -1"),
        ({"budget": "all"}, "budget is 'all'"),
    ],
)
def test_a_limit_that_is_none_is_refused_where_it_is_written(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        endless(**options)


def test_a_sub_agent_without_turns_left_has_not_done_what_it_was_asked_for() -> None:
    """Its caller's model is told so: what there is of an answer is no answer."""

    async def main() -> None:
        _, agent = endless(max_turns=2)
        boss = Agent("Boss", ScriptedModel(Call("endless", {"prompt": "go"}), then="So."), tools=[agent.as_tool()])
        (result,) = (await boss.invoke_async("go")).messages[2].tool_results
        assert result.status == "error"
        assert "Endless was not done when it had no turns left" in result.content

    play(main)
