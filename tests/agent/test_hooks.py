# SPDX-License-Identifier: Apache-2.0
"""Hooks: told in order, sync or async; and one that raises or hangs never loses a run or a message."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable

import pytest

from andon import Message, RunEvent, RunResult, RunStatus, Runtime, tool
from andon.agent.hooks import AfterModel, AfterTool, BeforeModel, BeforeTool, HookEvent, MessageAdded, RunEnded
from andon.errors import HookDefinitionError
from andon.messages import Text, ToolResult, assistant, user
from andon.models.scripted import Call
from andon.testing.validators import validate
from tests.support import Flag, Silence, asked, cut, forever, make, play, read_all

POINTS = ["message_added", "before_model", "after_model", "before_tool", "after_tool", "run_ended"]


@tool
async def echo(text: str) -> str:
    return f"<{text}>"


def hook(point: str, method: Callable[[HookEvent], object]) -> object:
    """A hook with one method."""

    class Hook:
        pass

    made = Hook()
    setattr(made, point, method)
    return made


def all_of(record: list[tuple[str, HookEvent]], is_async: bool) -> object:
    """A hook with every method, that writes down what it is told."""

    class Hook:
        pass

    for point in POINTS:

        def sync_method(self: object, event: HookEvent, point: str = point) -> None:
            record.append((point, event))

        async def async_method(self: object, event: HookEvent, point: str = point) -> None:
            await asyncio.sleep(0)
            record.append((point, event))

        setattr(Hook, point, async_method if is_async else sync_method)
    return Hook()


# -- what they are told -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_they_are_told_everything_in_order(is_async: bool) -> None:
    async def main() -> None:
        record: list[tuple[str, HookEvent]] = []
        agent = make(Call("echo", {"text": "x"}, id="c"), "Done.", tools=[echo], hooks=[all_of(record, is_async)])
        result = await agent.invoke_async("go", user_id="ann", session_id="s", run_id="r")
        points = [point for point, _ in record if point != "message_added"]
        model = ["before_model", "after_model"]
        assert points == [*model, "before_tool", "after_tool", *model, "run_ended"]
        added = [told.message for _, told in record if isinstance(told, MessageAdded)]
        assert added == result.messages
        for _, told in record:
            assert (told.run_id, told.session_id, told.user_id, told.agent_id) == ("r", "s", "ann", "tester")
        last = dict(record)
        assert isinstance(last["before_model"], BeforeModel)
        assert last["before_model"].request == asked(agent)[-1]
        assert isinstance(last["after_model"], AfterModel)
        assert last["after_model"].message == assistant(Text("Done."))
        assert isinstance(last["before_tool"], BeforeTool)
        assert last["before_tool"].call.arguments == {"text": "x"}
        assert isinstance(last["after_tool"], AfterTool)
        assert last["after_tool"].result == ToolResult("c", "echo", "<x>")
        assert isinstance(last["run_ended"], RunEnded)
        assert last["run_ended"].result.messages == result.messages
        assert result.warnings == []

    play(main)


def test_of_a_cancelled_run_they_are_told_what_was_kept() -> None:
    async def main() -> None:
        record: list[tuple[str, HookEvent]] = []
        silence = Silence()
        agent = make(["Half a ", silence], hooks=[all_of(record, True)])
        ended = await cut(agent, silence.reached)
        added = [told.message for _, told in record if isinstance(told, MessageAdded)]
        assert added == ended.result.messages == [user("go"), assistant(Text("Half a "), Text("Cancelled by user"))]
        point, told = record[-1]
        assert point == "run_ended"
        assert isinstance(told, RunEnded)
        assert told.result.status is RunStatus.cancelled
        assert [point for point, _ in record].count("after_model") == 0

    play(main)


def test_run_ended_comes_after_the_terminal_event() -> None:
    async def main() -> None:
        seen: list[RunEvent] = []

        async def look(event: HookEvent) -> None:
            seen.extend(event.event for event in await read_all(run))  # ends at once, and with the end

        agent = make("Hello.", hooks=[hook("run_ended", look)])
        async with agent.start("go") as run:
            await run.result()
        assert seen[-1] is RunEvent.run_completed

    play(main)


def test_several_hooks_are_told_one_after_the_other() -> None:
    async def main() -> None:
        order: list[str] = []

        async def first(event: HookEvent) -> None:
            await asyncio.sleep(0)
            order.append("first")

        agent = make(hooks=[hook("before_model", first), hook("before_model", lambda event: order.append("second"))])
        await agent.invoke_async("go")
        assert order == ["first", "second"]

    play(main)


# -- refusing a call --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
def test_before_tool_may_refuse_one_call(is_async: bool, parallel: bool) -> None:
    async def main() -> None:
        def refuse(event: BeforeTool) -> None:
            if event.call.arguments["text"] == "secret":
                event.cancel("that is none of your business")

        async def refuse_async(event: BeforeTool) -> None:
            refuse(event)

        method: Callable[..., object] = refuse_async if is_async else refuse
        agent = make(
            [Call("echo", {"text": text}, id=text) for text in ("a", "secret", "b")],
            tools=[echo],
            hooks=[hook("before_tool", method)],
            parallel_tools=parallel,
        )
        async with agent.start("go") as run:
            result = await run.result()
            kinds = [event.event for event in await read_all(run)]
        assert result.status is RunStatus.completed
        told = {each.call_id: each for each in result.messages[2].tool_results}
        assert [told[name].content for name in ("a", "b")] == ["<a>", "<b>"]
        assert told["secret"].status == "error"
        assert "none of your business" in told["secret"].content
        assert kinds.count(RunEvent.tool_call_started) == 2
        assert validate(result.messages) == []

    play(main)


# -- raising and hanging ----------------------------------------------------------------------------------------------


def check_survived(result: RunResult, messages: list[Message], point: str) -> None:
    assert result.status is RunStatus.completed
    assert result.content == "Done."
    roles = [message.role for message in result.messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert messages == result.messages
    assert validate(messages) == []
    assert any(point in warning for warning in result.warnings), result.warnings
    if point != "before_tool":  # a guard that broke must not let anything through; but its call has an answer
        assert result.messages[2].tool_results == [ToolResult("c", "echo", "<x>")]


class Oops(BaseException):
    """What `except Exception` does not catch."""


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "error", [ValueError, asyncio.CancelledError, Oops, SystemExit], ids=lambda kind: kind.__name__
)
def test_a_hook_that_raises(
    point: str, is_async: bool, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        def oops(event: HookEvent) -> None:
            raise error("oops")

        async def oops_async(event: HookEvent) -> None:
            raise error("oops")

        hooks = [hook(point, oops_async if is_async else oops), hook(point, lambda event: after.append(point))]
        agent = make(Call("echo", {"text": "x"}, id="c"), "Done.", tools=[echo], hooks=hooks)
        result = await agent.invoke_async("go")
        check_survived(result, agent.messages, point)
        assert after  # the next hook is told all the same
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    after: list[str] = []
    with caplog.at_level(logging.WARNING, "andon"):
        play(main)
    assert point in caplog.text


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("deaf", [False, True])
def test_a_hook_that_hangs(point: str, deaf: bool) -> None:
    async def main() -> None:
        released = Flag()

        async def hang(event: HookEvent) -> None:
            if done:
                return
            done.append(point)
            while not released.is_set():
                with contextlib.suppress(asyncio.CancelledError) if deaf else contextlib.nullcontext():
                    await released.arrived()

        done: list[str] = []
        runtime = Runtime(hook_seconds=0.02, cut_seconds=0.02, abandon_seconds=0.04)
        hooks = [hook(point, hang)]
        agent = make(Call("echo", {"text": "x"}, id="c"), "Done.", tools=[echo], hooks=hooks, runtime=runtime)
        result = await agent.invoke_async("go")
        check_survived(result, agent.messages, point)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(left) == deaf
        released.set()
        if left:
            await asyncio.wait(left)
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_a_broken_guard_lets_nothing_through() -> None:
    async def main() -> None:
        started: list[str] = []

        @tool
        async def fire() -> str:
            started.append("fire")
            return "fired"

        def broken(event: HookEvent) -> None:
            raise LookupError("no rules found")

        agent = make(Call("fire", id="c"), tools=[fire], hooks=[hook("before_tool", broken)])
        result = await agent.invoke_async("go")
        assert started == []
        assert result.messages[2].tool_results[0].status == "error"

    play(main)


def test_a_hung_hook_does_not_keep_a_cancel() -> None:
    """Its own bound is 5 s; the cancel doesn't wait for that."""

    async def main() -> None:
        reached, released = Flag(), Flag()

        async def hang(event: HookEvent) -> None:
            reached.set()
            while not released.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await released.arrived()

        agent = make(hooks=[hook("before_model", hang)], runtime=Runtime(cut_seconds=0.02, abandon_seconds=0.04))
        ended = await cut(agent, reached)
        assert ended.result.receipt is not None
        assert len(ended.result.receipt.leftovers) == 1
        assert "before_model" in ended.result.receipt.leftovers[0]
        released.set()
        receipt = await ended.run.cancel_and_wait()
        assert receipt is not None
        assert receipt.leftovers == []

    play(main)


def test_a_hook_that_fails_while_it_is_cut() -> None:
    async def main() -> None:
        reached = Flag()

        async def clumsy(event: HookEvent) -> None:
            reached.set()
            try:
                await forever()
            finally:
                raise LookupError("in the middle of it")

        agent = make(hooks=[hook("before_model", clumsy)])
        ended = await cut(agent, reached)
        assert ended.result.status is RunStatus.cancelled
        agent.hooks.clear()

    play(main)


def test_a_sync_hook_that_blocks_is_named() -> None:
    agent = make("OK.", hooks=[hook("before_model", lambda _: time.sleep(0.02))], runtime=Runtime(hook_seconds=0.01))
    result = agent.run("go")
    assert result.status is RunStatus.completed
    (warning,) = result.warnings
    took = re.search(r"blocked the event loop for ([\d.]+) s", warning)
    assert took is not None
    assert float(took[1]) >= 0.02


def test_a_hook_that_can_not_be_called_is_refused() -> None:
    holder = type("Hook", (), {"before_model": "log"})()
    with pytest.raises(HookDefinitionError, match=r"before_model of .* can't be called"):
        make("OK.", hooks=[holder])
