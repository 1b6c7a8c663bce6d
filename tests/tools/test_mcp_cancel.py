# SPDX-License-Identifier: Apache-2.0
"""What a cancel does to a call of an MCP server: the server is told, and nothing else is broken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from andon import Agent, RunStatus, ToolOutcome
from andon.models.scripted import Call, ScriptedModel
from andon.tools.mcp import MCPServer
from tests.support import mcp_warm, play
from tests.support.mcp_witness import Witness

KINDS = ["stdio", "stdio-legacy", "http", "http-legacy"]


@pytest.fixture
def witness() -> Iterator[Witness]:
    mcp_warm.address()  # started here: what a test opens and leaves open is counted
    with Witness() as witness:
        yield witness


def waiting(text: str) -> Call:
    return Call("wait", {"text": text})


@pytest.mark.parametrize("kind", KINDS)
def test_the_server_is_told_and_another_call_goes_on(witness: Witness, kind: str) -> None:
    async def main(server: MCPServer) -> None:
        async with server:
            agent = Agent("a", ScriptedModel([waiting("mine")], "never"), tools=[server])
            other = asyncio.create_task(server.call("wait", {"text": "other"}))
            async with agent.start("Go") as run:
                await witness.saw("call", text="mine")
                await witness.saw("call", text="other")
                receipt = await run.cancel_and_wait()
                result = await run.result()
            assert (await witness.saw("cancelled"))["text"] == "mine"
            assert receipt is not None
            assert result.status is RunStatus.cancelled
            assert [call.outcome for call in receipt.tools] == [ToolOutcome.cut]
            assert receipt.leftovers == []
            assert not other.done()
            assert await server.call("echo", {"text": "again"}) == "echo again"
            other.cancel()
            await witness.saw("cancelled", text="other")
            assert len(witness.find("start")) == 1

    with witness.server(kind) as server:
        play(lambda: main(server))


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_ignores_the_cancel_does_not_hold_the_run(witness: Witness, kind: str) -> None:
    """The call is cut, since the server was told; what it still does is its own affair."""

    async def main(server: MCPServer) -> None:
        async with server:
            agent = Agent("a", ScriptedModel([waiting("ignore")], "never"), tools=[server])
            async with agent.start("Go") as run:
                await witness.saw("call", text="ignore")
                run.cancel()
                result = await run.result()
            assert result.receipt is not None
            assert [call.outcome for call in result.receipt.tools] == [ToolOutcome.cut]
            await witness.saw("cancelled", text="ignore")
            assert await server.call("echo") == "echo "
        assert not witness.find("done", text="ignore")

    with witness.server(kind) as server:
        play(lambda: main(server))


@pytest.mark.parametrize("kind", KINDS)
def test_200_cancelled_calls_on_one_session(witness: Witness, kind: str) -> None:
    async def main(server: MCPServer) -> None:
        async with server:
            for first in range(0, 200, 20):
                texts = [f"call {number}" for number in range(first, first + 20)]
                calls = [asyncio.create_task(server.call("wait", {"text": text})) for text in texts]
                await witness.saw("call", first + 20, tool="wait")
                for call in calls:
                    call.cancel()
                assert all(isinstance(each, asyncio.CancelledError) for each in await _ends(calls))
            await witness.saw("cancelled", 200)
            assert await server.call("echo", {"text": "still here"}) == "echo still here"
            assert len(witness.find("start")) == 1

    with witness.server(kind) as server:
        play(lambda: main(server), seconds=60)


async def _ends(calls: list[asyncio.Task[Any]]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


def test_a_call_that_takes_too_long_is_cut_alone(witness: Witness) -> None:
    async def main() -> None:
        async with witness.warm(timeout=0.2) as server:
            agent = Agent("a", ScriptedModel([waiting("slow")], "Too slow."), tools=[server])
            result = await agent.invoke_async("Go")
            assert result.content == "Too slow."
            (text,) = [block.content for message in result.messages for block in message.tool_results]
            assert text.startswith("ToolTimeoutError: timed out after 0.2 s: it was cut")
            await witness.saw("cancelled", text="slow")

    play(main)


def test_one_call_can_be_cancelled_alone(witness: Witness) -> None:
    async def main() -> None:
        async with witness.warm() as server:
            calls = [Call("wait", {"text": "one"}, id="one"), Call("echo", {"text": "two"}, id="two")]
            agent = Agent("a", ScriptedModel(calls, "Done."), tools=[server])
            async with agent.start("Go") as run:
                await witness.saw("call", text="one")
                await witness.saw("done", text="two")
                run.cancel_tool("one")
                result = await run.result()
            assert result.content == "Done."
            await witness.saw("cancelled", text="one")
            assert not witness.find("cancelled", text="two")

    play(main)


def test_agent_run_blocks_and_can_be_cancelled_from_another_thread(witness: Witness) -> None:
    import threading

    server = witness.warm()
    agent = Agent("a", ScriptedModel([waiting("blocked")], "never", "Hello."), tools=[server])
    canceller = threading.Thread(target=lambda: (witness.wait("call", text="blocked"), agent.cancel()))
    canceller.start()
    result = agent.run("Go")
    canceller.join()
    assert result.status is RunStatus.cancelled
    witness.wait("cancelled", text="blocked")

    async def elsewhere() -> None:
        """Another event loop has a session of its own."""
        assert await server.call("echo", {"text": "elsewhere"}) == "echo elsewhere"
        await server.aclose()

    play(elsewhere)
    witness.wait("gone", 2)  # aclose ends the session of the other loop too
    assert len(witness.find("start")) == 2
