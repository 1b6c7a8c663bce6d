# SPDX-License-Identifier: Apache-2.0
"""How cancelling behaves between tools, and with some of them done: a test per situation."""

from __future__ import annotations

import threading

import pytest

from andon import Agent, BeforeTool, RunEvent, RunStatus, ToolContext, ToolOutcome, tool
from andon.agent.hooks import AfterTool
from andon.messages import Message, Text, ToolResult
from andon.models.scripted import Call, ScriptedModel
from tests.support import Flag, asked, check_cancelled, check_goes_on, cut, forever, make, play, read_all

# -- several tools ----------------------------------------------------------------------------------------------------


class Three:
    """Three tools: the first one returns, the others wait for ever."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.in_second = Flag()
        self.in_third = Flag()

    def agent(self, **options: object) -> Agent:
        @tool
        async def one() -> str:
            self.started.append("one")
            return "first result"

        @tool
        async def two() -> str:
            self.started.append("two")
            self.in_second.set()
            await forever()

        @tool
        def three(ctx: ToolContext) -> str:
            self.started.append("three")
            ended = threading.Event()
            ctx.on_cancel(ended.set)
            self.in_third.set()
            ended.wait()
            return "late"

        calls = [Call("one", id="1"), Call("two", id="2"), Call("three", id="3")]
        return make(calls, tools=[one, two, three], **options)


def results(message: Message) -> dict[str, str]:
    assert all(isinstance(block, ToolResult) for block in message.content)
    return {each.call_id: each.status for each in message.tool_results}


def test_between_sequential_tools() -> None:
    async def main() -> None:
        three = Three()

        class Stop:
            def after_tool(self, event: AfterTool) -> None:
                assert agent.cancel_run(event.run_id, "enough", "ann")

        agent = three.agent(parallel_tools=False, hooks=[Stop()])
        async with agent.start("go") as run:
            events = await read_all(run)
            result = await run.result()
        assert three.started == ["one"]
        assert result.receipt is not None
        assert [each.outcome for each in result.receipt.tools] == ["completed", "not_started", "not_started"]
        assert result.messages[2].tool_results[0].content == "first result"
        assert results(result.messages[2]) == {"1": "ok", "2": "error", "3": "error"}
        assert [event.event for event in events].count(RunEvent.tool_call_cancelled) == 2
        assert result.message.content == [Text("Cancelled by user")]
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_in_the_second_of_three_sequential_tools() -> None:
    async def main() -> None:
        three = Three()
        agent = three.agent(parallel_tools=False)
        ended = await cut(agent, three.in_second)
        check_cancelled(ended, phase="tools", tools={"1": "completed", "2": "cut", "3": "not_started"})
        assert three.started == ["one", "two"]
        assert ended.result.messages[2].tool_results[0].content == "first result"
        assert RunEvent.tool_call_completed in ended.kinds
        await check_goes_on(agent, ended)

    play(main)


def test_some_parallel_tools_are_done() -> None:
    async def main() -> None:
        three = Three()
        agent = three.agent()
        async with agent.start("go") as run:
            async for event in run:
                if event.event is RunEvent.tool_call_completed:
                    break  # leaving this loop never cancels
            await three.in_second.arrived()
            await three.in_third.arrived()
            receipt = await run.cancel_and_wait(reason="enough", by="ann")
            result = await run.result()
        assert receipt is not None
        assert receipt.leftovers == []
        assert [each.outcome for each in receipt.tools][:2] == ["completed", "cut"]
        assert receipt.tools[2].outcome in ("cut", "abandoned")
        assert result.messages[2].tool_results[0].content == "first result"
        assert results(result.messages[2]) == {"1": "ok", "2": "error", "3": "error"}
        assert len(asked(agent)) == 1
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed
        assert asked(agent)[1].messages[:-1] == result.messages

    play(main)


def test_a_tool_that_ends_in_the_very_moment_of_the_cancel_keeps_its_result() -> None:
    """Its result was there first: finished results are kept as they are."""

    async def main() -> None:
        @tool
        async def last_word() -> str:
            assert agent.cancel("enough", "ann")  # and not one await after it
            return "real result"

        agent = make(Call("last_word", id="c"), tools=[last_word])
        async with agent.start("go") as run:
            result = await run.result()
        assert result.status is RunStatus.cancelled
        assert result.receipt is not None
        assert [each.outcome for each in result.receipt.tools] == ["completed"]
        assert result.messages[2].tool_results == [ToolResult("c", "last_word", "real result")]

    play(main)


@pytest.mark.parametrize("mode", ["now", "after_tools"])
@pytest.mark.parametrize("parallel", [True, False])
def test_about_to_run_tools_some_of_which_could_not_run(parallel: bool, mode: str) -> None:
    """A cancel before the tools is the same for calls that would have been refused, and asks no guard."""

    async def main() -> None:
        asked: list[str] = []

        class Hook:
            def after_model(self, event: object) -> None:
                agent.cancel(mode=mode)

            def before_tool(self, event: BeforeTool) -> None:
                asked.append(event.call.id)

        @tool
        async def look() -> str:
            return "seen"

        calls = [Call("nowhere", id="a"), Call("look", "{broken", id="b"), Call("look", id="c")]
        agent = Agent("A", ScriptedModel(calls), tools=[look], hooks=[Hook()], parallel_tools=parallel)
        result = await agent.invoke_async("go")
        assert result.receipt is not None
        assert [(each.call_id, each.outcome) for each in result.receipt.tools] == [
            (call_id, ToolOutcome.not_started) for call_id in "abc"
        ]
        assert asked == []

    play(main)
