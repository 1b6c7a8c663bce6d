# SPDX-License-Identifier: Apache-2.0
"""Bad input: a clear error in the right place, the model's as an error result, the caller's as an exception.

And whatever it was, the session is never left invalid.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from andon import Agent, CancelOutcome, RunEvent, RunResult, RunStatus, Runtime, tool
from andon.errors import (
    AndonError,
    ConfigurationError,
    EmptyPromptError,
    HookDefinitionError,
    InsideEventLoopError,
    ModelError,
    NoModelError,
    RunIdTakenError,
    SessionBusyError,
    ToolDefinitionError,
)
from andon.messages import Text, ToolResult
from andon.models.base import ModelRequest, Sink
from andon.models.scripted import Call, Fail, ScriptedModel, Turn
from andon.testing.validators import validate
from tests.support import Silence, asked, check_events, make, play, read_all


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


# -- from the caller: at the call -------------------------------------------------------------------------------------


def every_call(agent: Agent, prompt: Any, **options: Any) -> list[Callable[[], object]]:
    """All the ways to run an agent, each to its end."""

    async def stream() -> list[object]:
        return [event async for event in agent.stream_async(prompt, **options)]

    async def enter() -> object:
        async with agent.start(prompt, **options) as run:
            return await run.result()

    return [
        lambda: agent.run(prompt, **options),
        lambda: list(agent.run(prompt, stream=True, **options)),
        lambda: asyncio.run(agent.invoke_async(prompt, **options)),
        lambda: asyncio.run(stream()),
        lambda: asyncio.run(enter()),
    ]


@pytest.mark.parametrize(
    ("prompt", "error"),
    [("", EmptyPromptError), (" \n\t", EmptyPromptError), (None, AndonError), (5, AndonError), (b"go", AndonError)],
)
@pytest.mark.parametrize("way", range(5))
def test_an_empty_prompt(prompt: object, error: type[AndonError], way: int) -> None:
    agent = make()
    with pytest.raises(error, match="prompt"):
        every_call(agent, prompt, run_id="r")[way]()
    assert (agent.messages, asked(agent)) == ([], [])
    assert agent.cancel_run("r") is CancelOutcome.unknown
    check_sound(agent)


@pytest.mark.parametrize("way", range(5))
def test_an_agent_without_a_model(way: int) -> None:
    agent = Agent("Nobody")
    with pytest.raises(NoModelError, match="model") as caught:
        every_call(agent, "go")[way]()
    assert isinstance(caught.value, AndonError)
    assert agent.messages == []
    agent.model = ScriptedModel()
    check_sound(agent)


@pytest.mark.parametrize("way", range(5))
def test_a_run_id_of_an_ended_run(way: int) -> None:
    agent = make("Hello.")
    agent.run("go", run_id="taken")
    before = agent.messages
    with pytest.raises(RunIdTakenError, match="taken"):
        every_call(agent, "go", run_id="taken")[way]()
    assert agent.messages == before
    assert agent.cancel_run("taken") is CancelOutcome.already_finished
    check_sound(agent)


def test_a_run_id_of_a_run_in_flight() -> None:
    async def main() -> None:
        silence = Silence()
        runtime = Runtime()
        agent, other = make([silence], runtime=runtime), make(name="Other", runtime=runtime)
        async with agent.start("go", run_id="taken") as run:
            await silence.reached.arrived()
            for each in (agent, other):  # ids are the runtime's
                with pytest.raises(RunIdTakenError, match="taken"):
                    await each.invoke_async("again", run_id="taken", session_id="elsewhere")
            assert run.status is RunStatus.running
            assert agent.cancel_run("taken") is CancelOutcome.requested  # it is still the first one's
            assert (await run.result()).status is RunStatus.cancelled
        assert (await other.invoke_async("go", session_id="elsewhere")).messages[0].text == "go"

    play(main)


def test_a_refused_run_id_leaves_no_place_in_the_session() -> None:
    async def main() -> None:
        agent = make()
        await agent.invoke_async("go", run_id="taken")
        with pytest.raises(RunIdTakenError):
            await agent.invoke_async("again", run_id="taken", on_busy="queue")
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_a_busy_session() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        async with agent.start("go", run_id="holder") as run:
            await silence.reached.arrived()
            with pytest.raises(SessionBusyError, match="holder") as caught:
                await agent.invoke_async("again", run_id="r")
            assert caught.value.run_id == "holder"
            assert agent.cancel_run("r") is CancelOutcome.unknown
            run.cancel()

    play(main)


def test_run_inside_a_running_loop() -> None:
    async def main() -> None:
        agent = make()
        with pytest.raises(InsideEventLoopError, match="invoke_async"):
            agent.run("go", run_id="r")
        assert agent.messages == []
        assert (await agent.invoke_async("go", run_id="r")).status is RunStatus.completed

    play(main)


def test_a_tool_without_annotations() -> None:
    def bare(x):  # type: ignore[no-untyped-def]
        return x

    with pytest.raises(ToolDefinitionError, match="x"):
        tool(bare)
    with pytest.raises(ToolDefinitionError, match="bare"):
        make(tools=[bare])


def test_a_generator_as_a_tool() -> None:
    async def trickle(n: int) -> AsyncIterator[int]:
        yield n

    def drip(n: int) -> Iterator[int]:
        yield n

    for function in (trickle, drip):
        with pytest.raises(ToolDefinitionError, match="generator"):
            tool(function)
        with pytest.raises(ToolDefinitionError, match="generator"):
            make(tools=[function])


def test_two_tools_of_one_name() -> None:
    with pytest.raises(ConfigurationError, match="add"):
        make(tools=[add, add])


def test_a_hook_that_is_none() -> None:
    with pytest.raises(HookDefinitionError, match="before_model"):
        make(hooks=[object()])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_busy": "later"}, "later"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"max_turns": 0}, "max_turns"),
        ({"cancel_on": object()}, "cancel_on"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, Any], said: str) -> None:
    agent = make()
    with pytest.raises(ConfigurationError, match=said):
        agent.run("go", **options)
    assert agent.messages == []
    check_sound(agent)


def test_bounds_that_mean_nothing() -> None:
    with pytest.raises((ConfigurationError, TypeError), match="patience"):
        Runtime(patience=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="cut_seconds"):
        Runtime(cut_seconds=-1)


def test_modes_and_graces_that_mean_nothing() -> None:
    agent = make()
    with pytest.raises(ValueError, match="after_tools"):
        agent.cancel(mode="soon")
    with pytest.raises(ValueError, match="grace"):
        agent.cancel(mode="after_turn", grace=-1)
    assert agent.run("go").status is RunStatus.completed  # and nothing was armed
