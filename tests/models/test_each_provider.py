# SPDX-License-Identifier: Apache-2.0
"""What holds for the models of all providers alike."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from pydantic import BaseModel

from andon import Agent, File, FinishReason, Image, RunStatus, tool
from andon.messages import Reasoning
from andon.testing import check_model, explore, probe
from andon.testing.providers import Answer, call, end, pause, reasoning, text, usage
from tests.support import check_events, play
from tests.support.providers import Provider, each_provider

pytestmark = pytest.mark.no_cover  # many repetitions of what other tests cover

STORY = "And so it went on and on, as such stories do, until the lamp was lit and the ships came home."
CAT = Image(b"\x89PNG\r\n\x1a\n" + b"x" * 20)


@tool
async def search(query: str) -> str:
    """Look something up."""
    return f"found {query}"


@tool
async def photo() -> Any:
    """Take a photo."""
    return ["A cat:", CAT]


@each_provider
def test_it_conforms(provider: Provider) -> None:
    with provider.serve([[text(STORY, pace=0.001)]]) as fake:
        assert check_model(lambda: provider.model(fake)) == []


@each_provider
def test_it_says_who_it_is_and_not_its_key(provider: Provider) -> None:
    with provider.serve() as fake:
        model = provider.model(fake)
        assert fake.api_key not in repr(model)
        assert isinstance(getattr(model, "provider", None), str)


@each_provider
def test_usage_is_counted_alike(provider: Provider) -> None:
    """Input with what was cached, output with what was thought."""
    words: Answer = [reasoning("Hm."), text("Well."), usage(100, 50, cached_tokens=40, reasoning_tokens=20)]
    with provider.serve([words]) as fake:
        spent = Agent("Tester", provider.model(fake)).run("go").usage
        assert (spent.input_tokens, spent.output_tokens, spent.cached_tokens) == (100, 50, 40)
        assert spent.reasoning_tokens == (None if provider.name == "bedrock" else 20)
        assert not spent.estimated


@each_provider
def test_an_orderly_end_without_the_last_event_is_a_failure(provider: Provider) -> None:
    with provider.serve([[text("Once upon "), end()]]) as fake:
        result = Agent("Tester", provider.model(fake)).run("go")
        assert result.status is RunStatus.error
        assert result.content == "Once upon "


@each_provider
def test_structured_output(provider: Provider) -> None:
    class Ship(BaseModel):
        name: str
        masts: int

    with provider.serve([[text('{"name": "Gorch Fock", "masts": 3}')]]) as fake:
        result = Agent("Tester", provider.model(fake), output_type=Ship).run("Which ship?")
        assert result.output == Ship(name="Gorch Fock", masts=3), result.error
        assert "masts" in json.dumps(fake.requests[0])


@each_provider
def test_images_and_documents(provider: Provider) -> None:
    script: list[Answer] = [[call("photo")], [text("A cat.")], [text("Yes.")]]
    with provider.serve(script) as fake:
        agent = Agent("Tester", provider.model(fake), tools=[photo])
        result = agent.run(["Look:", CAT, File(b"%PDF-1.7 and so on", name="report.pdf"), File(b"Buy milk.")])
        assert (result.status, result.content) == (RunStatus.completed, "A cat."), result.error
        assert result.finish_reason is FinishReason.end_turn
        assert agent.run("Sure?").content == "Yes."
        (told,) = agent.messages[2].tool_results
        assert told.attachments == ([] if provider.name == "chat" else [CAT])
        assert [each.error for each in fake.served if each.error] == []


# -- cancels ----------------------------------------------------------------------------------------------------------


@each_provider
def test_the_explorer_over_it(provider: Provider) -> None:
    """Every step of the event loop. The fake is a real server, so the steps are not quite the same ones each time."""

    def script(body: dict[str, Any]) -> Answer:
        if "found" in json.dumps(body) or "And now?" in json.dumps(body):
            return [reasoning("Hm."), text("It is there.")]
        return [reasoning("Hm. Well."), text("I look."), call("search", {"query": "a"}, pieces=3), call("photo")]

    with provider.serve(script) as fake:

        async def scenario() -> None:
            agent = Agent("Tester", provider.model(fake), tools=[search, photo])
            await agent.invoke_async("go")

        Agent("Tester", provider.model(fake)).run("And now?")  # imports the SDK, which takes seconds on a busy machine
        explore(scenario, inject="cancel").raise_for_problems()
        assert [each.error for each in fake.served if each.error] == []


def random_answer(dice: random.Random) -> Answer:
    words: list[Any] = []
    if dice.random() < 0.5:
        words.append(reasoning("Let me see what there is to be said. ", pace=dice.choice([0, 0.0005])))
    if dice.random() < 0.7:
        words.append(text("Once upon a time there was a lamp. ", pace=dice.choice([0, 0.0005])))
    calls = range(dice.choice([0, 0, 1, 3]))
    words += [call("search", {"query": "a lamp"}, pieces=dice.randint(1, 6)) for _ in calls]
    if dice.random() < 0.3:
        words.append(pause(0.001))
    return words or [text("Nothing.")]


@pytest.mark.parametrize("seed", range(5))
@each_provider
def test_at_random(provider: Provider, seed: int) -> None:
    """Twenty prompts in one conversation, each cancelled after a random number of turns of the event loop."""

    async def main() -> None:
        dice = random.Random(f"{provider.name} {seed}")
        with provider.serve(lambda _: random_answer(dice), split=dice.choice([None, 7, 100])) as fake:
            agent = Agent("Tester", provider.model(fake), tools=[search])
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
                    assert not isinstance(block, Reasoning) or block.signature or provider.name == "chat"
            assert [each.error for each in fake.served if each.error] == []
            await fake.wait_until_async(lambda: all(each.over for each in fake.served))
            assert all(each.sent_after_left == 0 for each in fake.served)

    play(main)
