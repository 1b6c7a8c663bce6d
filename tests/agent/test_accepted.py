# SPDX-License-Identifier: Apache-2.0
"""Whatever a cut leaves, asked by people, trees and limits: the next prompt is accepted by OpenAI's strict fakes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from andon import Agent, Budget, CancelCause, Deny, RunResult, RunStatus, ToolContext, tool
from andon.models.openai import OpenAIChat
from andon.models.scripted import Call, ScriptedModel
from andon.testing import probe
from andon.testing.providers import FakeChat, call, fail, reasoning, silence, stall, text
from andon.testing.providers import cut as lose
from tests.support import Flag, forever, play
from tests.support.openai import Api, each_api

pytestmark = pytest.mark.no_cover  # many repetitions of what other tests cover

Situation = Callable[[Agent, "Tools"], Awaitable[object]]

THREE = [reasoning("Let me see."), call("done", {}), call("stuck", {}), call("delete", {"path": "x"})]
STUCK = [text("Well. "), call("done", {}), call("stuck", {}), call("done", {})]
ASKS = [call("delete", {"path": "x"}), call("paint", {}), call("done", {})]
STALLS = [text("Once upon "), stall()]
CHILD = [call("done", {}), call("helper", {"prompt": "help"})]
TREE = [call("middle", {"prompt": "one"}), call("done", {}), call("middle", {"prompt": "two"})]
BELOW = [call("asker", {"prompt": "ask"}), call("done", {})]
HALF = call("delete", {"path": "a long way down"}, pieces=4, send=2)
HURRY = [call("done", {}), call("hurried", {}), call("done", {})]


def playing(prompt: str, answer: list[Any], then: str) -> Callable[[dict[str, Any]], list[Any]]:
    """Answers the prompt so, whenever it is asked, and all that comes after it with a word."""

    def play(body: dict[str, Any]) -> list[Any]:
        last = (body.get("messages") or body["input"])[-1]
        asked = last.get("role") == "user" and f'"{prompt}"' in json.dumps(last)
        return answer if asked else [text(then)]

    return play


class Tools:
    """What the situations are made of."""

    def __init__(self) -> None:
        self.reached = Flag()
        self.hold = True

    def all(self) -> list[Any]:
        @tool
        async def done() -> str:
            return "done"

        @tool(idempotent=True)
        async def stuck() -> str:
            self.reached.set()
            if self.hold:
                await forever()
            return "not stuck any more"

        @tool(approval=True)
        async def delete(path: str) -> str:
            return f"deleted {path}"

        @tool
        async def paint(ctx: ToolContext) -> str:
            return f"painted {ctx.interrupt('colour')}"

        @tool(timeout=0.05)
        async def hurried() -> None:
            await forever()

        return [done, stuck, delete, paint, hurried]

    def agents(self, helper: Agent) -> list[Any]:
        """Agents as tools: one that is stuck, one two levels above such a one, one that asks."""
        _, _, delete, paint, _ = self.all()
        middle = _delegating("Middle", [Call("helper", {"prompt": "help"})], [helper.as_tool()])
        asker = _delegating("Asker", [Call("delete", {"path": "y"}), Call("paint")], [delete, paint])
        return [helper.as_tool(), middle.as_tool(), asker.as_tool()]


def _delegating(name: str, calls: list[Call], tools: list[Any]) -> Agent:
    """Calls these, each time that it is asked, and answers."""
    return Agent(name, ScriptedModel(then=lambda request: calls if len(request.messages) == 1 else "So."), tools=tools)


async def paused_and_cancelled(agent: Agent, tools: Tools) -> None:
    result = await agent.invoke_async("Go")
    assert result.status is RunStatus.paused
    assert agent.cancel()


async def one_refused_and_one_answered(agent: Agent, tools: Tools) -> None:
    result = await agent.invoke_async("Go")
    while result.status is RunStatus.paused:  # with one call after the other, so are the questions
        answers = {each.id: Deny("no") if each.approval else "red" for each in result.interrupts}
        result = await agent.continue_run(result.run_id, answers)
    assert result.status is RunStatus.completed, result.error


async def cut_in_tools(agent: Agent, tools: Tools) -> None:
    async with agent.start("Go") as run:
        await tools.reached.arrived()
        run.cancel()


async def cut_in_tools_and_gone_on_with(agent: Agent, tools: Tools) -> None:
    async with agent.start("Go") as run:
        await tools.reached.arrived()
        run.cancel()
    tools.hold = False
    result = await agent.continue_run(run.run_id)
    if result.status is RunStatus.paused:
        result = await agent.continue_run(result.run_id, {each.id: True for each in result.interrupts})
    assert result.status is RunStatus.completed, result.error


async def one_call_cancelled(agent: Agent, tools: Tools) -> None:
    async with agent.start("Go") as run:
        await tools.reached.arrived()
        async for event in run:
            if event.tool is not None and event.tool.name == "stuck":
                assert run.cancel_tool(event.tool.call_id, "takes too long")
                break
        result = await run.result()
        if result.status is RunStatus.paused:
            result = await agent.continue_run(result.run_id, {each.id: False for each in result.interrupts})
        assert result.status is RunStatus.completed, result.error


async def cut_in_tools_twice(agent: Agent, tools: Tools) -> None:
    async with agent.start("Go") as run:
        await tools.reached.arrived()
        run.cancel()
    tools.reached = Flag()
    again = await agent.resume_run(run.run_id)
    await tools.reached.arrived()
    again.cancel()
    await probe(again).settled()
    assert again.status is RunStatus.cancelled


async def cancelled_in_its_pause_and_gone_on_with(agent: Agent, tools: Tools) -> None:
    result = await agent.invoke_async("Go")
    run = agent.runtime.run(result.run_id)
    assert run is not None
    await run.cancel_and_wait()
    result = await agent.continue_run(result.run_id)
    while result.status is RunStatus.paused:
        result = await agent.continue_run(result.run_id, {each.id: True for each in result.interrupts})
    assert result.status is RunStatus.completed, result.error


async def failed(agent: Agent, tools: Tools) -> None:
    assert (await agent.invoke_async("Go")).status is RunStatus.error


async def failed_and_gone_on_with(agent: Agent, tools: Tools) -> None:
    result = await agent.invoke_async("Go")
    assert result.status is RunStatus.error
    result = await agent.continue_run(result.run_id)
    assert result.status is RunStatus.completed, result.error


async def superseded_in_tools(agent: Agent, tools: Tools) -> None:
    async with agent.start("Go") as first:
        await tools.reached.arrived()
        second = await agent.invoke_async("Rather this", on_busy="cancel")
        assert (await first.result()).status is RunStatus.cancelled
    assert second.status is RunStatus.completed, second.error


async def superseded_in_its_pause(agent: Agent, tools: Tools) -> None:
    assert (await agent.invoke_async("Go")).status is RunStatus.paused
    second = await agent.invoke_async("Rather this", on_busy="cancel")
    assert second.status is RunStatus.completed, second.error


async def gone_on_with_and_rolled_back(agent: Agent, tools: Tools) -> None:
    first = await cut_in_mid_sentence(agent)
    second = await agent.continue_run(first.run_id)
    await agent.rollback_run(second.run_id)
    assert agent.messages == first.messages


async def completed(agent: Agent, tools: Tools) -> None:
    assert (await agent.invoke_async("Go")).status is RunStatus.completed


async def out_of_turns(agent: Agent, tools: Tools) -> None:
    tools.hold = False
    result = await agent.invoke_async("Go", max_turns=1)
    assert result.stop_reason == "max_turns"


async def out_of_tokens(agent: Agent, tools: Tools) -> None:
    result = await agent.invoke_async("Go", budget=20)
    assert result.receipt is not None
    assert result.receipt.cause is CancelCause.budget


async def out_of_time(agent: Agent, tools: Tools) -> None:
    result = await agent.invoke_async("Go", timeout=0.2)
    assert result.status in (RunStatus.cancelled, RunStatus.paused)
    agent.cancel()


async def out_of_calls(agent: Agent, tools: Tools) -> None:
    result = await agent.invoke_async("Go", budget=Budget(tool_calls=1))
    assert result.status is RunStatus.cancelled


async def superseded(agent: Agent, tools: Tools) -> None:
    async with agent.start("Go") as first:
        async for event in first:
            if event.content:
                break
        second = await agent.invoke_async("Rather this", on_busy="cancel")
        assert (await first.result()).status is RunStatus.cancelled
    assert second.status is RunStatus.completed, second.error


async def cut_in_mid_sentence(agent: Agent) -> RunResult:
    async with agent.start("Go") as run:
        async for event in run:
            if event.content:
                run.cancel()
        return await run.result()


async def gone_on_in_mid_sentence(agent: Agent, tools: Tools) -> None:
    result = await cut_in_mid_sentence(agent)
    result = await agent.continue_run(result.run_id)
    assert result.status is RunStatus.completed, result.error


async def rolled_back(agent: Agent, tools: Tools) -> None:
    result = await agent.invoke_async("Go", timeout=0.2)
    await agent.rollback_run(result.run_id)
    assert agent.messages == []


SITUATIONS: list[tuple[Situation, list[Any]]] = [
    (paused_and_cancelled, ASKS),
    (one_refused_and_one_answered, ASKS),
    (cut_in_tools, THREE),
    (cut_in_tools, STUCK),
    (cut_in_tools_and_gone_on_with, THREE),
    (cut_in_tools_and_gone_on_with, STUCK),
    (one_call_cancelled, THREE),
    (one_call_cancelled, STUCK),
    (out_of_time, STALLS),
    (out_of_time, STUCK),
    (out_of_calls, STUCK),
    (superseded, STALLS),
    (gone_on_in_mid_sentence, STALLS),
    (rolled_back, STALLS),
    (cut_in_tools, CHILD),
    (cut_in_tools_and_gone_on_with, CHILD),
    (cut_in_tools, TREE),
    (cut_in_tools_and_gone_on_with, TREE),
    (paused_and_cancelled, BELOW),
    (one_refused_and_one_answered, BELOW),
    (cut_in_tools_twice, THREE),
    (cut_in_tools_twice, STUCK),
    (cancelled_in_its_pause_and_gone_on_with, ASKS),
    (cancelled_in_its_pause_and_gone_on_with, BELOW),
    (failed, [text("Once upon "), lose()]),
    (failed_and_gone_on_with, [text("Once upon "), lose()]),
    (failed_and_gone_on_with, [reasoning("Hm."), call("done", {}), HALF, lose()]),
    (out_of_time, [silence()]),
    (out_of_time, [reasoning("Hm."), stall()]),
    (out_of_time, [HALF, stall()]),
    (out_of_time, [text("Well. "), call("done", {}), HALF, stall()]),
    (out_of_time, [fail(429, "slow down", headers={"retry-after": "30"})]),
    (out_of_time, CHILD),
    (superseded_in_tools, STUCK),
    (superseded_in_tools, TREE),
    (superseded_in_its_pause, ASKS),
    (rolled_back, STUCK),
    (gone_on_with_and_rolled_back, STALLS),
    (completed, HURRY),
    (out_of_turns, STUCK),
    (out_of_tokens, [text("on and " * 40), stall()]),
]


@each_api
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(
    ("situation", "answer"), SITUATIONS, ids=[f"{s.__name__}-{n}" for n, (s, _) in enumerate(SITUATIONS)]
)
def test_the_next_prompt_is_accepted(api: Api, situation: Situation, answer: list[Any], parallel: bool) -> None:
    async def main() -> None:
        tools = Tools()
        below = FakeChat(playing("help", [call("stuck", {})], "Helped."))
        with api.fake(playing("Go", answer, "Fine.")) as fake, below:
            helper = Agent("Helper", OpenAIChat("m", below.api_key, below.base_url), tools=tools.all()[1:2])
            agent = Agent("A", api.model(fake), tools=[*tools.all(), *tools.agents(helper)], parallel_tools=parallel)
            await situation(agent, tools)
            result = await agent.invoke_async("And now?")
            assert result.status is RunStatus.completed, result.error
            assert result.content == "Fine."
            await agent.model.aclose()  # type: ignore[union-attr]
            await helper.model.aclose()  # type: ignore[union-attr]

    play(main)
