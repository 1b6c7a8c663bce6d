# SPDX-License-Identifier: Apache-2.0
"""Responses in the background: a cancel reaches the provider's response too, and a lost connection loses nothing."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from andon import Agent, Run, RunEvent, RunResult, RunStatus, SetupError, tool
from andon.messages import Reasoning, Text, user
from andon.models.base import ModelRequest
from andon.models.openai import OpenAIResponses, background
from andon.testing import check_model, probe, validate
from andon.testing.providers import (
    Answer,
    FakeResponses,
    Served,
    call,
    end,
    fail,
    pause,
    reasoning,
    silence,
    stall,
    text,
    until,
    usage,
)
from andon.testing.providers import cut as lose
from andon.testing.providers.script import Reasoning as Thoughts
from andon.testing.providers.script import Text as Words
from andon.testing.providers.script import Word
from tests.support import Flag, check_cancelled, check_events, cut, forever, play
from tests.support import until as holds

STORY = "And so it went on and on, as such stories do."
THOUGHT = reasoning("Let me see what there is to be said.")
LONG = {"query": "a long way down the river"}


@tool
async def search(query: str) -> str:
    """Look something up."""
    return f"found {query}"


def model_of(fake: FakeResponses, **options: Any) -> OpenAIResponses:
    return OpenAIResponses("gpt-5.2", fake.api_key, fake.base_url, background=True, **options)


def agent_of(fake: FakeResponses, **options: Any) -> Agent:
    return Agent("Tester", model_of(fake), tools=[search], **options)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No back-off: as many attempts, without the waits."""
    monkeypatch.setattr(background, "RESUME_DELAYS", (0.0,) * len(background.RESUME_DELAYS))
    monkeypatch.setattr(background, "CANCEL_DELAYS", (0.0,) * len(background.CANCEL_DELAYS))


async def check_cancelled_there(fake: FakeResponses, request: int = 0) -> Served:
    """The provider was asked once to cancel this response, and did so."""
    served = await fake.wait_for_async(request, at="cancelled")
    assert served.cancels == 1
    assert [each.error for each in fake.served if each.error] == []
    return served


def check_complete(result: RunResult) -> None:
    assert result.status is RunStatus.completed, result.error
    assert result.warnings == []


# -- what is asked ----------------------------------------------------------------------------------------------------


def test_a_whole_answer() -> None:
    with FakeResponses([[THOUGHT, call("search", LONG)], [text(STORY), usage(100, 50)]]) as fake:
        result = agent_of(fake).run("go")
        check_complete(result)
        assert result.content == STORY
        for body in fake.requests:
            assert body | {"background": True, "store": True, "stream": True} == body
            assert body["include"] == ["reasoning.encrypted_content"]
        assert [(each.cancels, each.resumed) for each in fake.served] == [(0, []), (0, [])]


def test_it_is_not_sent_unless_asked() -> None:
    with FakeResponses() as fake:
        Agent("Tester", OpenAIResponses("gpt-5.2", fake.api_key, fake.base_url)).run("go")
        assert "background" not in fake.requests[0]
        assert fake.requests[0]["store"] is False


def test_it_needs_store() -> None:
    with pytest.raises(SetupError, match="background=True needs a response that is stored: leave store out"):
        OpenAIResponses("gpt-5.2", "sk-any", background=True, store=False)
    with FakeResponses() as fake:  # as the provider says it
        result = Agent("Tester", model_of(fake, extra_body={"store": False})).run("go")
        assert "Background mode requires 'store' to be true" in str(result.error)


def test_it_conforms() -> None:
    with FakeResponses([[text(STORY, pace=0.001)]]) as fake:
        assert check_model(lambda: model_of(fake)) == []


# -- lost connections -------------------------------------------------------------------------------------------------


def whole() -> list[Any]:
    calls = [call("search", LONG, id="c1", pieces=4), call("search", {"query": "b"}, id="c2", pieces=2)]
    return [THOUGHT, text(STORY), *calls, usage(100, 50, cached_tokens=40, reasoning_tokens=20)]


def run_turn(fake: FakeResponses) -> tuple[Any, ...]:
    async def main() -> None:
        with fake:
            async with agent_of(fake).start("go", max_turns=1) as run:
                result = await run.result()
        shown = [event.content for event in probe(run).events if event.event is RunEvent.run_content]
        found.append((result.content, shown, result.messages[1].content, result.usage))

    found: list[Any] = []
    play(main)
    message = [each for each in found[0][2] if not isinstance(each, Reasoning)]  # each answer has seals of its own
    (thought,) = [each.text for each in found[0][2] if isinstance(each, Reasoning)]
    return (*found[0][:2], message, thought, *found[0][3:])


