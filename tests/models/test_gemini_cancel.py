# SPDX-License-Identifier: Apache-2.0
"""A cancel, wherever a request to Gemini is: the provider sees the client leave, and the next prompt is accepted."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from andon import Agent, RunEvent, RunStatus, tool
from andon.messages import Text
from andon.testing import probe
from andon.testing.providers import FakeGemini, call, connect_never, fail, pause, reasoning, silence, stall, text
from tests.support import check_cancelled, cut, play, until
from tests.support.gemini import model, way
from tests.support.requests import goes_on, left, open_sockets, shown

__all__ = ["way"]

pytestmark = pytest.mark.no_cover  # others cover what it reaches, and half of its time would be the tracer's


@tool
async def search(query: str) -> str:
    """Look something up."""
    return f"found {query}"


def test_connecting() -> None:
    async def main() -> None:
        sockets: list[int] = []

        def make() -> httpx2.AsyncClient:
            async def about_to_connect(request: httpx2.Request) -> None:
                sockets.append(open_sockets())

            return httpx2.AsyncClient(event_hooks={"request": [about_to_connect]})

        with connect_never() as nowhere, FakeGemini([[text("Fine.")]]) as fake:
            agent = Agent("Tester", model(nowhere, http_client=make))
            ended = await cut(agent, lambda run: bool(sockets) and open_sockets() > sockets[0])
            check_cancelled(ended, phase="waiting")
            await until(lambda: open_sockets() == sockets[0])  # uvloop closes them in its next turn
            agent.model = model(fake)
            await goes_on(agent, fake)

    play(main)


def test_the_tls_handshake(way: str) -> None:
    async def main() -> None:
        with connect_never(tls=True) as nowhere, FakeGemini([[text("Fine.")]]) as fake:
            agent = Agent("Tester", model(nowhere))
            async with agent.start("go") as run:
                await nowhere.wait_connected_async()
                run.cancel()
                assert (await run.result()).status is RunStatus.cancelled
            await nowhere.wait_left_async()
            agent.model = model(fake)
            await goes_on(agent, fake)

    play(main)


@pytest.mark.parametrize("word", [silence(), stall()], ids=["before-headers", "after-headers"])
def test_a_silent_provider(word: Any, way: str) -> None:
    async def main() -> None:
        with FakeGemini([[word], [text("Fine.")]]) as fake:
            agent = Agent("Tester", model(fake))
            async with agent.start("go") as run:
                await fake.wait_for_async(0, at="silent" if word == silence() else "stalled")
                run.cancel()
                result = await run.result()
            await left(fake)
            assert result.message.content == [Text("Cancelled by user")]
            assert result.usage.estimated
            assert (result.usage.input_tokens or 0) > 0
            await goes_on(agent, fake)

    play(main)


LONG = " ".join(["word"] * 100_000)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ([text(LONG, pace=0.001)], RunEvent.run_content),
        ([reasoning(LONG, pace=0.001)], RunEvent.reasoning),
        ([reasoning("Hm."), text("Half an "), stall()], RunEvent.run_content),
    ],
    ids=["text", "thinking", "stalled"],
)
def test_in_the_answer(words: list[Any], kind: RunEvent, way: str) -> None:
    async def main() -> None:
        with FakeGemini([words, [text("Fine.")]]) as fake:
            agent = Agent("Tester", model(fake))
            ended = await cut(agent, shown(kind))
            await left(fake)
            check_cancelled(ended, phase="streaming")
            assert ended.result.message.content[-1] == Text("Cancelled by user")
            await goes_on(agent, fake)

    play(main)


def test_between_parallel_calls(way: str) -> None:
    async def main() -> None:
        first, second = call("search", {"query": "a"}, "c1"), call("search", {"query": "b"}, pieces=4, send=2)
        with FakeGemini([[reasoning("Hm."), first, text("And "), second, stall()], [text("Fine.")]]) as fake:
            agent = Agent("Tester", model(fake), tools=[search])
            async with agent.start("go") as run:
                await fake.wait_for_async(0, at="stalled")
                # A reader sees no call before it runs, so this waits for the text that was sent after it.
                await until(lambda: "And " in str(probe(run).events))
                run.cancel()
                result = await run.result()
            await left(fake)
            assert [each.id for each in result.messages[1].tool_calls] == ["c1"]
            assert result.messages[2].tool_results[0].status == "error"
            await goes_on(agent, fake)

    play(main)


def test_while_waiting_to_try_again() -> None:
    async def main() -> None:
        with FakeGemini([[fail(429, "Slow down.", headers={"retry-after": "60"})], [text("Fine.")]]) as fake:
            agent = Agent("Tester", model(fake))
            ended = await cut(agent, lambda run: run.phase == "backoff")
            check_cancelled(ended, phase="backoff")
            (retry,) = [event for event in ended.events if event.event is RunEvent.model_retry]
            assert retry.delay == 60
            await goes_on(agent, fake)

    play(main)


def test_several_cancels_on_the_public_way_leak_nothing(way: str) -> None:
    async def main() -> None:
        with FakeGemini([[text(LONG, pace=0.001)]]) as fake:
            agent = Agent("Tester", model(fake))
            for number in range(10):
                async with agent.start("go", session_id=str(number)) as run:
                    await fake.wait_for_async(number, at="text")
                    run.cancel()
                await left(fake, number)
            await fake.wait_until_async(lambda: fake.open_connections == 0)

    play(main)


def test_the_client_is_being_opened() -> None:
    async def main() -> None:
        with FakeGemini([[pause(0), text("Fine.")]]) as fake:
            agent = Agent("Tester", model(fake))
            ended = await cut(agent, lambda run: run.phase == "waiting")
            check_cancelled(ended, phase="waiting")
            assert fake.served == []
            await goes_on(agent, fake)

    play(main)
