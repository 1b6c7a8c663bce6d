# SPDX-License-Identifier: Apache-2.0
"""`andon mcp`: a run that asked its client's person, and whose question is closed before the person has answered."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from andon import Agent, CancelCause, CancelOutcome, Receipt, Run, RunEnded, RunStatus, tool
from andon.cli.mcp_serving import AgentTools
from andon.models.scripted import Call, ScriptedModel
from tests.support import HANG, Flag, forever, until

YES: Any = types.ElicitResult(action="accept", content={"allow": True})


class Bench:
    """An agent that asks before it deletes, and what became of its runs."""

    def __init__(self) -> None:
        self.deleted = 0
        self.ended: list[tuple[RunStatus, Receipt | None]] = []

        @tool(approval=True)
        async def delete() -> str:
            self.deleted += 1
            return "gone"

        self.model = ScriptedModel(Call("delete", id="d"), then="Well.")
        self.agent = Agent("Deleter", self.model, tools=[delete], hooks=[self])
        self.tools = AgentTools([self.agent])
        self.asked = Flag()
        self.dialog_closed = Flag()

    def run_ended(self, event: RunEnded) -> None:
        self.ended.append((event.result.status, event.result.receipt))

    async def person(self, context: Any, params: Any) -> types.ElicitResult:
        """One who never answers."""
        self.asked.set()
        try:
            await forever()
        finally:
            self.dialog_closed.set()
        raise AssertionError

    def client(self, mode: Any = "auto") -> Client:
        return Client(self.tools.server(), mode=mode, elicitation_callback=self.person)

    @property
    def run(self) -> Run[Any]:
        [local] = self.agent.runtime.runs
        return local


async def ask(client: Client) -> types.InputRequiredResult:
    first = await client.session.call_tool("deleter", {"message": "Go"}, allow_input_required=True)
    assert isinstance(first, types.InputRequiredResult)
    return first


async def answer(client: Client, first: types.InputRequiredResult) -> types.CallToolResult:
    """Say yes to all that was asked."""
    responses = dict.fromkeys(first.input_requests or {}, YES)
    result = await client.session.call_tool(
        "deleter", {"message": "Go"}, input_responses=responses, request_state=first.request_state
    )
    assert isinstance(result, types.CallToolResult)
    return result


def text_of(result: Any) -> str:
    return "".join(block.text for block in result.content)


def play(main: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG):
            await main()

    asyncio.run(bounded())


def hold_answers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> tuple[Flag, Flag]:
    """From now on an answer waits on its way to the run: until the second flag. The first says that it is there."""
    arrived, go = Flag(), Flag()
    check = bench.agent.runtime.check_blocks

    async def slow(key: Any) -> None:
        arrived.set()
        await go.arrived()
        await check(key)

    monkeypatch.setattr(bench.agent.runtime, "check_blocks", slow)
    return arrived, go


@pytest.mark.parametrize("later", [False, True])
def test_an_answer_to_a_run_that_was_cancelled_starts_no_other_one(later: bool) -> None:
    async def main() -> None:
        bench = Bench()
        async with bench.client() as client:
            first = await ask(client)
            assert bench.agent.cancel_run(bench.run.run_id, "stop that", by="ops") is CancelOutcome.requested
            if later:
                await until(lambda: bool(bench.ended))
            result = await answer(client, first)
        assert result.is_error
        assert "was cancelled" in text_of(result)
        await until(lambda: not bench.agent.runtime.runs)
        assert (len(bench.ended), len(bench.model.requests), bench.deleted) == (1, 1, 0)

    play(main)


def test_a_run_that_ends_is_not_kept_for_an_answer() -> None:
    async def main() -> None:
        bench = Bench()
        async with bench.client() as client:
            await ask(client)
            assert (len(bench.tools._asked), len(bench.tools._runs)) == (1, 1)
            bench.run.cancel()
            await until(lambda: not bench.tools._asked and not bench.tools._runs)

    play(main)


def test_a_run_that_is_cancelled_while_its_answer_is_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        bench = Bench()
        async with bench.client() as client:
            first = await ask(client)
            arrived, go = hold_answers(bench, monkeypatch)
            call = asyncio.create_task(answer(client, first))
            await arrived.arrived()
            bench.run.cancel("stop that")
            go.set()
            result = await call
        assert result.is_error
        assert text_of(result).startswith("Deleter was cancelled (user)")
        await until(lambda: not bench.agent.runtime.runs)
        assert (len(bench.ended), len(bench.model.requests), bench.deleted) == (1, 1, 0)

    play(main)


def test_a_client_that_cancels_while_its_answer_is_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        bench = Bench()
        async with bench.client() as client:
            first = await ask(client)
            arrived, _ = hold_answers(bench, monkeypatch)
            call = asyncio.create_task(answer(client, first))
            await arrived.arrived()
            call.cancel()
            await until(lambda: bool(bench.ended))
            await until(lambda: not bench.tools._runs)
        [(status, receipt)] = bench.ended
        assert status is RunStatus.cancelled
        assert receipt is not None
        assert (receipt.cause, receipt.reason) == (CancelCause.user, "the MCP client cancelled the call")
        assert bench.deleted == 0

    play(main)


def test_a_run_that_is_cancelled_while_a_person_is_asked() -> None:
    """Its call ends at once, and the client closes its dialog."""

    async def main() -> None:
        bench = Bench()
        async with bench.client("legacy") as client:
            call = asyncio.create_task(client.call_tool("deleter", {"message": "Go"}))
            await bench.asked.arrived()
            bench.run.cancel("stop that", by="ops")
            result = await call
            await bench.dialog_closed.arrived()
        assert result.is_error
        assert text_of(result).startswith("Deleter was cancelled (user)")
        assert bench.deleted == 0

    play(main)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_somebody_else_answers(mode: str) -> None:
    """The run goes on, and is not cancelled."""

    async def main() -> None:
        bench = Bench()
        async with bench.client(mode) as client:
            if mode == "legacy":
                call = asyncio.create_task(client.call_tool("deleter", {"message": "Go"}))
                await bench.asked.arrived()
                await bench.agent.continue_run(bench.run.run_id, {"d-1": True})
                result = await call
            else:
                first = await ask(client)
                await bench.agent.continue_run(bench.run.run_id, {"d-1": True})
                result = await answer(client, first)
        assert result.is_error
        assert "another client has answered" in text_of(result)
        assert bench.deleted == 1
        assert [status for status, _ in bench.ended] == [RunStatus.completed]

    play(main)
