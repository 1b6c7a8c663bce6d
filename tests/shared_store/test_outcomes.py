# SPDX-License-Identifier: Apache-2.0
"""What became of a run's calls is kept: over a pause, in another process, and when the worker is gone."""

from __future__ import annotations

import msgspec
import pytest

from andon import CancelCause, CancelOutcome, Receipt, RunEvent, RunStatus, tool
from andon.agent.orphan_end import end_orphan
from andon.core.receipt import CancelRequest
from andon.core.run.handle import local_run
from andon.core.shared.leased_run import LeasedRun
from andon.errors import ModelError
from andon.models.scripted import Call, Fail
from andon.store.sql import SQLStore
from andon.store.sql.codec import dump, read_record
from andon.testing import probe
from andon.testing.invariants import check_run
from tests.shared_store.helpers import (
    check_same,
    check_stored,
    found,
    leased,
    on,
    runtimes,
    store_of,
    stored_events,
)
from tests.support import Flag, Hold, Reach, Silence, paused, play


@tool
async def fine() -> str:
    return "fine"


@tool
async def broken() -> str:
    raise ValueError("it broke")


@tool(approval=True)
async def asks() -> str:
    return "approved"


TOOLS = [fine, broken, asks]
FIRST = [Call("broken", id="a"), Call("nothing", id="b"), Call("fine", id="c")]
SECOND = [Call("broken", id="d"), Call("nothing", id="e"), Call("asks", id="f")]
BEFORE = {"a": "failed", "b": "refused", "c": "completed", "d": "failed", "e": "refused"}


def outcomes(receipt: Receipt | None) -> dict[str, str]:
    assert receipt is not None
    return {each.call_id: each.outcome.value for each in receipt.tools}


def test_the_outcomes_outlive_a_pause_and_its_process(url: str) -> None:
    async def main() -> None:
        async with runtimes(url, 1) as (before,):
            run, result = await paused(on(before, FIRST, SECOND, tools=TOOLS), session_id="s")
            run_id, question = run.run_id, result.interrupts[0].id
        async with runtimes(url, 1) as (after,):
            silence = Silence()
            again = await on(after, [silence], tools=TOOLS).resume_run(run_id, {question: False})
            await silence.reached.arrived()
            again.cancel()
            result = await again.result()
            assert outcomes(result.receipt) == {**BEFORE, "f": "refused"}
            assert list(check_run(local_run(again))) == []
            record = await check_stored(after, run_id, RunStatus.cancelled, CancelCause.user)
            assert outcomes(record.receipt) == {**BEFORE, "f": "refused"}

    play(main)


def test_a_pause_that_an_older_version_stored_is_gone_on_with(url: str) -> None:
    """It kept no outcomes: that a call failed is known from its result, and nothing more."""

    async def main() -> None:
        async with runtimes(url, 1) as (before,):
            run, result = await paused(on(before, SECOND, tools=TOOLS), session_id="s")
            record = await found(before, run.run_id)
            assert record.bookmark is not None
            assert {each.call_id: each.outcome for each in record.bookmark.ended} == {"d": "failed", "e": "refused"}
            older = msgspec.json.decode(dump(record))
            del older["bookmark"]["ended"]
            assert read_record(msgspec.json.encode(older)).bookmark is not None
        async with runtimes(url, 1) as (after,):
            silence = Silence()
            agent = on(after, [silence], tools=TOOLS)
            store = store_of(after)
            find = store.find

            async def find_older(run_id: str) -> object:
                await find(run_id)
                return read_record(msgspec.json.encode(older))

            store.find = find_older  # type: ignore[method-assign, assignment]
            again = await agent.resume_run(run.run_id, {result.interrupts[0].id: True})
            store.find = find  # type: ignore[method-assign]
            await silence.reached.arrived()
            again.cancel()
            assert outcomes((await again.result()).receipt) == {"d": "failed", "e": "failed", "f": "completed"}

    play(main)


def test_the_end_of_a_lost_run_says_what_became_of_its_calls(url: str) -> None:
    async def main() -> None:
        silence = Silence()
        async with runtimes(url, 1) as (worker,):
            agent = on(worker, FIRST, [*SECOND[:2]], [silence], tools=TOOLS)
            async with agent.start("go", session_id="s") as run:
                await silence.reached.arrived()
                await local_run(run).storage.checkpoint()
                store = store_of(worker)
                await store.renew([leased(run).lease], 0.0)  # type: ignore[list-item]
                other = SQLStore(url)
                try:
                    [taken] = await other.take_orphans("another", 30.0, 10)
                    await end_orphan(other, taken, CancelRequest.make(CancelCause.lost))
                finally:
                    await other.close()
                result = await run.result()
            assert outcomes(result.receipt) == BEFORE
            await check_stored(worker, run.run_id, RunStatus.cancelled, CancelCause.lost)

    play(main)


def test_a_receipt_is_the_same_in_every_runtime(url: str) -> None:
    async def main() -> None:
        silence = Silence()
        async with runtimes(url, 2) as (here, there):
            agent = on(here, FIRST, [silence], tools=TOOLS)
            async with agent.start("go", session_id="s") as run:
                await silence.reached.arrived()
                run.cancel()
                result = await run.result()
            record = await found(there, run.run_id)
            assert outcomes(record.receipt) == outcomes(result.receipt)
            assert outcomes(record.receipt) == {"a": "failed", "b": "refused", "c": "completed"}

    play(main)


def test_a_cancel_that_overrules_a_failure_tells_the_end_of_each_call_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has accepted a cancel that this process has not heard of. Here the run fails with two whole calls."""
    monkeypatch.setattr(LeasedRun, "on_cancel", lambda *_: None)

    async def main() -> None:
        reached, go_on = Flag(), Flag()
        async with runtimes(url) as (here, there):
            calls = [Call("fine", id="a"), Call("broken", id="b")]
            agent = on(here, [*calls, Reach(reached), Hold(go_on), Fail(ModelError("gone"))], tools=TOOLS)
            on(there)
            async with agent.start("go", session_id="s") as run:
                await reached.arrived()
                assert (await there.cancel(run_id=run.run_id))[run.run_id] is CancelOutcome.requested
                go_on.set()
                result = await run.result()
            assert outcomes(result.receipt) == {"a": "not_started", "b": "not_started"}
            ends = [event.tool for event in probe(run).events if event.event is RunEvent.tool_call_cancelled]
            assert [tool.call_id for tool in ends if tool is not None] == ["a", "b"]
            assert list(check_run(local_run(run))) == []
            await check_stored(there, run.run_id, RunStatus.cancelled, CancelCause.user)
            check_same(run, await stored_events(there, run.run_id))

    play(main)
