# SPDX-License-Identifier: Apache-2.0
"""Cancels at the same moment as each other, as the run's end, and in the middle of themselves."""

from __future__ import annotations

import asyncio
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from andon import Agent, CancelOutcome, Run, RunEvent, RunResult, RunStatus, tool
from andon.messages import Text
from andon.models.scripted import Call, ScriptedModel, Stall
from andon.sync import BlockingStream
from andon.testing.validators import validate
from tests.support import Flag, Worker, check_events, eventually, forever, interrupted, make, play, read_all

pytestmark = pytest.mark.no_cover  # others cover what it reaches, and half of its time would be the tracer's

ENDED_KEPT = 10_000  # as API.md has it


# -- many at once -----------------------------------------------------------------------------------------------------


def test_200_threads_cancel_one_run() -> None:
    async def main() -> None:
        started, clean = Flag(), Flag()
        together = threading.Barrier(201)
        outcomes: Counter[CancelOutcome] = Counter()

        @tool
        async def slow() -> str:
            started.set()
            try:
                await forever()
            finally:
                await clean.arrived()  # the run is being cancelled until all have asked

        agent = make(Call("slow", id="c"), tools=[slow])
        async with agent.start("go") as run:
            await started.arrived()

            def cancel(number: int) -> None:
                together.wait(20)
                reason = str(number)
                ways: list[Callable[[str], CancelOutcome]] = [
                    run.cancel,
                    partial(agent.cancel_run, run.run_id),
                    agent.cancel,
                ]
                outcome = ways[number % 3](reason)
                with lock:
                    outcomes[outcome] += 1
                    if outcome is CancelOutcome.requested:
                        winners.append(reason)

            lock, winners = threading.Lock(), list[str]()
            workers = [Worker(lambda number=number: cancel(number)) for number in range(200)]  # type: ignore[misc]
            await asyncio.to_thread(together.wait, 20)
            for worker in workers:
                await asyncio.to_thread(worker.done)
            clean.set()
            result = await run.result()
            events = await read_all(run)
        assert outcomes == {CancelOutcome.requested: 1, CancelOutcome.already_requested: 199}
        assert result.receipt is not None
        assert [result.receipt.reason] == winners
        check_events(events)
        assert [event.event for event in events].count(RunEvent.cancel_requested) == 1

    play(main)


# -- against completion -----------------------------------------------------------------------------------------------


def check_consistent(outcome: CancelOutcome, result: RunResult) -> None:
    """What the caller was told, and what became of the run, are the same thing."""
    if outcome is CancelOutcome.requested:
        assert (result.status, result.stop_reason) == (RunStatus.cancelled, "cancelled")
        assert result.message.content[-1] == Text("Cancelled by user")
        assert result.receipt is not None
    else:
        assert outcome is CancelOutcome.already_finished
        assert (result.status, result.stop_reason) == (RunStatus.completed, "end_turn")
        assert result.receipt is None


def test_cancel_against_completion_10_000_times() -> None:
    """Another thread cancels while the run completes. Both must win, and often; and all of them stay known."""
    told: queue.SimpleQueue[CancelOutcome] = queue.SimpleQueue()
    begun: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
    wait = [0.0]

    def cancel_each() -> None:
        while (run := begun.get()) is not None:
            over = time.perf_counter() + wait[0]
            while time.perf_counter() < over:
                pass
            told.put(run.cancel())

    async def main() -> None:
        agent = Agent("Racer", ScriptedModel())
        seen: Counter[CancelOutcome] = Counter()
        ids = []
        for number in range(ENDED_KEPT):
            async with agent.start("go", session_id=str(number)) as run:
                begun.put(run)
                result = await run.result()
                outcome = told.get()
                check_consistent(outcome, result)
                ids.append(run.run_id)
            seen[outcome] += 1
            # Whoever won gets the worse start next time: so the two stay close.
            wait[0] = max(0.0, wait[0] + (2e-6 if outcome is CancelOutcome.requested else -2e-6))
        begun.put(None)
        assert min(seen.values()) > 100, seen
        assert sum(seen.values()) == ENDED_KEPT
        assert {agent.cancel_run(run_id) for run_id in ids} == {CancelOutcome.already_finished}
        await agent.invoke_async("one more")  # the last 10,000 are known, and no more
        assert agent.cancel_run(ids[0]) is CancelOutcome.unknown
        assert {agent.cancel_run(run_id) for run_id in ids[1:]} == {CancelOutcome.already_finished}

    canceller = Worker(cancel_each)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        play(main, seconds=100)
    finally:
        sys.setswitchinterval(interval)
        begun.put(None)
    canceller.done()


