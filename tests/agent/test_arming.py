# SPDX-License-Identifier: Apache-2.0
"""Arming: a cancel that raced ahead of its run is not lost, and a late one can't hit the next prompt."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from andon import Agent, CancelOutcome, RunResult, RunStatus, Runtime
from andon.agent.options import RunOptions
from andon.errors import EmptyPromptError
from andon.models.scripted import Call, ScriptedModel, Stall
from tests.support import Silence, Worker, asked, interrupted, make, play, record_of

SHORT = 0.05
"""An arm_seconds that a test can outlive. Waiting longer than it is no hope: the clock has passed it for certain."""


def outlive(seconds: float = SHORT) -> None:
    over = time.monotonic() + seconds
    while time.monotonic() <= over:
        time.sleep(0.005)


def test_the_next_run_sends_nothing_and_the_one_after_goes_on() -> None:
    agent = make()
    assert agent.cancel("enough", "ann") is CancelOutcome.armed
    first = agent.run("go")
    assert (first.status, asked(agent)) == (RunStatus.cancelled, [])
    assert first.receipt is not None
    assert (first.receipt.reason, first.receipt.by) == ("enough", "ann")
    assert agent.run("go").status is RunStatus.completed
    assert len(asked(agent)) == 1


@pytest.mark.parametrize("way", ["run", "stream", "invoke_async", "stream_async", "start"])
def test_it_waits_for_every_kind_of_invocation(way: str) -> None:
    async def main() -> None:
        agent = make()
        assert agent.cancel() is CancelOutcome.armed
        if way == "run":
            await asyncio.to_thread(agent.run, "go", run_id="r")
        elif way == "stream":
            await asyncio.to_thread(lambda: list(agent.run("go", stream=True, run_id="r")))
        elif way == "invoke_async":
            await agent.invoke_async("go", run_id="r")
        elif way == "stream_async":
            assert [event async for event in agent.stream_async("go", run_id="r")]
        else:
            async with agent.start("go", run_id="r") as run:
                await run.result()
        assert (await record_of(agent, "r")).status is RunStatus.cancelled
        assert asked(agent) == []

    play(main)


def test_a_late_cancel_does_not_hit_the_next_prompt() -> None:
    agent = make()
    agent.run("go")
    assert agent.cancel() is CancelOutcome.already_finished
    assert agent.run("go").status is RunStatus.completed


def test_nor_does_one_that_comes_after_a_cancelled_run() -> None:
    agent = make()
    assert agent.cancel() is CancelOutcome.armed
    assert agent.run("go").status is RunStatus.cancelled
    assert agent.cancel() is CancelOutcome.already_finished
    assert agent.run("go").status is RunStatus.completed


def test_a_requested_cancel_arms_nothing() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        async with agent.start("go") as run:
            await silence.reached.arrived()
            assert agent.cancel() is CancelOutcome.requested
            assert agent.cancel() is CancelOutcome.already_requested
            await run.result()
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_long_after_a_runs_end_it_arms_again() -> None:
    agent = make(runtime=Runtime(arm_seconds=SHORT))
    agent.run("go")
    outlive()
    assert agent.cancel() is CancelOutcome.armed


def test_an_arm_that_is_too_old_hits_nothing() -> None:
    agent = make(runtime=Runtime(arm_seconds=SHORT))
    assert agent.cancel() is CancelOutcome.armed
    outlive()
    assert agent.run("go").status is RunStatus.completed


def test_arming_again_refreshes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0  # the second must not grow old on a slow machine
    monkeypatch.setattr("andon.core.cord.time", SimpleNamespace(monotonic=lambda: now))
    agent = make(runtime=Runtime(arm_seconds=2))
    assert agent.cancel("first") is CancelOutcome.armed
    now += 1.2
    assert agent.cancel("second") is CancelOutcome.armed
    now += 1.2  # the first would be too old by now
    result = agent.run("go")
    assert result.status is RunStatus.cancelled
    assert result.receipt is not None
    assert result.receipt.reason == "second"
    assert agent.run("go").status is RunStatus.completed  # both are spent


def test_arming_twice_still_hits_one_run() -> None:
    agent = make()
    assert agent.cancel() is CancelOutcome.armed
    assert agent.cancel() is CancelOutcome.armed
    assert agent.run("go").status is RunStatus.cancelled
    assert agent.run("go").status is RunStatus.completed


def test_with_arm_seconds_0_it_is_switched_off() -> None:
    agent = make(runtime=Runtime(arm_seconds=0))
    assert not agent.cancel()
    assert agent.run("go").status is RunStatus.completed
    assert agent.cancel() is CancelOutcome.already_finished
    assert agent.run("go").status is RunStatus.completed


def test_only_agent_cancel_arms() -> None:
    async def main() -> None:
        agent = make()
        assert agent.cancel_run("r") is CancelOutcome.unknown
        assert await agent.runtime.cancel(all=True) == {}
        assert await agent.runtime.cancel(agent_id=agent.id) == {}
        assert (await agent.invoke_async("go", run_id="r")).status is RunStatus.completed

    play(main)


def test_it_is_the_agents_own() -> None:
    runtime = Runtime()
    agent, other = make(runtime=runtime), make(runtime=runtime)  # of the same name, even
    assert agent.cancel() is CancelOutcome.armed
    assert other.run("go").status is RunStatus.completed
    assert agent.run("go").status is RunStatus.cancelled


@pytest.mark.parametrize("options", [{"session_id": "s"}, {"user_id": "bob"}, {"session_id": "s", "user_id": "bob"}])
def test_it_is_for_the_agents_own_conversation_alone(options: RunOptions) -> None:
    """A run of another session may be a stranger's: it goes on, and the cancel waits for the run that it is meant for,
    though a run of the agent has ended meanwhile.
    """
    agent = make()
    assert agent.cancel("early") is CancelOutcome.armed
    assert agent.run("a stranger's prompt", **options).status is RunStatus.completed
    mine = agent.run("mine")
    assert mine.status is RunStatus.cancelled
    assert mine.receipt is not None
    assert mine.receipt.reason == "early"
    assert agent.run("and now?").status is RunStatus.completed


def test_it_is_for_the_agents_own_conversation_also_by_its_id() -> None:
    agent = make()
    assert agent.cancel() is CancelOutcome.armed
    assert agent.run("go", session_id=agent.session_id).status is RunStatus.cancelled


def test_a_call_of_a_sub_agent_is_not_its_own_conversation() -> None:
    young = make(name="Young")
    old = make(Call("young", {"prompt": "look"}), name="Old", tools=[young.as_tool()])
    assert young.cancel() is CancelOutcome.armed
    old.run("go")
    assert len(asked(young)) == 1
    assert young.run("go").status is RunStatus.cancelled


def test_a_strangers_run_in_flight_is_cancelled_by_the_next_cancel() -> None:
    """The armed cancel still waits for the agent's own conversation."""

    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        assert agent.cancel("early") is CancelOutcome.armed
        async with agent.start("go", user_id="bob") as run:
            await silence.reached.arrived()
            assert agent.cancel("late") is CancelOutcome.requested
            result = await run.result()
            assert result.receipt is not None
            assert result.receipt.reason == "late"
        assert (await agent.invoke_async("mine")).status is RunStatus.cancelled

    play(main)


