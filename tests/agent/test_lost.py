# SPDX-License-Identifier: Apache-2.0
"""A run whose loop was closed under it: the next cancel, or the next prompt, ends it as lost.

asyncio complains of the tasks that are destroyed with their loop; that is a limit which the docs state, so it is not
looked at here.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from andon import Agent, CancelCause, CancelOutcome, Event, Run, RunEvent, RunStatus, ToolContext, tool
from andon.core.run.handle import local_run
from andon.core.run.run import LocalRun
from andon.core.run.waits import wait_settled
from andon.core.states import RunState
from andon.errors import SessionBusyError
from andon.messages import Text
from andon.models.scripted import Call
from andon.testing import probe
from andon.testing.validators import validate
from tests.support import Flag, Silence, Worker, all_with, check_events, eventually, make, paused, play, read_all, until
from tests.support.till import DELETE, PAY, Till

LOST = "Cancelled: the worker was lost"


@pytest.fixture(autouse=True)
def _destroyed_tasks_here(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Have asyncio's complaints come here, and not in the middle of another test."""
    yield
    gc.collect()


def lose(agent: Agent, reached: Flag, **options: object) -> Run:
    """Begin a run, and close its loop when it has come so far."""
    run: Run = agent.start("go", **options)  # type: ignore[call-overload]

    async def begin() -> None:
        await run.__aenter__()
        await reached.arrived()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    assert run.status is RunStatus.running
    return run


def check_lost(agent: Agent, run: Run) -> None:
    eventually(lambda: run.status is RunStatus.cancelled)

    async def look() -> list[Event]:
        result = await run.result()
        assert result.receipt is not None
        assert result.receipt.cause is CancelCause.lost
        assert result.stop_reason == "cancelled"
        assert result.message.content[-1] == Text(LOST)
        return await read_all(run)

    events = asyncio.run(look())
    check_events(events)
    assert events[-1].event is RunEvent.run_cancelled
    assert agent.cancel_run(run.run_id) is CancelOutcome.already_finished
    assert validate(agent.messages) == []


@pytest.mark.parametrize("way", ["agent", "agent run", "handle", "runtime"])
def test_the_next_cancel_ends_it(way: str) -> None:
    silence = Silence()
    agent = make(["Half a ", silence])
    run = lose(agent, silence.reached)
    if way == "agent":
        assert agent.cancel() is CancelOutcome.requested
    elif way == "agent run":
        assert agent.cancel_run(run.run_id) is CancelOutcome.requested
    elif way == "handle":
        assert run.cancel() is CancelOutcome.requested
    else:
        assert asyncio.run(agent.runtime.cancel(all=True)) == {run.run_id: CancelOutcome.requested}
    check_lost(agent, run)
    assert agent.messages[1].content == [Text("Half a "), Text(LOST)]
    assert agent.run("and now?").status is RunStatus.completed


@pytest.mark.parametrize("on_busy", ["reject", "queue", "cancel"])
@pytest.mark.parametrize("blocking", [True, False])
def test_the_next_prompt_ends_it(on_busy: Any, blocking: bool) -> None:
    silence = Silence()
    agent = make(["Half a ", silence])
    run = lose(agent, silence.reached)
    if blocking:
        result = agent.run("and now?", on_busy=on_busy)
    else:
        result = asyncio.run(agent.invoke_async("and now?", on_busy=on_busy))
    assert result.status is RunStatus.completed
    assert [message.text for message in result.messages] == ["go", f"Half a {LOST}", "and now?", "OK."]
    check_lost(agent, run)


def test_cancel_and_wait_from_another_loop() -> None:
    silence = Silence()
    agent = make([silence])
    run = lose(agent, silence.reached)
    receipt = asyncio.run(run.cancel_and_wait())
    assert receipt is not None
    assert receipt.cause is CancelCause.lost
    check_lost(agent, run)


def test_many_cancels_of_a_lost_run() -> None:
    silence = Silence()
    agent = make([silence])
    run = lose(agent, silence.reached)
    outcomes: list[CancelOutcome] = []
    together = threading.Barrier(20)

    def cancel() -> None:
        together.wait(20)
        outcomes.append(run.cancel())

    for worker in [Worker(cancel) for _ in range(20)]:
        worker.done()
    assert outcomes.count(CancelOutcome.requested) == 1
    assert set(outcomes) <= {
        CancelOutcome.requested,
        CancelOutcome.already_requested,
        CancelOutcome.already_finished,
    }
    check_lost(agent, run)


