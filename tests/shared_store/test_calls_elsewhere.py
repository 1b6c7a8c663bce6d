# SPDX-License-Identifier: Apache-2.0
"""One tool call of a run is cancelled by a process that does not hold the run: exactly as by the one that does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from andon import CancelOutcome, Run, RunEvent, RunStatus, Runtime, ToolOutcome, tool
from andon.core.selection import Selection
from andon.core.shared import call_cancels
from andon.core.shared.store import CallAnswer, CallRequest
from andon.errors import StoreError
from andon.models.scripted import Call, Stall
from andon.store.sql import SQLStore
from andon.testing import probe
from tests.shared_store.helpers import (
    LEASE,
    LONG,
    Shaky,
    check_stored,
    ended,
    found,
    on,
    runtimes,
    store_of,
)
from tests.support import Flag, Hold, Reach, forever, paused, play, until
from tests.support.till import DELETE, Till


class Desk:
    """A tool that works until the test says that it is done. It counts how often it was called, and cut."""

    def __init__(self) -> None:
        self.started, self.go = Flag(), Flag()
        self.calls = self.cuts = 0

        @tool(idempotent=True)
        async def work() -> str:
            self.calls += 1
            self.started.set()
            try:
                await self.go.arrived()
            except asyncio.CancelledError:
                self.cuts += 1
                raise
            return "worked"

        self.tools = [work]


async def at_work(runtime: Runtime, desk: Desk, *calls: Call) -> Run:
    """A run whose tool is at work."""
    turn = list(calls) or [Call("work", id="w")]
    run = on(runtime, turn, "Never mind.", tools=desk.tools).start("go", run_id="r", session_id="s")
    await run.begin()
    await desk.started.arrived()
    return run


async def cancel_call(runtime: Runtime, call_id: str = "w", force: bool = False) -> CallAnswer:
    """As a server does it that finds the run in the store."""
    if runtime.worker is None:
        on(runtime)  # it knows its store with its first agent
    remote = runtime.backend.remote_run(await found(runtime, "r"))
    assert remote is not None
    answer = await remote.cancel_tool(call_id, "too slow", force)
    assert answer is not None
    return answer


def test_a_call_is_cut_from_elsewhere_and_its_run_goes_on(url: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            desk = Desk()
            run = await at_work(here, desk)
            assert await cancel_call(there, "other") == (RunStatus.running, False, CancelOutcome.unknown)
            assert (await cancel_call(there)).outcome is CancelOutcome.requested
            result = await run.result()
            assert (result.status, result.content, result.receipt) == (RunStatus.completed, "Never mind.", None)
            assert (desk.calls, desk.cuts) == (1, 1)
            [told] = [event for event in probe(run).events if event.event is RunEvent.tool_call_cancelled]
            assert told.reason == "too slow"
            assert told.tool is not None
            assert (told.tool.call_id, told.tool.outcome) == ("w", ToolOutcome.cut)
            assert await cancel_call(there) == (RunStatus.completed, False, None)
            await check_stored(there, "r", RunStatus.completed)
            assert await store_of(there).cancel_log(Selection(run_id="r"), 10) == []  # the run was not cancelled

    play(main)


def test_a_call_that_has_ended_and_one_that_is_cancelled_again(url: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            desk, clean = Desk(), Flag()

            @tool
            async def tidy() -> str:
                try:
                    await forever()
                finally:
                    await clean.arrived()

            @tool
            async def look() -> str:
                return "seen"

            desk.tools += [tidy, look]
            run = await at_work(here, desk, Call("work", id="w"), Call("tidy", id="t"), Call("look", id="l"))
            await until(lambda: RunEvent.tool_call_completed in [event.event for event in probe(run).events])
            assert (await cancel_call(there, "l")).outcome is CancelOutcome.already_finished
            assert (await cancel_call(there, "t")).outcome is CancelOutcome.requested
            assert (await cancel_call(there, "t")).outcome is CancelOutcome.already_requested
            assert run.cancel_tool("t") is CancelOutcome.already_requested  # here too
            assert (await cancel_call(there)).outcome is CancelOutcome.requested
            clean.set()
            assert (await run.result()).status is RunStatus.completed

    play(main)


def test_a_call_that_is_let_finish_is_cut_by_force(url: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            desk = Desk()

            @tool(on_cancel="finish")
            async def careful() -> str:
                desk.started.set()
                await forever()

            desk.tools.append(careful)
            run = await at_work(here, desk, Call("careful", id="w"))
            assert (await cancel_call(there)).outcome is CancelOutcome.requested
            assert run.status is RunStatus.running
            assert (await cancel_call(there, force=True)).outcome is CancelOutcome.already_requested
            assert (await run.result()).status is RunStatus.completed

    play(main)


def test_many_processes_cancel_one_call(url: str) -> None:
    async def main() -> None:
        async with runtimes(url, 4) as (here, *others):
            desk = Desk()
            run = await at_work(here, desk)
            answers = await asyncio.gather(*(cancel_call(runtime) for runtime in others for _ in range(5)))
            outcomes = [answer.outcome for answer in answers]
            assert outcomes.count(CancelOutcome.requested) == 1
            assert set(outcomes) <= {CancelOutcome.requested, CancelOutcome.already_requested, None}
            assert all(answer.status is RunStatus.completed for answer in answers if answer.outcome is None)
            assert (await run.result()).status is RunStatus.completed
            assert desk.cuts == 1

    play(main)


# -- what may get lost ------------------------------------------------------------------------------------------------


def test_a_lost_notification_is_caught_at_the_next_renewal(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_cancels, "ANSWER_SECONDS", 60.0)

    async def main() -> None:
        async with runtimes(url, 2, LEASE) as (here, there):
            run = await at_work(here, Desk())
            assert here.worker is not None
            monkeypatch.setattr(here.worker.leases, "look", lambda run_ids=(): None)
            assert (await cancel_call(there)).outcome is CancelOutcome.requested
            assert (await run.result()).status is RunStatus.completed

    play(main)


def test_an_answer_whose_storing_is_not_confirmed_is_stored_all_the_same(sqlite_url: str) -> None:
    class Mute(SQLStore):
        """Its first answer is stored, and the confirmation is lost."""

        times = 0

        async def answer_call_requests(self, run_id: str, outcomes: Mapping[str, CancelOutcome]) -> None:
            await super().answer_call_requests(run_id, outcomes)
            self.times += 1
            if self.times == 1:
                raise StoreError("the answer was lost, says the test")

    async def main() -> None:
        store = Mute(sqlite_url)
        here, there = Runtime(store, lease_seconds=LONG), Runtime(SQLStore(sqlite_url), lease_seconds=LONG)
        try:
            desk = Desk()
            run = await at_work(here, desk)
            assert (await cancel_call(there)).outcome is CancelOutcome.requested
            assert (await run.result()).status is RunStatus.completed
            assert (store.times >= 1, desk.cuts) == (True, 1)
        finally:
            await here.close()
            await there.close()

    play(main)


def test_the_answers_are_stored_before_the_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a request that has none, of a run that has ended, has done nothing."""

    async def main() -> None:
        async with runtimes(url) as (here, there):
            desk = Desk()
            run = await at_work(here, desk)
            assert here.worker is not None
            monkeypatch.setattr(here.worker.link, "submit", lambda make: None)  # that task never runs
            assert (await cancel_call(there)).outcome is CancelOutcome.requested
            assert (await run.result()).status is RunStatus.completed
            monkeypatch.undo()

    play(main)


