# SPDX-License-Identifier: Apache-2.0
"""Tools of one's own that call a server: with `on_cancel=`, which a server's tools don't have."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from andon import (
    Agent,
    CancelOutcome,
    RunEvent,
    RunStatus,
    ToolContext,
    ToolOutcome,
    ToolReceipt,
    UnknownToolError,
    tool,
)
from andon.core.receipt import Receipt
from andon.models.scripted import Call, ScriptedModel
from andon.tools.mcp import MCPServer
from tests.support import mcp_warm, play
from tests.support.mcp_witness import Witness
from tests.support.processes import is_gone

KINDS = ["stdio", "stdio-legacy", "http", "http-legacy"]


@pytest.fixture
def witness() -> Iterator[Witness]:
    mcp_warm.address()  # started here: what a test opens and leaves open is counted
    with Witness() as witness:
        yield witness


def only_call(receipt: Receipt | None) -> ToolReceipt:
    assert receipt is not None
    (call,) = receipt.tools
    return call


def agent_with(each: Any) -> Agent:
    return Agent("a", ScriptedModel(Call(each.name, {"text": "mine"}, id="c"), then="Done."), tools=[each])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("force", [False, True])
def test_a_call_is_let_finish(witness: Witness, kind: str, force: bool) -> None:
    async def main(server: MCPServer) -> None:
        @tool(on_cancel="finish", finish_within=60)
        async def pay(text: str, ctx: ToolContext) -> Any:
            return await server.call("wait", {"text": text}, ctx)

        async with server, agent_with(pay).start("Go") as run:
            await witness.saw("call", text="mine")
            assert run.cancel() is CancelOutcome.requested
            assert await server.call("echo", {"text": "meanwhile"}) == "echo meanwhile"
            assert run.status is RunStatus.cancelling
            if force:
                run.cancel(force=True)
            else:
                await server.call("release")
            result = await run.result()
            call = only_call(result.receipt)
            said = result.messages[2].tool_results[0].content
            if force:
                await witness.saw("cancelled", text="mine")
                assert (call.outcome, call.let_finish) == (ToolOutcome.cut, False)
                assert "unknown" in said
            else:
                assert not witness.find("cancelled")
                assert (call.outcome, call.let_finish) == (ToolOutcome.completed, True)
                assert said == "waited mine"

    with witness.server(kind) as server:
        play(lambda: main(server))


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_is_undone_by_another_call(witness: Witness, kind: str) -> None:
    async def main(server: MCPServer) -> None:
        async def give_back(text: str, call_id: str, ctx: ToolContext) -> None:
            await server.call("echo", {"text": f"give back {text} of {call_id}"}, ctx)

        @tool(on_cancel=give_back)
        async def take(text: str, ctx: ToolContext) -> Any:
            return await server.call("wait", {"text": text}, ctx)

        async with server, agent_with(take).start("Go") as run:
            await witness.saw("call", text="mine")
            run.cancel()
            result = await run.result()
            assert only_call(result.receipt).outcome is ToolOutcome.compensated
            assert result.receipt is not None
            assert result.receipt.leftovers == []
            await witness.saw("cancelled", text="mine")
            await witness.saw("done", text="give back mine of c")
            assert len(witness.find("done", text="give back mine of c")) == 1

    with witness.server(kind) as server:
        play(lambda: main(server))


def test_an_undo_that_the_server_refuses_is_told(witness: Witness) -> None:
    async def main() -> None:
        async with witness.warm() as server:

            async def give_back() -> None:
                await server.call("fail")

            @tool(on_cancel=give_back)
            async def take(text: str, ctx: ToolContext) -> Any:
                return await server.call("wait", {"text": text}, ctx)

            async with agent_with(take).start("Go") as run:
                await witness.saw("call", text="mine")
                run.cancel()
                call = only_call((await run.result()).receipt)
            assert call.outcome is ToolOutcome.cut
            assert "the disk is full" in (call.undo or "")

    play(main)


def test_it_is_undone_when_the_server_is_gone_that_could_not_be_told(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes no messages. The call is named until the server is ended, and only then undone."""
    monkeypatch.setattr("andon.tools.mcp.call.UNHEARD_SECONDS", 0.5)

    async def main() -> None:
        undone = list[bool]()
        pid = 0

        async with witness.stdio() as server:

            def give_back() -> None:
                undone.append(is_gone(pid))

            @tool(on_cancel=give_back)
            async def take(text: str, ctx: ToolContext) -> Any:
                return await server.call("wait", {"text": text}, ctx)

            async with agent_with(take).start("Go") as run:
                pid = (await witness.saw("call", text="mine"))["pid"]
                os.kill(pid, signal.SIGSTOP)
                fill = [asyncio.create_task(server.call("echo", {"text": "x" * 1_000_000})) for _ in range(3)]
                await asyncio.wait(fill, timeout=0.1)
                run.cancel()
                result = await run.result()
                assert result.receipt is not None
                assert only_call(result.receipt).outcome is ToolOutcome.abandoned
                assert result.receipt.leftovers == ["call of wait on the MCP server tests (c)"]
                assert not undone
                receipt = await run.gone(10)
                assert receipt is not None
                assert receipt.leftovers == []
                assert undone == [True]
            await asyncio.gather(*fill, return_exceptions=True)

    play(main)


@pytest.mark.parametrize("kind", ["stdio-legacy", "http"])
def test_progress_and_questions_go_through(witness: Witness, kind: str) -> None:
    async def main(server: MCPServer) -> None:
        @tool
        async def both(text: str, ctx: ToolContext) -> Any:
            await server.call("progress", ctx=ctx)
            return await server.call("ask", {"text": text}, ctx)

        async with server:
            agent = agent_with(both)
            async with agent.start("Go") as run:
                shown = [event.progress async for event in run if event.event is RunEvent.tool_progress]
                first = await run.result()
            assert [each.message for each in shown if each] == ["half", "all"]
            (question,) = first.interrupts
            assert question.payload["message"] == "Really?"
            result = await agent.continue_run(first.run_id, {question.id: True})
            assert result.messages[2].tool_results[0].content == '[{"sure": true}]'

    with witness.server(kind) as server:
        play(lambda: main(server))


def test_own_calls_reach_tools_that_agents_do_not_get(witness: Witness) -> None:
    async def main() -> None:
        async with witness.warm(prefix="t_", without=["echo"]) as server:
            assert "t_echo" not in [each.name for each in await server.tools()]
            assert await server.call("t_echo", {"text": "x"}) == "echo x"
            with pytest.raises(UnknownToolError, match="has no tool 'echo'; it has: t_echo, t_wait"):
                await server.call("echo")

    play(main)


def test_a_sync_tool_may_call_it_on_a_loop_of_its_own(witness: Witness) -> None:
    async def main() -> None:
        server = witness.warm()

        @tool
        def echo(text: str, ctx: ToolContext) -> Any:
            async def call() -> Any:
                try:
                    return await server.call("echo", {"text": text}, ctx)
                finally:
                    await server.aclose()

            return asyncio.run(call())

        result = await agent_with(echo).invoke_async("Go")
        assert result.messages[2].tool_results[0].content == "echo mine"

    play(main)
