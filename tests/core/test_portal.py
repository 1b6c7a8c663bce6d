# SPDX-License-Identifier: Apache-2.0
"""The portal outlives whatever runs on it, and is made anew if its loop breaks."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from andon import (
    Agent,
    CancelCause,
    CancelOutcome,
    MemoryStore,
    Message,
    PortalError,
    RunRecord,
    RunStatus,
    Runtime,
    tool,
)
from andon.core.portal import Portal, portal
from andon.models.scripted import Call, ScriptedModel
from andon.testing import probe
from tests.support import HANG, Flag, Hold, Reach, Worker, eventually


def raise_keyboard_interrupt() -> None:
    raise KeyboardInterrupt


def raise_system_exit() -> None:
    raise SystemExit("a library's own")


def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()


@pytest.mark.parametrize("act", [raise_keyboard_interrupt, raise_system_exit, stop_the_loop])
def test_what_a_tools_own_task_does_to_the_loop_ends_no_other_run(
    act: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    reached, release = Flag(), Flag()
    innocent = Agent("Innocent", ScriptedModel(then=["Half ", Reach(reached), Hold(release), "and half."]))
    results: list[RunStatus] = []
    worker = Worker(lambda: results.append(innocent.run("go").status))
    reached.wait()

    @tool
    async def bad() -> str:
        asyncio.get_running_loop().call_soon(act)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "done"

    with caplog.at_level(logging.ERROR, "andon"):
        result = Agent("Bad", ScriptedModel(Call("bad"), then="OK."), tools=[bad]).run("go")
    assert result.status is RunStatus.completed
    release.set()
    worker.done()
    assert results == [RunStatus.completed]
    assert "the loop goes on" in caplog.text
    assert Agent("Other", ScriptedModel(then="Hi.")).run("hello").status is RunStatus.completed


def test_a_keyboard_interrupt_out_of_a_tool_ends_that_run_alone() -> None:
    @tool(approval=True)
    async def delete() -> str:
        return "deleted"

    @tool
    async def ask() -> str:
        raise KeyboardInterrupt  # as a prompt on the terminal may

    waiting = Agent("Waiting", ScriptedModel(Call("delete")), tools=[delete])
    assert waiting.run("go").status is RunStatus.paused
    result = Agent("Bad", ScriptedModel(Call("ask")), tools=[ask]).run("go")
    assert result.status is RunStatus.cancelled
    assert waiting.cancel() is CancelOutcome.requested
    eventually(lambda: waiting.runtime.live == 0)
    assert Agent("Other", ScriptedModel(then="Hi.")).run("hello").status is RunStatus.completed


def test_a_loop_that_breaks_loses_its_runs_and_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """A tool that makes a daemon of itself closes every file, the selector's too."""

    @tool
    async def close_files() -> str:
        loop = asyncio.get_running_loop()
        files.append(os.dup(loop._selector.fileno()))  # type: ignore[attr-defined]
        os.close(loop._selector.fileno())  # type: ignore[attr-defined]
        await asyncio.sleep(HANG)
        return "never"

    files: list[int] = []
    with caplog.at_level(logging.CRITICAL, "andon"):
        result = Agent("Bad", ScriptedModel(["Some text. ", Call("close_files")]), tools=[close_files]).run("go")
    os.close(files[0])
    assert result.status is RunStatus.cancelled
    assert result.receipt is not None
    assert result.receipt.cause is CancelCause.lost
    assert result.content == "Some text. "
    assert "its event loop broke" in caplog.text
    assert Agent("Other", ScriptedModel(then="Hi.")).run("hello").status is RunStatus.completed


