# SPDX-License-Identifier: Apache-2.0
"""The end of a runtime, and of a process: what runs is ended, nothing is left behind, and nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from typing import Any

import pytest

from andon import CancelCause, RunEvent, RunStatus, Runtime
from andon.agent.loop import Loop
from andon.core.run.handle import local_run
from andon.core.shared import worker as worker_module
from andon.errors import StoreError
from andon.models.base import ModelRequest
from andon.models.scripted import Stall
from andon.store.sql import SQLStore
from andon.testing import probe
from tests.shared_store.helpers import LEASE, LONG, Shaky, check_stored, ended, found, on, runtimes
from tests.support import HANG, Flag, Reach, Worker, eventually, paused, play, until
from tests.support.till import DELETE, Till


def test_a_runtime_that_no_agent_has_used_closes_its_store_too(sqlite_url: str) -> None:
    async def main() -> None:
        before = set(threading.enumerate())
        runtime = Runtime(SQLStore(sqlite_url))
        assert isinstance(runtime.store, SQLStore)
        assert await runtime.store.find("nobody's") is None
        await runtime.close()
        left = [each.name for each in threading.enumerate() if each not in before]
        assert "andon-store-reads" not in left

    play(main)


def test_closing_a_runtime_ends_what_runs_and_keeps_what_waits(url: str) -> None:
    async def main() -> None:
        async with runtimes(url, 1) as (here,):
            one, two = Flag(), Flag()
            agent = on(here, ["One", Reach(one), Stall()], [Reach(two), Stall()])
            going = [agent.start("go", session_id=str(number), run_id=f"r{number}") for number in range(2)]
            for run, reached in zip(going, (one, two), strict=True):
                await run.begin()
                await reached.arrived()
            queued = agent.start("me too", session_id="0", run_id="r2", on_busy="queue")
            await queued.begin()
            await paused(on(here, DELETE, tools=Till().tools), run_id="r3")
            await here.close()
            assert {run.status for run in (*going, queued)} == {RunStatus.cancelled}
            with pytest.raises(StoreError, match="closed"):
                await agent.invoke_async("and now?")
            with pytest.raises(StoreError, match="closed"):
                await here.cancel(all=True)
        async with runtimes(url, 1) as (later,):
            on(later)
            for number in range(3):
                await check_stored(later, f"r{number}", RunStatus.cancelled, CancelCause.shutdown)
            assert (await found(later, "r3")).status is RunStatus.paused

    play(main)


def test_closing_does_not_wait_for_a_store_that_is_away(sqlite_url: str) -> None:
    async def main() -> None:
        store, reached = Shaky(sqlite_url), Flag()
        here = Runtime(store, lease_seconds=LONG, settle_seconds=0.1, child_seconds=0.1)
        run = on(here, [Reach(reached), Stall()]).start("go")
        await run.begin()
        await reached.arrived()
        store.away = True
        await here.close()
        await probe(run).ended()  # nobody will store its end any more, so it is told
        assert run.status is RunStatus.cancelled
        assert "could not take" in probe(run).warnings[0]

    play(main)


def test_a_worker_that_is_closed_while_it_begins_stays_closed(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with runtimes(sqlite_url, 1) as (runtime,):
            on(runtime)
            assert runtime.worker is not None
            portal, beginning, gone = runtime.worker.link._portal, Flag(), threading.Event()
            submit, close = portal.submit, portal.close

            def slowly(make: Any) -> Any:
                beginning.set()
                gone.wait(0.2)  # which must not happen meanwhile
                return submit(make)

            def end() -> None:
                close()
                gone.set()

            monkeypatch.setattr(portal, "submit", slowly)
            monkeypatch.setattr(portal, "close", end)
            starting = Worker(runtime.worker.start)
            beginning.wait()
            await runtime.worker.close()
            starting.done()
            assert not [each for each in threading.enumerate() if each.name == "andon-worker"]

    play(main)


def test_a_close_that_is_cancelled(sqlite_url: str) -> None:
    async def main() -> None:
        here = Runtime(SQLStore(sqlite_url))
        await on(here, "Yes.").invoke_async("go")
        closing = asyncio.create_task(here.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await here.close()  # again is safe

    play(main)


def test_blocking_calls(url: str) -> None:
    runtime = Runtime(SQLStore(url), lease_seconds=LONG)
    agent = on(runtime, "Hello.", ["One ", "two ", Stall()], "Bye.")
    assert agent.run("hi", session_id="s").content == "Hello."
    stream = agent.run("count", session_id="s", stream=True)
    for event in stream:
        if event.event is RunEvent.run_content:
            break
    stream.close()
    result = agent.run("bye", session_id="s")
    assert [message.role for message in result.messages] == ["user", "assistant"] * 3

    async def main() -> None:
        assert (await found(runtime, result.run_id)).status is RunStatus.completed
        await runtime.close()

    asyncio.run(main())


def test_a_loop_that_is_blocked_for_longer_than_the_lease_loses_nothing(sqlite_url: str) -> None:
    """Blocking calls live on the portal's loop; the leases are renewed elsewhere."""
    runtime = Runtime(SQLStore(sqlite_url), lease_seconds=1.5)

    def block(request: ModelRequest) -> str:
        time.sleep(2)
        return "Awake."

    result = on(runtime, block).run("go")
    assert (result.status, result.content) == (RunStatus.completed, "Awake.")
    asyncio.run(runtime.close())


