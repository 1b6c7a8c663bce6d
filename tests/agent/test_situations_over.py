# SPDX-License-Identifier: Apache-2.0
"""How cancelling behaves where there is nothing to cancel any more: a test per situation."""

from __future__ import annotations

import asyncio

import pytest

from andon import CancelOutcome, RunEvent, RunStatus, Runtime, tool
from andon.errors import ModelError
from andon.models.scripted import Call, Fail, Stall
from tests.support import Flag, forever, make, play, read_all, until

# -- being cancelled, ended, unknown ----------------------------------------------------------------------------------


def test_being_cancelled_and_cancelled() -> None:
    async def main() -> None:
        started, cleaned_up = Flag(), Flag()

        @tool
        async def slow() -> str:
            started.set()
            try:
                await forever()
            finally:
                await cleaned_up.arrived()

        agent = make(Call("slow", id="c"), tools=[slow])
        async with agent.start("go") as run:
            reader = asyncio.create_task(read_all(run))
            await started.arrived()
            assert run.cancel("first", "ann") is CancelOutcome.requested
            assert run.status is RunStatus.cancelling
            for again in (run.cancel("second"), agent.cancel("third"), agent.cancel_run(run.run_id, "fourth")):
                assert again is CancelOutcome.already_requested
            cleaned_up.set()
            events, result = await reader, await run.result()
        assert [event.event for event in events].count(RunEvent.cancel_requested) == 1
        assert result.receipt is not None
        assert (result.receipt.reason, result.receipt.by) == ("first", "ann")
        for late in (run.cancel(), agent.cancel(), agent.cancel_run(run.run_id)):
            assert late is CancelOutcome.already_finished
        assert await read_all(run) == events
        assert await run.result() == result

    play(main)


@pytest.mark.parametrize(
    ("turn", "status"), [("Hello.", RunStatus.completed), (Fail(ModelError("no")), RunStatus.error)]
)
def test_ended_otherwise(turn: str | Fail, status: RunStatus) -> None:
    async def main() -> None:
        agent = make(turn)
        async with agent.start("go") as run:
            result = await run.result()
            events = await read_all(run)
            for late in (run.cancel(), agent.cancel(), agent.cancel_run(run.run_id)):
                assert late is CancelOutcome.already_finished
            assert await run.cancel_and_wait() is None  # there is no receipt of a cancel that did nothing
        assert run.status is status is result.status
        assert await run.result() == result
        assert await read_all(run) == events
        assert agent.messages == result.messages
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_unknown() -> None:
    async def main() -> None:
        agent = make(runtime=Runtime())
        assert agent.cancel_run("nobody") is CancelOutcome.unknown
        result = await agent.invoke_async("go", run_id="nobody")  # and nothing was left behind for it
        assert result.status is RunStatus.completed

    play(main)


def test_a_stall_costs_a_cancel_nothing() -> None:
    """No token has to arrive first: the model never says another word, and the loop has no timer to wake it."""

    async def main() -> None:
        agent = make([Stall()])
        async with agent.start("go") as run:
            await until(lambda: run.phase == "waiting")
            receipt = await run.cancel_and_wait()
        assert receipt is not None
        assert receipt.leftovers == []

    play(main)
