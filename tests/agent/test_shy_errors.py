# SPDX-License-Identifier: Apache-2.0
"""Errors, and other things that aren't ours, whose str() and repr() raise: they cost a line of text, no run's end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from andon import Agent, CancelOutcome, Message, RunEvent, RunStatus, Runtime, tool
from andon.core.records import RunRecord
from andon.errors import AnswersError, ModelError, describe, say, show
from andon.models.base import ModelRequest, Sink
from andon.models.scripted import Call, Fail
from andon.store.memory import MemoryStore
from andon.testing import probe
from tests.support import Flag, Silence, cut, forever, make, paused, play, read_all, record_of, results_of
from tests.support.till import DELETE, Till
from tests.telemetry.watching import Complaints, Watch


class Shy:
    """Says nothing of itself: what is asked for it raises."""

    raised: BaseException = AttributeError("no response, so no status")

    def __str__(self) -> str:
        raise self.raised

    __repr__ = __str__


class ShyError(Shy, Exception):
    """As clients have them: str() reads a response that isn't there."""


class ExitingError(Shy, Exception):
    """And one that raises what no `except Exception` catches."""

    raised = SystemExit(3)


class ShyModelError(Shy, ModelError):
    pass


class ShyInterrupt(Shy, BaseException):
    """What is no Exception, out of a tool."""


every_kind = pytest.mark.parametrize("kind", [ShyError, ExitingError])


def told(kind: Any) -> str:
    return f"{kind.__name__}: <{kind.__name__}, whose str failed: {type(kind.raised).__name__}>"


# -- how it is written ------------------------------------------------------------------------------------------------


class NoTextError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class OwnText(str):
    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        raise ValueError


class OwnTextError(Exception):
    def __str__(self) -> str:
        return OwnText("half")


@every_kind
def test_whatever_str_and_repr_raise(kind: type[Exception]) -> None:
    assert describe(kind()) == told(kind)
    assert say(kind()) == told(kind).partition(": ")[2]
    assert show(kind()) == say(kind()).replace("str", "repr")


def test_whatever_str_returns() -> None:
    assert describe(NoTextError()) == "NoTextError: <NoTextError, whose str failed: TypeError>"
    assert describe(OwnTextError()) == "OwnTextError: <OwnTextError, whose str failed: ValueError>"
    assert describe(ValueError("half a character: \ud83d")) == "ValueError: half a character: ?"
    assert describe(ValueError()) == "ValueError"
    assert (say("it"), show("it")) == ("it", "'it'")


# -- a model, a tool, a hook, a store that raises one -----------------------------------------------------------------


@every_kind
def test_a_model_that_fails_after_it_has_streamed(kind: type[Exception]) -> None:
    async def main() -> None:
        error = kind()
        agent = make(["All that was ", "streamed.", Fail(error)], "And on.")
        async with agent.start("go", run_id="r") as run:
            events, result = await read_all(run), await run.result()
        assert (result.status, result.content, result.error) == (RunStatus.error, "All that was streamed.", error)
        assert "All that was streamed." in result.message.text
        assert (events[-1].event, events[-1].error) == (RunEvent.run_error, told(kind))
        record = await record_of(agent, "r")
        assert (record.status, record.content, record.error) == (RunStatus.error, result.content, told(kind))
        assert (await agent.invoke_async("and now?")).content == "And on."

    play(main)


def test_a_model_call_that_is_tried_again() -> None:
    async def main() -> None:
        agent = make(Fail(ShyModelError("", retryable=True, retry_after=0)), "Now.")
        async with agent.start("go") as run:
            events, result = await read_all(run), await run.result()
        assert (result.status, result.content) == (RunStatus.completed, "Now.")
        assert [event.error for event in events if event.event is RunEvent.model_retry] == [told(ShyModelError)]

    play(main)


POINTS = ["before_model", "after_model", "after_tool", "message_added", "run_ended"]


@every_kind
@pytest.mark.parametrize("is_async", [False, True])
def test_a_hook_costs_a_warning(kind: type[Exception], is_async: bool) -> None:
    class Hook:
        pass

    def fail(event: object) -> None:
        raise kind

    async def fail_async(event: object) -> None:
        raise kind

    for point in POINTS:
        setattr(Hook, point, staticmethod(fail_async if is_async else fail))

    async def main() -> None:
        till = Till()
        agent = make([Call("look")], "Done.", tools=till.tools, hooks=[Hook()])
        async with agent.start("go") as run:
            result = await run.result()
        assert (result.status, result.content, till.did) == (RunStatus.completed, "Done.", ["looked"])
        assert set(probe(run).warnings) == {f"hook Hook.{point} failed: {told(kind)}" for point in POINTS}

    play(main)


@every_kind
def test_a_guard_that_broke_refuses_the_call(kind: type[Exception]) -> None:
    class Guard:
        def before_tool(self, event: object) -> None:
            raise kind

    async def main() -> None:
        till = Till()
        agent = make([Call("look", id="l")], "Done.", tools=till.tools, hooks=[Guard()])
        assert (await agent.invoke_async("go")).content == "Done."
        assert till.did == []
        assert told(kind) in results_of(agent)["l"].content

    play(main)


