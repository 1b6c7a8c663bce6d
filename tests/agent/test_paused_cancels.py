# SPDX-License-Identifier: Apache-2.0
"""Cancelling a run that waits for a person: at once, from anywhere, in every mode; and against whoever answers."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from andon import Agent, CancelOutcome, Message, Run, RunEvent, RunResult, RunStatus, Runtime, ToolContext, tool
from andon.core.records import RunRecord
from andon.core.run.handle import local_run
from andon.errors import AnswersError, NotContinuableError
from andon.models.scripted import Call
from andon.store.memory import MemoryStore
from andon.testing import probe
from andon.testing.validators import validate
from tests.support import (
    HANG,
    Ended,
    Flag,
    Silence,
    Worker,
    all_with,
    check_cancelled,
    check_events,
    check_goes_on,
    eventually,
    make,
    outcomes,
    paused,
    play,
    read_all,
    until,
)

pytestmark = pytest.mark.no_cover  # others cover what it reaches, and half of its time would be the tracer's


@tool(approval=True)
async def delete(name: str) -> str:
    return f"deleted {name}"


@tool
async def pay(ctx: ToolContext) -> str:
    return f"paid, {ctx.interrupt('pay?')}"


@tool
async def look() -> str:
    return "seen"


@tool
async def fail() -> str:
    raise ValueError("no such file")


TOOLS = [delete, pay, look, fail]
DELETE, PAY, LOOK = Call("delete", {"name": "all"}, id="d"), Call("pay", id="p"), Call("look", id="l")
ALL = [DELETE, PAY, LOOK, Call("fail", id="f")]
BECAME = {"d": "not_started", "p": "cut", "l": "completed", "f": "failed"}


async def end_of(run: Run) -> Ended:
    result = await run.result()
    await probe(run).settled()
    return Ended(run, await read_all(run), result)


# -- what it leaves ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grace", [None, 0, 5])
@pytest.mark.parametrize("mode", ["now", "after_tools", "after_turn"])
def test_it_ends_at_once_in_every_mode(mode: str, grace: float | None) -> None:
    async def main() -> None:
        agent = make(["Well, ", *ALL], tools=TOOLS)
        run, _ = await paused(agent)
        assert run.cancel("enough", "ann", mode, grace) is CancelOutcome.requested
        assert run.status in (RunStatus.cancelling, RunStatus.cancelled)
        ended = await end_of(run)
        check_cancelled(ended, phase="paused", tools=BECAME, mode=mode)
        assert ended.result.interrupts == []
        results = {each.call_id: each for message in ended.result.messages for each in message.tool_results}
        assert results["l"].content == "seen"  # finished ones keep theirs
        assert "no such file" in results["f"].content
        assert (await check_goes_on(agent, ended)).content == "OK."

    play(main)


def test_sequential_calls_that_were_not_reached_never_started() -> None:
    async def main() -> None:
        agent = make([LOOK, PAY, Call("look", id="m"), DELETE], tools=TOOLS, parallel_tools=False)
        run, _ = await paused(agent)
        run.cancel("enough", "ann")
        ended = await end_of(run)
        became = {"l": "completed", "p": "cut", "m": "not_started", "d": "not_started"}
        check_cancelled(ended, phase="paused", tools=became)
        await check_goes_on(agent, ended)

    play(main)


def test_it_can_be_cancelled_in_its_second_pause() -> None:
    async def main() -> None:
        agent = make(DELETE, ["Now ", PAY], tools=TOOLS)
        run, result = await paused(agent)
        await agent.continue_run(run.run_id, answers=all_with(True, result))
        assert run.status is RunStatus.paused
        assert run.cancel("enough", "ann") is CancelOutcome.requested
        ended = await end_of(run)
        check_cancelled(ended, phase="paused", tools={"d": "completed", "p": "cut"})
        await check_goes_on(agent, ended)

    play(main)


def test_a_cancelled_question_can_not_be_answered() -> None:
    async def main() -> None:
        agent = make(DELETE, tools=TOOLS)
        run, result = await paused(agent)
        run.cancel()
        with pytest.raises((NotContinuableError, AnswersError)):
            await agent.continue_run(run.run_id, answers=all_with(True, result))
        await probe(run).settled()
        with pytest.raises((NotContinuableError, AnswersError)):
            await agent.continue_run(run.run_id, answers=all_with(True, result))
        assert (await run.result()).status is RunStatus.cancelled

    play(main)


def test_the_run_ended_hook_is_told_and_messages_are_announced_once() -> None:
    async def main() -> None:
        told: list[Any] = []

        class Hook:
            def message_added(self, event: Any) -> None:
                told.append(event.message.role)

            async def run_ended(self, event: Any) -> None:
                told.append(event.result.status)

        agent = make(PAY, tools=TOOLS, hooks=[Hook()])
        run, _ = await paused(agent)
        await run.cancel_and_wait()
        assert told == ["user", "assistant", "tool", "assistant", RunStatus.cancelled]

    play(main)


# -- from anywhere ----------------------------------------------------------------------------------------------------


def ways(agent: Agent, run: Run) -> dict[str, Callable[[], CancelOutcome]]:
    return {
        "agent.cancel": partial(agent.cancel, "enough", "ann"),
        "agent.cancel_run": partial(agent.cancel_run, run.run_id, "enough", "ann"),
        "run.cancel": partial(run.cancel, "enough", "ann"),
    }


@pytest.mark.parametrize("where", ["here", "in a thread", "in a signal handler"])
@pytest.mark.parametrize("way", ["agent.cancel", "agent.cancel_run", "run.cancel"])
def test_by_every_way_and_from_everywhere(way: str, where: str) -> None:
    async def main() -> None:
        agent = make(ALL, tools=TOOLS)
        run, _ = await paused(agent)
        cancel, told = ways(agent, run)[way], list[CancelOutcome]()
        if where == "here":
            told.append(cancel())
        elif where == "in a thread":
            Worker(lambda: told.append(cancel())).done()
        else:
            before = signal.signal(signal.SIGUSR1, lambda *_: told.append(cancel()))
            try:
                signal.raise_signal(signal.SIGUSR1)
            finally:
                signal.signal(signal.SIGUSR1, before)
        assert told == [CancelOutcome.requested]
        assert run.cancel() in (CancelOutcome.already_requested, CancelOutcome.already_finished)
        ended = await end_of(run)
        check_cancelled(ended, phase="paused", tools=BECAME)
        assert run.cancel() is CancelOutcome.already_finished
        await check_goes_on(agent, ended)

    play(main)


def test_the_runtime_cancels_many_at_once() -> None:
    async def main() -> None:
        runtime, silence = Runtime(), Silence()
        asking, talking = make(ALL, tools=TOOLS, runtime=runtime), make([silence], runtime=runtime, name="Talker")
        run, _ = await paused(asking)
        async with talking.start("go") as other:
            await silence.reached.arrived()
            told = await runtime.cancel(all=True, reason="enough", by="ann")
            assert told == {run.run_id: CancelOutcome.requested, other.run_id: CancelOutcome.requested}
            assert (await other.result()).status is RunStatus.cancelled
        ended = await end_of(run)
        check_cancelled(ended, phase="paused", tools=BECAME)
        await check_goes_on(asking, ended)

    play(main)


def test_cancel_and_wait_has_the_receipt() -> None:
    async def main() -> None:
        agent = make(ALL, tools=TOOLS)
        run, _ = await paused(agent)
        receipt = await run.cancel_and_wait(reason="enough", by="ann")
        ended = await end_of(run)
        assert receipt == ended.result.receipt
        check_cancelled(ended, phase="paused", tools=BECAME)

    play(main)


def test_after_its_loop_was_closed() -> None:
    agent = make(ALL, tools=TOOLS)
    result = asyncio.run(agent.invoke_async("go"))
    run = agent.runtime.run(result.run_id)
    assert run is not None
    assert agent.cancel("enough", "ann") is CancelOutcome.requested

    async def main() -> None:
        ended = await end_of(run)
        check_cancelled(ended, phase="paused", tools=BECAME)  # by the user: a paused run is not lost with its loop
        await check_goes_on(agent, ended)

    play(main)


def test_the_next_prompt_need_not_wait_for_the_end() -> None:
    """A run that is being cancelled doesn't count as busy."""

    async def main() -> None:
        for _ in range(50):
            agent = make(ALL, tools=TOOLS)
            run, _ = await paused(agent)
            assert agent.cancel()
            result = await agent.invoke_async("and now?")
            assert result.status is RunStatus.completed
            assert validate(result.messages) == []
            assert (await run.result()).status is RunStatus.cancelled

    play(main)


