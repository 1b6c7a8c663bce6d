# SPDX-License-Identifier: Apache-2.0
"""The store is away: nothing is told that isn't stored, nothing stops that need not, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from andon import CancelCause, CancelOutcome, RunEvent, RunStatus, Runtime, ToolContext, tool
from andon.core.shared.store import Taken
from andon.errors import StoreError
from andon.models.scripted import Call, Pause, Say, Stall
from andon.store.sql import SQLStore, schema
from andon.testing import probe
from tests.shared_store.helpers import (
    LONG,
    Shaky,
    changed_to,
    check_same,
    check_stored,
    ended,
    on,
    runtimes,
    stored_events,
)
from tests.store.server import Server
from tests.store.test_schema import execute
from tests.support import Do, Flag, Hold, Reach, paused, play
from tests.support.till import DELETE, Till


@contextlib.asynccontextmanager
async def shaky(url: str, lease: float = LONG, **bounds: Any) -> AsyncIterator[tuple[Runtime, Shaky]]:
    store = Shaky(url)
    runtime = Runtime(store, lease_seconds=lease, **bounds)
    try:
        yield runtime, store
    finally:
        store.away = store.mute = False
        await runtime.close()


def test_a_run_is_not_begun_without_it(sqlite_url: str) -> None:
    async def main() -> None:
        async with shaky(sqlite_url) as (here, store):
            agent = on(here, "Yes.")
            store.away = True
            for _ in range(2):  # the id is not taken by what never was
                with pytest.raises(StoreError, match="away, says the test"):
                    await agent.invoke_async("go", run_id="r")
            assert not here.runs
            store.away = False
            result = await agent.invoke_async("go", run_id="r")
            assert result.status is RunStatus.completed
            await check_stored(here, "r", RunStatus.completed)

    play(main)


def test_a_run_that_is_going_streams_on_and_its_end_waits(sqlite_url: str) -> None:
    async def main() -> None:
        async with shaky(sqlite_url) as (here, store):
            reached, go_on = Flag(), Flag()
            agent = on(here, ["One, ", Reach(reached), Hold(go_on), "two, ", "three."])
            async with agent.start("go") as run:
                await reached.arrived()
                store.away = True
                go_on.set()
                reader, kinds = run.events(), list[RunEvent]()
                while RunEvent.store_waiting not in kinds:
                    kinds.append((await anext(reader)).event)
                assert kinds.count(RunEvent.run_content) == 3
                assert run.status is RunStatus.running  # nobody is told what isn't stored
                with pytest.raises(StoreError):
                    await here.cancel(all=True)
                assert not run.cancel()  # it has come to its own end
                store.away = False
                kinds += [event.event async for event in reader]
                assert kinds[-2:] == [RunEvent.store_waiting, RunEvent.run_completed]
                assert (await run.result()).content == "One, two, three."
            await check_stored(here, run.run_id, RunStatus.completed)
            check_same(run, await stored_events(here, run.run_id))

    play(main)


@pytest.mark.parametrize("by", ["the handle", "the runtime"])
def test_a_run_can_be_cancelled_without_it(sqlite_url: str, by: str) -> None:
    async def main() -> None:
        async with shaky(sqlite_url) as (here, store):
            reached = Flag()
            agent = on(here, ["One", Reach(reached), Stall()], "Two.")
            async with agent.start("go", session_id="s") as run:
                await reached.arrived()
                store.away = True
                if by == "the handle":
                    assert run.cancel() is CancelOutcome.requested
                else:
                    assert await here.cancel(run_id=run.run_id) == {run.run_id: CancelOutcome.requested}
                reader = run.events()
                while (await anext(reader)).event is not RunEvent.store_waiting:
                    pass
                assert run.status is RunStatus.cancelling
                store.away = False
                assert (await run.result()).status is RunStatus.cancelled
            await check_stored(here, run.run_id, RunStatus.cancelled, CancelCause.user)
            assert (await agent.invoke_async("and?", session_id="s")).status is RunStatus.completed

    play(main)


def test_a_host_that_was_cancelled_does_not_wait_for_it(sqlite_url: str) -> None:
    async def main() -> None:
        async with shaky(sqlite_url, settle_seconds=0.2) as (here, store):
            reached = Flag()
            agent = on(here, ["One", Reach(reached), Stall()])
            waiting = asyncio.create_task(agent.invoke_async("go", run_id="r"))
            await reached.arrived()
            store.away = True
            waiting.cancel("the host's own")
            with pytest.raises(asyncio.CancelledError, match="the host's own"):
                await waiting
            assert here.runs[0].status is RunStatus.cancelling  # it goes on trying
            store.away = False
            await ended(here, "r")
            await check_stored(here, "r", RunStatus.cancelled, CancelCause.caller)

    play(main)


def test_a_loop_that_is_ended_does_not_wait_for_it_either(sqlite_url: str) -> None:
    store = Shaky(sqlite_url)
    runtime = Runtime(store, lease_seconds=LONG, settle_seconds=0.2)

    async def main() -> None:
        reached = Flag()
        await on(runtime, ["One", Reach(reached), Stall()]).start("go", run_id="r").begin()
        await reached.arrived()
        store.away = True

    asyncio.run(main())  # cancels what is left, as every host does at its end
    store.away = False
    asyncio.run(runtime.close())

    async def next_start() -> None:
        async with runtimes(sqlite_url, 1) as (later,):
            # What the run could not say, its lease says: then it is lost.
            on(later)
            record = await changed_to(later, "r", lambda record: True)
            assert not record.status.final

    play(next_start)


def test_away_for_longer_than_the_lease(sqlite_url: str) -> None:
    """The run is stopped by the clock, before anybody else may take it over."""

    async def main() -> None:
        async with shaky(sqlite_url, lease=3) as (here, store):  # it ends after 2.4 s: a slow machine has time, too
            reached, left = Flag(), Flag()

            @tool
            async def slow() -> str:
                reached.set()
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    left.set()
                return ""

            async with on(here, Call("slow", id="c"), tools=[slow]).start("go") as run:
                await reached.arrived()
                store.away, began = True, time.monotonic()
                await left.arrived()
                assert time.monotonic() - began < 3  # the lease, and nothing was renewed after it began
                store.away = False
                result = await run.result()
            assert result.receipt is not None
            assert result.receipt.cause is CancelCause.lost
            await check_stored(here, run.run_id, RunStatus.cancelled, CancelCause.lost)

    play(main)


@pytest.mark.parametrize("turn", ["completes", "pauses"])
def test_an_answer_that_is_lost_is_asked_for_again(sqlite_url: str, turn: str) -> None:
    """The store has done what it was asked, and could not say so."""

    async def main() -> None:
        async with shaky(sqlite_url) as (here, store):
            asked = list[str]()

            def silence() -> None:
                store.mute = True

            @tool
            async def ask(ctx: ToolContext) -> str:
                if not asked:
                    silence()
                asked.append("again")
                return str(ctx.interrupt("well?"))

            agent = on(here, ["Done.", Do(silence)] if turn == "completes" else Call("ask"), tools=[ask])
            run = agent.start("go", session_id="s")
            await run.begin()
            reader = run.events()
            while (await anext(reader)).event is not RunEvent.store_waiting:
                pass
            store.mute = False
            result = await run.result()
            if turn == "pauses":
                assert result.status is RunStatus.paused
                result = await agent.continue_run(run.run_id, {result.interrupts[0].id: True})
            assert result.status is RunStatus.completed
            await check_stored(here, run.run_id, RunStatus.completed)

    play(main)


def test_going_on_with_a_paused_run_whose_store_does_not_answer(sqlite_url: str) -> None:
    async def main() -> None:
        async with shaky(sqlite_url) as (here, store):
            till = Till()
            agent = on(here, DELETE, "Done.", tools=till.tools)
            run, result = await paused(agent, session_id="s")
            answers = {result.interrupts[0].id: True}
            store.away = True
            with pytest.raises(StoreError):
                await agent.continue_run(run.run_id, answers)
            assert probe(run).is_paused
            store.away, store.mute = False, True
            with pytest.raises(StoreError):
                await agent.continue_run(run.run_id, answers)
            store.mute = False
            # It was taken up, though nobody was told; so it is given back, for whoever answers next.
            done = await agent.continue_run(run.run_id, answers)
            assert (done.status, till.did) == (RunStatus.completed, ["all"])
            await check_stored(here, run.run_id, RunStatus.completed)

    play(main)


def test_cancelled_while_the_store_is_asked_to_give_a_paused_run_back(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with shaky(sqlite_url) as (here, store):
            for delay_first in (False, True):
                asked = Flag()

                async def watched(*arguments: Any, asked: Flag = asked) -> Taken | None:
                    asked.set()
                    return await SQLStore.take_up(store, *arguments)

                monkeypatch.setattr(store, "take_up", watched)
                run, result = await paused(on(here, DELETE, tools=Till().tools))
                store.delay = 0.05 if delay_first else 0.0
                going_on = asyncio.create_task(
                    on(here, id=run.agent_id).continue_run(run.run_id, {result.interrupts[0].id: True})
                )
                await asked.arrived()
                going_on.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await going_on
                store.delay = 0.0
                await changed_to(here, run.run_id, lambda record: record.status is RunStatus.paused)
                assert await here.cancel(run_id=run.run_id)
                await probe(run).ended()
                await check_stored(here, run.run_id, RunStatus.cancelled, CancelCause.user)

    play(main)


def test_a_slow_store_never_slows_the_stream(sqlite_url: str) -> None:
    async def main() -> None:
        async with shaky(sqlite_url) as (here, store):
            agent = on(here, [*(part for _ in range(50) for part in (Say("word "), Pause(0.001))), Say("end.")])
            run = agent.start("go")
            await run.begin()
            reader = run.events()
            while (await anext(reader)).event is not RunEvent.run_content:
                pass
            store.delay = 0.5
            gaps, before = list[float](), time.monotonic()
            async for event in reader:
                if event.event is RunEvent.run_content:
                    gaps.append(time.monotonic() - before)
                    before = time.monotonic()
            assert len(gaps) == 50
            assert sum(gaps) < 0.5 * len(gaps) / 10  # not one call of the store is in between
            store.delay = 0.0
            assert (await run.result()).status is RunStatus.completed
            await check_stored(here, run.run_id, RunStatus.completed)

    play(main)


def test_postgres_is_killed_and_comes_back(own_server: Server, tmp_path: Path) -> None:
    async def main() -> None:
        async with runtimes(own_server.url("postgres")) as (here, there):
            streaming, tooling, go_on = Flag(), Flag(), Flag()

            @tool
            async def slow() -> str:
                tooling.set()
                await asyncio.get_running_loop().create_future()
                return ""

            one = on(here, ["One, ", Reach(streaming), Hold(go_on), "two."]).start("go", run_id="one")
            two = on(here, Call("slow", id="c"), tools=[slow]).start("go", run_id="two")
            _, result = await paused(on(here, DELETE, tools=Till().tools), run_id="three")
            await one.begin()
            await two.begin()
            await streaming.arrived()
            await tooling.arrived()
            on(there)
            assert await there.cancel(run_id="two", by="ann") == {"two": CancelOutcome.requested}
            await asyncio.to_thread(own_server.kill)
            go_on.set()
            reader = one.events()
            while (await anext(reader)).event is not RunEvent.store_waiting:
                pass
            with pytest.raises(StoreError):
                await on(there).invoke_async("hello?")
            await asyncio.to_thread(own_server.start)
            assert (await one.result()).status is RunStatus.completed
            assert (await two.result()).status is RunStatus.cancelled
            await check_stored(there, "one", RunStatus.completed)
            await check_stored(there, "two", RunStatus.cancelled, CancelCause.user)
            till = Till()
            done = await on(there, "Done.", tools=till.tools).continue_run("three", {result.interrupts[0].id: True})
            assert (done.status, till.did) == (RunStatus.completed, ["all"])
            await check_stored(here, "three", RunStatus.completed)

    play(main)


def test_a_server_whose_tables_were_migrated_says_so_once_and_tells_no_end(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        runtime = Runtime(SQLStore(sqlite_url), lease_seconds=1.0)
        reached, go_on = Flag(), Flag()
        async with on(runtime, [Reach(reached), Hold(go_on), "Yes."]).start("go", run_id="r") as run:
            await reached.arrived()
            execute(sqlite_url, f"UPDATE andon_meta SET version = {schema.VERSION + 1}")
            go_on.set()
            reader, kinds = run.events(), list[RunEvent]()
            while RunEvent.store_waiting not in kinds:  # what ends it now is not what the store will say
                kinds.append((await anext(reader)).event)
            assert not run.status.final
            with pytest.raises(StoreError, match="Restart it with the new version"):
                await on(runtime, "No.", name="Other").invoke_async("go")
            await runtime.close()
        assert execute(sqlite_url, "SELECT status FROM andon_runs") == [("RUNNING",)]

    play(main)
    assert [each.getMessage().partition("were")[0] for each in caplog.records if each.levelname == "CRITICAL"] == [
        f"the tables of {sqlite_url} "
    ]
