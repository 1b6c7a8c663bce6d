# SPDX-License-Identifier: Apache-2.0
"""What a type checker makes of `output_type`: mypy reads this file with the others, and `assert_type` is its test."""

from __future__ import annotations

from typing import Any, Literal, assert_type

from pydantic import BaseModel

from andon import Agent, Run, RunResult
from tests.support import make, play


class Trip(BaseModel):
    title: str


ANSWER = '{"title": "North"}'


def title_of(agent: Agent) -> object:
    """An agent of any output is an `Agent`."""
    return agent.run("go").output


def test_an_agent_gives_what_it_was_made_for() -> None:
    trips = Agent("Trips", make(ANSWER).model, output_type=Trip)
    assert_type(trips, Agent[Trip])
    result = trips.run("go")
    assert_type(result, RunResult[Trip])
    assert_type(result.output, Trip | None)
    assert result.output == Trip(title="North")
    assert title_of(Agent("Trips", make(ANSWER).model, output_type=Trip)) == Trip(title="North")


def test_any_type_will_do() -> None:
    assert_type(Agent("A", output_type=list[Trip]), Agent[list[Trip]])
    assert_type(Agent("A", output_type=int | str), Agent[int | str])
    assert_type(Agent("A", output_type=Trip | None), Agent[Trip | None])
    assert_type(Agent("A", output_type=Literal["yes", "no"]), Agent[Literal["yes", "no"]])
    assert_type(Agent("A", output_type=dict[str, Any]), Agent[dict[str, Any]])
    assert_type(Agent("A"), Agent)


def test_what_a_call_asks_for_comes_first() -> None:
    agent = Agent("Trips", make(ANSWER, "[1]", "3", ANSWER).model, output_type=Trip)
    assert_type(agent.run("go").output, Trip | None)
    assert_type(agent.run("go", output_type=list[int]).output, list[int] | None)
    assert_type(agent.run("go", output_type=int | str, session_id="s").output, int | str | None)


def test_every_way_to_run_says_so() -> None:
    async def main() -> None:
        agent = Agent("Trips", make(ANSWER, "3", ANSWER, "3").model, output_type=Trip)
        assert_type((await agent.invoke_async("go")).output, Trip | None)
        assert_type((await agent.invoke_async("go", output_type=int)).output, int | None)
        async with agent.start("go") as run:
            assert_type(run, Run[Trip])
            assert_type((await run.result()).output, Trip | None)
        async with agent.start("go", output_type=int) as other:
            assert_type((await other.result()).output, int | None)

    play(main)


async def continued(agent: Agent[Trip]) -> None:
    """Only read by the type checker."""
    assert_type((await agent.continue_run("r")).output, Trip | None)
    assert_type((await agent.continue_run("r", output_type=list[str])).output, list[str] | None)