def test_blocking_calls_work_as_well() -> None:
    agent = make(ALL, tools=TOOLS)
    result = agent.run("go")
    assert result.status is RunStatus.paused
    assert agent.cancel() is CancelOutcome.requested
    assert agent.run("and now?").status is RunStatus.completed
    assert validate(agent.messages) == []


def test_a_late_cancel_does_not_hit_the_next_prompt() -> None:
    async def main() -> None:
        agent = make(DELETE, tools=TOOLS)
        run, _ = await paused(agent)
        assert agent.cancel() is CancelOutcome.requested
        await probe(run).settled()
        assert agent.cancel() is CancelOutcome.already_finished
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_a_paused_run_counts_as_in_flight_so_nothing_is_armed() -> None:
    async def main() -> None:
        agent = make(DELETE, tools=TOOLS)
        run, _ = await paused(agent)
        assert agent.runtime.runs == [run]
        assert agent.cancel() is CancelOutcome.requested
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed
        await probe(run).settled()
        assert agent.runtime.runs == []

    play(main)


def test_a_reader_that_comes_with_the_cancel_sees_the_end() -> None:
    async def main() -> None:
        for _ in range(50):
            agent = make(DELETE, tools=TOOLS)
            run, _ = await paused(agent)
            seen = len(probe(run).events)
            run.cancel()
            events = [event.event async for event in run.events(after=seen)]
            assert events == [RunEvent.cancel_requested, RunEvent.tool_call_cancelled, RunEvent.run_cancelled]

    play(main)