def test_many_threads_begin_at_once_and_one_worker_serves_them(sqlite_url: str) -> None:
    threads = set(threading.enumerate())
    runtime, together = Runtime(SQLStore(sqlite_url)), threading.Barrier(8)
    agent = on(runtime)

    def begin(session_id: str) -> None:
        together.wait(HANG)
        asyncio.run(agent.invoke_async("go", session_id=session_id))

    for worker in [Worker(functools.partial(begin, f"s{number}")) for number in range(8)]:
        worker.done()
    workers = [thread for thread in set(threading.enumerate()) - threads if thread.name == "andon-worker"]
    assert len(workers) == 1
    asyncio.run(runtime.close())
    # (A store that an earlier test has forgotten may be closed by a thread just now.)
    eventually(lambda: {thread.name for thread in set(threading.enumerate()) - threads} <= {"andon-portal"})


def test_agents_that_are_made_at_once_have_one_worker(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    together, made = threading.Barrier(2), []

    class Slow(worker_module.Worker):
        def __init__(self, *arguments: Any) -> None:
            made.append(self)
            with contextlib.suppress(threading.BrokenBarrierError):
                together.wait(0.5)
            super().__init__(*arguments)

    monkeypatch.setattr(worker_module, "Worker", Slow)
    runtime = Runtime(SQLStore(sqlite_url))
    for worker in [Worker(lambda: on(runtime)) for _ in range(2)]:
        worker.done()
    asyncio.run(runtime.close())
    assert made == [runtime.worker]


def test_a_run_that_can_not_be_settled_frees_its_session_at_once(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Loop, fate: object) -> None:
        raise ZeroDivisionError("a defect")

    async def main() -> None:
        async with runtimes(sqlite_url, 1) as (here,):
            agent = on(here, "Hello.", "Yes.")
            with monkeypatch.context() as patch:
                patch.setattr(Loop, "settle", broken)
                assert (await agent.invoke_async("go", run_id="r")).status is RunStatus.error
            assert "could not be ended properly" in caplog.text
            assert (await agent.invoke_async("next")).status is RunStatus.completed
            assert (await found(here, "r")).status is RunStatus.error

    play(main)


def test_nothing_refers_to_a_run_that_has_ended(sqlite_url: str) -> None:
    async def main() -> None:
        async with runtimes(sqlite_url, 1) as (here,):
            run = on(here, "Hello.").start("go")
            await run.begin()
            await probe(run).ended()
            gone = weakref.ref(local_run(run))
            del run
            await until(lambda: gc.collect() >= 0 and gone() is None)

    play(main)


# -- the end of a process ---------------------------------------------------------------------------------------------

BEGINNING = """
import asyncio, os, sys, threading
from andon import Agent, RunStatus, Runtime
from andon.models.scripted import ScriptedModel, Stall
from andon.store.sql import SQLStore
runtime = Runtime(SQLStore(sys.argv[1]), lease_seconds=float(sys.argv[2]))
agent = Agent("Keeper", ScriptedModel(["One ", Stall()], then="Yes."), runtime=runtime)
"""


def script(url: str, body: str) -> None:
    program = [sys.executable, "-W", "error", "-c", BEGINNING + textwrap.dedent(body), url, str(LEASE)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=HANG, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_a_script_that_ends_while_its_blocking_run_is_going(url: str) -> None:
    began = time.monotonic()
    script(
        url,
        """
        events = agent.run("go", run_id="r", stream=True)
        while next(events).content != "One ":
            pass
        keep = [events]
        """,
    )
    assert time.monotonic() - began < HANG / 2

    async def main() -> None:
        async with runtimes(url, 1) as (later,):
            on(later)  # it was ended by the process itself: nobody has to wait for its lease
            await check_stored(later, "r", RunStatus.cancelled, CancelCause.caller)

    play(main)


def test_a_script_that_ends_while_its_blocking_run_waits_in_line(url: str) -> None:
    """At its exit, runs are ended before the worker is, without which those that wait for the store would fail."""
    script(
        url,
        """
        import time
        from andon import Phase
        from andon.core.shared.worker import Worker
        events = agent.run("go", run_id="r", stream=True)
        while next(events).content != "One ":
            pass
        keep = [events, agent.run("and then", run_id="r2", stream=True, on_busy="queue")]
        next(keep[1])
        run, stop = runtime.run("r2"), Worker.stop
        while run.phase is not Phase.queued:
            time.sleep(0.01)

        def stop_and_wait(worker):
            stop(worker)
            from andon.testing import probe
            probe(run).settled_blocking(5.0)

        Worker.stop = stop_and_wait
        """,
    )

    async def main() -> None:
        async with runtimes(url, 1) as (later,):
            on(later)
            await check_stored(later, "r2", RunStatus.cancelled, CancelCause.caller)

    play(main)


def test_a_script_that_ends_while_a_run_is_going_in_a_thread(sqlite_url: str) -> None:
    script(
        sqlite_url,
        """
        reached = threading.Event()
        async def main():
            async for event in agent.stream_async("go", run_id="r"):
                if event.content == "One ":
                    reached.set()
        threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
        reached.wait()
        """,
    )

    async def main() -> None:
        async with runtimes(sqlite_url, 1, LEASE) as (later,):
            on(later)
            await ended(later, "r")
            await check_stored(later, "r", RunStatus.cancelled, CancelCause.lost)

    play(main)


def test_a_run_that_was_made_before_a_fork_is_worked_on_and_cancelled_in_the_child(sqlite_url: str) -> None:
    """The parts of the parent's worker do not work in the child: it has its own."""
    script(
        sqlite_url,
        """
        import traceback, warnings
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        agent.model = ScriptedModel("Yes.", ["One ", Stall()], then="No.")
        agent.run("one")  # the parent's worker is at work
        run = agent.start("two", run_id="two", session_id="s")
        read_end, write_end = os.pipe()
        async def work():
            async with asyncio.timeout(30), run:
                async for event in run:
                    if event.content == "One ":
                        os.write(write_end, b"!")
                result = await run.result()
            assert result.receipt.cause == "user", result
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                asyncio.run(work())
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(write_end)
        assert os.read(read_end, 1) == b"!"
        assert asyncio.run(runtime.cancel(run_id="two"))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        asyncio.run(runtime.close())
        """,
    )
