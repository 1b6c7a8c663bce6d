# SPDX-License-Identifier: Apache-2.0
"""What a tool holds outside its coroutine, of whatever kind: it is told of a cut, and named until it is gone."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any, cast

import pytest

from andon import Agent, Run, ToolContext, ToolOutcome
from andon.core.run.handle import local_run
from andon.core.run.tool_call import ToolCallScope
from andon.models.scripted import Call, ScriptedModel
from andon.tools.base import internals_of
from tests.support import play


class Crane:
    """Something that works for a call until it is told to stop."""

    name = "crane 7"

    def __init__(self, *, stops: bool = False, breaks: bool = False) -> None:
        self.cuts, self._stops, self._breaks = 0, stops, breaks
        self.at_work = asyncio.Event()
        self.scope: ToolCallScope | None = None

    def on_cut(self) -> None:
        self.cuts += 1
        if self._breaks:
            raise ValueError("the brake is stuck")
        if self._stops:
            self.end()

    def end(self) -> None:
        assert self.scope is not None
        self.scope.release(self)


class CraneTool:
    """A kind of tool that the core does not know."""

    name, description = "lift", "Lift something."
    parameters: dict[str, Any] = {"type": "object", "properties": {}}  # noqa: RUF012 - as any tool has it

    def __init__(self, crane: Crane, *, waits: bool = True) -> None:
        self._crane, self._waits = crane, waits

    def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    async def invoke(self, bound: dict[str, Any], ctx: ToolContext) -> str:
        self._crane.scope = internals_of(ctx).scope
        self._crane.scope.hold(self._crane)
        self._crane.at_work.set()
        if self._waits:
            await asyncio.get_running_loop().create_future()
        self._crane.end()
        return "lifted"


async def start(crane: Crane) -> Run:
    run = Agent("Builder", ScriptedModel(Call("lift", id="c"), "Done."), tools=[CraneTool(crane)]).start("go")
    await run.begin()
    await crane.at_work.wait()
    return run


def test_what_goes_on_after_a_cut_is_named_and_counted_until_it_is_gone() -> None:
    async def main() -> None:
        crane = Crane()
        run = await start(crane)
        run.cancel()
        receipt = (await run.result()).receipt
        assert receipt is not None
        assert crane.cuts == 1
        assert [call.outcome for call in receipt.tools] == [ToolOutcome.abandoned]
        assert receipt.leftovers == run.leftovers == ["crane 7"]
        assert list(local_run(run).runtime.abandoned) == [crane]
        crane.end()
        assert run.leftovers == []
        assert local_run(run).runtime.abandoned == {}
        now = await run.cancel_and_wait()
        assert now is not None
        assert now.leftovers == []

    play(main)


def test_what_stops_when_it_is_told_is_not_left_behind() -> None:
    async def main() -> None:
        crane = Crane(stops=True)
        run = await start(crane)
        receipt = await run.cancel_and_wait()
        assert receipt is not None
        assert [call.outcome for call in receipt.tools] == [ToolOutcome.cut]
        assert receipt.leftovers == []
        assert local_run(run).runtime.abandoned == {}

    play(main)


def test_one_that_can_not_be_told_is_logged_and_the_run_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        run = await start(Crane(breaks=True))
        run.cancel()
        result = await run.result()
        assert result.receipt is not None
        assert result.receipt.leftovers == ["crane 7"]

    with caplog.at_level(logging.ERROR, "andon"):
        play(main)
    assert caplog.messages == ["crane 7 could not be told that its call was cut"]


def test_after_a_call_that_ended_by_itself_nothing_is_held() -> None:
    crane = Crane()
    agent = Agent("Builder", ScriptedModel(Call("lift"), "Done."), tools=[CraneTool(crane, waits=False)])
    assert agent.run("go").content == "Done."
    assert crane.scope is not None
    assert not crane.scope.has_resources
    assert crane.cuts == 0


def test_a_call_that_has_ended_is_told_once_and_stays_told() -> None:
    """Who looks later, before what was called has had an effect, must not have it called again."""
    none = cast(Any, None)
    scope, told = ToolCallScope(none, "c1", "look"), list[str]()
    scope.hold(none)
    scope.when_ended(functools.partial(told.append, "ended"))
    assert told == []
    scope.release(none)
    scope.check_ended()
    assert told == ["ended"]
    assert scope.has_when_ended
