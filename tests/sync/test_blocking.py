# SPDX-License-Identifier: Apache-2.0
"""The blocking facade: the same runs, for threads without a loop."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import sys
import threading

import pytest

from andon import CancelOutcome, Event, RunEvent, RunStatus, ToolContext, tool
from andon.errors import ConfigurationError, InsideEventLoopError, SessionBusyError
from andon.messages import Text
from andon.models.scripted import Call
from tests.support import Flag, Hold, Reach, Silence, Worker, asked, check_events, eventually, make


def test_run_returns_the_result() -> None:
    agent = make("Hello.")
    result = agent.run("go")
    assert (result.status, result.content, result.stop_reason) == (RunStatus.completed, "Hello.", "end_turn")
    assert agent.messages == result.messages
    assert agent.run("go on").messages[:2] == result.messages  # two calls are one conversation


def test_stream_yields_the_events() -> None:
    agent = make("Hello there.")
    events = list(agent.run("go", stream=True))
    check_events(events)
    assert [event.content for event in events if event.event is RunEvent.run_content] == ["Hello ", "there."]
    assert events[-1].event is RunEvent.run_completed


def test_a_stream_begins_at_its_first_next() -> None:
    agent = make("Hello.")
    stream = agent.run("go", stream=True, run_id="r")
    assert agent.cancel_run("r") is CancelOutcome.unknown
    assert asked(agent) == []
    assert next(stream).event is RunEvent.run_started
    assert len(list(stream)) >= 2
    assert next(stream, None) is None


def test_a_stream_that_never_began_leaves_nothing() -> None:
    agent = make("Hello.")
    stream = agent.run("go", stream=True, run_id="r")
    stream.close()
    assert list(stream) == []
    del stream
    agent.run("go", stream=True, run_id="r")  # dropped at once
    gc.collect()
    assert (asked(agent), agent.messages) == ([], [])
    assert agent.cancel_run("r") is CancelOutcome.unknown
    assert agent.run("go", run_id="r").status is RunStatus.completed


def test_close_cancels_and_waits() -> None:
    silence = Silence()
    agent = make(["Half a ", silence])
    stream = agent.run("go", stream=True, run_id="r")
    for event in stream:
        if event.event is RunEvent.run_content:
            break
    stream.close()
    assert agent.cancel_run("r") is CancelOutcome.already_finished  # settled when close returns
    assert silence.cuts <= 1
    assert agent.messages[-1].content == [Text("Half a "), Text("Cancelled by the caller")]
    assert list(stream) == []
    stream.close()
    assert agent.run("and now?").status is RunStatus.completed


def test_break_without_keeping_the_iterator_cancels() -> None:
    silence = Silence()
    agent = make(["Half a ", silence])
    for event in agent.run("go", stream=True, run_id="r"):
        if event.event is RunEvent.run_content:
            break
    assert agent.run("and now?").status is RunStatus.completed  # right after the break: served, not busy
    assert agent.messages[1].content == [Text("Half a "), Text("Cancelled by the caller")]


def test_a_kept_iterator_goes_on() -> None:
    go_on = Flag()
    agent = make(["Half a ", Hold(go_on), "sentence."])
    stream = agent.run("go", stream=True)
    for event in stream:
        if event.event is RunEvent.run_content:
            break
    with pytest.raises(SessionBusyError):
        agent.run("meanwhile")
    go_on.set()
    assert [event.event for event in stream][-1] is RunEvent.run_completed


def test_cancelled_from_another_thread() -> None:
    silence = Silence()
    agent = make(["Half a ", silence])
    events: list[Event] = []
    reader = Worker(lambda: events.extend(agent.run("go", stream=True)))
    silence.reached.wait()
    assert agent.cancel("enough", "ann") is CancelOutcome.requested
    reader.done()
    check_events(events)
    assert events[-1].event is RunEvent.run_cancelled
    receipt = events[-1].receipt
    assert receipt is not None
    assert (receipt.cause, receipt.reason, receipt.by) == ("user", "enough", "ann")
    assert agent.run("and now?").status is RunStatus.completed


def test_several_threads_at_once() -> None:
    all_there = threading.Barrier(8)

    @tool
    def meet(ctx: ToolContext) -> str:
        all_there.wait(20)  # passes only if all eight run at the same time
        return ctx.session_id

    agent = make(*[Call("meet")] * 8, tools=[meet])
    results: dict[str, str] = {}

    def work(name: str) -> None:
        results[name] = agent.run("go", session_id=name).messages[2].tool_results[0].content

    workers = [Worker(lambda name=name: work(name)) for name in map(str, range(8))]  # type: ignore[misc]
    for worker in workers:
        worker.done()
    assert results == {name: name for name in map(str, range(8))}


def test_inside_a_running_loop_it_refuses() -> None:
    async def main() -> None:
        agent = make()
        with pytest.raises(InsideEventLoopError, match="invoke_async"):
            agent.run("go")
        with pytest.raises(InsideEventLoopError, match="stream_async"):
            agent.run("go", stream=True)
        assert agent.messages == []
        assert (await asyncio.to_thread(agent.run, "go")).status is RunStatus.completed

    asyncio.run(main())


def test_an_asyncio_event_cannot_be_watched() -> None:
    agent = make()
    with pytest.raises(ConfigurationError, match="threading"):
        agent.run("go", cancel_on=asyncio.Event(), run_id="r")
    assert agent.messages == []
    assert agent.run("go", run_id="r").status is RunStatus.completed


def test_it_copies_the_callers_contextvars() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
    seen: list[str] = []

    @tool
    def look() -> str:
        seen.append(who.get())
        who.set("the tool")
        return "ok"

    agent = make(Call("look"), tools=[look])
    token = who.set("the caller")
    agent.run("go")
    assert seen == ["the caller"]
    assert who.get() == "the caller"
    who.reset(token)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_the_portal_is_made_anew() -> None:
    agent = make("first", "in the child")
    agent.run("go")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if agent.run("go", timeout=10).status is RunStatus.completed else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert agent.run("go").status is RunStatus.completed


def test_dropping_the_last_reference_only_signals() -> None:
    """`__del__` may be run by any thread, also in the middle of anything: it never waits."""
    started, clean = Flag(), Flag()

    @tool
    async def slow() -> str:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await clean.arrived()
        raise AssertionError

    agent = make([Call("slow", id="c"), Reach(Flag())], tools=[slow])
    stream = agent.run("go", stream=True, run_id="r")
    next(stream)
    started.wait()
    assert sys.getrefcount(stream) == 2
    del stream  # the tool is still cleaning up when this returns
    run = agent.runtime.run("r")
    assert run is not None
    eventually(lambda: run.status is RunStatus.cancelling)
    clean.set()
    eventually(lambda: run.status is RunStatus.cancelled)
