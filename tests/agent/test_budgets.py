# SPDX-License-Identifier: Apache-2.0
"""Budgets: tokens and tool calls, of a run and all runs below it; their end is a cancel like any other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from andon import Agent, Budget, CancelCause, RunStatus, Runtime, tool
from andon.errors import ConfigurationError, ModelError
from andon.messages import Text
from andon.models.scripted import Burst, Call, Fail, Item, ScriptedModel, Spend, Stall
from andon.store import open_store
from andon.testing import validate
from tests.support import all_with, asked, make, paused, play


@tool
async def echo() -> str:
    return "echo"


def spends(tokens: int, *items: Any) -> list[Any]:
    return [*items, Spend(input_tokens=tokens - 1, output_tokens=1)]


def test_tokens_end_a_run_before_its_next_turn() -> None:
    agent = make(spends(60, Call("echo", id="c")), spends(60, "Never said."), tools=[echo])
    result = agent.run("go", budget=50)
    assert result.status is RunStatus.cancelled
    assert result.receipt is not None
    assert (result.receipt.cause, result.receipt.reason) == (CancelCause.budget, "60 of 50 tokens are spent")
    assert [(each.call_id, each.outcome) for each in result.receipt.tools] == [("c", "not_started")]
    assert result.message.content[-1] == Text("Cancelled: out of budget")
    assert len(asked(agent)) == 1
    assert validate(result.messages) == []
    assert agent.run("next", budget=500).status is RunStatus.completed


def test_an_answer_that_is_complete_is_an_answer() -> None:
    assert make(spends(60, "All of it.")).run("go", budget=50).status is RunStatus.completed


def test_an_answer_that_goes_on_and_on_is_cut() -> None:
    agent = make([Burst("word", 10_000, every=10)])
    result = agent.run("go", budget=100)
    assert result.receipt is not None
    assert result.receipt.cause is CancelCause.budget
    assert 400 <= len(result.content) < 600
    assert result.message.content[0] == Text(result.content)


def test_tool_calls_are_counted() -> None:
    agent = make([Call("echo", id=str(n)) for n in range(3)], "Done.", tools=[echo], parallel_tools=False)
    result = agent.run("go", budget=Budget(tool_calls=2))
    assert result.receipt is not None
    assert result.receipt.cause is CancelCause.budget
    assert [each.outcome for each in result.receipt.tools] == ["completed", "completed", "not_started"]
    again = make([Call("echo") for _ in range(2)], "Done.", tools=[echo])
    assert again.run("go", budget=Budget(tool_calls=2)).status is RunStatus.completed


def test_children_spend_what_their_parent_has() -> None:
    young = make(spends(40, Call("echo")), spends(40, "I see."), name="Young", tools=[echo])
    old = make(spends(10, Call("young", {"prompt": "look"}, id="c")), "Done.", name="Old", tools=[young.as_tool()])
    result = old.run("go", budget=45)
    assert result.status is RunStatus.cancelled
    assert result.receipt is not None
    assert result.receipt.cause is CancelCause.budget
    assert len(asked(young)) == 1


@pytest.mark.parametrize("end", [Stall(), Fail(ModelError("gone"))], ids=["cut", "failed"])
def test_what_a_child_spent_counts_however_it_ended(end: Item) -> None:
    young = Agent("Young", ScriptedModel(then=["x" * 400, end]))

    @tool
    async def ask() -> str:
        async with young.start("look", session_id=os.urandom(4).hex()) as run:
            async for event in run:
                if event.content and isinstance(end, Stall):
                    run.cancel()
        return run.status.name

    old = make(*[Call("ask")] * 3, "Done.", name="Old", tools=[ask])
    result = old.run("go", budget=150)
    assert result.receipt is not None
    assert result.receipt.cause is CancelCause.budget
    assert isinstance(young.model, ScriptedModel)
    assert len(young.model.requests) == 2


def test_a_child_with_a_budget_of_its_own_ends_alone() -> None:
    young = make(spends(40, Call("echo")), spends(40, "I see."), name="Young", tools=[echo])

    @tool
    async def ask() -> str:
        result = await young.invoke_async("look", budget=30)
        return f"{result.status.name}: {result.receipt and result.receipt.cause}"

    old = make(Call("ask"), "Done.", name="Old", tools=[ask])
    result = old.run("go", budget=1000)
    assert result.status is RunStatus.completed
    assert result.messages[2].tool_results[0].content == "cancelled: budget"


@pytest.mark.parametrize("budget", [-1, 1.5, "many", True, Budget(tokens=-1), Budget(tool_calls="x")])  # type: ignore[arg-type]
def test_a_budget_that_means_nothing(budget: Any) -> None:
    with pytest.raises(ConfigurationError, match="budget"):
        make("x").run("go", budget=budget)


def test_after_an_answer_in_another_process_it_is_still_the_whole_budget(tmp_path: Path) -> None:
    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def main() -> None:
        url = f"sqlite:///{tmp_path}/andon.db"
        calls = Budget(tool_calls=2), "all 2 tool calls are spent"
        for budget, words in ((500, "600 of 500 tokens are spent"), calls):
            first, other = Runtime(open_store(url)), Runtime(open_store(url))
            script = [spends(100, Call("pay")), *[spends(250, Call("echo"))] * 3]
            asking = make(*script[:1], tools=[pay, echo], runtime=first)
            run, result = await paused(asking, budget=budget)
            heir = make(*script[1:], tools=[pay, echo], runtime=other)
            ended = await heir.continue_run(run.run_id, all_with(True, result))
            assert ended.receipt is not None
            assert ended.receipt.cause is CancelCause.budget
            assert ended.receipt.reason == words
            await first.close()
            await other.close()

    play(main)