@pytest.mark.parametrize("every", [1, 2, 3, 5, 11])
def test_dropped_again_and_again(every: int, at_once: None, caplog: pytest.LogCaptureFixture) -> None:
    """After each event, or some: the same text, the same calls, the same usage; and each of it is logged."""
    steady, shaky = FakeResponses([whole()]), FakeResponses([whole()], drop_every=every)
    assert run_turn(shaky) == run_turn(steady)
    served = shaky.served[0]
    assert served.resumed == list(range(every - 1, served.resumed[-1] + 1, every))
    assert len(served.resumed) >= 3
    told = [each.getMessage() for each in caplog.records if "the answer is resumed" in each.getMessage()]
    assert len(told) == len(served.resumed)
    assert all(str(served.response_id) in each and shaky.api_key not in each for each in told)
    assert (served.cancels, len(shaky.served)) == (0, 1)


@pytest.mark.parametrize("drop", [lose(), lose(reset=True), lose(mid_chunk=True), end()], ids=str)
def test_ways_to_be_dropped(drop: Any) -> None:
    """The answer goes on at the provider: what it says meanwhile is there after the connection is."""
    words: list[Word] = [text("Once upon a time "), drop, text("there was "), call("search", LONG, pieces=3), drop]
    with FakeResponses([words, [text("Fine.")]]) as fake:
        result = agent_of(fake).run("go")
        check_complete(result)
        assert result.content == "Once upon a time there was Fine."
        assert len(fake.served[0].resumed) == 2
        assert fake.requests[1]["input"][-1]["output"] == f"found {LONG['query']}"


def test_silence_between_reads() -> None:
    going_on = threading.Event()
    with FakeResponses([[text("Once "), until(going_on), text("upon a time.")]]) as fake:
        agent = Agent("Tester", model_of(fake, timeout=0.1))
        result: list[RunResult] = []
        thread = threading.Thread(target=lambda: result.append(agent.run("go")))
        thread.start()
        fake.wait_until(lambda: bool(fake.served and fake.served[0].resumed))
        going_on.set()
        thread.join()
        check_complete(result[0])
        assert result[0].content == "Once upon a time."


def test_events_that_come_twice_are_taken_once() -> None:
    class Sink:
        def __init__(self) -> None:
            self.said = ""

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

        def text(self, text: str) -> None:
            self.said += text

    def event(number: int) -> bytes:
        return b'{"type":"response.output_text.delta","sequence_number":%d,"delta":"%d "}' % (number, number)

    sink = Sink()
    answer = background.NumberedAnswer(sink)
    answer.take([b'{"type":"response.created","sequence_number":0,"response":{"id":"resp_1"}}', event(1), event(2)])
    assert (answer.id, answer.number) == ("resp_1", 2)
    answer.resume()
    answer.take([event(1)])
    answer.take([event(2), event(3)])
    answer.take([event(4), b"[DONE]"])
    assert (sink.said, answer.number) == ("1 2 3 4 ", 4)


def test_a_provider_that_is_busy_meanwhile(at_once: None) -> None:
    busy = fail(503, "Busy.")
    with FakeResponses([[text("Once "), lose(), text("upon.")]], on_resume=[busy, busy, pause(0)]) as fake:
        result = agent_of(fake).run("go")
        check_complete(result)
        assert (result.content, len(fake.served[0].resumed)) == ("Once upon.", 3)


@pytest.mark.parametrize("status", [503, 404])
def test_resuming_fails_for_good(status: int, at_once: None) -> None:
    """That is the run's failure. The response, which may go on, is cancelled."""

    async def main() -> None:
        words: list[Word] = [text("Once "), lose(), stall()]
        with FakeResponses([words, [text("Fine.")]], on_resume=[fail(status, "Not now.")]) as fake:
            agent = agent_of(fake)
            result = await agent.invoke_async("go")
            assert result.status is RunStatus.error
            assert f"{status}: Not now." in str(result.error)
            assert result.content == "Once "
            served = await check_cancelled_there(fake)
            assert len(served.resumed) == (1 if status == 404 else len(background.RESUME_DELAYS))
            assert (await agent.invoke_async("and now?")).content == "Fine."

    play(main)


def test_an_error_of_the_provider_is_not_resumed() -> None:
    for event, cancels in (("error", 1), ("response.failed", 0)):
        words: list[Word] = [text("Once "), fail(500, "It broke.", code="server_error", event=event)]
        with FakeResponses([words]) as fake:
            result = agent_of(fake).run("go")
            assert "It broke." in str(result.error)
            assert (fake.served[0].resumed, fake.served[0].cancels) == ([], cancels)