def test_the_thread_of_a_lost_run_is_named() -> None:
    started, go_on = Flag(), Flag()

    @tool
    def block(ctx: ToolContext) -> str:
        started.set()
        go_on.wait()
        return "late"

    agent = make(Call("block", id="c"), tools=[block])
    run = lose(agent, started)
    assert run.cancel() is CancelOutcome.requested
    check_lost(agent, run)
    assert len(run.leftovers) == 1
    assert "may still be running" in agent.messages[2].tool_results[0].content
    go_on.set()
    eventually(lambda: run.leftovers == [])
    assert agent.run("and now?").status is RunStatus.completed


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_run_behind_a_lost_run_gets_its_turn(cancelled: bool) -> None:
    silence = Silence()
    agent = make([silence])
    waiting = Flag()

    async def wait_behind() -> str:
        async with agent.start("second", on_busy="queue") as run:
            await until(lambda: run.phase == "queued")
            waiting.set()
            return (await run.result()).content

    answers: list[str] = []
    run = agent.start("go")

    async def begin() -> None:
        await run.__aenter__()
        await waiting.arrived()

    def work_and_die() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        loop.close()

    first = Worker(work_and_die)
    silence.reached.wait()
    second = Worker(lambda: answers.append(asyncio.run(wait_behind())))
    first.done()
    if cancelled:  # else whoever waits finds out by itself
        assert agent.cancel_run(run.run_id) is CancelOutcome.requested
    second.done()
    assert answers == ["OK."]
    check_lost(agent, run)
    assert [message.text for message in agent.messages] == ["go", LOST, "second", "OK."]


def test_a_run_behind_a_run_that_was_continued_elsewhere_and_lost_there_gets_its_turn() -> None:
    """When it began to wait, the run ahead was paused, on the same loop."""

    async def main() -> Run:
        run, result = await paused(agent)

        async def go_on() -> None:
            await agent.resume_run(run.run_id, all_with(True, result))
            await silence.reached.arrived()

        def work_and_die() -> None:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(go_on())
            loop.close()

        async with agent.start("second", on_busy="queue") as queued:
            await until(lambda: queued.phase == "queued")
            worker = Worker(work_and_die)
            assert (await queued.result()).content == "OK."
            worker.done()
        return run

    agent = make(DELETE, [silence := Silence()], tools=Till().tools)
    check_lost(agent, asyncio.run(main()))


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_loop_that_stands_still_holds_its_session_until_it_goes_on(cancelled: bool) -> None:
    silence = Silence()
    agent = make([silence])
    run = agent.start("go")
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        await run.__aenter__()
        await silence.reached.arrived()

    loop.run_until_complete(begin())  # which leaves the loop stopped, and the run in it
    with pytest.raises(SessionBusyError, match="is busy"):
        agent.run("second")
    if cancelled:
        agent.cancel_run(run.run_id)
    queued = agent.run("third", on_busy="reject" if cancelled else "queue", stream=True)
    assert next(queued).event is RunEvent.run_started
    agent.cancel_run(run.run_id)
    loop.run_until_complete(wait_settled(local_run(run)))
    loop.close()
    assert [event.content for event in queued][-1] == "OK."
    assert [message.text for message in agent.messages] == ["go", "Cancelled by user", "third", "OK."]


def test_a_reader_elsewhere_is_told() -> None:
    silence, reading = Silence(), Flag()
    agent = make(["Half a ", silence])
    kinds: list[RunEvent] = []
    run = agent.start("go")

    async def read() -> None:
        async for event in run:
            kinds.append(event.event)
            reading.set()

    async def begin() -> None:
        await run.__aenter__()
        await silence.reached.arrived()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    reader = Worker(lambda: asyncio.run(read()))
    reading.wait()
    loop.close()
    assert run.cancel() is CancelOutcome.requested
    reader.done()
    assert kinds[-1] is RunEvent.run_cancelled


def test_a_cancel_before_the_loop_was_closed_is_not_lost() -> None:
    """It was acknowledged, and then the loop had no chance to deliver it. The cause that was asked for stays."""
    silence = Silence()
    agent = make([silence])
    run = agent.start("go")

    async def begin() -> None:
        await run.__aenter__()
        await silence.reached.arrived()
        assert run.cancel("enough") is CancelOutcome.requested

    loop = asyncio.new_event_loop()
    task = loop.create_task(begin())
    while not task.done():
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    assert agent.run("and now?").status is RunStatus.completed
    result = asyncio.run(run.result())
    assert result.receipt is not None
    assert (result.receipt.cause, result.receipt.reason) == (CancelCause.user, "enough")
    assert validate(agent.messages) == []