# -- at the same moment -----------------------------------------------------------------------------------------------


def test_200_threads_cancel_one_paused_run() -> None:
    async def main() -> None:
        agent = make(ALL, tools=TOOLS)
        run, _ = await paused(agent)
        together, told = threading.Barrier(201), queue.SimpleQueue[CancelOutcome]()

        def cancel(number: int) -> None:
            together.wait(20)
            told.put(list(ways(agent, run).values())[number % 3]())

        workers = [Worker(partial(cancel, number)) for number in range(200)]
        await asyncio.to_thread(together.wait, 20)
        for worker in workers:
            await asyncio.to_thread(worker.done)
        ended = await end_of(run)
        counts = Counter(told.get() for _ in workers)
        assert counts[CancelOutcome.requested] == 1
        assert set(counts) <= {
            CancelOutcome.requested,
            CancelOutcome.already_requested,
            CancelOutcome.already_finished,
        }
        check_cancelled(ended, phase="paused", tools=BECAME)
        await check_goes_on(agent, ended)

    play(main)


def test_cancels_from_threads_are_written_down_once() -> None:
    """Its own loop is alive and idle: the cancel must not be delivered there as well."""

    async def main() -> None:
        for _ in range(200):
            agent = make(DELETE, tools=TOOLS)
            run, _ = await paused(agent)
            worker = Worker(run.cancel)
            await until(lambda: local_run(run).signal.fate is not None)  # noqa: B023
            ended = await end_of(run)
            worker.done()
            check_events(ended.events)
            assert ended.kinds.count(RunEvent.cancel_requested) == 1

    play(main)