def test_a_request_that_fails_is_an_ordinary_failure() -> None:
    with FakeResponses([[fail(429, "Slow down.", headers={"retry-after": "0"})], [lose()], [text("Fine.")]]) as fake:
        check_complete(result := agent_of(fake).run("go"))
        assert result.content == "Fine."
        assert [each.cancels for each in fake.served] == [0, 0, 0]


# -- cancels ----------------------------------------------------------------------------------------------------------


def at(fake: FakeResponses, state: str) -> Callable[[Run], bool]:
    return lambda run: bool(fake.served) and state in fake.served[0].reached


def has_come(run: Run, words: list[Any]) -> bool:
    """Whether the client has all text of these words, and the calls before it."""
    kinds = [event.event for event in probe(run).events]
    texts = sum(len(word.pieces) for word in words if isinstance(word, Words))
    thoughts = sum(len(word.pieces) for word in words if isinstance(word, Thoughts))
    return (kinds.count(RunEvent.run_content), kinds.count(RunEvent.reasoning)) >= (texts, thoughts)


SITUATIONS: dict[str, tuple[list[Any], str]] = {
    "queued": ([stall()], "waiting"),
    "thinking": ([reasoning(STORY), stall()], "streaming"),
    "text": ([THOUGHT, text("Half "), stall()], "streaming"),
    "arguments": ([THOUGHT, call("search", LONG, pieces=8, send=3), stall()], "streaming"),
    "after a call": ([THOUGHT, call("search", LONG, id="c1"), text("Half "), stall()], "streaming"),
}


@pytest.mark.parametrize("goes_on_in_background", [True, False])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_cancel_reaches_the_response(situation: str, goes_on_in_background: bool) -> None:
    words, phase = SITUATIONS[situation]

    async def main() -> None:
        with FakeResponses([words, [THOUGHT, text("Fine.")]]) as fake:
            agent = agent_of(fake)
            ended = await cut(agent, lambda run: has_come(run, words) and at(fake, "stalled")(run))
            served = fake.served[0]
            assert (served.cancels, "cancelled" in served.reached) == (1, True)  # before the run has ended
            tools = {"c1": "not_started"} if situation == "after a call" else None
            check_cancelled(ended, phase=phase, tools=tools)
            await fake.wait_for_async(0, at="left")
            assert ended.result.warnings == []
            assert validate(agent.messages) == []
            if not goes_on_in_background:
                agent.model = OpenAIResponses("gpt-5.2", fake.api_key, fake.base_url)
            for _ in range(2):
                assert (await agent.invoke_async("and now?")).content == "Fine."
            await check_cancelled_there(fake)

    play(main)


@pytest.mark.parametrize("first_in_background", [True, False])
def test_reasoning_goes_from_one_to_the_other(first_in_background: bool) -> None:
    """Also that of an answer that was cut: the provider knows it by its encrypted content, and not by its id."""

    async def main() -> None:
        words: list[list[Word]] = [[THOUGHT, call("search", LONG), text("Half "), stall()], [THOUGHT, text("Fine.")]]
        with FakeResponses(words) as fake:
            models = [model_of(fake), OpenAIResponses("gpt-5.2", fake.api_key, fake.base_url)]
            here, other = models if first_in_background else reversed(models)
            agent = Agent("Tester", here, tools=[search])
            await cut(agent, lambda run: has_come(run, words[0]))
            for agent.model in (other, here, other):
                assert (await agent.invoke_async("and now?")).content == "Fine."
            sent = [item for item in fake.requests[-1]["input"] if item.get("type") == "reasoning"]
            assert len(sent) == 3
            assert [each.error for each in fake.served if each.error] == []

    play(main)


def test_a_cancel_before_the_id_is_known() -> None:
    """The request was sent, so the response may exist: the connection is read until its id comes."""

    async def main() -> None:
        going_on = threading.Event()
        with FakeResponses([[until(going_on), text("Once "), stall()]]) as fake:
            agent = agent_of(fake)
            async with agent.start("go") as run:
                await fake.wait_for_async(0, at="held")
                run.cancel()
                going_on.set()
                result = await run.result()
            assert result.status is RunStatus.cancelled
            assert (result.content, result.warnings) == ("", [])
            await check_cancelled_there(fake)

    play(main)


def quick() -> Any:
    from andon import Runtime

    return Runtime(cut_seconds=0.05, abandon_seconds=0.1)


