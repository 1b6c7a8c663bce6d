# SPDX-License-Identifier: Apache-2.0
"""`asyncio.eager_task_factory` (Python 3.12 or newer): a task begins inside `create_task`.

A run and its steps begin in the next turn all the same. So whatever a run does, its task is known, its limits have
begun, and a cancel finds its steps. `make test` also runs the core part of all tests on such a loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from andon import CancelCause, RunStatus, ToolContext, tool
from andon.models.base import ModelRequest, Sink
from andon.models.scripted import Call, Stall
from andon.testing import probe
from tests.support import check_cancelled, cut, make, play, record_of
from tests.support.loops import make_eager
from tests.support.till import DELETE, Till


class Cache:
    """A model that answers without waiting for anything."""

    id = "cache"

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        sink.text("Known already.")


def test_a_run_that_pauses_without_waiting_stays_paused() -> None:
    """Its task ends inside `create_task`, and that is not the end of the run."""

    @tool
    async def ask(ctx: ToolContext) -> str:
        return str(ctx.interrupt("first")) + str(ctx.interrupt("second"))

    async def main() -> None:
        agent = make(Call("ask"), tools=[ask])
        first = await agent.invoke_async("go")
        second = await agent.continue_run(first.run_id, {first.interrupts[0].id: "a"})
        for _ in range(10):  # more turns than a callback of the task would need
            await asyncio.sleep(0)
        run = agent.runtime.run(first.run_id)
        assert run is not None
        assert run.status is RunStatus.paused
        assert (await record_of(agent, first.run_id)).status is RunStatus.paused
        last = await agent.continue_run(first.run_id, {second.interrupts[0].id: "b"})
        assert last.status is RunStatus.completed

    play(main, loop=make_eager)


@pytest.mark.parametrize("make_event", [asyncio.Event, threading.Event])
def test_cancel_on_that_was_set_in_a_pause(make_event: Callable[[], asyncio.Event | threading.Event]) -> None:
    async def main() -> None:
        till, stop = Till(), make_event()
        agent = make(DELETE, tools=till.tools)
        paused = await agent.invoke_async("go", cancel_on=stop)
        stop.set()
        ended = await agent.continue_run(paused.run_id, {paused.interrupts[0].id: True})
        assert ended.status is RunStatus.cancelled
        assert till.did == []

    play(main, loop=make_eager)


def test_limits_end_with_a_run_that_never_waited() -> None:
    """No watcher is left, which `play` looks for, and no timer."""
    set_up: list[asyncio.TimerHandle] = []

    class Noting(asyncio.SelectorEventLoop):
        def call_at(self, *args: Any, **options: Any) -> asyncio.TimerHandle:  # type: ignore[override]
            set_up.append(super().call_at(*args, **options))
            return set_up[-1]

    async def main() -> None:
        agent = make()
        agent.model = Cache()
        result = await agent.invoke_async("go", cancel_on=threading.Event(), timeout=3600)
        assert result.status is RunStatus.completed
        late = [timer for timer in set_up if timer.when() > asyncio.get_running_loop().time() + 1000]
        assert [timer.cancelled() for timer in late] == [True]

    play(main, loop=lambda: make_eager(Noting()))


def test_cancels_and_the_hosts_cancellation() -> None:
    async def main() -> None:
        agent = make(["Once ", Stall()], ["Again ", Stall()])
        check_cancelled(await cut(agent, lambda run: len(probe(run).events) > 1), phase="streaming")
        host = asyncio.create_task(agent.invoke_async("go", run_id="r"))
        run = agent.runtime.run("r")  # registered already, inside create_task
        assert run is not None
        async for event in run:
            if event.content == "Again ":
                break
        host.cancel()
        with pytest.raises(asyncio.CancelledError):
            await host
        assert run.receipt is not None
        assert run.receipt.cause is CancelCause.caller
        assert (await agent.invoke_async("go on")).content == "OK."

    play(main, loop=make_eager)


def test_the_host_cancels_at_once() -> None:
    """Before the run's first step: it has begun by then, so it ends properly."""

    async def main() -> None:
        agent = make()
        host = asyncio.create_task(agent.invoke_async("go", run_id="r"))
        run = agent.runtime.run("r")
        assert run is not None
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await host
        assert run.status is RunStatus.cancelled
        assert (await agent.invoke_async("go on")).status is RunStatus.completed

    play(main, loop=make_eager)