class Continuer:
    """Answers on a thread of its own, when it is told to."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Agent, str, dict[str, Any]] | None] = queue.SimpleQueue()
        self.told: queue.SimpleQueue[RunResult | None] = queue.SimpleQueue()
        self._worker = Worker(lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        while (work := await asyncio.to_thread(self._work.get)) is not None:
            agent, run_id, answers = work
            result = None
            with contextlib.suppress(NotContinuableError, AnswersError):
                result = await agent.continue_run(run_id, answers=answers)
            self.told.put(result)

    def answer(self, agent: Agent, result: RunResult) -> None:
        self._work.put((agent, result.run_id, all_with(True, result)))

    def close(self) -> None:
        self._work.put(None)
        self._worker.done()


def test_cancel_against_continue_500_times() -> None:
    """Either it goes on, to its end or to the cancel that came a little later, or it is cancelled where it was."""

    async def main() -> None:
        continuer, seen = Continuer(), Counter[str]()
        for number in range(500):
            agent = make([DELETE, LOOK], tools=TOOLS)
            run, result = await paused(agent)
            continuer.answer(agent, result)
            for _ in range(number % 40):
                await asyncio.sleep(0)
            outcome = run.cancel()
            final = await run.result()
            answered = await asyncio.to_thread(continuer.told.get, timeout=HANG)
            await probe(run).settled()
            events = list(probe(run).events)
            check_events(events)
            kinds = [event.event for event in events]
            went_on = RunEvent.run_continued in kinds
            assert (answered is not None) is went_on
            if outcome is CancelOutcome.requested:
                assert final.status is RunStatus.cancelled
                assert kinds.count(RunEvent.cancel_requested) == 1
                assert outcomes(final)["l"] == "completed"
            else:
                assert outcome is CancelOutcome.already_finished
                assert final.status is RunStatus.completed
                assert went_on
            assert answered is None or answered == final
            assert validate(final.messages) == []
            assert agent.runtime.runs == []
            assert local_run(run).session.queue == []
            seen[f"{outcome.value}, {'continued' if went_on else 'not continued'}"] += 1
        continuer.close()
        assert seen["requested, not continued"] > 0, seen
        assert seen["requested, continued"] + seen["already_finished, continued"] > 0, seen

    play(main)


# -- just before the pause --------------------------------------------------------------------------------------------


class SlowStore(MemoryStore):
    """Keeps a pause when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = Flag(), Flag()

    async def save(self, record: RunRecord, messages: Sequence[Message]) -> None:
        if record.status is RunStatus.paused:
            self.asked.set()
            await self.go.arrived()
        await super().save(record, messages)


@pytest.mark.parametrize("mode", ["now", "after_tools", "after_turn"])
def test_a_cancel_while_the_pause_is_stored(mode: str) -> None:
    async def main() -> None:
        store = SlowStore()
        agent = make(ALL, tools=TOOLS, runtime=Runtime(store))
        async with agent.start("go") as run:
            await store.asked.arrived()
            assert run.status is RunStatus.running  # it has not said that it is paused
            assert run.cancel("enough", "ann", mode) is CancelOutcome.requested
            store.go.set()
            ended = await end_of(run)
        assert RunEvent.run_paused not in ended.kinds
        check_cancelled(ended, phase="tools", tools=BECAME, mode=mode)
        await check_goes_on(agent, ended)

    play(main)


@pytest.mark.parametrize("mode", ["after_tools", "after_turn"])
def test_a_soft_cancel_lets_the_others_finish_and_asks_no_question(mode: str) -> None:
    async def main() -> None:
        working, go = Flag(), Flag()

        @tool
        async def work() -> str:
            working.set()
            await go.arrived()
            return "worked"

        agent = make([DELETE, PAY, Call("work", id="w")], tools=[*TOOLS, work])
        async with agent.start("go") as run:
            await working.arrived()
            run.cancel("enough", "ann", mode)
            go.set()
            ended = await end_of(run)
        assert RunEvent.run_paused not in ended.kinds
        check_cancelled(ended, phase="tools", tools={"d": "not_started", "p": "cut", "w": "completed"}, mode=mode)
        await check_goes_on(agent, ended)

    play(main)


def test_a_host_that_leaves_while_the_pause_is_stored_cancels_it() -> None:
    async def main() -> None:
        store = SlowStore()
        agent = make(ALL, tools=TOOLS, runtime=Runtime(store))
        task = asyncio.create_task(agent.invoke_async("go", run_id="r"))
        await store.asked.arrived()
        run = agent.runtime.run("r")
        assert run is not None
        task.cancel()
        await asyncio.sleep(0)
        store.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        ended = await end_of(run)
        check_cancelled(ended, phase="tools", tools=BECAME, cause="caller", reason=None, by=None)
        await check_goes_on(agent, ended)

    play(main)


def test_nothing_of_it_is_left_in_threads() -> None:
    """Whatever ended it is gone as well, but for the portal."""
    agent = make(DELETE, tools=TOOLS)
    result = agent.run("go")
    run = agent.runtime.run(result.run_id)
    assert run is not None
    before = set(threading.enumerate())
    run.cancel()
    assert probe(run).settled_blocking(HANG)
    eventually(lambda: set(threading.enumerate()) <= before)
