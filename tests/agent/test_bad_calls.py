# SPDX-License-Identifier: Apache-2.0
"""Bad input of the caller: an exception at the call, nothing recorded, and the session as it was."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from andon import Agent, CancelOutcome, MemoryStore, RunStatus, Runtime, SessionKey, Summarise, tool
from andon.errors import (
    AndonError,
    ConfigurationError,
    EmptyPromptError,
    HookDefinitionError,
    InsideEventLoopError,
    NoModelError,
    RunIdTakenError,
    SessionBusyError,
    ToolDefinitionError,
)
from andon.models.scripted import ScriptedModel
from andon.testing.validators import validate
from tests.support import Silence, asked, make, play


def check_sound(agent: Agent) -> None:
    assert validate(agent.messages) == []
    assert agent.run("and now?").status is RunStatus.completed
    assert validate(agent.messages) == []


@tool
async def add(a: int, b: int = 1) -> int:
    return a + b


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
        ({"metadata": ["mine"]}, "metadata must be a dict"),
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


def test_a_run_id_that_the_store_knows() -> None:
    """Another process, or the 10,000 runs since, may have forgotten it; its messages must not be replaced."""
    store = MemoryStore()
    for prompt in ("one", "two"):
        agent = Agent("A", ScriptedModel(then="OK."), runtime=Runtime(store))
        with contextlib.suppress(RunIdTakenError):
            agent.run(prompt, session_id="s", run_id="r")
    stored = asyncio.run(store.load(SessionKey("a", None, "s")))
    assert stored[0].text == "one"


def test_an_empty_session_id_is_not_the_agents_own_session() -> None:
    """A form field that was left empty must not lead everybody into one conversation."""
    agent = Agent("A", ScriptedModel(then="OK."))
    agent.run("a secret")
    try:
        result = agent.run("Hello", session_id="")
    except ConfigurationError:
        return
    assert [message.text for message in result.messages] == ["Hello", "OK."]


def test_the_agents_own_session_by_its_id() -> None:
    agent = Agent("A", ScriptedModel(then="OK."))
    agent.run("Hello", session_id=agent.session_id)
    assert [message.text for message in agent.messages] == ["Hello", "OK."]


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        (Runtime, {"store": "sqlite:///andon.db"}, r"open one with open_store\('sqlite:///andon.db'\)"),
        (Runtime, {"store": object()}, "is no store$"),
        (Agent, {"runtime": "sqlite:///andon.db"}, r"is no Runtime: give one, for a database Runtime\("),
        (Agent, {"tools": [Agent("Helper")]}, r"^<Agent helper> can't be a tool as it is: .* \.as_tool\(\)$"),
        (Agent, {"max_turns": True}, "max_turns is True; it is a whole number"),
        (Agent, {"timeout": -1}, "0 or more, or None for no limit"),
        (Agent, {"output_type": {"type": "object"}}, "^output_type is a dict: give a type, such as"),
        (Agent, {"output_type": lambda text: text}, "^output_type is a function: give a type, such as"),
        (Agent, {"output_type": [int]}, "^output_type is .* on your type to fully support it.$"),
        (Summarise, {"tokens": 100, "model": "gpt-5-mini"}, "^'gpt-5-mini' is no model: give an object that has"),
        (Summarise, {"tokens": 100, "instructions": None}, "instructions of Summarise must be text, not NoneType"),
    ],
)
def test_what_is_made_wrongly_says_what_to_do(kind: Any, options: dict[str, Any], says: str) -> None:
    if kind is Agent:
        options = {"name": "A", **options}
    with pytest.raises(ConfigurationError, match=says):
        kind(**options)


def test_an_option_that_is_not_there_is_told_with_all_that_are() -> None:
    with pytest.raises(TypeError, match=r"no option maxturns for a run; there are: .*max_turns.*output_type"):
        make().run("go", maxturns=5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"no option maxturns to go on with; there are: .*max_turns.*output_type"):
        asyncio.run(make().continue_run("r", maxturns=5))  # type: ignore[call-overload]
