# SPDX-License-Identifier: Apache-2.0
"""Why a model ended its answer: the result says it, and warns where the answer is not whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from andon import Agent, FinishReason, ModelError, OutputError, RunStatus, Runtime, tool
from andon.core.markers import FAILED, MARKERS, REFUSED, is_refused
from andon.core.states import CancelCause
from andon.messages import Text
from andon.models.base import ModelRequest, Sink
from andon.testing import validate
from tests.support import Flag, cut, forever, play, record_of


class Ending:
    """A model that says a word and ends for these reasons, one after the other."""

    id = "ending"

    def __init__(self, *reasons: Any, detail: str | None = None, text: str = "Well.") -> None:
        self._reasons, self._detail, self._text = list(reasons), detail, text
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        self.requests.append(request)
        sink.text(self._text)
        if self._reasons and (reason := self._reasons.pop(0)) is not None:
            if reason == "tool_calls":
                sink.tool_call("c1", "nap", {})
            sink.finish(reason, self._detail)


@tool
async def nap() -> str:
    return "slept"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("end_turn", None),
        ("stop_sequence", None),
        ("length", "limit of output tokens: so it is"),
        ("context_window", "context window is full"),
        ("content_filter", "content filter"),
        ("refusal", "declined to answer"),
        ("other", "incomplete: so it is"),
    ],
)
def test_the_result_says_why(reason: str, words: str | None) -> None:
    async def main() -> None:
        agent = Agent("Tester", Ending(reason, detail="so it is"))
        async with agent.start("go") as run:
            *_, last = [event async for event in run]
            result = await run.result()
        assert last.finish_reason is FinishReason(reason)
        assert (result.status, result.stop_reason, result.content) == (RunStatus.completed, "end_turn", "Well.")
        assert result.finish_reason is FinishReason(reason)
        assert (await record_of(agent, result.run_id)).finish_reason is FinishReason(reason)
        assert result.to_dict()["finish_reason"] == reason
        if words is None:
            assert result.warnings == []
        else:
            (warning,) = result.warnings
            assert words in warning

    play(main)


def test_the_last_answer_counts_and_silence_is_no_reason() -> None:
    assert Agent("Tester", Ending("tool_calls", "length"), tools=[nap]).run("go").finish_reason == "length"
    assert Agent("Tester", Ending("tool_calls", None), tools=[nap]).run("go").finish_reason is None
    with pytest.raises(ModelError, match="it takes a FinishReason"):
        Agent("Tester", Ending("tired")).run("go").raise_for_error()


def test_an_answer_that_was_cut_has_no_reason() -> None:
    class Half(Ending):
        async def stream(self, request: ModelRequest, sink: Sink) -> None:
            await super().stream(request, sink)
            await asyncio.Event().wait()

    async def main() -> None:
        agent = Agent("Tester", Half("end_turn"), runtime=Runtime())
        async with agent.start("go") as run:
            async for event in run:
                if event.content:
                    run.cancel()
            assert (await run.result()).finish_reason is None

    play(main)


def test_a_refused_turn_is_marked_in_the_conversation() -> None:
    agent = Agent("Tester", Ending("refusal"))
    result = agent.run("Something bad")
    assert result.content == "Well."
    assert result.message.content == [Text("Well."), Text(REFUSED)]
    assert is_refused(result.message)
    assert validate(agent.messages) == []
    assert not is_refused(agent.run("Something good").message)


def test_a_refusal_with_an_output_type_is_not_asked_again() -> None:
    class Ship(BaseModel):
        name: str

    model = Ending("refusal", "refusal", text="I'd rather not.")
    result = Agent("Tester", model, output_type=Ship).run("Which?")
    assert result.status is RunStatus.error
    assert isinstance(result.error, OutputError)
    assert result.error.text == "I'd rather not."
    assert len(model.requests) == 1
    assert is_refused(result.message)  # though the run's own marker is behind it


def test_a_refusal_stays_one_when_its_run_fails_or_is_cancelled_after_it() -> None:
    class Ship(BaseModel):
        name: str

    class Unended(Ending):
        async def stream(self, request: ModelRequest, sink: Sink) -> None:
            await super().stream(request, sink)
            await asyncio.Event().wait()

    async def main() -> None:
        failed = await Agent("Tester", Ending("refusal"), output_type=Ship).invoke_async("Which?")
        assert failed.message.content == [Text("Well."), Text(REFUSED), Text(FAILED)]
        assert is_refused(failed.message)
        async with Agent("Tester", Unended("refusal")).start("go") as run:
            async for event in run:
                if event.content:
                    run.cancel()
            cancelled = await run.result()
        assert cancelled.message.content == [Text("Well."), Text(REFUSED), Text(MARKERS[CancelCause.user])]
        assert is_refused(cancelled.message)
        assert validate([*failed.messages, *cancelled.messages]) == []
        assert not is_refused(failed.messages[0])

    play(main)


@pytest.mark.parametrize("point", ["in the answer", "after it"])
def test_a_refused_turn_stays_marked_if_the_run_is_cut_just_then(point: str) -> None:
    class Held(Ending):
        async def stream(self, request: ModelRequest, sink: Sink) -> None:
            await super().stream(request, sink)
            if point == "in the answer":  # all is said, and the rest of the connection is being read
                reached.set()
                await forever()

    class Hook:
        async def after_model(self, event: Any) -> None:
            reached.set()
            await forever()

    async def main() -> None:
        agent = Agent("Tester", Held("refusal"), hooks=[Hook()])
        ended = await cut(agent, reached)
        assert ended.result.message.content == [Text("Well."), Text(REFUSED), Text("Cancelled by user")]
        assert is_refused(ended.result.message)
        assert validate(agent.messages) == []

    reached = Flag()
    play(main)
