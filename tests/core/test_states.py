# SPDX-License-Identifier: Apache-2.0
"""The states of a run: the table of legal steps, and the statuses that users see, which real runs pass through."""

from __future__ import annotations

import asyncio
from itertools import pairwise, product

import pytest

from andon import Agent, CancelOutcome, Event, Message, Run, RunEvent, RunStatus, tool
from andon.agent.hooks import HookEvent
from andon.core.records import SessionKey
from andon.core.run.handle import local_run
from andon.core.shared.lease_state import LEASE_STEPS, LeaseState, check_lease_step
from andon.core.states import RUN_STEPS, RunState, check_step
from andon.errors import AndonError, HandleError, IllegalTransitionError, ModelError
from andon.models.scripted import Call, Fail, Turn
from andon.store.memory import MemoryStore
from andon.testing import probe
from tests.support import Flag, Hold, Reach, Silence, forever, make, play, read_all, until

STEPS = list(product(RunState, RunState))
LEGAL = [(before, after) for before, after in STEPS if after in RUN_STEPS[before]]
ILLEGAL = [step for step in STEPS if step not in LEGAL]
STATUSES = {
    "pending": {"running", "cancelling", "error"},
    "running": {"paused", "cancelling", "completed", "error"},
    "paused": {"running", "cancelling"},
    "cancelling": {"cancelled"},
    "completed": set(),
    "cancelled": set(),
    "error": set(),
}
"""What may follow a status, as users see it."""


def test_the_tables_are_complete() -> None:
    assert {status.name for status in RunStatus} == set(STATUSES)
    assert set(RUN_STEPS) == set(RunState)
    assert set(LEASE_STEPS) == set(LeaseState)
    assert (len(LEGAL), len(ILLEGAL)) == (11, 25)


@pytest.mark.parametrize(("before", "after"), LEGAL, ids=lambda state: state.name)
def test_a_legal_step(before: RunState, after: RunState) -> None:
    check_step(before, after)


@pytest.mark.parametrize(("before", "after"), ILLEGAL, ids=lambda state: state.name)
def test_an_illegal_step_is_refused(before: RunState, after: RunState) -> None:
    with pytest.raises(IllegalTransitionError, match=rf"{before.name}.*{after.name}") as caught:
        check_step(before, after)
    assert isinstance(caught.value, AndonError)


def test_a_run_takes_no_illegal_step() -> None:
    run = local_run(make("Hello.").start("go"))
    with pytest.raises(IllegalTransitionError, match="pending to ended"):
        run.move(RunState.ended)
    assert run.state is RunState.pending


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("held", "claiming"),  # a claim whose answer was lost had taken effect, and is repeated
        ("held", "unsure"),  # the task that claimed it was interrupted before the run went on
        ("held", "elsewhere"),  # the lease was over before it was renewed
        ("pausing", "finishing_paused"),  # a cancel comes while the pause is being stored
        ("pausing", "elsewhere"),  # another process was quicker to hear of the pause, and goes on with the run
        ("elsewhere", "finishing_paused"),  # so how it ends is asked
        ("claiming", "claiming"),  # the task that asked was stopped, and another one asks
        ("claiming", "elsewhere"),  # another process was faster
    ],
)
def test_a_lease_may_go(before: str, after: str) -> None:
    check_lease_step(LeaseState[before], LeaseState[after])


@pytest.mark.parametrize("after", [state for state in LeaseState if state is not LeaseState.released])
def test_a_released_lease_stays_released(after: LeaseState) -> None:
    with pytest.raises(IllegalTransitionError, match=f"released to {after.name}"):
        check_lease_step(LeaseState.released, after)


# -- on real runs -----------------------------------------------------------------------------------------------------


async def states_of(agent: Agent, cancel_at: RunEvent | None = None, **options: object) -> list[RunStatus]:
    """Every state that a run is seen in, looked at in every step of its loop."""
    states: list[RunStatus] = []

    def look(run: Run) -> RunStatus:
        if not states or states[-1] is not run.status:
            states.append(run.status)
        return run.status

    run = agent.start("go", **options)  # type: ignore[call-overload]
    look(run)
    async with run:
        reader = asyncio.create_task(read_until(run, cancel_at))
        await until(lambda: look(run).final)
        await reader
    look(run)
    return states