def test_a_run_that_was_being_ended_on_a_loop_that_breaks_is_ended_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The coroutine of the broken loop is closed by the garbage collector, and has no part in the run any more."""
    saved: list[str] = []
    release = Flag()

    class Slow(MemoryStore):
        def save(self, record: RunRecord, messages: Sequence[Message]) -> Awaitable[None]:
            return self._save(record, messages)

        async def _save(self, record: RunRecord, messages: Sequence[Message]) -> None:
            saved.append(messages[-1].text)
            if record.status is RunStatus.cancelled:
                await release.arrived()
            await MemoryStore.save(self, record, messages)

    @tool(approval=True)
    async def wipe() -> str:
        return "wiped"

    agent = Agent(
        "A", ScriptedModel(["Some text. ", Call("wipe")]), tools=[wipe], runtime=Runtime(Slow(), settle_seconds=60)
    )
    agent.run("go", run_id="R")
    run = agent.runtime.run("R")
    assert run is not None
    run.cancel()
    eventually(lambda: len(saved) == 2)
    broken = portal._loop
    assert broken is not None
    with caplog.at_level(logging.CRITICAL, "andon"):
        broken.call_soon_threadsafe(setattr, broken, "_run_once", fail)
        eventually(lambda: len(saved) == 3)  # by the new one
        caplog.clear()
        del broken
        gc.collect()
        release.set()
        assert probe(run).settled_blocking(HANG)
    assert run.status is RunStatus.cancelled
    assert saved[1:] == ["Cancelled by user"] * 2
    assert caplog.text == ""


def fail() -> None:
    raise OSError("as a broken selector does")


def test_a_run_in_its_last_hooks_is_not_waited_for_when_the_loop_breaks() -> None:
    """It has ended, and its runtime finds it by no id any more; whoever waits for it is answered all the same."""
    reached = Flag()

    class Hook:
        async def run_ended(self, event: object) -> None:
            reached.set()
            await asyncio.sleep(HANG)

    agent = Agent("A", ScriptedModel(then="OK."), hooks=[Hook()], runtime=Runtime(hook_seconds=HANG))
    results: list[RunStatus] = []
    worker = Worker(lambda: results.append(agent.run("go").status))
    reached.wait()
    assert portal._loop is not None
    portal._loop.call_soon_threadsafe(setattr, portal._loop, "_run_once", fail)
    worker.done()
    assert results == [RunStatus.completed]
    assert not agent.runtime._leaving


def test_a_caller_that_waits_for_a_loop_that_breaks_is_told() -> None:
    own, began = Portal("breaking"), threading.Event()

    async def wait() -> None:
        began.set()
        await asyncio.sleep(HANG)

    future = own.submit(wait)
    assert began.wait(HANG)
    loop = own._loop
    assert loop is not None

    loop.call_soon_threadsafe(setattr, loop, "_run_once", fail)
    with pytest.raises(PortalError, match="as a broken selector does"):
        future.result(HANG)

    async def answer() -> str:
        return "from a new loop"

    assert own.submit(answer).result(HANG) == "from a new loop"
    own.close()


def test_what_was_asked_for_without_the_lock_has_begun_when_the_portal_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A raw thread brings it to the portal; here that thread is never quick enough."""
    own, done = Portal("closing"), []

    async def work() -> None:
        try:
            await asyncio.sleep(HANG)
        finally:
            done.append("cancelled, so it had begun")

    monkeypatch.setattr(Portal, "_start_soon", lambda self: None)
    own.submit_soon("key", work)
    own.close()
    assert done == ["cancelled, so it had begun"]
    own.close()  # once is enough


def test_what_is_handed_over_while_the_process_exits_is_ended_too() -> None:
    """A tool that is cut at the exit cancels another run, say, in its `finally`."""
    own, done, begun = Portal("exiting"), [], threading.Event()

    async def second() -> None:
        try:
            await asyncio.sleep(HANG)
        finally:
            done.append("second")

    async def first() -> None:
        begun.set()
        try:
            await asyncio.sleep(HANG)
        finally:
            own.submit_soon("key", second)

    own.submit(first)
    assert begun.wait(HANG)
    own.exit()
    assert done == ["second"]
    assert own.exited


def test_a_closed_portal_waits_for_no_task_that_swallows_its_cancel() -> None:
    own, began = Portal("stubborn"), threading.Event()

    async def stubborn() -> None:
        while True:
            began.set()
            try:
                await asyncio.sleep(HANG)
            except asyncio.CancelledError:
                pass

    async def begin() -> None:
        tasks.append(asyncio.create_task(stubborn()))

    tasks: list[asyncio.Task[None]] = []
    own.submit(begin).result(HANG)
    assert began.wait(HANG)
    thread = own._thread
    assert thread is not None
    own.close()
    assert not thread.is_alive()


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_work_that_fails_before_it_has_a_task_is_answered_too(error: type[BaseException]) -> None:
    """With eager tasks, all that comes before the first `await` fails there. The portal goes on."""
    own = Portal("tested")

    def broken() -> Coroutine[Any, Any, None]:
        raise error("no task")

    try:
        with pytest.raises(error, match="no task"):
            own.submit(broken).result(HANG)
        assert own.submit(lambda: asyncio.sleep(0, "fine")).result(HANG) == "fine"
    finally:
        own.close()