def test_cancel_at_every_step_of_the_loop() -> None:
    """On the run's own loop there are only so many moments; the last ones come after the run's end."""

    async def main() -> None:
        seen: list[CancelOutcome] = []
        for steps in range(60):
            agent = make("Hello.")
            async with agent.start("go") as run:
                for _ in range(steps):
                    await asyncio.sleep(0)
                outcome = run.cancel()
                result = await run.result()
            check_consistent(outcome, result)
            check_events(await read_all(run))
            assert (await agent.invoke_async("and now?")).status is RunStatus.completed
            seen.append(outcome)
        turned = seen.index(CancelOutcome.already_finished)
        assert turned > 3
        assert set(seen[:turned]) == {CancelOutcome.requested}
        assert set(seen[turned:]) == {CancelOutcome.already_finished}

    play(main)


def test_cancel_at_every_line_of_a_run() -> None:
    """As if another thread, or a signal handler, came in between any two lines of ours, from its begin to its end."""

    async def main() -> None:
        seen: list[CancelOutcome] = []
        for line in range(1, 5000):
            agent = make("Hello.")
            outcomes: list[CancelOutcome] = []
            cancel = partial(cancel_both_ways, agent, outcomes)
            with interrupted(line, "line", cancel, within="/andon/") as happened:
                result = await agent.invoke_async("go", run_id="r")
            if not happened[0]:
                break
            by_id, by_agent = outcomes
            assert (result.status is RunStatus.cancelled) is bool(by_id or by_agent), (line, outcomes)
            if by_id is not CancelOutcome.unknown:  # once it is registered
                check_consistent(by_id, result)
            else:
                assert by_agent in (CancelOutcome.armed, CancelOutcome.requested)
            assert validate(agent.messages) == []
            assert (await agent.invoke_async("and now?")).status is RunStatus.completed
            seen.append(by_id)
        assert set(seen) == {CancelOutcome.unknown, CancelOutcome.requested, CancelOutcome.already_finished}

    play(main, seconds=50)


def cancel_both_ways(agent: Agent, outcomes: list[CancelOutcome]) -> None:
    outcomes.append(agent.cancel_run("r"))
    # Where it is not registered yet, the agent's cord has to catch it.
    outcomes.append(agent.cancel() if outcomes[0] is CancelOutcome.unknown else outcomes[0])


# -- signals ----------------------------------------------------------------------------------------------------------


@contextmanager
def handling(handler: Callable[[], object]) -> Iterator[None]:
    """Have a real signal handled, which only a main thread can."""
    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def raise_signal() -> None:
    signal.raise_signal(signal.SIGUSR1)  # handled here and now, in the middle of what is interrupted


def stalling_agent() -> Agent:
    """Silent when it is told to go, and short otherwise."""
    return Agent("Staller", ScriptedModel(then=lambda request: Stall() if request.messages[-1].text == "go" else "OK."))


def begin() -> tuple[Agent, BlockingStream]:
    agent = stalling_agent()
    stream = agent.run("go", stream=True, timeout=10)
    next(stream)
    return agent, stream


