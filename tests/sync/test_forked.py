# SPDX-License-Identifier: Apache-2.0
"""A fork with runs in flight: they are the parent's. In the child they are over, and hold nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from andon import Agent, CancelOutcome, Run, RunStatus, Runtime
from andon.core.run.handle import local_run
from andon.core.run.waits import wait_result_blocking
from andon.models.scripted import Call, ScriptedModel, Stall
from tests.support import Flag, Reach, Worker, eventually
from tests.support.till import DELETE, Till

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # newer Pythons warn of threads at a fork
]


def in_child(work: Callable[[], None]) -> None:
    """Do it in a forked child; what goes wrong there is the test's failure."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            work()
            os.write(writer, b"fine")
        except BaseException as error:  # noqa: BLE001 - told to the parent
            os.write(writer, repr(error).encode()[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as told:
        assert told.read() == "fine"


@pytest.fixture
def going() -> Iterator[tuple[Agent, Run, Worker]]:
    """A run that waits for its model, on the portal."""
    reached = Flag()
    agent = Agent("A", ScriptedModel(["Half ", Reach(reached), Stall()], then="OK."), runtime=Runtime(arm_seconds=0))
    statuses: list[RunStatus] = []
    worker = Worker(lambda: statuses.append(agent.run("go").status))
    reached.wait()
    yield agent, agent.runtime.runs[0], worker
    agent.cancel()
    worker.done()
    assert statuses == [RunStatus.cancelled]  # nothing that the child did has touched it


def test_the_child_has_no_run_and_a_free_session(going: tuple[Agent, Run, Worker]) -> None:
    agent, run, _ = going

    def child() -> None:
        assert agent.runtime.live == 0
        assert agent.cancel() is CancelOutcome.unknown
        assert agent.cancel_run(run.run_id) is CancelOutcome.unknown
        assert agent.run("Hello").status is RunStatus.completed  # in the same session
        assert [message.text for message in agent.messages] == ["Hello", "OK."]

    in_child(child)
    assert run.status is RunStatus.running


def test_a_handle_of_the_parents_run_says_whose_it_is(going: tuple[Agent, Run, Worker]) -> None:
    _, run, _ = going

    def child() -> None:
        assert run.cancel() is CancelOutcome.already_finished
        result = wait_result_blocking(local_run(run))
        assert result.status is RunStatus.error
        assert "forked" in str(result.error)

    in_child(child)
    assert run.status is RunStatus.running


def test_a_run_that_waits_for_a_person_is_the_parents_too() -> None:
    till = Till()
    agent = Agent("A", ScriptedModel([DELETE], then="OK."), tools=till.tools)
    paused = agent.run("go")

    def child() -> None:
        assert agent.runtime.live == 0
        assert agent.run("Hello").status is RunStatus.completed

    in_child(child)
    assert agent.cancel_run(paused.run_id) is CancelOutcome.requested
    eventually(lambda: agent.runtime.live == 0)


def test_a_worker_process_that_a_tool_forks_can_run_agents_of_its_own() -> None:
    """The tool's call is open in the parent; in the child there is no such call whose child a run could be."""
    results: list[str] = []

    def in_worker(queue: multiprocessing.Queue[str]) -> None:
        inner = Agent("Inner", ScriptedModel(then="Hi."))
        statuses = inner.run("go").status.name, outer.run("next", on_busy="queue").status.name
        queue.put(", ".join(statuses))

    def forks() -> str:
        context = multiprocessing.get_context("fork")
        queue: multiprocessing.Queue[str] = context.Queue()
        process = context.Process(target=in_worker, args=(queue,))
        process.start()
        results.append(queue.get(timeout=30))
        process.join()
        return results[0]

    outer = Agent("Outer", ScriptedModel(Call("forks"), then="OK."), tools=[forks])
    assert outer.run("go").status is RunStatus.completed
    assert results == ["completed, completed"]


def test_a_lock_that_another_thread_held_is_free_in_the_child() -> None:
    agent = Agent("A", ScriptedModel(then="OK."))
    agent.run("go")
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        store = agent.runtime.store
        with agent._own_session()._lock, agent.runtime._lock, store._lock:  # type: ignore[union-attr]
            held.set()
            release.wait()

    worker = Worker(hold)
    held.wait()

    def child() -> None:
        assert agent.run("Hello").status is RunStatus.completed

    in_child(child)
    release.set()
    worker.done()
