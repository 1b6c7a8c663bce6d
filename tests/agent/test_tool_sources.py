# SPDX-License-Identifier: Apache-2.0
"""Sources of tools: asked when a run begins, as a step of the run, and again if their tools have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from andon import Agent, RunStatus, SetupError, Tool, ToolOutcome, ToolSourceError, tool
from andon.models.base import ModelRequest
from andon.models.scripted import Call, ScriptedModel
from tests.support import play


def named(name: str) -> Tool:
    @tool(name=name, idempotent=True)
    async def made() -> str:
        """Do it."""
        return name

    return made


class Shelf:
    """A source whose tools the test sets."""

    def __init__(self, *tools: Tool, name: str = "shelf") -> None:
        self.name, self.listed, self.asked = name, list(tools), 0
        self.current = True
        self.error: Exception | None = None
        self.hangs = False
        self.at_work = asyncio.Event()

    def check_setup(self) -> None:
        if self.error is not None and isinstance(self.error, SetupError):
            raise self.error

    async def tools(self) -> Sequence[Tool]:
        self.asked += 1
        self.at_work.set()
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        self.current = True
        return self.listed

    def known_tools(self) -> Sequence[Tool] | None:
        return self.listed if self.current else None


def results(run: Any) -> list[str]:
    return [result.content for message in run.messages for result in message.tool_results]


def test_the_tools_of_sources_are_used_like_any_other() -> None:
    async def main() -> None:
        seen: list[list[str]] = []

        def note(request: ModelRequest) -> Any:
            seen.append([spec.name for spec in request.tools])
            return Call("b") if len(seen) == 1 else "Done."

        shelf, other = Shelf(named("b")), Shelf(named("c"), named("d"), name="other")
        agent = Agent("a", ScriptedModel(note, note), tools=[shelf, named("a"), other])
        result = await agent.invoke_async("Go")
        assert results(result) == ["b"]
        assert seen == [["a", "b", "c", "d"]] * 2
        assert (shelf.asked, other.asked) == (1, 1)

    play(main)


def test_tools_that_change_in_a_run() -> None:
    async def main() -> None:
        shelf = Shelf()

        @tool
        async def change() -> str:
            """Change the shelf."""
            shelf.listed, shelf.current = [named("new")], False
            return "changed"

        model = ScriptedModel(Call("change"), Call("new"), "Done.")
        result = await Agent("a", model, tools=[change, shelf]).invoke_async("Go")
        assert results(result) == ["changed", "new"]
        assert shelf.asked == 2

    play(main)


def test_a_source_that_fails_makes_the_run_fail() -> None:
    async def main() -> None:
        for broken, hanging in ((True, False), (False, True)):
            first, second = Shelf(named("x")), Shelf(named("y"), name="second")
            first.hangs = hanging
            second.error = ToolSourceError("the shop is closed") if broken else None
            agent = Agent("a", ScriptedModel("never"), tools=[first, second])
            async with agent.start("Go") as run:
                await second.at_work.wait()
                if hanging:
                    run.cancel()
                result = await run.result()
            if broken:
                assert result.status is RunStatus.error
                assert result.error is second.error
            else:
                assert result.status is RunStatus.cancelled
            assert result.messages[0].text == "Go"  # the prompt is kept
            assert len(result.messages) == 2

    play(main)


def test_names_that_are_there_twice() -> None:
    async def main() -> None:
        agent = Agent("a", ScriptedModel("never"), tools=[named("x"), Shelf(named("x"))])
        result = await agent.invoke_async("Go")
        assert "two tools are named 'x': one of the agent, one of shelf" in str(result.error)

    play(main)


def test_what_a_source_lacks_is_said_where_the_run_is_requested() -> None:
    async def main() -> None:
        shelf = Shelf()
        shelf.error = SetupError("no key")
        with pytest.raises(SetupError, match="no key"):
            Agent("a", ScriptedModel("never"), tools=[shelf]).start("Go")

    play(main)


def test_a_run_that_goes_on_knows_the_tools_of_its_sources() -> None:
    """A call that was cut, of a tool of a source that may be called twice, is made again."""

    async def main() -> None:
        at_work, shelf = asyncio.Event(), Shelf()
        tries: list[int] = []

        @tool(idempotent=True)
        async def fetch() -> str:
            """Fetch it."""
            tries.append(1)
            at_work.set()
            if len(tries) == 1:
                await asyncio.Event().wait()
            return "fetched"

        shelf.listed = [fetch]
        agent = Agent("a", ScriptedModel(Call("fetch"), "Done."), tools=[shelf])
        async with agent.start("Go") as run:
            await at_work.wait()
            run.cancel()
            cut = await run.result()
        assert cut.receipt is not None
        assert [call.outcome for call in cut.receipt.tools] == [ToolOutcome.cut]
        result = await agent.continue_run(cut.run_id)
        assert results(result) == ["fetched"]
        assert len(tries) == 2

    play(main)


def test_a_paused_run_that_goes_on_asks_its_sources_again() -> None:
    async def main() -> None:
        @tool(approval=True)
        async def delete() -> str:
            """Delete it."""
            return "deleted"

        shelf = Shelf(delete)
        agent = Agent("a", ScriptedModel(Call("delete"), "Done."), tools=[shelf])
        paused = await agent.invoke_async("Go")
        assert paused.status is RunStatus.paused
        result = await agent.continue_run(paused.run_id, {paused.interrupts[0].id: True})
        assert results(result) == ["deleted"]
        assert shelf.asked == 2

    play(main)
