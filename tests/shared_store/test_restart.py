# SPDX-License-Identifier: Apache-2.0
"""A paused run outlives everything that ran it: it goes on, with what it had left, wherever it is answered."""

from __future__ import annotations

from typing import Any

import pytest

from andon import Agent, Budget, CancelCause, CancelOutcome, Deny, RunStatus, Runtime, ToolContext, tool
from andon.core.run.handle import local_run
from andon.errors import AnswersError
from andon.messages import Usage
from andon.models.scripted import Call, ScriptedModel, Spend, Turn
from andon.testing import probe
from tests.shared_store.helpers import check_stored, ended, on, runtimes
from tests.support import paused, play
from tests.support.till import DELETE, LOOK, PAY, Till


def test_what_a_run_had_left_is_what_it_has_left(url: str) -> None:
    async def main() -> None:
        till = Till()
        async with runtimes(url, 1) as (before,):
            agent = on(before, [DELETE, LOOK, Spend(Usage(10, 5))], tools=till.tools)
            options: dict[str, Any] = {"max_turns": 2, "timeout": 100.0, "budget": Budget(50, 3)}
            run, result = await paused(agent, session_id="s", metadata={"why": "a test"}, **options)
            assert till.did == ["looked"]
        async with runtimes(url, 1) as (after,):
            agent = on(after, LOOK, LOOK, tools=till.tools)
            again = await agent.resume_run(run.run_id, {result.interrupts[0].id: True})
            assert local_run(again).limits.timeout is not None
            timeout = local_run(again).limits.timeout
            assert timeout is not None
            assert 0 < timeout < 100
            assert probe(again).budget_left is not None
            done = await again.result()
            assert till.did == ["looked", "all", "looked"]
            assert (done.stop_reason, done.metadata) == ("max_turns", {"why": "a test"})
            assert (probe(again).budget_left or Budget()).tool_calls == 0
            assert ((probe(again).budget_left or Budget()).tokens or 0) <= 35
            assert done.usage.input_tokens is None or done.usage.input_tokens >= 10
            await check_stored(after, run.run_id, RunStatus.completed)

    play(main)


def test_a_tool_that_asks_again_gets_its_earlier_answers(url: str) -> None:
    got: list[list[str]] = []

    @tool
    async def order(ctx: ToolContext) -> str:
        got.append([])
        for question in ("what?", "where?"):
            got[-1].append(ctx.interrupt(question))
        return " ".join(got[-1])

    async def main() -> None:
        async with runtimes(url, 1) as (one,):
            run, result = await paused(on(one, Call("order", id="c"), tools=[order]), session_id="s")
        async with runtimes(url, 1) as (two,):
            agent = on(two, tools=[order])
            for wrong in ({}, {"c-9": 1}, {result.interrupts[0].id: 1, "c-9": 1}):
                with pytest.raises(AnswersError, match="stays paused"):
                    await agent.continue_run(run.run_id, wrong)
            result = await agent.continue_run(run.run_id, {result.interrupts[0].id: "tea"})
            assert [each.name for each in result.interrupts] == ["where?"]
        async with runtimes(url, 1) as (three,):
            result = await on(three, "Fine.", tools=[order]).continue_run(run.run_id, {result.interrupts[0].id: "here"})
            assert (result.status, got[-1]) == (RunStatus.completed, ["tea", "here"])
            assert result.messages[2].tool_results[0].content == "tea here"
            await check_stored(three, run.run_id, RunStatus.completed)

    play(main)


def _family(runtime: Runtime, till: Till, child: Turn, *parent: Turn) -> Agent:
    asker = Agent("asker", ScriptedModel(child), tools=till.tools, runtime=runtime)
    return Agent("parent", ScriptedModel(*parent), tools=[asker.as_tool()], runtime=runtime)


def test_a_question_of_a_sub_agent(url: str) -> None:
    async def main() -> None:
        till = Till()
        call = Call("asker", {"prompt": "help"}, id="c")
        async with runtimes(url, 1) as (before,):
            run, result = await paused(_family(before, till, [DELETE, PAY], call), session_id="s")
            assert len(result.interrupts) == 2
        async with runtimes(url, 1) as (after,):
            agent = _family(after, till, "All gone.", "It is done.")
            while result.interrupts:
                result = await agent.continue_run(run.run_id, {each.id: True for each in result.interrupts})
            assert (result.status, result.content) == (RunStatus.completed, "It is done.")
            assert result.messages[2].tool_results[0].content == "All gone."
            assert sorted(map(str, till.did)) == ["True", "all"]
            await check_stored(after, run.run_id, RunStatus.completed)
            await check_stored(after, f"{run.run_id}.c", RunStatus.completed)

    play(main)


@pytest.mark.parametrize("taken_up", [False, True], ids=["paused", "going on"])
def test_the_cancel_of_a_run_reaches_the_sub_agent_that_asked(url: str, taken_up: bool) -> None:
    async def main() -> None:
        till = Till()
        call = Call("asker", {"prompt": "help"}, id="c")
        async with runtimes(url, 1) as (before,):
            run, result = await paused(_family(before, till, DELETE, call), session_id="s")
        async with runtimes(url, 1) as (after,):
            agent = _family(after, till, "Never.")
            if taken_up:  # and cancelled before its tool was entered again
                again = await agent.resume_run(run.run_id, {result.interrupts[0].id: True})
                assert again.cancel() is CancelOutcome.requested
                assert (await again.result()).status is RunStatus.cancelled
                await probe(again).ended()
            assert after.worker is not None
            await after.cancel(run_id=run.run_id)
            await check_stored(after, run.run_id, RunStatus.cancelled, CancelCause.user)
            await ended(after, f"{run.run_id}.c")  # by whoever looks for what nobody ends, and that may be the worker
            await check_stored(after, f"{run.run_id}.c", RunStatus.cancelled, CancelCause.parent)
            assert till.did == []

    play(main)


def test_a_refusal_and_a_tool_that_is_not_there_any_more(url: str) -> None:
    async def main() -> None:
        async with runtimes(url, 1) as (before,):
            run, result = await paused(on(before, [DELETE, PAY], tools=Till().tools), session_id="s")
        async with runtimes(url, 1) as (after,):
            till = Till()
            by_call = {each.call_id: each.id for each in result.interrupts}
            answers = {by_call["d"]: Deny("keep it"), by_call["p"]: "now"}
            done = await on(after, "I see.", tools=[till.delete]).continue_run(run.run_id, answers)
            assert (done.status, done.content, till.did) == (RunStatus.completed, "I see.", [])
            told = {each.call_id: each.content for each in done.messages[2].tool_results}
            assert "keep it" in told["d"]
            assert "pay" in told["p"]
            await check_stored(after, run.run_id, RunStatus.completed)

    play(main)