def test_an_invocation_that_could_not_begin_does_not_use_it_up() -> None:
    agent = make()
    assert agent.cancel() is CancelOutcome.armed
    with pytest.raises(EmptyPromptError):
        agent.run("")
    agent.run("go", stream=True)  # never iterated: it did not begin
    assert agent.run("go").status is RunStatus.cancelled


def test_there_is_no_gap_between_arming_and_beginning() -> None:
    """A cancel at the very moment in which a run begins, again and again. The run can't end alone: none is lost."""
    seen: Counter[CancelOutcome] = Counter()
    head_start = 0.0
    for _ in range(300):
        agent = Agent("Racer", ScriptedModel(then=Stall()))
        together = threading.Barrier(2)

        def run(agent: Agent = agent, together: threading.Barrier = together) -> None:
            together.wait(10)
            result = agent.run("go", timeout=10)
            assert result.receipt is not None
            assert result.receipt.cause == "user"

        worker = Worker(run)
        together.wait(10)
        spin(head_start)
        outcome = agent.cancel()
        seen[outcome] += 1
        # Whoever won gets the worse start next time: so the two stay close.
        head_start = max(0.0, head_start + (3e-5 if outcome is CancelOutcome.armed else -3e-5))
        worker.done()
    assert set(seen) == {CancelOutcome.armed, CancelOutcome.requested}, seen


def test_the_caller_that_stopped_a_run_is_told_so() -> None:
    """At every line of `agent.cancel()`, another thread does a whole run. If that was cancelled, then by this call."""
    seen: Counter[tuple[CancelOutcome, RunStatus]] = Counter()
    for line in range(1, 1000):
        agent = make()
        results: list[RunResult] = []

        def do_a_run(agent: Agent = agent, results: list[RunResult] = results) -> None:
            Worker(lambda: results.append(agent.run("go"))).done()

        with interrupted(line, "line", do_a_run) as happened:
            outcome = agent.cancel()
        if not happened[0]:
            break
        status = results[0].status
        seen[outcome, status] += 1
        assert bool(outcome) or status is RunStatus.completed, f"{status.name}, but told {outcome} (line {line})"
        assert outcome is not CancelOutcome.armed or status is RunStatus.cancelled
        assert agent.run("and now?").status is RunStatus.completed
    assert {status for _, status in seen} == {RunStatus.completed, RunStatus.cancelled}


def spin(seconds: float) -> None:
    over = time.perf_counter() + seconds
    while time.perf_counter() < over:
        pass
