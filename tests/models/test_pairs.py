# SPDX-License-Identifier: Apache-2.0
"""A conversation that was cut with one provider goes on with every other one, and then with the first again.

The fakes reject what their providers reject, so "accepted" is their word, not ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import permutations
from typing import Any

import pytest

from andon import Agent, Image, RunEvent, RunStatus, tool
from andon.testing import probe, validate
from andon.testing.providers import call, reasoning, stall, text
from andon.testing.providers import cut as lose
from tests.support import Flag, forever, play, until
from tests.support.providers import PROVIDERS, AnyFake, Provider

pytestmark = pytest.mark.no_cover  # many repetitions of what other tests cover

PAIRS = [pytest.param(one, other, id=f"{one.name}-{other.name}") for one, other in permutations(PROVIDERS, 2)]
CAT = Image(b"\x89PNG\r\n\x1a\n" + b"x" * 20)
THOUGHT = reasoning("Let me see what there is to be said.")
SLOW_THOUGHT = reasoning("Let me see what there is to be said. " * 20, pace=0.005)
READING_TURNS = 100
"""More turns of the loop than a client takes to read what its socket has: all that a fake sends before it stalls."""
LONG = {"query": "a long way down the river, and over the hills"}


class Tools:
    def __init__(self) -> None:
        self.reached = Flag()

    def all(self) -> list[Any]:
        @tool
        async def search(query: str) -> str:
            """Look something up."""
            return f"found {query}"

        @tool
        async def stuck() -> str:
            self.reached.set()
            await forever()
            return "never"

        return [search, stuck]


Cut = Callable[[Agent, AnyFake, Tools], Awaitable[None]]


async def not_cut(agent: Agent, fake: AnyFake, tools: Tools) -> None:
    result = await agent.invoke_async(["What is this?", CAT])
    assert result.status is RunStatus.completed, result.error


async def lost(agent: Agent, fake: AnyFake, tools: Tools) -> None:
    assert (await agent.invoke_async("go")).status is RunStatus.error


def stalled(content: str, calls: int = 0) -> Cut:
    """Cancel when all that the fake sends has been read: this text, and so many whole calls."""

    async def cancel(agent: Agent, fake: AnyFake, tools: Tools) -> None:
        async with agent.start("go") as run:
            await fake.wait_for_async(0, at="stalled")
            for _ in range(READING_TURNS):
                await asyncio.sleep(0)
            run.cancel()
            result = await run.result()
            assert result.status is RunStatus.cancelled
            assert result.content == content
            assert len([call for message in result.messages for call in message.tool_calls]) == calls

    return cancel


def after(kind: RunEvent) -> Cut:
    async def cancel(agent: Agent, fake: AnyFake, tools: Tools) -> None:
        async with agent.start("go") as run:
            await until(lambda: any(event.event is kind for event in probe(run).events))
            run.cancel()
            assert (await run.result()).status is RunStatus.cancelled

    return cancel


async def in_tools(agent: Agent, fake: AnyFake, tools: Tools) -> None:
    async with agent.start("go") as run:
        await tools.reached.arrived()
        run.cancel()
        assert (await run.result()).status is RunStatus.cancelled


SITUATIONS: dict[str, tuple[list[Any], Cut]] = {
    "whole": ([THOUGHT, text("I look. "), call("search", LONG, pieces=3), call("search", {"query": "b"})], not_cut),
    "silence": ([stall()], stalled("")),
    "thinking": ([SLOW_THOUGHT], after(RunEvent.reasoning)),
    "text": ([THOUGHT, text("Once upon "), stall()], stalled("Once upon ")),
    "arguments": ([THOUGHT, text("I look. "), call("search", LONG, pieces=4, send=2), stall()], stalled("I look. ")),
    "between": ([THOUGHT, call("search", LONG), call("search", LONG, pieces=4, send=1), stall()], stalled("", calls=1)),
    "tools": ([THOUGHT, call("search", {"query": "a"}), call("stuck"), call("search", {"query": "b"})], in_tools),
    "broken": ([THOUGHT, text("Once upon "), lose()], lost),
}


def first(words: list[Any]) -> Callable[[dict[str, Any]], Any]:
    """Answers the first request so, and all later ones with a word."""
    left = [words]
    return lambda body: left.pop() if left else [text("Fine.")]


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_goes_on(one: Provider, other: Provider, situation: str) -> None:
    words, cut = SITUATIONS[situation]

    async def main() -> None:
        tools = Tools()
        with one.serve(first(words)) as here, other.serve([[THOUGHT, text("Fine.")]]) as there:
            agent = Agent("Tester", one.model(here), tools=tools.all())
            await cut(agent, here, tools)
            assert validate(agent.messages) == []
            for provider, fake in ((other, there), (one, here), (other, there)):
                agent.model = provider.model(fake)
                result = await agent.invoke_async("and now?")
                assert result.status is RunStatus.completed, result.error
                assert result.content == "Fine."
            assert [each.error for fake in (here, there) for each in fake.served if each.error] == []

    play(main)
