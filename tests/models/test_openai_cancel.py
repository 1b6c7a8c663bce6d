# SPDX-License-Identifier: Apache-2.0
"""A cancel, wherever a request to OpenAI is: the provider sees the client leave, and the next prompt is accepted.

The fakes reject a conversation as OpenAI would, so "accepted" is their word, not ours. How quick it is: `bench/`.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx2
import pytest

from andon import Agent, RunEvent, RunStatus, tool
from andon.messages import Reasoning, Text
from andon.testing import probe
from andon.testing.providers import Answer, call, connect_never, fail, pause, reasoning, silence, stall, text, usage
from tests.support import Ended, Flag, check_cancelled, check_events, cut, forever, play, until
from tests.support.openai import APIS, Api, Fake, each_api
from tests.support.requests import goes_on, left, open_sockets, shown

pytestmark = pytest.mark.no_cover  # others cover what it reaches, and half of its time would be the tracer's

LONG_WORDS = text("And so it went on and on, as such stories do. ", pace=0.001)


@tool
async def search(query: str) -> str:
    """Look something up."""
    return f"found {query}"


def said(ended: Ended, kind: RunEvent = RunEvent.run_content) -> str:
    return "".join(event.content for event in ended.events if event.event is kind)


def at(fake: Fake, state: str) -> bool:
    return bool(fake.served) and fake.served[0].state == state


@each_api
def test_connecting(api: Api) -> None:
    """Nobody sees such a client leave; what can be seen is that its socket is closed."""

    async def main() -> None:
        sockets: list[int] = []

        def make() -> httpx2.AsyncClient:
            async def about_to_connect(request: httpx2.Request) -> None:
                sockets.append(open_sockets())

            return httpx2.AsyncClient(event_hooks={"request": [about_to_connect]})

        with connect_never() as nowhere, api.fake([[text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(nowhere, http_client=make))
            ended = await cut(agent, lambda run: bool(sockets) and open_sockets() > sockets[0])
            check_cancelled(ended, phase="waiting")
            await until(lambda: open_sockets() == sockets[0])  # uvloop closes them in its next turn
            agent.model = api.model(fake)
            await goes_on(agent, fake)

    play(main)


@each_api
def test_the_tls_handshake(api: Api) -> None:
    async def main() -> None:
        with connect_never(tls=True) as nowhere, api.fake([[text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(nowhere))
            async with agent.start("go") as run:
                await nowhere.wait_connected_async()
                run.cancel()
                assert (await run.result()).status is RunStatus.cancelled
            await nowhere.wait_left_async()
            agent.model = api.model(fake)
            await goes_on(agent, fake)

    play(main)


@each_api
def test_a_silent_provider(api: Api) -> None:
    async def main() -> None:
        with api.fake([[silence()], [text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(fake))
            async with agent.start("go") as run:
                await fake.wait_for_async(0, at="silent")
                run.cancel()
                result = await run.result()
            await left(fake)
            assert fake.served[0].bytes_sent == 0
            assert result.status is RunStatus.cancelled
            assert result.message.content == [Text("Cancelled by user")]
            assert result.usage.estimated
            assert (result.usage.input_tokens or 0) > 0
            await goes_on(agent, fake)

    play(main)


@each_api
def test_headers_and_then_nothing(api: Api) -> None:
    async def main() -> None:
        with api.fake([[stall()], [text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(fake))
            async with agent.start("go") as run:
                await fake.wait_for_async(0, at="stalled")
                run.cancel()
                assert (await run.result()).message.content == [Text("Cancelled by user")]
            await left(fake)
            await goes_on(agent, fake)

    play(main)


@each_api
def test_mid_text(api: Api) -> None:
    async def main() -> None:
        with api.fake([[text(" ".join(["word"] * 100_000), pace=0.001)], [text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(fake))
            ended = await cut(agent, shown(RunEvent.run_content))
            await left(fake)
            check_cancelled(ended, phase="streaming")
            assert said(ended).startswith("word ")
            assert ended.result.message.content == [Text(said(ended)), Text("Cancelled by user")]
            await goes_on(agent, fake)

    play(main)


@each_api
def test_stalled_after_some_text(api: Api) -> None:
    async def main() -> None:
        with api.fake([[text("Half an answer "), stall()], [text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(fake))
            ended = await cut(agent, lambda run: "answer " in str(probe(run).events))
            await left(fake)
            check_cancelled(ended, phase="streaming")
            assert said(ended) == "Half an answer "
            assert ended.result.usage.output_tokens == 4
            assert ended.result.usage.estimated
            await goes_on(agent, fake)

    play(main)


@each_api
def test_mid_reasoning(api: Api) -> None:
    async def main() -> None:
        with api.fake([[reasoning(" ".join(["hm"] * 100_000), pace=0.001)], [text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(fake))
            ended = await cut(agent, shown(RunEvent.reasoning))
            await left(fake)
            check_cancelled(ended, phase="streaming")
            assert said(ended, RunEvent.reasoning).startswith("hm ")
            assert ended.result.message.content == [Text("Cancelled by user")]
            await goes_on(agent, fake)

    play(main)


@each_api
def test_after_reasoning_mid_text(api: Api) -> None:
    """The reasoning is complete, what it led to is not: it must not go back alone."""

    async def main() -> None:
        with api.fake([[reasoning("Let me see."), text("Half "), stall()], [text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(fake))
            ended = await cut(agent, shown(RunEvent.run_content))
            await left(fake)
            check_cancelled(ended, phase="streaming")
            await goes_on(agent, fake)

    play(main)


@each_api
def test_mid_tool_call(api: Api) -> None:
    async def main() -> None:
        half = call("search", {"query": "the sea, the sea"}, pieces=8, send=3)
        with api.fake([[text("I look. "), half, stall()], [text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(fake), tools=[search])
            ended = await cut(agent, lambda run: at(fake, "stalled") and run.phase == "streaming")
            await left(fake)
            check_cancelled(ended, phase="streaming")
            assert ended.result.messages[-1].tool_calls == []
            await goes_on(agent, fake)

    play(main)


@pytest.mark.parametrize("parallel", [True, False])
@each_api
def test_between_tool_calls(api: Api, parallel: bool) -> None:
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

        calls = [call("look", {"query": str(number)}, id=f"call_{number}") for number in range(3)]
        with api.fake([[reasoning("Let me see."), text("I look. "), *calls], [text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(fake), tools=[look], parallel_tools=parallel)
            ended = await cut(agent, reached)
            outcomes = {"call_0": "completed", "call_1": "cut", "call_2": "cut" if parallel else "not_started"}
            check_cancelled(ended, phase="tools", tools=outcomes)
            await goes_on(agent, fake)

    play(main)


@each_api
def test_the_back_off(api: Api) -> None:
    async def main() -> None:
        with api.fake([[fail(429, "Slow down.", headers={"retry-after": "60"})], [text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(fake))
            ended = await cut(agent, lambda run: run.phase == "backoff")
            check_cancelled(ended, phase="backoff")
            (retry,) = [event for event in ended.events if event.event is RunEvent.model_retry]
            assert retry.error == "RateLimitError: 429: Slow down."
            assert retry.delay == 60
            await goes_on(agent, fake)

    play(main)


@each_api
def test_while_the_client_is_being_opened(api: Api) -> None:
    """The very first request of a loop: the SDK and the certificates are loaded in a thread."""

    async def main() -> None:
        with api.fake([[text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(fake))
            ended = await cut(agent, lambda run: run.phase == "waiting")
            check_cancelled(ended, phase="waiting")
            assert fake.served == []
            await goes_on(agent, fake)

    play(main)


def test_nothing_more_is_read_even_if_it_is_there() -> None:
    """Tokens that have arrived, and were not looked at yet, are not shown after a cancel."""

    async def main() -> None:
        for api in APIS:
            with api.fake([[text(pieces=["word "] * 20_000)], [text("Fine.")]]) as fake:
                agent = Agent("Tester", api.model(fake))
                ended = await cut(agent, shown(RunEvent.run_content))
                check_cancelled(ended, phase="streaming")
                after = [event.event for event in ended.events[-2:]]
                assert after == [RunEvent.cancel_requested, RunEvent.run_cancelled]
                assert ended.kinds.count(RunEvent.run_content) < 20_000
                await goes_on(agent, fake)

    play(main)


# -- anywhere ---------------------------------------------------------------------------------------------------------


def random_answer(dice: random.Random) -> Answer:
    words: list[Any] = []
    if dice.random() < 0.5:
        words.append(reasoning("Let me see what there is to be said. ", pace=dice.choice([0, 0.0005])))
    if dice.random() < 0.7:
        words.append(text("Once upon a time there was a lamp. ", pace=dice.choice([0, 0.0005])))
    for _ in range(dice.choice([0, 0, 1, 3])):
        interleaved = dice.random() < 0.5
        words.append(call("search", {"query": "a lamp"}, pieces=dice.randint(1, 6), interleaved=interleaved))
    if dice.random() < 0.3:
        words.append(pause(0.001))
    if dice.random() < 0.5:
        words.append(usage(10, 5, cached_tokens=3, reasoning_tokens=2))
    return words or [text("Nothing.")]


@pytest.mark.parametrize("seed", range(10))
@each_api
def test_at_random(api: Api, seed: int) -> None:
    """Twenty prompts in one conversation, each cancelled after a random number of turns of the event loop."""

    async def main() -> None:
        dice = random.Random(f"{api.name} {seed}")
        with api.fake(lambda _: random_answer(dice), split=dice.choice([None, 7, 100])) as fake:
            agent = Agent("Tester", api.model(fake), tools=[search])
            await agent.invoke_async("warm up", max_turns=1)
            for _ in range(20):
                async with agent.start("go", max_turns=3) as run:
                    for _ in range(dice.randrange(dice.choice([5, 50, 500]))):
                        await asyncio.sleep(0)
                    run.cancel()
                    result = await run.result()
                    check_events(list(probe(run).events))
                assert result.status in (RunStatus.cancelled, RunStatus.completed), result.error
                for block in result.message.content:
                    assert not isinstance(block, Reasoning) or block.signature is not None or api.name == "chat"
            assert [each.error for each in fake.served if each.error] == []
            await fake.wait_until_async(lambda: all(each.over for each in fake.served))
            assert all(each.sent_after_left == 0 for each in fake.served)

    play(main)
