# SPDX-License-Identifier: Apache-2.0
"""One cancel for many runs: all of them end, and the loop that they share belongs to nobody alone meanwhile."""

from __future__ import annotations

import asyncio
import functools
import itertools

import pytest

from andon import Agent, Phase, Run, RunEvent, RunStatus
from andon.core.receipt import CancelRequest
from andon.core.run.handle import local_run
from andon.core.signal import AT_ONCE, MANY, wake_all
from andon.models.scripted import ScriptedModel, Stall

CROWD = MANY + 1


async def crowd(agent: Agent) -> list[Run]:
    runs = [agent.start("Hello", session_id=f"s{number}") for number in range(CROWD)]
    for run in runs:
        await run.begin()
    while any(run.phase is not Phase.waiting for run in runs):  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0)
    return runs


def test_others_have_their_turn_while_many_runs_are_cancelled_at_once() -> None:
    async def main() -> list[int]:
        agent = Agent("Many", ScriptedModel(then=Stall()))
        runs, loop, ended = await crowd(agent), asyncio.get_running_loop(), [0]

        def take_a_turn() -> None:
            ended.append(sum(run.status.final for run in runs))
            if ended[-1] < CROWD:
                loop.call_soon(take_a_turn)

        agent.cancel()
        loop.call_soon(take_a_turn)
        results = [await run.result() for run in runs]
        assert {result.status for result in results} == {RunStatus.cancelled}
        return ended

    ended = asyncio.run(main())
    assert max(later - before for before, later in itertools.pairwise(ended)) <= AT_ONCE


def test_a_cancel_counts_from_when_it_was_asked_for_not_from_when_it_arrives() -> None:
    async def main() -> RunStatus:
        stalled = Agent("Many", ScriptedModel(then=Stall()))
        await crowd(stalled)
        quick = Agent("Quick", ScriptedModel("Hello."), runtime=stalled.runtime)
        last = quick.start("Hello")  # of all that are told, and alone it would take fewer turns than they do
        await last.begin()
        outcomes = await stalled.runtime.cancel(all=True)
        assert len(outcomes) == CROWD + 1
        return (await last.result()).status

    assert asyncio.run(main()) is RunStatus.cancelled


def test_what_breaks_one_delivery_does_not_keep_the_others_from_being_told() -> None:
    """As a Ctrl-C may, that comes in between."""
    told, loop = list[int](), asyncio.new_event_loop()

    def deliver(number: int, request: CancelRequest) -> None:
        told.append(number)
        if number == AT_ONCE // 2:
            raise KeyboardInterrupt

    async def rest() -> None:
        while len(told) < CROWD:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0)

    wake_all({loop: [functools.partial(deliver, number) for number in range(CROWD)]}, CancelRequest.make())
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    loop.run_until_complete(asyncio.wait_for(rest(), 10))
    loop.close()
    assert told == list(range(CROWD))


def test_the_first_cancel_is_the_one_that_is_told_of_though_a_later_one_arrives_before_it() -> None:
    async def main() -> tuple[str | None, str | None]:
        agent = Agent("Many", ScriptedModel(then=Stall()))
        runs = await crowd(agent)
        await agent.runtime.cancel(all=True, mode="after_turn", reason="first")
        runs[-1].cancel("second")  # of all that are told, it is the last
        for run in runs[:-1]:
            run.cancel()
        receipt = (await runs[-1].result()).receipt
        assert receipt is not None
        said = [
            event.reason for event in local_run(runs[-1]).journal.events if event.event is RunEvent.cancel_requested
        ]
        assert len(said) == 1
        return said[0], receipt.reason

    assert asyncio.run(main()) == ("first", "first")
