# SPDX-License-Identifier: Apache-2.0
"""A model that pushes nonsense fails its run, and never more than that; not even a defect of ours locks a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from andon import Agent, ModelError, RunStatus
from andon.agent.loop import Loop
from andon.models.base import ModelRequest
from andon.models.scripted import ScriptedModel
from andon.testing import validate


class Sloppy:
    """Does something wrong with its first sink, and answers properly afterwards."""

    id = "sloppy"

    def __init__(self, push: Callable[[Any], None]) -> None:
        self._push = push
        self._calls = 0

    async def stream(self, request: ModelRequest, sink: Any) -> None:
        self._calls += 1
        if self._calls == 1:
            self._push(sink)
        else:
            sink.text("OK.")


@pytest.mark.parametrize(
    ("push", "what"),
    [
        (lambda sink: sink.text(5), "sink.text with int"),
        (lambda sink: sink.text(b"x"), "sink.text with bytes"),
        (lambda sink: sink.reasoning(5), "sink.reasoning with int"),
        (lambda sink: sink.reasoning("x", 5), "sink.reasoning with str, int"),
        (lambda sink: sink.tool_call("c", "look", [1]), "sink.tool_call with str, str, list"),
        (lambda sink: sink.tool_call("c", 5, "{}"), "sink.tool_call with str, int, str"),
        (lambda sink: sink.tool_call(7, "look"), "sink.tool_call with int, str, str"),
        (lambda sink: sink.tool_call("c", "look", {"x": object()}), "for 'look' are no JSON"),
        (lambda sink: sink.usage(output_tokens="5"), "sink.usage with NoneType, NoneType, str"),
        (lambda sink: sink.usage({"output_tokens": 5}), "sink.usage with dict"),
    ],
)
def test_what_a_sink_does_not_take_is_said_where_it_happens(push: Callable[[Any], None], what: str) -> None:
    agent = Agent("A", Sloppy(push))
    result = agent.run("go")
    assert result.status is RunStatus.error
    assert isinstance(result.error, ModelError)
    assert what in str(result.error)
    assert agent.run("next").content == "OK."
    assert validate(agent.messages) == []


def test_what_a_model_pushes_after_its_answer_is_not_part_of_it() -> None:
    sinks: list[Any] = []

    def push(sink: Any) -> None:
        sink.text("All.")
        sinks.append(sink)

    agent = Agent("A", Sloppy(push))
    result = agent.run("go")
    sinks[0].text(" Not quite.")
    assert result.content == "All."
    assert [event.content for event in agent.run("next", stream=True)][1:-1] == ["OK."]


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_run_that_can_not_be_settled_ends_and_frees_its_session(
    cancelled: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Loop, fate: object) -> None:
        raise ZeroDivisionError("a defect")

    agent = Agent("A", ScriptedModel("Hello."))
    if cancelled:
        agent.cancel()
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "settle", broken)
        result = agent.run("go", run_id="r")
    assert result.status is (RunStatus.cancelled if cancelled else RunStatus.error)
    assert "could not be ended properly" in caplog.text
    assert not agent.cancel_run("r")
    assert agent.run("next").status is RunStatus.completed