WAYS: dict[str, Callable[[Agent, Run], CancelOutcome]] = {
    "agent": lambda agent, run: agent.cancel("enough"),
    "agent run": lambda agent, run: agent.cancel_run(run.run_id, "enough"),
    "handle": lambda agent, run: run.cancel("enough"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("slowly", [False, True])
def test_a_signal_handler_cancels_while_cancel_itself_is_interrupted(way: str, slowly: bool) -> None:
    """At every single instruction of `cancel()`, also of what it calls. The run may be over when that goes on."""

    def cancel_in_handler(agent: Agent, run: Run, outcomes: list[CancelOutcome]) -> None:
        outcomes.append(cancel(agent, run))
        if slowly and outcomes[-1] is CancelOutcome.requested:
            eventually(lambda: run.status.final)

    cancel = WAYS[way]
    for instruction in range(1, 5000):
        agent, stream = begin()
        inner: list[CancelOutcome] = []
        with (
            handling(partial(cancel_in_handler, agent, stream.run, inner)),
            interrupted(instruction, "opcode", raise_signal) as happened,
        ):
            outer = cancel(agent, stream.run)
        events = list(stream)
        assert [event.event for event in events][-1] is RunEvent.run_cancelled
        assert events[-1].receipt is not None
        assert events[-1].receipt.cause == "user"
        outcomes = Counter([outer, *inner])
        assert outcomes[CancelOutcome.requested] == 1, outcomes
        assert outcomes.total() == 1 + happened[0]
        assert set(outcomes) <= {
            CancelOutcome.requested,
            CancelOutcome.already_requested,
            CancelOutcome.already_finished,
        }
        assert agent.run("and now?").status is RunStatus.completed  # and nothing stayed armed
        if not happened[0]:
            break
    assert instruction > 50


def test_a_signal_handler_cancels_while_a_run_begins() -> None:
    """At every line of its beginning: armed before it is there, requested after; it is never lost."""
    seen: Counter[CancelOutcome] = Counter()
    for line in range(1, 5000):
        agent = stalling_agent()
        outcomes: list[CancelOutcome] = []
        with (
            handling(lambda agent=agent, outcomes=outcomes: outcomes.append(agent.cancel("enough"))),  # type: ignore[misc]
            interrupted(line, "line", raise_signal) as happened,
        ):
            stream = agent.run("go", stream=True, timeout=10)
            next(stream)
        if not happened[0]:
            stream.close()
            break
        events = list(stream)
        assert events[-1].receipt is not None
        assert (events[-1].receipt.cause, events[-1].receipt.reason) == ("user", "enough"), outcomes
        seen.update(outcomes)
    assert seen[CancelOutcome.armed] > 10
    assert set(seen) <= {CancelOutcome.armed, CancelOutcome.requested}


def test_a_signal_handler_wakes_an_idle_loop_in_the_same_thread() -> None:
    agent = stalling_agent()
    outcomes: list[CancelOutcome] = []
    with handling(lambda: outcomes.append(agent.cancel("enough"))):
        main_thread = threading.get_ident()

        async def main() -> None:
            async with agent.start("go", timeout=10) as run:
                asking = Worker(lambda: wait_and_signal(run))
                result = await run.result()
                await asyncio.to_thread(asking.done)
            assert result.receipt is not None
            assert (result.receipt.cause, result.receipt.reason) == ("user", "enough")

        def wait_and_signal(run: Run) -> None:
            while run.phase != "waiting":
                time.sleep(0.001)
            signal.pthread_kill(main_thread, signal.SIGUSR1)

        play(main)
    assert outcomes == [CancelOutcome.requested]


def test_a_timers_signal_in_a_busy_loop() -> None:
    """The handler interrupts whatever the loop is doing, again and again, wherever that is."""

    async def main() -> None:
        for _ in range(50):
            agent = make()
            agent.model = ScriptedModel.story(pace=0)
            current[0] = agent
            signal.setitimer(signal.ITIMER_REAL, 0.002, 0.0005)
            result = await agent.invoke_async("go", timeout=10)
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert result.receipt is not None
            assert result.receipt.cause == "user"

    current: list[Agent] = []
    current.append(make())
    before = signal.signal(signal.SIGALRM, lambda number, frame: current[0].cancel())
    try:
        play(main)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