def test_no_id_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends in its bounds, and names the call until the connection is closed."""
    monkeypatch.setattr(background, "CANCEL_SECONDS", 0.3)

    async def main() -> None:
        with FakeResponses([[silence()]]) as fake:
            agent = agent_of(fake, runtime=quick())
            async with agent.start("go") as run:
                await fake.wait_for_async(0, at="silent")
                run.cancel()
                result = await run.result()
                assert result.receipt is not None
                assert result.receipt.leftovers == ["the model"]
                assert "may still be running at the provider" in result.warnings[0]
                receipt = await run.cancel_and_wait()
                assert receipt is not None
                assert receipt.leftovers == []
            await fake.wait_for_async(0, at="left")
            assert fake.served[0].cancels == 0

    play(main)


@pytest.mark.parametrize("answer", ["hangs", "fails", "busy", "gone"])
def test_the_providers_cancel(
    answer: str, at_once: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it answers, the run ends in its bounds, and says what is not certain."""
    monkeypatch.setattr(background, "CANCEL_SECONDS", 0.3)
    busy = fail(503, "Busy.")
    scripts: dict[str, list[Any]] = {
        "hangs": [silence()],
        "fails": [fail(400, "No: you sent sk-fake-but-long-enough.")],
        "busy": [busy, busy, pause(0)],
        "gone": [fail(404, "There is none.")],
    }
    asked = {"hangs": 1, "fails": 1, "busy": 3, "gone": 1}

    async def main() -> None:
        with FakeResponses(
            [[text("Half "), stall()]], on_cancel=scripts[answer], api_key="sk-fake-but-long-enough"
        ) as fake:
            agent = agent_of(fake, runtime=quick() if answer == "hangs" else None)
            ended = await cut(agent, at(fake, "stalled"))
            assert ended.result.status is RunStatus.cancelled
            assert isinstance(ended.result.message.content[-1], Text)
            await ended.run.cancel_and_wait()
            assert fake.served[0].cancels == asked[answer]
            told = " ".join(ended.result.warnings)
            if answer in ("hangs", "fails"):
                assert f"the response {fake.served[0].response_id} may still be running at the provider" in told
                assert "may still be running" in caplog.text
            else:
                assert told == ""
            assert fake.api_key not in told + caplog.text

    with caplog.at_level(logging.WARNING, "andon.models"):
        play(main)


def test_other_cuts() -> None:
    """A deadline and a timeout of the host arrive in the same way."""

    async def main() -> None:
        with FakeResponses([[text("Half "), stall()]]) as fake:
            result = await agent_of(fake).invoke_async("go", timeout=0.1)
            assert result.status is RunStatus.cancelled
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await agent_of(fake).invoke_async("go")
            for request in (0, 1):
                await check_cancelled_there(fake, request)

    play(main)


def test_while_it_waits_to_resume() -> None:
    async def main() -> None:
        answer: list[Word] = [text("Half "), lose(), stall()]
        with FakeResponses([answer], on_resume=[fail(503, "Busy.", headers={"retry-after": "20"})]) as fake:
            ended = await cut(agent_of(fake), lambda run: bool(fake.served and fake.served[0].resumed))
            check_cancelled(ended, phase="streaming")
            await check_cancelled_there(fake)

    play(main)


def test_two_runs_at_once() -> None:
    async def main() -> None:
        def script(body: dict[str, Any]) -> Answer:
            return [text("Half "), stall() if "one" in str(body) else text("of it.")]

        with FakeResponses(script) as fake:
            model = model_of(fake)
            one, other = Agent("One", model), Agent("Other", model)

            def is_stalled(run: Run) -> bool:  # either of the two requests may arrive first
                return any("stalled" in each.reached for each in fake.served)

            ended, result = await asyncio.gather(cut(one, is_stalled, prompt="one"), other.invoke_async("other"))
            assert (ended.result.status, result.content) == (RunStatus.cancelled, "Half of it.")
            cancels = {str(each.body["input"]): each.cancels for each in fake.served}
            assert {("one" in asked): count for asked, count in cancels.items()} == {True: 1, False: 0}

    play(main)


def test_the_hosts_end() -> None:
    """The loop cancels every task at once, the model's own ones too."""
    with FakeResponses([[text("Half "), stall()]]) as fake:

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            run = agent_of(fake).start("go")
            await run.begin()
            keep.append(run)
            await fake.wait_for_async(0, at="stalled")
            await holds(lambda: run.phase == "streaming")

        complaints: list[Any] = []
        keep: list[Any] = []
        asyncio.run(main())
        assert (fake.served[0].cancels, "cancelled" in fake.served[0].reached) == (1, True)
        assert keep[0].status is RunStatus.cancelled
        assert complaints == []