def test_a_process_that_does_not_answer_is_not_waited_for_without_end(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_cancels, "ANSWER_SECONDS", 0.05)

    async def main() -> None:
        here, there = Runtime(Shaky(sqlite_url), lease_seconds=LONG), Runtime(SQLStore(sqlite_url), lease_seconds=LONG)
        try:
            desk = Desk()
            run = await at_work(here, desk)
            shaky = store_of(here)
            assert isinstance(shaky, Shaky)
            shaky.away = True
            assert await cancel_call(there) == (RunStatus.running, True, None)
            assert desk.cuts == 0
            shaky.away = False  # it hears of it now
            assert here.worker is not None
            here.worker.look()
            assert (await run.result()).status is RunStatus.completed
            assert desk.cuts == 1
        finally:
            await here.close()
            await there.close()

    play(main)


def test_of_a_paused_run_no_process_holds_the_calls(url: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            agent = on(here, [DELETE], "Good.", tools=Till().tools)
            _, result = await paused(agent, run_id="r", session_id="s")
            assert await cancel_call(there, "d") == (RunStatus.paused, False, None)
            answered = await agent.continue_run("r", answers={result.interrupts[0].id: True})
            assert answered.status is RunStatus.completed

    play(main)


def test_a_request_is_for_the_process_that_held_the_run_then(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has paused, and goes on, does not take what was asked before."""

    async def main() -> None:
        async with runtimes(url) as (here, there):
            desk, till, asked = Desk(), Till(), Flag()
            turns = [Reach(asked), Hold(desk.go), DELETE], Call("work", id="w"), "Good."
            agent = on(here, *turns, tools=[*till.tools, *desk.tools])
            run = agent.start("go", run_id="r", session_id="s")
            await run.begin()
            await asked.arrived()
            assert here.worker is not None
            with monkeypatch.context() as deaf:
                deaf.setattr(here.worker.leases, "_look_for_calls", desk.started.arrived)
                store, old = store_of(there), CallRequest("old", "w", None, False)
                assert await store.request_call_cancel("r", old) == (RunStatus.running, True, None)
                assert await store.request_call_cancel("r", old) == (RunStatus.running, True, None)  # changes nothing
                desk.go.set()
                [question] = (await run.result()).interrupts
                assert await store.find_call_answer("r", "old") == (RunStatus.paused, False, None)
            desk.go = Flag()
            going = asyncio.ensure_future(agent.continue_run("r", answers={question.id: True}))
            await desk.started.arrived()
            assert (await cancel_call(there, "other")).outcome is CancelOutcome.unknown  # it looks at all that is asked
            assert await store.find_call_answer("r", "old") == (RunStatus.running, False, None)
            assert desk.cuts == 0
            desk.go.set()
            assert (await going).status is RunStatus.completed

    play(main)


def test_a_call_that_was_cancelled_is_not_made_again_after_its_process_is_lost(url: str) -> None:
    """Its cancel was acknowledged, so a run that goes on from there does not repeat it, though its tool allows that."""

    async def main() -> None:
        async with runtimes(url, 2, LEASE) as (here, there):
            desk, clean = Desk(), Flag()

            @tool(idempotent=True)
            async def tidy() -> str:
                desk.calls += 1
                desk.started.set()
                try:
                    await forever()
                finally:
                    await clean.arrived()

            desk.tools = [tidy]
            agent = on(here, Call("tidy", id="w"), Stall(), tools=desk.tools)
            await agent.start("go", run_id="r", session_id="s").begin()
            await desk.started.arrived()
            assert (await cancel_call(there)).outcome is CancelOutcome.requested
            assert here.worker is not None
            await here.worker.close()  # as if its process were stopped
            keeper = on(there, "Fine.", tools=desk.tools)
            assert there.worker is not None
            there.worker.start()
            record = await ended(there, "r")
            assert record.status is RunStatus.cancelled
            result = await keeper.continue_run("r")
            assert (result.status, desk.calls) == (RunStatus.completed, 1)
            clean.set()

    play(main)
