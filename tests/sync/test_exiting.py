# SPDX-License-Identifier: Apache-2.0
"""What was acknowledged is stored before the process ends, and the end of the process is not held up.

Real programs, each in an interpreter of its own: what happens when one ends can't be seen from inside.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

BOUND = 10.0
"""No measure of speed, only a guard: before the mend the slow ones of these took for ever, or stopped at 5 s each."""

PROGRAM = """
import asyncio, sys, threading, time
from andon import Agent, Runtime, tool
from andon.models.scripted import Call, ScriptedModel, Stall
from andon.store import open_store

begun = threading.Event()

@tool(approval=True)
async def wipe() -> str:
    return "wiped"

@tool
def blocks() -> str:
    begun.set()
    time.sleep(1000)

@tool
async def blocks_the_loop() -> str:
    begun.set()
    time.sleep(1000)

@tool
async def swallows() -> str:
    begun.set()
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass

def start(name):
    runtime = Runtime(open_store(sys.argv[1]))
    agent = Agent("A", ScriptedModel(Call(name)), tools=[wipe, blocks, blocks_the_loop, swallows], runtime=runtime)
    if name == "wipe":
        agent.run("go", run_id="R")
    else:
        threading.Thread(target=agent.run, args=("go",), kwargs={"run_id": "R"}, daemon=True).start()
        begun.wait()
    return agent
"""


def run_program(tmp_path: Path, code: str, before: str = "") -> tuple[str, str]:
    """Run it to its end. Returns what it printed, and what the database says of its run."""
    file, program = tmp_path / "andon.db", tmp_path / "program.py"
    program.write_text(before + PROGRAM + textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, program, f"sqlite:///{file}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    database = sqlite3.connect(file)
    status, asked = database.execute("select status, cancel is not null from andon_runs").fetchone()
    database.close()
    return done.stdout, status if status == "CANCELLED" or not asked else f"{status}, and asked to stop"


@pytest.mark.parametrize("times", range(3))  # it was a race, lost more often than not
def test_a_cancel_of_a_paused_run_is_stored_though_it_is_the_programs_last_line(tmp_path: Path, times: int) -> None:
    assert run_program(tmp_path, "print(start('wipe').cancel('never mind'))") == ("requested\n", "CANCELLED")


@pytest.mark.parametrize("start", ["start('wipe')", "asyncio.run(start_async())"])
@pytest.mark.parametrize("cancel", ["print(agent.cancel())", "atexit.register(lambda: print(agent.cancel()))"])
def test_a_cancel_at_the_end_or_in_an_exit_handler_is_stored(tmp_path: Path, start: str, cancel: str) -> None:
    """With `asyncio.run` the portal was not in use before. Some versions of Python then start no thread for it."""
    code = f"""
        import atexit

        async def start_async():
            runtime = Runtime(open_store(sys.argv[1]))
            agent = Agent("A", ScriptedModel(Call("wipe")), tools=[wipe], runtime=runtime)
            await agent.invoke_async("go", run_id="R")
            return agent

        agent = {start}
        {cancel}
    """
    assert run_program(tmp_path, code) == ("requested\n", "CANCELLED")


def test_a_cancel_after_the_portals_own_exit_promises_nothing(tmp_path: Path) -> None:
    """A handler that was registered before Andon was imported comes after Andon's own."""
    before = "import atexit; atexit.register(lambda: print(agent.cancel()))"
    assert run_program(tmp_path, "agent = start('wipe')", before) == ("unknown\n", "PAUSED")


@pytest.mark.parametrize("tool", ["blocks", "swallows"])
@pytest.mark.parametrize("cancel", [True, False])
def test_a_run_whose_tool_does_not_stop_is_stored_and_holds_up_nothing(tmp_path: Path, tool: str, cancel: bool) -> None:
    code = f"""
        agent = start({tool!r})
        if {cancel}:
            print(agent.cancel())
        import time
        from andon.core.portal import portal
        began = time.monotonic()
        portal.close()
        assert time.monotonic() - began < {BOUND}
    """
    assert run_program(tmp_path, code) == ("requested\n" if cancel else "", "CANCELLED")


def test_a_tool_that_blocks_the_loop_holds_up_no_exit(tmp_path: Path) -> None:
    """Its run can't be ended by anybody here: the database says so when the lease is over."""
    code = """
        from andon.core import portal
        agent = start("blocks_the_loop")
        joined = []
        join = threading.Thread.join
        def noted(self, timeout=None):
            if self.name == "andon-portal":
                joined.append(timeout)
            join(self, timeout)
        threading.Thread.join = noted
        print(agent.cancel())
        portal.portal.close()
        assert sum(joined) <= 1, joined
    """
    assert run_program(tmp_path, code) == ("requested\n", "RUNNING, and asked to stop")


@pytest.mark.parametrize("read", ['agent.run("go")', 'list(agent.run("go", stream=True))'])
def test_a_signal_that_does_not_wake_the_main_thread_is_handled_all_the_same(tmp_path: Path, read: str) -> None:
    """The system may give it to any thread; and one that comes just before the main thread waits does not wake it."""
    code = f"""
        import signal
        agent = Agent("A", ScriptedModel(Call("swallows")), tools=[swallows], runtime=Runtime(open_store(sys.argv[1])))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

        def deliver():
            begun.wait()
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

        threading.Thread(target=deliver, daemon=True).start()
        {read}
    """
    _, status = run_program(tmp_path, code)
    assert status == "CANCELLED"


@pytest.mark.parametrize("tool", ["swallows", "blocks_the_loop"])
def test_sys_exit_in_a_signal_handler_is_not_held_up(tmp_path: Path, tool: str) -> None:
    """As a SIGTERM handler does it, while the main thread waits in `agent.run`."""
    code = f"""
        import os, signal
        from andon import sync
        waited = []
        wait = sync.wait_settled_blocking
        def noted(run, timeout=None):
            waited.append(timeout)
            return wait(run, timeout)
        sync.wait_settled_blocking = noted
        agent = Agent("A", ScriptedModel(Call({tool!r})), tools=[swallows, blocks_the_loop],
                      runtime=Runtime(open_store(sys.argv[1])))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        threading.Thread(target=lambda: (begun.wait(), os.kill(os.getpid(), signal.SIGTERM)), daemon=True).start()
        try:
            agent.run("go", run_id="R")
        finally:
            assert waited, "nobody waited"
            assert sum(waited) <= 0.3, waited
    """
    _, status = run_program(tmp_path, code)
    assert status in ("CANCELLED", "RUNNING, and asked to stop")
