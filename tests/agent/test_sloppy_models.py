# SPDX-License-Identifier: Apache-2.0
"""A model that pushes nonsense fails its run, and never more than that; not even a defect of ours locks a session."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from andon import (
    Agent,
    CancelOutcome,
    ConfigurationError,
    ModelError,
    RunResult,
    RunStatus,
    ToolContext,
    Usage,
    tool,
)
from andon.agent.loop import Loop
from andon.core.run.run import LocalRun
from andon.models.base import ModelRequest
from andon.models.scripted import Call, Item, Say, ScriptedModel, Spend
from andon.testing import probe, validate
from tests.support import HANG, forever


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


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("part", ["make_record", "make_receipt", "write", "pass_on"])
def test_no_wait_for_a_run_that_breaks_again_and_again_is_endless(
    cancelled: bool, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: object, *args: object) -> None:
        raise ZeroDivisionError("a defect")

    agent = Agent("A", ScriptedModel("Hello."))
    if cancelled:
        agent.cancel()
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "settle", broken)
        for module in ("ending", "caretaker"):
            patch.setattr(f"andon.core.run.{module}.{part}", broken)
        result = agent.run("go", run_id="r")
    assert result.status is (RunStatus.cancelled if cancelled else RunStatus.error)
    assert "could not be ended properly" in caplog.text
    assert agent.cancel_run("r") is CancelOutcome.already_finished


@pytest.mark.parametrize("at", ["before it is ending", "while it is ending"])
def test_a_run_whose_forced_end_fails_too_is_over(
    at: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Then there is no terminal event, and no result. But no thread waits for ever, and the agent can be used."""

    def broken(*args: object) -> None:
        raise ZeroDivisionError("a defect")

    agent = Agent("A", ScriptedModel("Hello."))
    run = agent.start("go")
    with monkeypatch.context() as patch:
        if at == "before it is ending":
            patch.setattr("andon.core.run.run.Ending", broken)
            patch.setattr("andon.core.run.caretaker.Ending", broken)
        else:
            patch.setattr(Loop, "settle", broken)
            patch.setattr(LocalRun, "tell_end", broken)

        async def main() -> None:
            await run.begin()
            await asyncio.wait_for(run.gone(), HANG)

        asyncio.run(main())
    assert "could not be ended properly" in caplog.text
    assert run.status is RunStatus.error
    assert run.cancel() is CancelOutcome.already_finished
    assert agent.run("next").status is RunStatus.completed
    assert agent.runtime.live == 0


@pytest.mark.parametrize("paused", [False, True])
def test_a_run_whose_end_can_not_be_told_has_ended_all_the_same(
    paused: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What looks at the end, telemetry say, fails: on the run's own loop, and, where it was paused, on the portal's."""

    def broken(self: object) -> None:
        raise ZeroDivisionError("a defect")

    async def main() -> RunResult:
        async with agent.start("go") as run:
            if paused:
                await probe(run).settled()
                run.cancel()
            return await run.result()

    agent = Agent("A", ScriptedModel(Call("ask"), "Hello.") if paused else ScriptedModel("Hello."), tools=[ask])
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "ended", broken)
        result = asyncio.run(main())
    assert result.status is (RunStatus.cancelled if paused else RunStatus.completed)
    assert "a defect" in caplog.text
    assert agent.run("next").status is RunStatus.completed


@tool(approval=True)
async def ask() -> str:
    return "allowed"


# -- whatever was sent, settling does not fail, so the prompt and what was shown are kept ------------------------------


@tool
async def look(path: str = "") -> str:
    return "seen"


@pytest.mark.parametrize("arguments", ["[" * 5000, '{"path": "\ud800"}'], ids=["nested", "half a character"])
def test_arguments_that_no_decoder_takes_are_an_error_result(arguments: str) -> None:
    agent = Agent("A", ScriptedModel(Call("look", arguments)), tools=[look])
    result = agent.run("go")
    assert result.status is RunStatus.completed
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert "BadArgumentsError" in result.messages[2].tool_results[0].content
    assert validate(result.messages) == []


@pytest.mark.parametrize("arguments", ["[" * 5000, '{"path": "\ud800'], ids=["nested", "half a character"])
def test_a_cut_in_arguments_that_no_decoder_takes(arguments: str) -> None:
    class Streaming:
        id = "streaming"

        async def stream(self, request: ModelRequest, sink: Any) -> None:
            sink.text("Let me see. ")
            sink.tool_call("c", "look", arguments)
            agent.cancel()
            await forever()

    agent = Agent("A", Streaming(), tools=[look])
    result = agent.run("go")
    assert [message.text for message in result.messages] == ["go", "Let me see. Cancelled by user"]
    assert result.content == "Let me see. "


class ConvertsInPlace:
    name, description, parameters = "look", "", {"type": "object", "properties": {}}

    def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
        arguments["path"] = pathlib.PurePath(arguments["path"])
        return arguments

    async def invoke(self, bound: dict[str, Any], ctx: object) -> str:
        return "seen"


def test_a_tool_that_converts_its_arguments_in_place_leaves_the_conversation_alone() -> None:
    model = ScriptedModel([Call("look", {"path": "x"})], lambda request: [Say("So ", pace=0), Cancels(lambda: agent)])
    agent = Agent("A", model, tools=[ConvertsInPlace()])
    result = agent.run("go")
    assert result.content == "So "
    assert result.messages[1].tool_calls[0].arguments == {"path": "x"}


def test_usage_that_is_no_number_does_not_lose_a_cut_run() -> None:
    model = ScriptedModel([Say("So "), Spend(Usage("10", "5")), Cancels(lambda: agent)])  # type: ignore[arg-type]
    agent = Agent("A", model)
    result = agent.run("go")
    assert [message.role for message in result.messages] == ["user", "assistant"]
    assert result.content == "So "


def test_instructions_that_are_no_text_are_refused_or_survived() -> None:
    try:
        agent = Agent("A", ScriptedModel([Say("So "), Cancels(lambda: agent)]), instructions=5)  # type: ignore[arg-type]
    except ConfigurationError:
        return
    assert [message.role for message in agent.run("go").messages] == ["user", "assistant"]


class Cancels(Item):
    """Cancels the agent, and waits for that."""

    def __init__(self, agent: Callable[[], Agent]) -> None:
        self._agent = agent

    async def play(self, sink: Any, model: ScriptedModel) -> None:
        self._agent().cancel()
        await forever()


def test_call_ids_that_come_again_in_a_later_turn() -> None:
    keys: list[str] = []

    @tool
    async def pay(ctx: ToolContext) -> str:
        keys.append(ctx.call_id)
        return "paid"

    call = Call("pay", id="call_0")  # small servers count from 0 in every answer
    result = Agent("A", ScriptedModel(call, call, "Done."), tools=[pay]).run("go")
    assert validate(result.messages) == []
    assert len(set(keys)) == 2  # it serves as an idempotency key


def test_half_a_character_can_be_sent_on() -> None:
    agent = Agent("A", ScriptedModel(then="Well \ud83d"))
    for event in agent.run("Hello \ud800", stream=True):
        msgspec.json.encode(event)
    msgspec.json.encode(agent.messages)


def test_reasoning_of_nothing_is_nothing() -> None:
    """An empty delta shows nothing: it does not keep a call from being tried again."""

    def push(sink: Any) -> None:
        sink.reasoning("")
        raise ModelError("overloaded", retryable=True, retry_after=0)

    assert Agent("A", Sloppy(push)).run("go").status is RunStatus.completed
