# SPDX-License-Identifier: Apache-2.0
"""Ends that are hard to come to: callbacks, models, tools and stores that behave badly at the moment of the cut."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from andon import (
    Agent,
    CancelCause,
    ConfigurationError,
    MemoryStore,
    Message,
    ModelError,
    Run,
    RunEvent,
    RunRecord,
    RunStatus,
    Runtime,
    ToolContext,
    ToolReceipt,
    tool,
)
from andon.agent.call_record import CallRecord
from andon.models.base import ModelRequest
from andon.models.scripted import Call, Fail, ScriptedModel, Stall
from andon.testing import probe, validate
from tests.support import HANG, eventually, forever, play


def test_a_runtime_that_is_closed_ends_its_runs() -> None:
    async def main() -> None:
        runtime = Runtime()
        agent = Agent("A", ScriptedModel(["Half", Stall()], then="again"), runtime=runtime)
        run = agent.start("go")
        await run.begin()
        async for event in run:
            if event.event is RunEvent.run_content:
                break
        await runtime.close()
        assert run.status is RunStatus.cancelled
        result = await run.result()
        assert result.receipt is not None
        assert result.receipt.cause is CancelCause.shutdown
        assert (await agent.invoke_async("go on")).content == "again"  # a memory store stays open

    play(main)


def test_an_on_cancel_callback_may_raise_anything() -> None:
    async def main() -> None:
        started = asyncio.Event()

        @tool
        async def slow(ctx: ToolContext) -> str:
            ctx.on_cancel(ctx.check_cancelled)  # raises what is no Exception
            started.set()
            await asyncio.sleep(1000)
            return "never"

        agent = Agent("A", ScriptedModel([Call("slow")]), tools=[slow])
        async with agent.start("go") as run:
            await started.wait()
            assert run.cancel()
            result = await run.result()
        assert result.status is RunStatus.cancelled
        assert [call.outcome for call in result.receipt.tools] == ["cut"]  # type: ignore[union-attr]

    play(main)


class SlowStore(MemoryStore):
    """Waits in its first save until its loop is gone, and is quick from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.saving = threading.Event()

    def save(self, record: RunRecord, messages: Sequence[Message]) -> Any:
        if self.saving.is_set():
            return super().save(record, messages)
        self.saving.set()
        return asyncio.sleep(1000)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # asyncio's: the task was destroyed
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_loop_that_is_closed_while_the_store_saves(cancelled: bool) -> None:
    store = SlowStore()
    agent = Agent("A", ScriptedModel([Stall()] if cancelled else "Hello."), runtime=Runtime(store))
    loop = asyncio.new_event_loop()

    async def begin() -> Any:
        run = agent.start("go", run_id="r")
        await run.begin()
        if cancelled:
            while run.phase != "waiting":  # noqa: ASYNC110 - this loop is to stop right after
                await asyncio.sleep(0)
            run.cancel()
        while not store.saving.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)
        return run

    run = loop.run_until_complete(begin())
    loop.close()
    result = agent.run("next")
    assert result.status is RunStatus.completed
    assert run.status is (RunStatus.cancelled if cancelled else RunStatus.completed)
    kinds = [event.event for event in probe(run).events]
    assert kinds.count(RunEvent.cancel_requested) == cancelled
    assert sum(kind.terminal for kind in kinds) == 1
    assert [message.role for message in result.messages] == ["user", "assistant"] * 2
    assert validate(result.messages) == []


def test_a_run_that_ended_in_the_queue_does_not_make_the_session_busy() -> None:
    async def main() -> None:
        started, cleaning, clean = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @tool
        async def slow() -> str:
            started.set()
            try:
                await asyncio.sleep(1000)
            finally:
                cleaning.set()
                await clean.wait()
            return "never"

        agent = Agent("A", ScriptedModel([Call("slow")]), tools=[slow])
        async with agent.start("first") as first, agent.start("second", on_busy="queue") as second:
            await started.wait()
            second.cancel()
            assert (await second.result()).status is RunStatus.cancelled
            first.cancel()
            await cleaning.wait()
            third = asyncio.create_task(agent.invoke_async("third"))
            await asyncio.sleep(0)
            clean.set()
            assert (await third).status is RunStatus.completed
        assert [message.text for message in agent.messages if message.role == "user"] == ["first", "second", "third"]

    play(main)


class Late:
    """Fails, and a task of its own goes on talking."""

    id = "late"

    def __init__(self) -> None:
        self.sinks: list[Any] = []

    async def stream(self, request: ModelRequest, sink: Any) -> None:
        sink.text("Well, ")
        self.sinks.append(sink)
        raise ModelError("broken")


def test_nothing_follows_the_terminal_event_of_a_failed_run() -> None:
    model = Late()
    agent = Agent("A", model)
    stream = agent.run("go", stream=True)
    events = list(stream)
    model.sinks[0].text("late")
    assert events[-1].event is RunEvent.run_error
    assert probe(stream.run).events == events


def test_a_tool_of_ones_own_must_return_text() -> None:
    class Odd:
        name, description = "odd", "Returns what is no text."

        @property
        def parameters(self) -> dict[str, Any]:
            return {"type": "object", "properties": {}}

        def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
            return arguments

        async def invoke(self, bound: dict[str, Any], ctx: ToolContext) -> Any:
            return 42

    agent = Agent("A", ScriptedModel([Call("odd")], "Done."), tools=[Odd()])
    assert agent.run("go").content == "Done."
    assert "returned int" in agent.messages[2].tool_results[0].content