async def read_until(run: Run, cancel_at: RunEvent | None) -> list[Event]:
    events = []
    async for event in run:
        events.append(event)
        if event.event is cancel_at:
            run.cancel()
    return events


@tool
async def wait() -> str:
    await forever()


@pytest.mark.parametrize(
    ("turn", "cancel_at", "expected"),
    [
        ("Hello.", None, "pending running completed"),
        (Fail(ModelError("no")), None, "pending running error"),
        ("Hello.", RunEvent.run_started, "pending cancelling cancelled"),
        (["Hel", Silence()], RunEvent.run_content, "pending running cancelling cancelled"),
        (Call("wait"), RunEvent.tool_call_started, "pending running cancelling cancelled"),
    ],
)
def test_the_steps_of_real_runs(turn: Turn, cancel_at: RunEvent | None, expected: str) -> None:
    async def main() -> None:
        states = await states_of(make(turn, tools=[wait]), cancel_at)
        assert " ".join(status.name for status in states) == expected
        for before, after in pairwise(states):
            assert after.name in STATUSES[before.name]

    play(main)


def test_a_run_that_cannot_begin_its_work_ends_as_an_error() -> None:
    class Broken(MemoryStore):
        async def load(self, session: SessionKey) -> list[Message]:
            raise OSError("the disk is gone")

    async def main() -> None:
        agent = make("never said")
        agent.runtime.store = Broken()
        states = await states_of(agent)
        assert states[0] is RunStatus.pending
        assert states[-1] is RunStatus.error
        for before, after in pairwise(states):
            assert after.name in STATUSES[before.name]
        result = await agent.invoke_async("again")
        assert result.stop_reason == "error"
        assert isinstance(result.error, OSError)

    play(main)


# -- what the table does not have -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["completes", "fails"])
def test_from_cancelling_nothing_leads_but_to_cancelled(how: str) -> None:
    """The model's call ends by itself, well or badly, after the cancel was acknowledged."""

    async def main() -> None:
        reached, go_on = Flag(), Flag()
        agent = make([Reach(reached), Hold(go_on), "Done." if how == "completes" else Fail(ModelError("no"))])
        async with agent.start("go") as run:
            await reached.arrived()
            assert run.cancel(mode="after_turn") is CancelOutcome.requested
            assert probe(run).is_cancelling
            go_on.set()
            result = await run.result()
            events = await read_all(run)
        assert result.status is run.status is RunStatus.cancelled
        assert result.stop_reason == "cancelled"
        assert events[-1].event is RunEvent.run_cancelled

    play(main)


@pytest.mark.parametrize(
    "turn", ["Hello.", Fail(ModelError("no")), [Silence()]], ids=["completed", "error", "cancelled"]
)
def test_a_final_state_stays(turn: Turn) -> None:
    async def main() -> None:
        agent = make(turn)
        handle = agent.start("go")
        async with handle as run:
            if not isinstance(turn, str | Fail):
                assert isinstance(turn, list)
                await turn[0].reached.arrived()
                run.cancel()
            result = await run.result()
        final = run.status
        assert final is result.status
        assert final.final
        assert run.cancel() is CancelOutcome.already_finished
        assert run.cancel(mode="after_turn", grace=0) is CancelOutcome.already_finished
        with pytest.raises(HandleError):
            async with handle:
                pytest.fail("a run begins once")
        await asyncio.sleep(0)
        assert run.status is final
        assert await run.result() == result

    play(main)


def test_a_run_begins_once_also_while_it_runs() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        async with agent.start("go") as run:
            await silence.reached.arrived()
            with pytest.raises(HandleError):
                await run.__aenter__()
            assert run.status is RunStatus.running
            run.cancel()

    play(main)


def test_a_run_that_a_hook_sees_end_is_final() -> None:
    async def main() -> None:
        seen: list[RunStatus] = []

        class Watch:
            def run_ended(self, event: HookEvent) -> None:
                seen.append(run.status)

        agent = make("Hello.", hooks=[Watch()])
        async with agent.start("go") as run:
            await run.result()
        assert seen == [RunStatus.completed]

    play(main)
