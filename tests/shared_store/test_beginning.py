# SPDX-License-Identifier: Apache-2.0
"""`await run.begin()`: the same with every store. What keeps a run from starting raises there, and nowhere later."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from andon import (
    Agent,
    CancelCause,
    CancelOutcome,
    RunEvent,
    RunIdTakenError,
    RunStatus,
    Runtime,
    SessionBusyError,
    tool,
)
from andon.errors import BlockedError, HandleError, SessionPausedError, StoreError
from andon.models.scripted import Call
from andon.store.memory import MemoryStore
from andon.store.sql import SQLStore
from tests.shared_store.helpers import LONG, Shaky, leased, on
from tests.support import Flag, Silence, paused, play

STORES = ["memory", "sqlite"]


@contextlib.asynccontextmanager
async def opened(kind: str, here: Path) -> AsyncIterator[Runtime]:
    store: Any = MemoryStore() if kind == "memory" else SQLStore(f"sqlite:///{here / 'andon.db'}")
    runtime = Runtime(store, lease_seconds=LONG)
    try:
        yield runtime
    finally:
        await runtime.close()


@tool(approval=True)
async def asks() -> str:
    return "approved"


async def check_refused(agent: Agent, kind: type[Exception], **options: Any) -> None:
    """It is told once, by the await, and nothing of the run is left."""
    before = {run.run_id for run in agent.runtime.runs}
    run = agent.start("And I?", **options)
    beginning = run.begin()
    with pytest.raises(kind):
        await beginning
    assert {run.run_id for run in agent.runtime.runs} == before
    # And the handle is used up, on every store.
    assert run.status is RunStatus.error
    assert run.cancel() is CancelOutcome.already_finished
    with pytest.raises(HandleError):
        await run.begin()
    with pytest.raises(kind):
        await run.result()


@pytest.mark.parametrize("kind", STORES)
def test_a_busy_session(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        silence = Silence()
        async with opened(kind, tmp_path) as runtime:
            agent = on(runtime, [silence], "Fine.")
            run = agent.start("Hello", session_id="s", run_id="first")
            await run.begin()
            await silence.reached.arrived()
            await check_refused(agent, SessionBusyError, session_id="s")
            await check_refused(agent, SessionBusyError, session_id="s", run_id="second")
            other = agent.start("And I?", session_id="s", run_id="second", on_busy="queue")
            await other.begin()
            assert other.status is RunStatus.pending
            run.cancel()
            assert (await run.result()).status is RunStatus.cancelled
            assert (await other.result()).content == "Fine."

    play(main)


@pytest.mark.parametrize("kind", STORES)
def test_a_paused_session(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as runtime:
            agent = on(runtime, Call("asks"), tools=[asks])
            run, _ = await paused(agent, session_id="s")
            await check_refused(agent, SessionPausedError, session_id="s")
            run.cancel()
            await run.result()

    play(main)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("ended", [False, True])
def test_a_taken_id(kind: str, ended: bool, tmp_path: Path) -> None:
    async def main() -> None:
        silence = Silence()
        async with opened(kind, tmp_path) as runtime:
            agent = on(runtime, [silence] if not ended else "Fine.")
            run = agent.start("Hello", session_id="s", run_id="r")
            await run.begin()
            if ended:
                await run.result()
            await check_refused(agent, RunIdTakenError, session_id="other", run_id="r")
            run.cancel()
            await run.result()

    play(main)


def test_one_that_another_process_holds(tmp_path: Path) -> None:
    """Only the store knows of it: two runtimes are as two processes."""

    async def main() -> None:
        silence = Silence()
        async with opened("sqlite", tmp_path) as here, opened("sqlite", tmp_path) as there:
            run = on(there, [silence]).start("Hello", session_id="s", run_id="r")
            await run.begin()
            await silence.reached.arrived()
            agent = on(here, "Fine.")
            await check_refused(agent, SessionBusyError, session_id="s")
            await check_refused(agent, RunIdTakenError, session_id="other", run_id="r")
            await here.block("user", "bad", "ann", "")
            await check_refused(agent, BlockedError, session_id="x", user_id="bad")
            run.cancel()
            await run.result()

    play(main)


@pytest.mark.parametrize("kind", STORES)
def test_it_returns_when_the_run_is_admitted_and_not_later(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        silence = Silence()
        async with opened(kind, tmp_path) as runtime:
            agent = on(runtime, [silence])
            run = agent.start("Hello", run_id="r")
            await run.begin()
            if runtime.worker is not None:
                assert leased(run).lease is not None
                assert isinstance(runtime.store, SQLStore)
                assert await runtime.store.find("r") is not None
            assert not run.status.final
            assert run.cancel()
            assert (await run.result()).receipt is not None

    play(main)


def test_a_cancel_of_the_await_ends_the_run(tmp_path: Path) -> None:
    """The store keeps it waiting; whoever waits for it is cancelled, and gets that cancellation back."""

    async def main() -> None:
        asked, go = Flag(), asyncio.Event()
        async with opened("sqlite", tmp_path) as runtime:
            store = runtime.store
            assert isinstance(store, SQLStore)
            enter = store.enter

            async def slow(*arguments: Any) -> Any:
                asked.set()
                await go.wait()
                return await enter(*arguments)

            store.enter = slow  # type: ignore[method-assign, assignment]
            run = on(runtime, "Never said.").start("Hello", run_id="r")

            async def begin() -> None:
                await run.begin()

            task = asyncio.create_task(begin())
            await asked.arrived()
            store.enter = enter  # type: ignore[method-assign]
            task.cancel("by the host")
            with pytest.raises(asyncio.CancelledError, match="by the host"):
                await task
            result = await run.result()
            assert result.receipt is not None
            assert result.receipt.cause is CancelCause.caller
            record = await store.find("r")
            assert record is not None
            assert record.status is RunStatus.cancelled

    play(main)


def test_a_cancel_of_the_run_while_it_is_entered(tmp_path: Path) -> None:
    """The run was begun, and ends as cancelled: that is no reason to raise."""

    async def main() -> None:
        asked, go = Flag(), asyncio.Event()
        async with opened("sqlite", tmp_path) as runtime:
            store = runtime.store
            assert isinstance(store, SQLStore)
            enter = store.enter

            async def slow(*arguments: Any) -> Any:
                asked.set()
                await go.wait()
                return await enter(*arguments)

            store.enter = slow  # type: ignore[method-assign, assignment]
            run = on(runtime, "Never said.").start("Hello", run_id="r")

            async def cancel() -> None:
                await asked.arrived()
                store.enter = enter  # type: ignore[method-assign]
                run.cancel()

            task = asyncio.create_task(cancel())
            await run.begin()
            await task
            assert (await run.result()).status is RunStatus.cancelled

    play(main)


def test_a_store_that_can_not_be_asked(tmp_path: Path) -> None:
    async def main() -> None:
        store = Shaky(f"sqlite:///{tmp_path / 'andon.db'}")
        runtime = Runtime(store, lease_seconds=LONG)
        try:
            await store.ping()
            store.away = True
            with pytest.raises(StoreError):
                await on(runtime, "Fine.").start("Hello").begin()
            store.away = False
            assert (await on(runtime, "Fine.").invoke_async("Hello")).content == "Fine."
        finally:
            await runtime.close()

    play(main)


@pytest.mark.parametrize("kind", STORES)
def test_a_run_that_is_not_awaited_has_begun_all_the_same(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as runtime:
            run = on(runtime, "Fine.").start("Hello")
            _ = run.begin()
            assert [event.event async for event in run][-1] is RunEvent.run_completed
            assert (await run.result()).content == "Fine."

    play(main)