class SlowPortal:
    """The portal's loop stands still until it is let go."""

    def __init__(self) -> None:
        self._go_on, blocked = Flag(), Flag()

        class Blocker:
            def before_model(_, event: object) -> None:  # noqa: N805 - `self` is the portal
                blocked.set()
                self._go_on.wait()

        self._holder = Worker(lambda: make(hooks=[Blocker()]).run("hold the portal"))
        blocked.wait()

    def let_go(self) -> None:
        self._go_on.set()
        self._holder.done()


async def begin_and_cancel_its_task(run: Run) -> None:
    """Before its first step, as whoever ends a loop does."""
    await run.__aenter__()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


def check_ended_by_caller(run: Run) -> None:
    eventually(lambda: run.status.final)
    result = asyncio.run(run.result())
    assert result.status is RunStatus.cancelled
    assert result.receipt is not None
    assert result.receipt.cause is CancelCause.caller
    events = asyncio.run(read_all(run))
    check_events(events)
    assert [event.event for event in events] == [
        RunEvent.run_started,
        RunEvent.cancel_requested,
        RunEvent.run_cancelled,
    ]


def test_a_run_that_is_handed_over_already_is_ended_once() -> None:
    """Its task was cancelled before the first step, its loop is closed, and the portal is slow to take it over.

    A cancel, or a prompt, that comes just then must not have it ended once more.
    """
    slow = SlowPortal()
    agent = make()
    run = agent.start("go")

    asyncio.run(begin_and_cancel_its_task(run))
    assert run.status is RunStatus.cancelling
    assert agent.cancel_run(run.run_id) is CancelOutcome.already_requested
    following = Worker(lambda: agent.run("and now?"))
    slow.let_go()
    following.done()
    check_ended_by_caller(run)
    assert [message.text for message in agent.messages] == ["go", "Cancelled by the caller", "and now?", "OK."]


def test_a_run_that_is_handed_over_is_written_by_the_portal_alone() -> None:
    """Its task was cancelled before the first step, and its loop goes on: that must not write beside the portal."""
    slow = SlowPortal()
    agent = make()
    run = agent.start("go")

    async def begin() -> None:
        await begin_and_cancel_its_task(run)
        await until(lambda: probe(run).is_cancelling)  # its task has ended, and the portal was told
        run.cancel("at once", grace=1)  # arrives at the loop where the run lived
        for _ in range(5):
            await asyncio.sleep(0)
        assert [event.event for event in probe(run).events] == [RunEvent.run_started]

    try:
        asyncio.run(begin())
    finally:
        slow.let_go()
    check_ended_by_caller(run)


def test_the_tools_of_a_run_that_is_handed_over_are_stopped_where_they_live() -> None:
    """A Ctrl-C has ended its task, and its loop is run again: its other tool must not go on there, nor write."""

    @tool
    async def patient() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return "never"

    @tool
    async def refused() -> str:
        """Never begun."""
        return "never"

    class Interrupted:
        def before_tool(self, event: Any) -> None:
            if event.call.name == "refused":
                raise KeyboardInterrupt

    slow = SlowPortal()
    agent = make([Call("patient"), Call("refused")], tools=[patient, refused], hooks=[Interrupted()])
    run = agent.start("go")

    async def begin() -> None:
        await run.__aenter__()
        await asyncio.Event().wait()

    async def go_on() -> None:
        assert [task for task in asyncio.all_tasks() if "patient" in task.get_name()]
        await until(lambda: not [task for task in asyncio.all_tasks() if "patient" in task.get_name()])
        assert run.status is RunStatus.cancelling
        assert RunEvent.cancel_requested not in [event.event for event in probe(run).events]

    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(begin())
        loop.run_until_complete(go_on())
    finally:
        slow.let_go()
        loop.close()
    eventually(lambda: run.status.final)
    check_events(asyncio.run(read_all(run)))
    assert validate(agent.messages) == []


def test_a_paused_run_whose_loop_was_closed_is_not_lost_while_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread looks at the run right after it has begun to run again."""
    till = Till()
    agent = make([PAY, "Paid."], tools=till.tools)
    paused = asyncio.run(agent.invoke_async("go"))
    move = LocalRun.move

    def looked_at(self: LocalRun, to: RunState) -> None:
        move(self, to)
        self.ensure_ending()

    monkeypatch.setattr(LocalRun, "move", looked_at)
    result = asyncio.run(agent.continue_run(paused.run_id, {paused.interrupts[0].id: True}))
    assert (result.status, result.receipt) == (RunStatus.completed, None)


def test_a_run_that_never_began_can_be_cancelled_and_waited_for() -> None:
    async def main() -> None:
        run = make("never").start("go")
        run.cancel("never mind")
        receipt = await run.cancel_and_wait()
        assert receipt is not None
        assert (receipt.reason, receipt.tools, receipt.leftovers) == ("never mind", [], [])

    play(main)