def test_calls_whose_ids_differ_in_what_providers_refuse_stay_two_calls() -> None:
    seen: list[int] = []

    @tool
    def note(n: int) -> str:
        seen.append(n)
        return "noted"

    calls = [
        Call("note", {"n": 1}, id="call/1"),
        Call("note", {"n": 2}, id="call.1"),
        Call("note", {"n": 3}, id="call_1"),
    ]
    agent = Agent("A", ScriptedModel(calls, "Done."), tools=[note], parallel_tools=False)
    assert agent.run("go").status is RunStatus.completed
    assert seen == [1, 2, 3]
    assert validate(agent.messages) == []


@pytest.mark.parametrize("max_turns", [0, 1.5, "3"])
def test_max_turns_is_a_whole_number(max_turns: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_turns"):
        Agent("A", ScriptedModel()).run("go", max_turns=max_turns)


def test_a_loop_that_is_closed_in_the_last_hook() -> None:
    """The run has ended, but is not through: whoever waits for all of it must not wait for ever."""

    class Slow:
        async def run_ended(self, event: object) -> None:
            await forever()

    agent = Agent("A", ScriptedModel("Hello."), hooks=[Slow()])
    loop = asyncio.new_event_loop()

    async def begin() -> Run:
        run = agent.start("go")
        await run.begin()
        await run.result()
        return run

    run = loop.run_until_complete(begin())
    loop.close()

    async def main() -> None:
        async with asyncio.timeout(10):
            assert await run.cancel_and_wait(timeout=None) is None

    asyncio.run(main())


def test_a_run_that_can_not_begin_leaves_no_place_in_the_session() -> None:
    agent = Agent("A", ScriptedModel(then="Hello."))
    with pytest.raises((ConfigurationError, OverflowError)):
        agent.run("go", timeout=10**400)
    assert agent.runtime.runs == []
    assert agent.run("next").status is RunStatus.completed


INTERRUPTED = """
import asyncio
from andon import Agent, tool
from andon.models.scripted import Call, ScriptedModel

@tool
async def interrupted() -> str:
    await asyncio.sleep(0)
    raise KeyboardInterrupt

async def beside():
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await asyncio.sleep(0.01)
        print("cleaned up", flush=True)

async def main():
    task = asyncio.create_task(beside())
    await asyncio.sleep(0)
    await agent.invoke_async("go")

agent = Agent("A", ScriptedModel(Call("interrupted")), tools=[interrupted])
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("in flight:", len(agent.runtime.runs), flush=True)
"""


def test_an_interrupt_in_a_tool_is_one_interrupt() -> None:
    """It stops the loop once. The host's own cleaning up is not hit by echoes of it, and the run has an end."""
    program = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=HANG)
    assert program.stdout.splitlines() == ["cleaned up", "in flight: 0"], program.stderr


def test_what_the_record_says_of_a_thread_is_one_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread may end while the run is being settled; conversation, event and receipt still agree."""
    release = threading.Event()

    @tool
    def block() -> str:
        release.wait()
        return "late"

    receipt = CallRecord.receipt

    def and_then(self: CallRecord) -> ToolReceipt:
        said = receipt(self)
        release.set()
        eventually(lambda: not self.scope.has_resources)
        return said

    monkeypatch.setattr(CallRecord, "receipt", and_then)

    async def main() -> None:
        agent = Agent("A", ScriptedModel(Call("block", id="c")), tools=[block])
        async with agent.start("go") as run:
            async for event in run:
                if event.event is RunEvent.tool_call_started:
                    run.cancel()
            result = await run.result()
        assert result.receipt is not None
        told = result.messages[2].tool_results[0].content
        assert (result.receipt.tools[0].outcome == "abandoned") is ("may still be running" in told)

    play(main)


class Forgetful(MemoryStore):
    """Fails to save, until it is told that all is well again."""

    broken = True

    def save(self, record: RunRecord, messages: Sequence[Message]) -> Any:
        if self.broken:
            raise OSError("disk full")
        return super().save(record, messages)


def test_what_the_store_could_not_keep_is_still_known_to_the_next_run() -> None:
    store = Forgetful()
    agent = Agent("A", ScriptedModel(then="OK."), runtime=Runtime(store))
    first = agent.run("one")
    assert first.status is RunStatus.completed
    assert first.warnings == ["the store failed: OSError: disk full"]
    store.broken = False
    assert [message.text for message in agent.run("two").messages] == ["one", "OK.", "two", "OK."]
    assert [message.text for message in agent.run("three").messages][:3] == ["one", "OK.", "two"]


def test_a_failed_result_is_garbage_like_anything_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "andon")  # pytest keeps the log's records, and they hold the error

    def use() -> weakref.ref[Agent]:
        agent = Agent("A", ScriptedModel(Fail(ValueError("broken"))))
        result = agent.run("go")
        assert result.error is not None
        with contextlib.suppress(ValueError):
            raise result.error  # its traceback now knows this frame, and with it the result
        return weakref.ref(agent)

    agent = use()
    eventually(lambda: gc.collect() >= 0 and agent() is None)  # the thread on which it ran lets go a moment later
