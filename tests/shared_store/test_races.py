# SPDX-License-Identifier: Apache-2.0
"""Cancels from elsewhere against everything else that may end a run: who was told `requested` was told the truth."""

from __future__ import annotations

import asyncio
import random

from andon import CancelCause, CancelOutcome, RunResult, RunStatus, Runtime
from andon.errors import AnswersError, NotContinuableError
from andon.models.scripted import Pause, Say
from andon.testing import probe
from tests.shared_store.helpers import check_stored, ended, on, runtimes, store_of, stored_events
from tests.support import Flag, paused, play
from tests.support.till import DELETE, Till

ROUNDS = 40


async def _race(here: Runtime, there: Runtime, number: int, dice: random.Random) -> CancelOutcome:
    agent, run_id = on(here, [Say("One "), Pause(dice.uniform(0, 0.02)), Say("two.")]), f"r{number}"

    async def cancel() -> CancelOutcome:
        if number % 4:  # else it may come before the run is known there
            await known.arrived()
        await asyncio.sleep(dice.uniform(0, 0.04))
        answer = await there.cancel(run_id=run_id, by="there")
        return answer.get(run_id, CancelOutcome.unknown)

    async def invoke() -> RunResult:
        run = agent.start("go", run_id=run_id, session_id=f"s{number % 17}", on_busy="queue")
        await run.begin()
        known.set()
        await probe(run).settled()
        return await run.result()

    known = Flag()
    result, outcome = await asyncio.gather(invoke(), cancel())
    requested = outcome is CancelOutcome.requested
    assert result.status is (RunStatus.cancelled if requested else RunStatus.completed), outcome
    events = await stored_events(there, run_id)
    assert events[-1].content == result.content
    return outcome


def test_a_cancel_from_elsewhere_against_the_end(url: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            on(there)
            seed = random.randrange(10**6)
            print(f"seed {seed}")
            dice = random.Random(seed)
            races = (_race(here, there, number, dice) for number in range(ROUNDS))
            outcomes = await asyncio.gather(*races)
            assert CancelOutcome.requested in outcomes
            for number, outcome in enumerate(outcomes):
                asked = outcome is CancelOutcome.requested
                end = (RunStatus.cancelled, CancelCause.user) if asked else (RunStatus.completed, None)
                await check_stored(there, f"r{number}", *end)

    play(main)


def test_a_cancel_here_and_one_elsewhere(url: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            on(there)
            for number in range(10):
                run = on(here, [Say("One "), Pause(60)]).start("go", run_id=f"r{number}")
                await run.begin()
                told = await asyncio.gather(
                    there.cancel(run_id=run.run_id, by="there"), here.cancel(run_id=run.run_id, by="here")
                )
                assert any(answer[run.run_id] for answer in told), told
                result = await run.result()
                await probe(run).ended()
                assert result.receipt is not None
                record = await check_stored(there, run.run_id, RunStatus.cancelled, CancelCause.user)
                assert record.receipt == result.receipt

    play(main)


def test_an_answer_against_a_cancel_from_elsewhere(url: str) -> None:
    async def main() -> None:
        async with runtimes(url, 3) as (here, there, third):
            dice, tills = random.Random(7), [Till(), Till()]
            for number in range(12):
                run, result = await paused(on(here, DELETE, tools=tills[0].tools), session_id=f"s{number}")
                answers = {result.interrupts[0].id: True}
                agent = on(*((here, "Done.") if number % 2 else (there, "Done.")), tools=tills[1].tools)

                async def cancel(run_id: str = run.run_id) -> CancelOutcome:
                    await asyncio.sleep(dice.uniform(0, 0.03))
                    on(third)
                    return (await third.cancel(run_id=run_id))[run_id]

                going_on, outcome = await asyncio.gather(
                    agent.continue_run(run.run_id, answers), cancel(), return_exceptions=True
                )
                record = await ended(third, run.run_id)
                assert isinstance(outcome, CancelOutcome), outcome
                if outcome:
                    assert record.status is RunStatus.cancelled
                if isinstance(going_on, BaseException):
                    assert isinstance(going_on, NotContinuableError | AnswersError), going_on
                else:
                    assert going_on.status is record.status
                await probe(run).ended()
                assert run.status is record.status
                cause = CancelCause.user if record.status is RunStatus.cancelled else None
                await check_stored(there, run.run_id, record.status, cause)
                assert not await store_of(there).take_orphans("nobody", 1.0, 10)

    play(main)
