# SPDX-License-Identifier: Apache-2.0
"""A deploy: the server goes down and comes up again, and whoever was asked something can still answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from andon import Agent, CancelCause, CancelOutcome, Event, RunStatus, Runtime, tool
from andon.core.receipt import CancelRequest
from andon.core.records import RunRecord
from andon.core.run.handle import local_run
from andon.core.run.run import LocalRun
from andon.core.shared.store import Lease
from andon.messages import Message
from andon.models.scripted import Call, ScriptedModel
from andon.server import create_app
from andon.server.host import Host
from andon.server.problems import Problem
from andon.store.sql import SQLStore
from andon.testing import probe
from tests.shared_store.helpers import LONG, changed_to, check_stored, found, on, runtimes
from tests.support import Flag, paused, play, until
from tests.support.till import DELETE, Till


class Slow(SQLStore):
    """A store that takes its time to keep one kind of end."""

    def __init__(self, url: str, status: RunStatus) -> None:
        super().__init__(url)
        self._status, self.reached, self.go = status, Flag(), Flag()

    async def finish(
        self, lease: Lease, record: RunRecord, messages: Sequence[Message], events: Sequence[Event]
    ) -> RunRecord | CancelRequest | None:
        if record.status is self._status:
            self.reached.set()
            await self.go.arrived()
        return await super().finish(lease, record, messages, events)


class Gated(SQLStore):
    """A store that holds back one kind of request, from when the test says so."""

    def __init__(self, url: str, gated: str) -> None:
        super().__init__(url)
        self.closed, self.reached, self.go = False, Flag(), Flag()
        ask = getattr(self, gated)

        async def gate(*arguments: Any) -> Any:
            if self.closed:
                self.reached.set()
                await self.go.arrived()
            return await ask(*arguments)

        setattr(self, gated, gate)


@contextlib.asynccontextmanager
async def served(*agents: Agent, drain: float = 0) -> AsyncIterator[Host]:
    """The life of a server: at the end it goes down."""
    app = create_app(agents, drain=drain)
    async with app.router.lifespan_context(app):
        host = app.state.andon
        assert isinstance(host, Host)
        yield host


def family(runtime: Runtime, till: Till, *turns: Any) -> list[Agent]:
    """Three, each a tool of the one before it. Only the first was given a runtime; the last one asks."""
    first, second, third = turns
    young = Agent("Young", ScriptedModel(third), tools=till.tools)
    middle = Agent("Middle", ScriptedModel(second), tools=[young.as_tool()])
    return [Agent("Old", ScriptedModel(first), tools=[middle.as_tool()], runtime=runtime), middle, young]


CALLS = Call("middle", {"prompt": "look"}, id="m"), Call("young", {"prompt": "look"}, id="y"), DELETE
IDS = ["r", "r.m", "r.m.y"]


def test_a_paused_family_survives_the_end_of_the_server(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        till = Till()
        async with runtimes(url, 1) as (before,):
            old, *_ = family(before, till, *CALLS)
            async with served(old):
                _, result = await paused(old, run_id="r", session_id="s")
            for run_id in IDS:
                assert (await found(before, run_id)).status is RunStatus.paused
            assert "paused runs that can be answered after a restart: 1" in caplog.text
        async with runtimes(url, 1) as (after,):
            old, *_ = family(after, till, "So.", "I see.", "Gone.")
            async with served(old):
                result = await old.continue_run("r", {each.id: True for each in result.interrupts})
            assert (result.status, result.content, till.did) == (RunStatus.completed, "So.", ["all"])
            for run_id in IDS:
                await check_stored(after, run_id, RunStatus.completed)

    caplog.set_level(logging.INFO, "andon.server")
    play(main)


def test_a_run_that_pauses_while_the_server_drains(url: str) -> None:
    async def main() -> None:
        till, working, go = Till(), Flag(), Flag()

        @tool
        async def work() -> str:
            working.set()
            await go.arrived()
            return "done"

        async with runtimes(url, 1) as (runtime,):
            agent = on(runtime, Call("work"), DELETE, tools=[work, *till.tools])
            async with agent.start("go", session_id="s") as run:
                async with served(agent, drain=60) as host:
                    await working.arrived()
                    down = asyncio.create_task(host.shut_down())
                    await asyncio.sleep(0)
                    assert host.draining
                    go.set()
                    await down
                assert run.status is RunStatus.paused
            assert (await found(runtime, run.run_id)).status is RunStatus.paused
            assert runtime.worker is not None
            assert await runtime.worker.store.take_orphans("someone", LONG, 10) == [], "nobody holds it, nor loses it"
            answers = {each.id: True for each in run.interrupts}
        async with runtimes(url, 1) as (after,):
            result = await on(after, "Good.", tools=[work, *till.tools]).continue_run(run.run_id, answers)
            assert (result.status, till.did) == (RunStatus.completed, ["all"])

    play(main)


@pytest.mark.parametrize("end", ["the server", "the runtime"])
def test_a_run_that_is_being_stored_as_paused_when_the_time_is_up(url: str, end: str) -> None:
    async def main() -> None:
        store = Slow(url, RunStatus.paused)
        runtime = Runtime(store, lease_seconds=LONG)
        agent = on(runtime, DELETE, tools=Till().tools)
        run = agent.start("go", session_id="s")
        await run.begin()
        await store.reached.arrived()
        async with served(agent) as host:
            down = asyncio.create_task(host.shut_down() if end == "the server" else runtime.close())
            await asyncio.sleep(0)  # it has looked at the run by now, and waits for it
            await asyncio.sleep(0)
            assert local_run(run).signal.request is None
            store.go.set()
            await down
        assert run.status is RunStatus.paused
        await runtime.close()
        async with runtimes(url, 1) as (after,):
            assert (await found(after, run.run_id)).status is RunStatus.paused

    play(main)


def test_a_cancel_ends_a_paused_run_also_after_the_server(url: str) -> None:
    async def main() -> None:
        async with runtimes(url, 1) as (runtime,):
            agent = on(runtime, DELETE, tools=Till().tools)
            async with served(agent):
                run, _ = await paused(agent, session_id="s")
            assert agent.cancel() is CancelOutcome.requested
            await probe(run).ended()
            await check_stored(runtime, run.run_id, RunStatus.cancelled, CancelCause.user)

    play(main)


def test_a_paused_run_that_was_cancelled_before_ends_with_the_server(url: str) -> None:
    async def main() -> None:
        store = Slow(url, RunStatus.cancelled)
        runtime = Runtime(store, lease_seconds=LONG)
        agent = on(runtime, DELETE, tools=Till().tools)
        async with served(agent) as host:
            run, _ = await paused(agent, session_id="s")
            assert run.cancel("not needed") is CancelOutcome.requested
            await store.reached.arrived()
            down = asyncio.create_task(host.shut_down())
            await asyncio.sleep(0)
            store.go.set()
            await down
            assert run.status is RunStatus.cancelled
        record = await check_stored(runtime, run.run_id, RunStatus.cancelled, CancelCause.user)
        assert record.receipt is not None
        assert record.receipt.reason == "not needed"
        await runtime.close()

    play(main)


def test_a_child_that_asks_ends_with_a_parent_that_is_at_work(url: str) -> None:
    """The parent has another call that does not end: it is cancelled, and with it the child that waits for a person."""

    async def main() -> None:
        working = Flag()

        @tool
        async def work() -> str:
            working.set()
            await asyncio.Event().wait()
            return "never"

        async with runtimes(url, 1) as (runtime,):
            young = Agent("Young", ScriptedModel(DELETE), tools=Till().tools)
            calls = [Call("young", {"prompt": "look"}, id="c"), Call("work")]
            old = Agent("Old", ScriptedModel(calls), tools=[young.as_tool(), work], runtime=runtime)
            async with old.start("go", run_id="r", session_id="s") as run:
                await working.arrived()
                await changed_to(runtime, "r.c", lambda record: record.status is RunStatus.paused)
                child = runtime.run("r.c")
                assert child is not None
                async with served(old):
                    pass
                assert (run.status, child.status) == (RunStatus.cancelled, RunStatus.cancelled)
            await check_stored(runtime, "r", RunStatus.cancelled, CancelCause.shutdown)
            await check_stored(runtime, "r.c", RunStatus.cancelled, CancelCause.parent)

    play(main)


def test_in_memory_a_paused_run_ends_with_the_server_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        till = Till()
        old, *_ = family(Runtime(), till, *CALLS)
        other = on(Runtime(), DELETE, tools=till.tools)
        async with served(old, other):
            runs = [(await paused(agent))[0] for agent in (old, other)]
        for run in runs:
            assert run.status is RunStatus.cancelled
            assert run.receipt is not None
            assert run.receipt.cause is CancelCause.shutdown
        assert (old.runtime.runs, other.runtime.runs) == ([], [])
        assert "paused runs that were cancelled, because they are kept in memory alone: 2" in caplog.text

    play(main)


@pytest.mark.parametrize("gated", ["blocks", "take_up"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_answer_that_comes_with_the_shutdown_is_not_used_up(url: str, gated: str, elsewhere: bool) -> None:
    """It waits for the store when the server goes down. The run stays paused, and can be answered after that."""

    async def main() -> None:
        till, store = Till(), Gated(url, gated)
        async with runtimes(url, 1) as (other,):
            runtime = Runtime(store, lease_seconds=LONG)
            agent = on(runtime, DELETE, "Gone.", tools=till.tools)
            asker = on(other, DELETE, tools=till.tools) if elsewhere else agent
            run, result = await paused(asker, session_id="s")
            answers = {each.id: True for each in result.interrupts}
            async with served(agent) as host:
                store.closed = True
                answering = asyncio.create_task(
                    host.resume_run(agent, run.run_id, answers, local_run(run).session.key, None, anew=False)
                )
                await store.reached.arrived()
                down = asyncio.create_task(host.shut_down())
                await asyncio.sleep(0)
                assert host.draining
                store.go.set()
                await down
                with pytest.raises(Problem, match="shutting down") as caught:
                    await answering
                assert caught.value.status_code == 503
            assert (await found(other, run.run_id)).status is RunStatus.paused
            assert till.did == []
            await runtime.close()
            result = await on(other, "Gone.", tools=till.tools).continue_run(run.run_id, answers)
            assert (result.status, till.did) == (RunStatus.completed, ["all"])

    play(main)


def test_an_answer_that_the_store_takes_during_the_drain_has_the_rest_of_it(url: str) -> None:
    async def main() -> None:
        till, store = Till(), Gated(url, "take_up")
        runtime = Runtime(store, lease_seconds=LONG)
        agent = on(runtime, DELETE, "Gone.", tools=till.tools)
        run, result = await paused(agent, session_id="s")
        async with served(agent, drain=60) as host:
            store.closed = True
            answers = {each.id: True for each in result.interrupts}
            answering = asyncio.create_task(
                host.resume_run(agent, run.run_id, answers, local_run(run).session.key, None, anew=False)
            )
            await store.reached.arrived()
            down = asyncio.create_task(host.shut_down())
            await asyncio.sleep(0)
            store.go.set()
            await down
            went_on, _ = await answering
            assert went_on is local_run(run)
            assert (run.status, till.did) == (RunStatus.completed, ["all"])
        await runtime.close()

    play(main)


def test_a_run_that_is_refused_during_the_drain_does_not_shorten_it(url: str) -> None:
    async def main() -> None:
        working, go = Flag(), Flag()

        @tool
        async def work() -> str:
            working.set()
            await go.arrived()
            return "done"

        async with runtimes(url, 1) as (other,):
            busy, _ = await paused(on(other, DELETE, tools=Till().tools), session_id="s")
            store = Gated(url, "enter")
            runtime = Runtime(store, lease_seconds=LONG)
            agent = on(runtime, Call("work"), "Done.", tools=[work])
            async with served(agent, drain=60) as host:
                store.closed = True
                refused = asyncio.create_task(host.begin(agent, "go", {"session_id": "s"}))
                finishing = asyncio.create_task(host.begin(agent, "go", {"session_id": "s2"}))
                await until(lambda: len(runtime.runs) == 2)
                await store.reached.arrived()
                down = asyncio.create_task(host.shut_down())
                await asyncio.sleep(0)
                store.go.set()
                with pytest.raises(Problem) as caught:
                    await refused
                assert caught.value.status_code == 409
                await working.arrived()
                finishes = await finishing
                assert isinstance(finishes, LocalRun)
                assert finishes.signal.request is None
                go.set()
                await down
                assert finishes.status is RunStatus.completed
            await runtime.close()
            busy.cancel()

    play(main)