@every_kind
def test_a_tool_that_fails(kind: type[Exception]) -> None:
    def check(value: int) -> int:
        raise kind

    @tool
    async def fail() -> str:
        raise kind

    @tool
    def fail_in_thread() -> str:
        raise kind

    @tool
    async def fail_to_check(n: Annotated[int, AfterValidator(check)]) -> str:
        return "not reached"

    @tool
    async def stray() -> str:
        raise ShyInterrupt

    async def main() -> None:
        calls = [Call("fail", id="a"), Call("fail_in_thread", id="b"), Call("fail_to_check", {"n": 1}, id="c")]
        tools = [fail, fail_in_thread, fail_to_check, stray]
        agent = make([*calls, Call("stray", id="d")], "Done.", tools=tools)
        assert (await agent.invoke_async("go")).content == "Done."
        texts = {call_id: result.content for call_id, result in results_of(agent).items()}
        assert texts.pop("c").endswith(told(kind))
        stray_told = "StrayError: ShyInterrupt: <ShyInterrupt, whose str failed: AttributeError>"
        assert texts == {"a": told(kind), "b": told(kind), "d": stray_told}

    play(main)


@every_kind
def test_a_result_that_cannot_be_made_into_text(kind: type[Exception]) -> None:
    class OddPath:
        def __fspath__(self) -> str:
            return ""

        def __str__(self) -> str:
            raise kind

    @tool
    async def odd() -> Any:
        return OddPath()

    async def main() -> None:
        agent = make([Call("odd", id="o")], "Done.", tools=[odd])
        assert (await agent.invoke_async("go")).content == "Done."
        assert f"can't be made into text (<{kind.__name__}, whose str failed" in results_of(agent)["o"].content

    play(main)


@every_kind
def test_a_model_that_fails_while_it_is_cut(kind: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    began = Flag()

    class Model:
        id = "failing"

        async def stream(self, request: ModelRequest, sink: Sink) -> None:
            sink.text("Half a ")
            try:
                began.set()
                await forever()
            finally:
                raise kind

    async def main() -> None:
        ended = await cut(Agent("A", Model()), began)
        assert (ended.result.status, ended.result.content) == (RunStatus.cancelled, "Half a ")
        assert f"the model failed while it was cut: {told(kind)}" in caplog.messages

    with caplog.at_level(logging.DEBUG):
        play(main)


class BrokenStore(MemoryStore):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def save(self, record: RunRecord, messages: Sequence[Message]) -> Any:
        raise self.error


@every_kind
def test_a_store_that_fails(kind: type[Exception]) -> None:
    async def main() -> None:
        agent = make("Hello.", runtime=Runtime(store=BrokenStore(kind())))
        async with agent.start("go") as run:
            result = await run.result()
        assert (result.status, result.content) == (RunStatus.completed, "Hello.")
        assert probe(run).warnings == [f"the store failed: {told(kind)}"]

    play(main)


# -- what else isn't ours ---------------------------------------------------------------------------------------------


def test_a_reason_that_cannot_be_written() -> None:
    async def main() -> None:
        silence = Silence()
        async with make([silence]).start("go") as run:
            await silence.reached.arrived()
            assert run.cancel(reason=Shy()) is CancelOutcome.requested  # type: ignore[arg-type]
            result = await run.result()
        assert result.receipt is not None
        assert result.receipt.reason == "<Shy, whose str failed: AttributeError>"

    play(main)


class No(Shy):
    """An answer that is neither a yes nor a no."""

    def __bool__(self) -> bool:
        return False


def test_answers_that_cannot_be_written() -> None:
    async def main() -> None:
        till = Till()
        agent = make([DELETE], "Done.", tools=till.tools)
        run, result = await paused(agent)
        answers: dict[Any, Any] = {result.interrupts[0].id: No(), Shy(): True}
        with pytest.raises(AnswersError, match="<No, whose repr failed: AttributeError> is neither"):
            await agent.continue_run(run.run_id, answers=answers)
        await agent.continue_run(run.run_id, answers={result.interrupts[0].id: True})
        assert till.did == ["all"]

    play(main)


@every_kind
def test_telemetry_tells_of_it(kind: type[Exception]) -> None:
    watch = Watch(content=True)

    @tool
    async def fail() -> str:
        raise kind

    with Complaints().listening() as complaints:
        result = watch.agent("A", make([Call("fail")], ["Half a ", Fail(kind())]).model, tools=[fail]).run("go")
    assert (result.status, result.content) == (RunStatus.error, "Half a ")
    watch.check()
    assert complaints.texts == []
    said = say(kind())
    assert watch.one("execute_tool fail").status.description == said
    assert watch.named("chat scripted")[-1].status.description == said
    assert watch.one("invoke_agent A").status.description == said