def test_a_cancel_while_a_failed_response_is_cancelled_is_not_lost() -> None:
    going_on = threading.Event()
    sink: Any = SimpleNamespace(text=lambda text: None, warn=lambda text: None)

    async def main() -> None:
        answer: list[Any] = [text("Once "), lose(), stall()]
        with FakeResponses([answer], on_resume=[fail(400, "No.")], on_cancel=[until(going_on)]) as fake:
            task = asyncio.create_task(model_of(fake).stream(ModelRequest([user("go")], None, []), sink))
            await fake.wait_until_async(lambda: bool(fake.served) and fake.served[0].cancels == 1)
            task.cancel()
            await asyncio.sleep(0)
            going_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            await check_cancelled_there(fake)

    play(main)


def test_the_hosts_end_during_the_cancel() -> None:
    """The request to cancel is cut, and is sent again."""
    going_on = threading.Event()
    with FakeResponses([[text("Half "), stall()]], on_cancel=[until(going_on), pause(0)]) as fake:

        async def main() -> None:
            run = agent_of(fake).start("go")
            await run.begin()
            await fake.wait_for_async(0, at="stalled")
            await holds(lambda: run.phase == "streaming")
            run.cancel()
            await fake.wait_until_async(lambda: fake.served[0].cancels == 1)

        asyncio.run(main())
        assert (fake.served[0].cancels, "cancelled" in fake.served[0].reached) == (2, True)


PROGRAM = """
import sys, andon
from andon.models.openai import OpenAIResponses

agent = andon.Agent("Tester", OpenAIResponses("gpt-5.2", "sk-fake", sys.argv[1], background=True))
for event in agent.run("go", stream=True):
    print(event.event, event.content)
    if event.event == "RunContent":
        sys.exit()
"""


def test_the_end_of_the_process() -> None:
    with FakeResponses([[text("Half "), stall()]]) as fake:
        command = [sys.executable, "-c", PROGRAM, fake.base_url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert "Half" in done.stdout, done
        assert done.returncode == 0
        # Not that it is empty: the HTTP library complains if the host cancels its task while that connects.
        assert not re.search("andon|destroyed|never", done.stderr), done.stderr
        fake.wait_for(0, at="cancelled")


def random_answer(dice: random.Random) -> Answer:
    words: list[Any] = [THOUGHT] if dice.random() < 0.5 else []
    if dice.random() < 0.7:
        words.append(text(STORY, pace=dice.choice([0, 0.0005])))
    words += [call("search", LONG, pieces=dice.randint(1, 6)) for _ in range(dice.choice([0, 0, 1, 3]))]
    words = words or [text("Nothing.")]
    if dice.random() < 0.5:  # not before its first word: a response whose id is not known can't be resumed
        words.insert(dice.randrange(len(words)) + 1, lose(reset=dice.random() < 0.5))
    return words


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(4))
def test_at_random(seed: int, at_once: None) -> None:
    """Cancelled after a random number of turns of the loop. Each response has ended, or was cancelled, by then."""

    async def main() -> None:
        dice = random.Random(seed)
        with FakeResponses(lambda _: random_answer(dice), drop_every=dice.choice([None, 9])) as fake:
            agent = agent_of(fake)
            await agent.invoke_async("warm up", max_turns=1)
            for _ in range(20):
                async with agent.start("go", max_turns=3) as run:
                    for _ in range(dice.randrange(dice.choice([5, 50, 500]))):
                        await asyncio.sleep(0)
                    run.cancel()
                    result = await run.result()
                    check_events(list(probe(run).events))
                assert result.warnings == []
                for served in fake.served:
                    assert served.finished or served.cancels, served
            assert [each.error for each in fake.served if each.error] == []
            assert all(each.cancels <= 1 for each in fake.served)

    play(main)


def test_the_run_goes_on_after_a_model_call_that_ended() -> None:
    """A cancel during the tools has no response to cancel."""

    async def main() -> None:
        reached = Flag()

        @tool
        async def stuck() -> str:
            reached.set()
            await forever()
            return "never"

        with FakeResponses([[call("stuck")], [text("Fine.")]]) as fake:
            agent = Agent("Tester", model_of(fake), tools=[stuck])
            await cut(agent, reached)
            assert (await agent.invoke_async("and now?")).content == "Fine."
            assert [each.cancels for each in fake.served] == [0, 0]

    play(main)
