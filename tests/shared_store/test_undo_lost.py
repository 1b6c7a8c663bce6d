# SPDX-License-Identifier: Apache-2.0
"""Finish and undo on a store that several processes share: the calls of a lost run are undone by the process that ends
it, and each at most once.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from andon import Agent, CancelCause, RunEvent, RunStatus, Runtime, ToolContext, ToolOutcome, ToolReceipt, tool
from andon.core.events import ToolView
from andon.core.receipt import CancelRequest
from andon.core.records import RunRecord
from andon.core.run.handle import local_run
from andon.messages import ToolResult
from andon.models.scripted import Call
from andon.store.sql.cancels import merge
from andon.testing import probe
from tests.shared_store.helpers import LEASE, ended, found, on, runtimes, store_of, stored_events
from tests.support import Flag, forever, paused, play, until


class Bank:
    """A tool with an undo function that notes what it undoes; one that stays in its call if it is told to."""

    def __init__(self, stays: bool = False) -> None:
        self.started = Flag()
        self.undos: list[Any] = []

        async def refund(amount: int, call_id: str, ctx: ToolContext) -> None:
            assert (ctx.call_id, ctx.cancelled) == (call_id, False)
            self.undos.append((amount, call_id, ctx.run_id))

        @tool(on_cancel=refund)
        async def pay(amount: int) -> str:
            self.started.set()
            if stays:
                await forever()
            return "paid"

        @tool(on_cancel=refund)
        async def reserve(amount: int, ctx: ToolContext) -> str:
            return str(ctx.interrupt("sure?"))

        self.tools: list[Any] = [pay, reserve]


def tools_of(record: RunRecord) -> list[ToolReceipt]:
    assert record.receipt is not None
    return record.receipt.tools


async def results_in(runtime: Runtime, run_id: str) -> list[ToolResult]:
    messages = await store_of(runtime).added(run_id) or []
    return [result for message in messages for result in message.tool_results]


async def begin(runtime: Runtime, bank: Bank, run_id: str = "r") -> Agent:
    agent = on(runtime, Call("pay", {"amount": 7}, id="p"), tools=bank.tools)
    await agent.start("go", run_id=run_id).begin()
    await bank.started.arrived()
    return agent


async def lose(runtime: Runtime) -> None:
    """From now on the worker of this runtime does nothing, as if its process were stopped."""
    assert runtime.worker is not None
    await runtime.worker.close()


@pytest.mark.parametrize("knows", [True, False])
def test_the_process_that_ends_a_lost_run_undoes_its_calls(url: str, knows: bool) -> None:
    async def main() -> None:
        async with runtimes(url, 2, LEASE) as (here, there):
            mine, theirs = Bank(stays=True), Bank()
            await begin(here, mine)
            keeper = on(there, "Fine.", tools=theirs.tools if knows else [])
            await lose(here)
            assert there.worker is not None
            there.worker.start()
            record = await ended(there, "r")
            assert record.status is RunStatus.cancelled
            [call] = tools_of(record)
            [told] = await results_in(there, "r")
            kinds = [event.event for event in await stored_events(there, "r")]
            assert mine.undos == []
            if knows:
                assert theirs.undos == [(7, "p", "r")]
                assert call.outcome is ToolOutcome.compensated
                assert "The undo function of its tool was called" in told.content
                assert kinds[-3:] == [
                    RunEvent.tool_undo_started,
                    RunEvent.tool_call_cancelled,
                    RunEvent.run_cancelled,
                ]
            else:
                assert call.outcome is ToolOutcome.cut
                assert "unknown" in told.content
                assert RunEvent.tool_undo_started not in kinds
            assert (await keeper.invoke_async("Go on", session_id="other")).status is RunStatus.completed

    play(main)


def test_a_call_whose_undo_had_begun_in_a_lost_process_is_not_undone_again(url: str) -> None:
    async def main() -> None:
        async with runtimes(url, 2, LEASE) as (here, there):
            mine, theirs = Bank(stays=True), Bank()
            agent = await begin(here, mine)
            run = agent.runtime.find("r")
            assert run is not None
            run.journal.add(RunEvent.tool_undo_started, tool=ToolView("p", "pay", {"amount": 7}))
            assert await run.storage.commit_events()
            await lose(here)
            keeper = on(there, "Fine.", tools=theirs.tools)  # a runtime does not keep its agents
            assert keeper.runtime.worker is not None
            keeper.runtime.worker.start()
            [call] = tools_of(await ended(there, "r"))
            assert theirs.undos == []
            assert call.outcome is ToolOutcome.cut
            assert "had begun to undo it" in (call.undo or "")

    play(main)


def test_a_process_that_has_lost_its_run_does_not_undo(url: str) -> None:
    async def main() -> None:
        async with runtimes(url, 2, LEASE, undo_seconds=0.2) as (here, there):
            mine, theirs = Bank(stays=True), Bank()
            agent = await begin(here, mine)
            run = agent.runtime.run("r")
            assert run is not None
            keeper = on(there, "Fine.", tools=theirs.tools)
            store = store_of(keeper.runtime)
            # As if its lease had expired: another process takes the run over while this one still works on it.
            lease = local_run(run).storage.lease  # type: ignore[attr-defined]
            assert lease is not None
            await store.finish(
                lease,
                msgspec.structs.replace(await found(there, "r"), status=RunStatus.cancelled),
                await store.added("r") or [],
                [],
            )
            run.cancel()
            await run.result()
            assert mine.undos == []

    play(main)


def test_a_thread_that_outlives_the_loss_of_its_run_is_not_undone_again(url: str) -> None:
    async def main() -> None:
        async with runtimes(url, 2, LEASE, undo_seconds=0.2, abandon_seconds=0.02) as (here, there):
            started, go = Flag(), Flag()
            undos, theirs = list[int](), Bank()

            async def refund(amount: int) -> None:
                undos.append(amount)

            @tool(on_cancel=refund)
            def pay(amount: int) -> str:
                started.set()
                go.wait()
                return "paid"

            agent = on(here, Call("pay", {"amount": 7}, id="p"), tools=[pay])
            keeper = on(there, "Fine.", tools=theirs.tools)
            run = agent.start("go", run_id="r")
            await run.begin()
            await started.arrived()
            await lose(here)
            assert keeper.runtime.worker is not None
            keeper.runtime.worker.start()
            await ended(there, "r")
            run.cancel()
            await run.result()
            go.set()
            await run.cancel_and_wait()
            await until(lambda: not local_run(run).steps.has_leftovers)
            assert (theirs.undos, undos) == ([(7, "p", "r")], [])

    play(main)


def test_a_cancelled_run_is_undone_here_and_that_is_stored(url: str) -> None:
    async def main() -> None:
        async with runtimes(url, 2) as (here, there):
            mine = Bank(stays=True)
            agent = await begin(here, mine)
            on(there)
            run = agent.runtime.run("r")
            assert run is not None
            await there.cancel(run_id="r", reason="enough")
            await run.result()
            assert mine.undos == [(7, "p", "r")]
            [call] = tools_of(await ended(there, "r"))
            assert call.outcome is ToolOutcome.compensated
            kinds = [event.event for event in await stored_events(there, "r")]
            assert kinds.count(RunEvent.tool_undo_started) == 1
            assert [event.seq for event in await stored_events(there, "r")] == list(range(1, len(kinds) + 1))

    play(main)


@pytest.mark.parametrize("where", ["here", "there", "handle"])
def test_a_paused_run_that_is_cancelled_is_undone_once(url: str, where: str) -> None:
    async def main() -> None:
        async with runtimes(url, 2) as (here, there):
            mine, theirs = Bank(), Bank()
            agent = on(here, Call("reserve", {"amount": 3}, id="v"), tools=mine.tools)
            keeper = on(there, "Fine.", tools=theirs.tools)
            run, _ = await paused(agent, run_id="r")
            if where == "handle":
                run.cancel()
            else:
                await (here if where == "here" else keeper.runtime).cancel(run_id="r")
            [call] = tools_of(await ended(there, "r"))
            await run.gone()  # this process hears of it a moment later
            result = await run.result()
            assert call.outcome is ToolOutcome.compensated
            assert mine.undos + theirs.undos == [(3, "v", "r")]
            assert result.receipt is not None
            assert [each.outcome for each in result.receipt.tools] == [ToolOutcome.compensated]
            events = probe(run).events
            assert [event.seq for event in events] == list(range(1, len(events) + 1))

    play(main)


def test_force_travels_over_the_store(url: str) -> None:
    async def main() -> None:
        started = Flag()

        @tool(on_cancel="finish", finish_within=600)
        async def send() -> str:
            started.set()
            await forever()

        async with runtimes(url, 2) as (here, there):
            agent = on(here, Call("send", id="s"), tools=[send])
            on(there)
            run = agent.start("go", run_id="r")
            await run.begin()
            await started.arrived()
            await there.cancel(run_id="r", reason="first", by="ann")
            await there.cancel(run_id="r", force=True)
            [call] = tools_of(await ended(there, "r"))
            assert call.outcome is ToolOutcome.cut
            record = await found(there, "r")
            assert record.receipt is not None
            assert (record.receipt.reason, record.receipt.mode) == ("first", "now")

    play(main)


def test_closing_the_runtime_cuts_what_it_lets_finish_after_a_while(url: str) -> None:
    async def main() -> None:
        started = Flag()

        @tool(on_cancel="finish", finish_within=600)
        async def send() -> str:
            started.set()
            await forever()

        async with runtimes(url, 2, child_seconds=0.05) as (here, there):
            agent = on(here, Call("send", id="s"), tools=[send])
            run = agent.start("go", run_id="r")
            await run.begin()
            await started.arrived()
            await here.close()
            assert run.status is RunStatus.cancelled
            [call] = tools_of(await found(there, "r"))
            assert call.outcome is ToolOutcome.cut

    play(main)


def test_a_later_request_only_makes_the_stored_one_stronger() -> None:
    def request(**options: Any) -> CancelRequest:
        return CancelRequest.make(CancelCause.user, **options)

    soft, now, force = request(mode="after_turn", grace=9), request(grace=4), request(force=True)
    assert merge(soft, now) == msgspec.structs.replace(soft, mode=now.mode, grace=4)
    assert merge(now, request(grace=1)) == now
    assert merge(now, soft) == now
    for before in (soft, now):
        merged = merge(before, force)
        assert (merged.force, merged.mode, merged.grace) == (True, "now", None)
        assert merged.requested_at == before.requested_at
    assert merge(force, now) == force


def test_an_older_process_reads_a_run_that_was_undone() -> None:
    """What is new is left out where it is not needed, and an older reader ignores it."""
    call = msgspec.json.encode(ToolReceipt("p", "pay", ToolOutcome.cut))
    assert call == b'{"call_id":"p","name":"pay","outcome":"cut"}'
