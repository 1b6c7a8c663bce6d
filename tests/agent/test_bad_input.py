# SPDX-License-Identifier: Apache-2.0
"""Bad input of the model and of tools: an error result, from which the model may go on.

And whatever it was, the session is never left invalid. The caller's is in `test_bad_calls.py`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from andon import Agent, RunEvent, RunResult, RunStatus, tool
from andon.errors import (
    ModelError,
)
from andon.messages import Text, ToolResult
from andon.models.base import ModelRequest, Sink
from andon.models.scripted import Call, Fail, ScriptedModel, Turn
from andon.testing.validators import validate
from tests.support import check_events, make, play, read_all


def result_of(result: RunResult) -> ToolResult:
    """What the model was told of its one call."""
    assert result.status is RunStatus.completed, result  # the run goes on: it is the model's to mend
    answer = result.messages[2].tool_results
    assert len(answer) == 1
    return answer[0]


def check_sound(agent: Agent) -> None:
    assert validate(agent.messages) == []
    assert agent.run("and now?").status is RunStatus.completed
    assert validate(agent.messages) == []


@tool
async def add(a: int, b: int = 1) -> int:
    return a + b


# -- from the model ---------------------------------------------------------------------------------------------------


def test_an_unknown_tool() -> None:
    agent = make(Call("subtract", {"a": 1}, id="c"), tools=[add])
    told = result_of(agent.run("go"))
    assert told.status == "error"
    assert "subtract" in told.content
    assert "add" in told.content  # what there is
    check_sound(agent)


def test_an_unknown_tool_where_there_are_none() -> None:
    agent = make(Call("subtract", id="c"))
    told = result_of(agent.run("go"))
    assert told.status == "error"
    assert "subtract" in told.content
    check_sound(agent)


@pytest.mark.parametrize("text", ['{"a": ', "a=1", "[1, 2]", '"one"', "null", "{} {}", "{'a': 1}", '{"a": NaN}'])
def test_arguments_that_are_not_json_of_an_object(text: str) -> None:
    called: list[int] = []

    @tool
    async def take(a: int = 0) -> int:
        called.append(a)
        return a

    agent = make(Call("take", text, id="c"), tools=[take])
    told = result_of(agent.run("go"))
    assert told.status == "error"
    assert "JSON" in told.content
    assert called == []
    assert agent.messages[1].tool_calls[0].name == "take"
    check_sound(agent)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "a"),
        ({"a": "many"}, "a"),
        ({"a": None}, "a"),
        ({"a": 1, "b": [2]}, "b"),
        ({"a": 1, "c": 2}, "c"),
        ({"a": 1.5}, "a"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], named: str) -> None:
    agent = make(Call("add", arguments, id="c"), tools=[add])
    told = result_of(agent.run("go"))
    assert told.status == "error"
    assert f"- {named}:" in told.content
    check_sound(agent)


def test_no_arguments_where_none_are_needed() -> None:
    @tool
    async def ping() -> str:
        return "pong"

    agent = make(Call("ping", "", id="c"), tools=[ping])
    assert result_of(agent.run("go")).content == "pong"
    check_sound(agent)


def test_one_bad_call_among_good_ones() -> None:
    agent = make([Call("add", {"a": 1}, id="1"), Call("nope", id="2"), Call("add", "?", id="3")], tools=[add])
    result = agent.run("go")
    assert [(each.call_id, each.status) for each in result.messages[2].tool_results] == [
        ("1", "ok"),
        ("2", "error"),
        ("3", "error"),
    ]
    check_sound(agent)


def test_events_of_a_bad_call() -> None:
    async def main() -> None:
        agent = make(Call("nope", id="c"))
        async with agent.start("go") as run:
            events = await read_all(run)
        check_events(events)
        kinds = [event.event for event in events]
        assert RunEvent.tool_call_error in kinds
        assert RunEvent.tool_call_started not in kinds

    play(main)


def test_a_model_that_says_nothing() -> None:
    agent = make([])
    assert agent.run("go").status is RunStatus.completed
    check_sound(agent)


@pytest.mark.parametrize(
    "turn",
    [
        Fail(ModelError("no", retryable=False)),
        ["Half a ", Fail(ValueError("the client broke"))],
        [Call("add", {"a": 1}, id="c"), Fail(ConnectionError("gone"))],
        Fail(asyncio.CancelledError()),  # nobody asked for it
        Fail(SystemExit(1)),
    ],
)
def test_a_model_that_fails(turn: Turn) -> None:
    agent = make(turn, tools=[add])
    events = list(agent.run("go", stream=True))
    check_events(events)
    assert events[-1].event is RunEvent.run_error
    assert events[-1].error
    result = agent.run("go on")
    assert result.status is RunStatus.completed
    check_sound(agent)


def test_a_failed_run_returns() -> None:
    agent = make(["Half a ", Fail(ModelError("overloaded"))])
    result = agent.run("go")
    assert (result.status, result.stop_reason, result.content) == (RunStatus.error, "error", "Half a ")
    assert isinstance(result.error, ModelError)
    assert result.messages[-1].content[0] == Text("Half a ")
    check_sound(agent)


def test_a_model_that_is_none() -> None:
    class Broken:
        id = "broken"

        def stream(self, request: ModelRequest, sink: Sink) -> None:
            """Not even a coroutine function."""

    agent = make()
    agent.model = Broken()  # type: ignore[assignment]
    assert agent.run("go").status is RunStatus.error
    agent.model = ScriptedModel()
    check_sound(agent)


# -- from a tool ------------------------------------------------------------------------------------------------------


class Odd:
    """Nothing that JSON knows."""


def returns_circle() -> object:
    circle: list[object] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    "make_result",
    [Odd, lambda: {"deep": [Odd()]}, lambda: {Odd(): 1}, lambda: b"\xff", threading.Lock, lambda: Odd, returns_circle],
    ids=["object", "nested", "key", "bytes", "lock", "class", "circle"],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_result_that_cannot_be_serialised(make_result: Callable[[], object], is_async: bool) -> None:
    @tool(name="odd")
    async def odd_async() -> object:
        return make_result()

    @tool(name="odd")
    def odd_sync() -> object:
        return make_result()

    agent = make(Call("odd", id="c"), tools=[odd_async if is_async else odd_sync])
    told = result_of(agent.run("go"))
    assert told.status == "error"
    assert "odd" in told.content
    check_sound(agent)


@pytest.mark.parametrize("empty", [None, "", "  \n"])
def test_a_result_that_is_empty_is_still_a_valid_one(empty: str | None) -> None:
    @tool
    async def nothing() -> str | None:
        return empty

    agent = make(Call("nothing", id="c"), tools=[nothing])
    told = result_of(agent.run("go"))
    assert told.status == "ok"
    assert told.content.strip()
    check_sound(agent)


@pytest.mark.parametrize(
    "error", [ValueError("broke"), SystemExit("broke"), KeyboardInterrupt("broke"), StopIteration("broke")]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_that_raises(error: BaseException, is_async: bool) -> None:
    if is_async and isinstance(error, KeyboardInterrupt | StopIteration):
        return  # on the loop's own thread the first is the host's; and the second can't leave a coroutine

    @tool(name="broken")
    async def broken_async() -> str:
        raise error

    @tool(name="broken")
    def broken_sync() -> str:
        raise error

    agent = make(Call("broken", id="c"), tools=[broken_async if is_async else broken_sync])
    told = result_of(agent.run("go"))
    assert told.status == "error"
    assert "broke" in told.content
    check_sound(agent)
