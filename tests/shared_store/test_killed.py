# SPDX-License-Identifier: Apache-2.0
"""Workers that are killed or stopped: their runs end once, as lost, and what they leave is sound and can go on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from andon import Agent, CancelCause, CancelOutcome, RunStatus, Runtime, SessionKey, ToolOutcome
from andon.core.records import RunRecord
from andon.core.run.ending import make_record
from andon.core.run.handle import local_run
from andon.errors import LeaseLostError
from andon.messages import Message
from andon.models.scripted import ScriptedModel
from tests.shared_store.helpers import LEASE, check_stored, ended, found, on, runtimes, store_of, stored_events
from tests.shared_store.worker import Worker, quick, scene
from tests.support import play
from tests.support.openai import APIS
from tests.support.till import Till

SCENES = ("waiting", "streaming", "arguments", "tools", "second-turn", "cancelling", "family")
PAUSED = ("paused", "asking-family")


async def saved(runtime: Runtime, run_id: str, holds: Callable[[list[Message]], bool]) -> None:
    """Wait until so much of a run is stored."""
    assert runtime.worker is not None
    with runtime.worker.link.news.watch(run_id) as topic:
        while True:
            seen = topic.count
            if holds(await store_of(runtime).added(run_id) or []):
                return
            await topic.changed(seen)


def again(name: str, runtime: Runtime) -> Agent:
    """The agent of a scene, in a process in which nothing stalls."""
    agent = scene(name, runtime, lambda: None)
    agent.model = ScriptedModel("And so it ended.")
    return agent


def tools_of(record: RunRecord) -> dict[str, ToolOutcome]:
    assert record.receipt is not None
    return {each.call_id: each.outcome for each in record.receipt.tools}


def test_a_kill_loses_the_turn_in_flight_and_nothing_else(url: str) -> None:
    async def main() -> None:
        worker = Worker(url, LEASE, *SCENES, *PAUSED)
        try:
            await asyncio.to_thread(worker.reached, *SCENES, *PAUSED)
            async with runtimes(url, 1, LEASE) as (there,):
                on(there)
                assert there.worker is not None
                there.worker.start()
                await saved(there, "tools", lambda messages: len(messages) == 3)
                await saved(there, "second-turn", lambda messages: len(messages) == 3)
                asked = await there.cancel(run_id="cancelling", by="ann")
                assert asked == {"cancelling": CancelOutcome.requested}
                await asyncio.to_thread(worker.reached, "cancelling")  # it has heard, and does not stop
                worker.kill()
                for name in SCENES:
                    await ended(there, name)
                await _check_ends(there)
                await _check_paused(there)
                await _check_goes_on(there)
        finally:
            worker.kill()

    play(main)


async def _check_ends(there: Runtime) -> None:
    for name in SCENES:
        cause = CancelCause.user if name == "cancelling" else CancelCause.lost
        record = await check_stored(there, name, RunStatus.cancelled, cause)
        assert record.usage is not None
        assert record.usage.total_tokens is None  # nobody knows what it had spent
        assert (await store_of(there).added(name) or [])[0].text == "go"
    assert tools_of(await found(there, "tools")) == {"q": ToolOutcome.completed, "s": ToolOutcome.cut}
    kept = (await store_of(there).added("tools") or [])[2].tool_results
    assert kept[0].content == "quickly done"
    assert "unknown" in kept[1].content
    kept = (await store_of(there).added("second-turn") or [])[2].tool_results
    assert [result.content for result in kept] == ["quickly done"]
    assert tools_of(await found(there, "cancelling")) == {"s": ToolOutcome.cut}
    assert (await found(there, "cancelling")).receipt.by == "ann"  # type: ignore[union-attr]
    child = await ended(there, "family.c")
    assert child.status is RunStatus.cancelled


async def _check_paused(there: Runtime) -> None:
    """They hold nothing, and so they have lost nothing."""
    for name in PAUSED:
        assert (await found(there, name)).status is RunStatus.paused
    till = Till()
    agent = Agent("paused", ScriptedModel("Done."), tools=till.tools, runtime=there)
    questions = (await found(there, "paused")).interrupts
    result = await agent.continue_run("paused", {each.id: True for each in questions})
    assert (result.content, till.did) == ("Done.", ["all", True])
    await check_stored(there, "paused", RunStatus.completed)
    # The cancel of a run whose process is gone ends it here, and the one that it was waiting for.
    assert await there.cancel(run_id="asking-family") == {"asking-family": CancelOutcome.requested}
    for name in ("asking-family", "asking-family.c"):  # the worker may be about it already, on its own thread
        await ended(there, name)
    await check_stored(there, "asking-family", RunStatus.cancelled, CancelCause.user)
    await check_stored(there, "asking-family.c", RunStatus.cancelled, CancelCause.parent)


async def _check_goes_on(there: Runtime) -> None:
    for name in ("waiting", "streaming", "tools", "second-turn", "family"):
        result = await again(name, there).continue_run(name)
        assert (result.status, result.content) == (RunStatus.completed, "And so it ended.")
        await check_stored(there, result.run_id, RunStatus.completed)
    for api in APIS:  # and providers accept what all of these have left
        async with api.fake() as fake:
            for name in SCENES:
                agent = Agent(name, api.model(fake), runtime=there, tools=[quick])
                result = await agent.invoke_async("and now?", session_id=name)
                assert result.status is RunStatus.completed, result.error
            assert [served.error for served in fake.served] == [None] * len(SCENES)


def test_a_worker_that_was_stopped_past_its_lease_finds_its_runs_ended(url: str) -> None:
    async def main() -> None:
        names = ("streaming", "tools")
        worker = Worker(url, LEASE, *names)
        try:
            await asyncio.to_thread(worker.reached, *names)
            _stop(worker, url)
            async with runtimes(url, 1, LEASE) as (there,):
                on(there)
                for name in names:
                    await ended(there, name)
                before = {name: (await found(there, name), await stored_events(there, name)) for name in names}
                for name in names:  # others may go on in the meantime
                    result = await again(name, there).invoke_async("and now?", session_id=name)
                    assert result.status is RunStatus.completed
                worker.signal(signal.SIGCONT)
                heard = [await asyncio.to_thread(worker.hears) for _ in names]
                assert sorted(heard) == [["ended", name, "CANCELLED", "lost", "RunCancelled"] for name in names]
                assert await asyncio.to_thread(worker.hears) == ["closed"]
                assert await asyncio.to_thread(worker.leave) == 0
                for name in names:
                    await check_stored(there, name, RunStatus.cancelled, CancelCause.lost)
                    assert (await found(there, name), await stored_events(there, name)) == before[name]
        finally:
            worker.kill()

    play(main)


def _stop(worker: Worker, url: str) -> None:
    """Stop it, but not in the middle of a transaction: a file that is locked stays so until its process goes on."""
    while True:
        worker.signal(signal.SIGSTOP)
        if not url.startswith("sqlite"):  # the server lets go of it by itself
            return
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0.5)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError:
                worker.signal(signal.SIGCONT)


def test_at_the_next_start_what_was_left_is_ended(sqlite_url: str) -> None:
    """Nobody was there when the lease ran out."""

    async def main() -> None:
        async with runtimes(sqlite_url, 1, LEASE) as (first,):
            left = on(first, "Never.").start("go", session_id="s", run_id="r")
            record = make_record(local_run(left), RunStatus.pending, _nothing())
            await store_of(first).enter(record, "a worker that is gone", -1.0, "reject")
        async with runtimes(sqlite_url, 1, LEASE) as (second,):
            # Not busy: nobody holds it. The next prompt waits until the old run is ended.
            result = await on(second, "Yes.").invoke_async("and now?", session_id="s")
            assert result.status is RunStatus.completed
            assert (await found(second, "r")).status is RunStatus.cancelled
            key = SessionKey("keeper", None, "s")
            assert [message.role for message in await store_of(second).load(key)] == ["user", "assistant"]

    play(main)


def _nothing() -> Any:
    from andon.core.run.work import Settlement
    from andon.messages import Usage

    return Settlement([], "", Usage(), [], [])


def test_a_lost_lease_is_a_clear_error(sqlite_url: str) -> None:
    async def main() -> None:
        async with runtimes(sqlite_url, 1) as (here,):
            from andon.core.shared.store import Lease

            on(here)
            with pytest.raises(LeaseLostError, match="belongs to another worker now, or has ended"):
                await store_of(here).take_turn(Lease("nobody", 1))

    play(main)
