# SPDX-License-Identifier: Apache-2.0
"""An async tool that blocks its event loop is logged with the line that does it; other tools never are."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from andon import Agent, tool
from andon.models.scripted import Call, ScriptedModel
from andon.tools import blocked_loop
from andon.tools.blocked_loop import BlockedLoopWatch, watch
from tests.support import HANG, play

BLOCKS = 3 * (blocked_loop.BLOCKED_SECONDS + 2 * blocked_loop.CHECK_SECONDS)
"""Long enough for several looks, also on a machine that is busy."""


@pytest.fixture(autouse=True)
def anew(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """As in a process of its own: nothing was logged."""
    caplog.set_level(logging.WARNING, "andon")
    watch._logged.clear()
    yield
    watch._logged.clear()


@tool
async def nap() -> str:
    """Sleep as one should not."""
    time.sleep(BLOCKS)  # noqa: ASYNC251 - the very thing  # the line
    return "rested"


@tool
def doze() -> str:
    """Sleep in a thread."""
    time.sleep(BLOCKS)
    return "rested"


@tool
async def wait() -> str:
    """Wait as one should."""
    await asyncio.sleep(BLOCKS)
    return "waited"


def sleeper(*names: str) -> Agent:
    return Agent("Sleeper", ScriptedModel([Call(name) for name in names], then="Done."), tools=[nap, doze, wait])


def line_of(text: str) -> int:
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


def test_the_line_that_blocks_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        result = await sleeper("nap").invoke_async("Hi", run_id="r1")
        assert result.content == "Done."
        (told,) = caplog.records
        text = told.getMessage()
        assert text.startswith("tool nap of run r1 blocked its event loop for ")
        assert f"{__file__}:{line_of('# the ' + 'line')}, in nap: time.sleep(BLOCKS)" in text
        assert told.facts["run_id"] == "r1"  # type: ignore[attr-defined]
        seconds = float(text.partition(" for ")[2].partition(" s")[0])
        assert blocked_loop.BLOCKED_SECONDS <= seconds <= HANG
        await sleeper("nap").invoke_async("Hi")
        assert len(caplog.records) == 1, "once is enough"

    play(main)


def test_a_blocking_call_of_a_program_without_a_loop_is_named_too(caplog: pytest.LogCaptureFixture) -> None:
    sleeper("nap").run("Hi", run_id="r1")
    assert [record.getMessage().partition(" blocked")[0] for record in caplog.records] == ["tool nap of run r1"]


def test_a_library_that_blocks_is_named_by_the_user_s_line(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def hold() -> str:
        threading.Event().wait(BLOCKS)  # the call
        return "held"

    Agent("Holder", ScriptedModel(Call("hold"), then="Done."), tools=[hold]).run("Hi")
    (told,) = caplog.messages
    assert f"{__file__}:{line_of('# the ' + 'call')}, in hold: threading.Event().wait(BLOCKS)" in told


def test_a_task_that_a_tool_made_counts_as_the_tool(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def gather() -> str:
        async def part() -> None:
            time.sleep(BLOCKS)  # noqa: ASYNC251 - the very thing

        await asyncio.gather(part())
        return "gathered"

    Agent("Gatherer", ScriptedModel(Call("gather"), then="Done."), tools=[gather]).run("Hi")
    if sys.version_info < (3, 12):  # whose task it is can't be known there
        assert caplog.messages == []
        return
    (told,) = caplog.messages
    assert told.startswith("tool gather ")
    assert "in part: time.sleep(BLOCKS)" in told


def test_threads_and_awaits_block_nothing(caplog: pytest.LogCaptureFixture) -> None:
    play(lambda: _three(caplog))


async def _three(caplog: pytest.LogCaptureFixture) -> None:
    assert (await sleeper("doze", "wait", "doze").invoke_async("Hi")).content == "Done."
    assert caplog.records == []


def test_one_that_does_not_let_go_is_told_of_while_it_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_loop, "STILL_SECONDS", blocked_loop.BLOCKED_SECONDS)
    told, messages = threading.Event(), list[str]()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())
            told.set()

    @tool
    async def stuck() -> str:
        return "heard" if told.wait(HANG) else "nobody was told"

    heard = Heard()
    logging.getLogger("andon").addHandler(heard)
    try:
        model = ScriptedModel(Call("stuck"), then=lambda request: request.messages[-1].tool_results[0].content)
        assert Agent("Stuck", model, tools=[stuck]).run("Hi").content == "heard"
    finally:
        logging.getLogger("andon").removeHandler(heard)
    (text,) = messages
    assert "tool stuck of run" in text
    assert re.search(r"has blocked its event loop for \d+\.\d s and still does, and with it", text)


def test_the_watch_sleeps_while_no_tool_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_loop, "EMPTY_CHECKS", 1)
    monkeypatch.setattr(blocked_loop, "CHECK_SECONDS", 0.001)
    asleep = threading.Event()

    class Sleepy(BlockedLoopWatch):
        def _sleep(self) -> None:
            asleep.set()
            super()._sleep()

    mine = Sleepy()
    mine._wake_up()
    assert asleep.wait(HANG)
    asleep.clear()
    mine._wake_up()
    assert asleep.wait(HANG), "woken, and asleep again"


def test_a_tool_may_begin_in_the_middle_of_a_check() -> None:
    """The garbage collector may run at any allocation of the check, and other threads with it."""

    async def main() -> None:
        mine, here, begun = BlockedLoopWatch(), asyncio.current_task(), 0
        assert here is not None

        def begin(phase: str, info: dict[str, int]) -> None:
            nonlocal begun
            begun -= 1
            mine._calls[begun] = call

        scope: Any = SimpleNamespace(name="t", run=SimpleNamespace(run_id="r", agent_id="a"))
        call = blocked_loop._Call(scope, here, 0)
        mine._calls.update(dict.fromkeys(range(100), call))
        before = gc.get_threshold()
        gc.callbacks.append(begin)
        gc.set_threshold(1)
        try:
            mine._check()
        finally:
            gc.set_threshold(*before)
            gc.callbacks.remove(begin)
        assert begun, "the collector has run"

    play(main)


def test_a_loop_that_ends_under_a_tool_is_not_kept() -> None:
    async def begin() -> weakref.ref[asyncio.AbstractEventLoop]:
        waiting = asyncio.Event()

        @tool
        async def stay() -> str:
            waiting.set()
            await asyncio.get_running_loop().create_future()
            return "never"

        run = Agent("Stayer", ScriptedModel(Call("stay")), tools=[stay]).start("Hi")
        await run.begin()
        await asyncio.wait_for(waiting.wait(), HANG)
        assert watch._calls
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(begin())
    gc.collect()
    assert not watch._calls
    assert loop() is None
