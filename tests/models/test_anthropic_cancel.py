# SPDX-License-Identifier: Apache-2.0
"""A cancel, wherever a request to Anthropic is: the provider sees the client leave, and the next prompt is accepted.

The fake rejects a conversation as Anthropic would, so "accepted" is its word, not ours. How quick it is: `bench/`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from andon import Agent, RunEvent, RunStatus, tool
from andon.messages import Reasoning, Text
from andon.testing.providers import FakeAnthropic, call, connect_never, fail, finish, reasoning, silence, stall, text
from tests.support import Flag, check_cancelled, cut, forever, play, until
from tests.support.anthropic import OLDER, agent, block, event, model
from tests.support.requests import goes_on, left, open_sockets, shown

pytestmark = pytest.mark.no_cover  # others cover what it reaches, and half of its time would be the tracer's

FINE: list[Any] = [text("Fine.")]


@tool
async def search(query: str) -> str:
    """Look something up."""
    return f"found {query}"


def stalls(fake: FakeAnthropic, request: int = 0) -> Callable[[Any], bool]:
    return lambda run: len(fake.served) > request and fake.served[request].state == "stalled"


def test_connecting() -> None:
    """Nobody sees such a client leave; what can be seen is that its socket is closed."""

    async def main() -> None:
        sockets: list[int] = []

        def make() -> httpx2.AsyncClient:
            async def about_to_connect(request: httpx2.Request) -> None:
                sockets.append(open_sockets())

            return httpx2.AsyncClient(event_hooks={"request": [about_to_connect]})

        with connect_never() as nowhere, FakeAnthropic([FINE]) as fake:
            for options in ({}, {"max_tokens": 99}):  # asking for the limit, and for the answer
                sockets.clear()
                tester = agent(nowhere, http_client=make, **options)  # type: ignore[arg-type]
                ended = await cut(tester, lambda run: bool(sockets) and open_sockets() > sockets[0])
                check_cancelled(ended, phase="waiting")
                await until(lambda: open_sockets() == sockets[0])  # uvloop closes them in its next turn
            tester.model = model(fake)
            await goes_on(tester, fake)

    play(main)


@pytest.mark.parametrize("options", [{}, {"max_tokens": 99}], ids=["limit", "answer"])
def test_the_tls_handshake(options: dict[str, Any]) -> None:
    async def main() -> None:
        with connect_never(tls=True) as nowhere, FakeAnthropic([FINE]) as fake:
            tester = agent(nowhere, **options)
            async with tester.start("go") as run:
                await nowhere.wait_connected_async()
                run.cancel()
                assert (await run.result()).status is RunStatus.cancelled
            await nowhere.wait_left_async()
            tester.model = model(fake)
            await goes_on(tester, fake)

    play(main)


THOUGHT = reasoning("Let me see.", signature="one")
LONG = {"query": "the sea, the sea"}

Moment = tuple[list[Any], str]
MOMENTS: dict[str, Moment] = {
    "before-headers": ([silence()], "silent"),
    "headers": ([stall()], "stalled"),
    "thinking": ([reasoning("hm " * 20), stall()], "stalled"),
    "signature": (
        [
            *block(
                0,
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "thinking_delta", "thinking": "Hm."},
                {"type": "signature_delta", "signature": "one"},
                stop=False,
            ),
            stall(),
        ],
        "stalled",
    ),
    "after-thinking": ([THOUGHT, reasoning(redacted="hidden"), stall()], "stalled"),
    "text": ([THOUGHT, text("Half "), stall()], "stalled"),
    "arguments": ([THOUGHT, text("I look. "), call("search", LONG, pieces=8, send=3), stall()], "stalled"),
    "between-calls": ([THOUGHT, call("search", LONG), call("search", LONG, pieces=4, send=1), stall()], "stalled"),
    "search": (
        [THOUGHT, *block(7, {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}), stall()],
        "stalled",
    ),
    "before-the-last-event": (
        [text("Half "), event("message_delta", delta={"stop_reason": "end_turn"}, usage={}), stall()],
        "stalled",
    ),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_at_a_moment(moment: str) -> None:
    words, state = MOMENTS[moment]

    async def main() -> None:
        with FakeAnthropic([words, FINE]) as fake:
            tester = agent(fake, tools=[search], thinking=True)
            async with tester.start("go") as run:
                await fake.wait_for_async(0, at=state)
                if "text" in moment or "arguments" in moment:
                    await until(lambda: shown(RunEvent.run_content)(run))
                run.cancel()
                result = await run.result()
            assert result.status is RunStatus.cancelled
            await left(fake)
            for each in result.message.content:
                assert not isinstance(each, Reasoning) or each.signature is not None
            assert result.message.content[-1] == Text("Cancelled by user")
            assert result.usage.estimated
            assert (result.usage.input_tokens or 0) > 0
            await goes_on(tester, fake)

    play(main)


def test_a_signature_counts_when_its_block_is_complete() -> None:
    async def main() -> None:
        with FakeAnthropic([MOMENTS["signature"][0], FINE]) as fake:
            tester = agent(fake)
            ended = await cut(tester, shown(RunEvent.reasoning))
            assert ended.result.message.content == [Text("Cancelled by user")]
            await goes_on(tester, fake)

    play(main)


def test_in_a_turn_that_goes_on_after_a_pause() -> None:
    async def main() -> None:
        first: list[Any] = [THOUGHT, text("I look. "), finish("pause_turn")]
        with FakeAnthropic([first, [text("Half "), stall()], FINE]) as fake:
            tester = agent(fake, OLDER)
            ended = await cut(tester, stalls(fake, 1))
            await left(fake, 1)
            said = [block.text for block in ended.result.message.content[1:] if isinstance(block, Text)]
            assert said in (["I look. ", "Half ", "Cancelled by user"], ["I look. ", "Cancelled by user"])
            await goes_on(tester, fake)

    play(main)


@pytest.mark.parametrize("parallel", [True, False])
def test_between_tools(parallel: bool) -> None:
    """One call of three has its result; the others are told the truth, and the provider accepts it."""

    async def main() -> None:
        reached = Flag()

        @tool
        async def look(query: str) -> str:
            """Look something up."""
            if query != "0":
                reached.set()
                await forever()
            return "found"

        calls = [call("look", {"query": str(number)}, id=f"toolu_{number}") for number in range(3)]
        with FakeAnthropic([[THOUGHT, text("I look. "), *calls], FINE]) as fake:
            tester = Agent("Tester", model(fake), tools=[look], parallel_tools=parallel)
            ended = await cut(tester, reached)
            outcomes = {"toolu_0": "completed", "toolu_1": "cut", "toolu_2": "cut" if parallel else "not_started"}
            check_cancelled(ended, phase="tools", tools=outcomes)
            await goes_on(tester, fake)

    play(main)


def test_the_back_off() -> None:
    async def main() -> None:
        with FakeAnthropic([[fail(529, "Overloaded", headers={"retry-after": "60"})], FINE]) as fake:
            tester = agent(fake)
            ended = await cut(tester, lambda run: run.phase == "backoff")
            check_cancelled(ended, phase="backoff")
            await goes_on(tester, fake)

    play(main)


def test_nothing_more_is_read_even_if_it_is_there() -> None:
    async def main() -> None:
        with FakeAnthropic([[text(pieces=["word "] * 20_000)], FINE]) as fake:
            tester = agent(fake)
            ended = await cut(tester, shown(RunEvent.run_content))
            check_cancelled(ended, phase="streaming")
            assert [each.event for each in ended.events[-2:]] == [RunEvent.cancel_requested, RunEvent.run_cancelled]
            assert ended.kinds.count(RunEvent.run_content) < 20_000
            await goes_on(tester, fake)

    play(main)
