# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a blocking call: a real SIGINT to a real process. The run is ended first; the interrupt then goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

from andon import Agent, CancelCause, RunStatus
from andon.models.scripted import Item, ScriptedModel, Stall
from tests.support import HANG, eventually, interrupted, record_of

PRELUDE = """
    import asyncio, json, os, signal, sys, threading
    from andon import Agent, Runtime, tool
    from andon.models.scripted import Call, Item, Say, ScriptedModel

    class Ready(Item):
        async def play(self, sink, model):
            print("ready", flush=True)
            await asyncio.get_running_loop().create_future()

    def report(agent, how):
        record = asyncio.run(agent.runtime.store.find("r"))
        late = str(agent.cancel_run("r"))
        answer = agent.run("and now?")
        print(json.dumps({
            "how": how, "status": record.status.name, "cause": str(record.receipt.cause), "late": late,
            "last": agent.messages[1].content[-1].text, "next": answer.status.name,
        }), flush=True)
"""
FACADE = "/andon/sync.py"
SOUND = {
    "how": "KeyboardInterrupt",
    "status": "cancelled",
    "cause": "caller",
    "late": "already_finished",
    "last": "Cancelled by the caller",
    "next": "completed",
}


class Program:
    """A Python process that prints `ready` and then waits to be interrupted."""

    def __init__(self, body: str) -> None:
        source = textwrap.dedent(PRELUDE) + textwrap.dedent(body)
        command = [sys.executable, "-W", "error", "-c", source]
        # Not measured: an interrupt that finds coverage holding its own lock would have it wait for that at the end.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def interrupt(self) -> tuple[list[str], str]:
        """Wait for `ready`, send one SIGINT, and return what the process still says, on both channels."""
        process = self.process
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line == "ready\n", (line, process.communicate(timeout=HANG))
            os.kill(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=HANG)
        finally:
            process.kill()
            process.wait()
        return out.splitlines(), err


def interrupt(body: str) -> Any:
    program = Program(body)
    lines, errors = program.interrupt()
    assert program.process.returncode == 0, errors
    assert errors == ""
    return json.loads(lines[-1])


def test_in_run() -> None:
    assert (
        interrupt("""
            agent = Agent("T", ScriptedModel([Say("Half a "), Ready()]))
            try:
                agent.run("go", run_id="r")
            except BaseException as error:
                report(agent, type(error).__name__)
        """)
        == SOUND
    )


def test_in_next_of_a_stream() -> None:
    assert (
        interrupt("""
            agent = Agent("T", ScriptedModel([Say("Half a "), Ready()]))
            try:
                for event in agent.run("go", stream=True, run_id="r"):
                    pass
            except BaseException as error:
                report(agent, type(error).__name__)
        """)
        == SOUND
    )


def test_in_the_body_of_a_streams_loop() -> None:
    """The interrupt leaves the loop, the iterator is dropped, and that cancels the run."""
    assert (
        interrupt("""
            agent = Agent("T", ScriptedModel([Say("Half a "), Ready()]))

            def read():
                for event in agent.run("go", stream=True, run_id="r"):
                    if event.content:
                        threading.Event().wait(20)

            try:
                read()
            except BaseException as error:
                how = type(error).__name__
            while agent.runtime.run("r") is not None:
                threading.Event().wait(0.001)
            report(agent, how)
        """)
        == SOUND
    )


def test_in_run_while_it_waits_for_a_blocked_thread() -> None:
    """The run ends now; the thread is named, and does not keep the process."""
    answer = interrupt("""
        @tool
        def block() -> str:
            print("ready", flush=True)
            threading.Event().wait()

        agent = Agent("T", ScriptedModel(Call("block", id="c")), tools=[block])
        try:
            agent.run("go", run_id="r")
        except BaseException as error:
            record = asyncio.run(agent.runtime.store.find("r"))
            print(json.dumps([type(error).__name__, record.receipt.tools[0].outcome, len(record.receipt.leftovers)]))
    """)
    assert answer == ["KeyboardInterrupt", "abandoned", 1]


def test_in_run_on_a_tool_that_cleans_up() -> None:
    answer = interrupt("""
        seen = []

        @tool
        async def slow() -> str:
            print("ready", flush=True)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await asyncio.sleep(0.01)
                seen.append("cleaned up")

        agent = Agent("T", ScriptedModel(Call("slow", id="c")), tools=[slow])
        try:
            agent.run("go", run_id="r")
        except KeyboardInterrupt:
            print(json.dumps(seen))
    """)
    assert answer == ["cleaned up"]


def test_in_invoke_async_under_asyncio_run() -> None:
    assert (
        interrupt("""
            agent = Agent("T", ScriptedModel([Say("Half a "), Ready()]))
            try:
                asyncio.run(agent.invoke_async("go", run_id="r"))
            except BaseException as error:
                report(agent, type(error).__name__)
        """)
        == SOUND
    )


@pytest.mark.parametrize("call", ['agent.run("go")', 'list(agent.run("go", stream=True))'])
def test_it_is_not_caught(call: str) -> None:
    program = Program(f"""
        agent = Agent("T", ScriptedModel([Ready()]))
        {call}
    """)
    _, errors = program.interrupt()
    assert program.process.returncode == -signal.SIGINT  # as of any Python program
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "Task was destroyed" not in errors
    assert "Exception ignored" not in errors


def test_a_program_that_ends_with_a_run_in_flight() -> None:
    """The portal is closed at exit: the run is settled, nothing hangs, nothing is printed."""
    program = Program("""
        agent = Agent("T", ScriptedModel([Ready()]))
        try:
            stream = agent.run("go", stream=True)
            next(stream)
            threading.Event().wait(20)
        except KeyboardInterrupt:
            pass
    """)
    _, errors = program.interrupt()
    assert program.process.returncode == 0
    assert errors == ""


@pytest.mark.parametrize("way", ["run", "stream"])
def test_at_every_line(way: str) -> None:
    """Wherever it comes in a blocking call, also between two waits: no run is left to go on without its caller.

    (Elsewhere, a `with` that is just being left could be hit, where no real interrupt is ever handled.)
    """
    assert threading.current_thread() is threading.main_thread()
    endings = 0
    for line in range(1, 5000):
        agent = Agent("T", ScriptedModel(then=lambda request: Stall() if request.messages[-1].text == "go" else "OK."))
        interrupted_at: list[float] = []

        def raise_signal(interrupted_at: list[float] = interrupted_at) -> None:
            interrupted_at.append(time.time())
            if sys._getframe(2).f_code.co_name != "__del__":  # Python lets nothing out of there
                signal.raise_signal(signal.SIGINT)

        with contextlib.suppress(KeyboardInterrupt), interrupted(line, "line", raise_signal, within=FACADE):
            # The time limit is for the last ones, in which no line comes any more, because the thread waits.
            if way == "run":
                agent.run("go", run_id="r", timeout=0.1)
            else:
                list(agent.run("go", run_id="r", timeout=0.1, stream=True))
        if not interrupted_at:
            break
        gc.collect()
        eventually(lambda agent=agent: not agent.runtime.runs)  # type: ignore[misc]
        assert agent.run("and now?", on_busy="queue").status is RunStatus.completed
        if len(agent.messages) > 2:  # it had begun
            receipt = asyncio.run(record_of(agent, "r")).receipt
            assert receipt is not None
            was_ending = receipt.requested_at <= interrupted_at[0]
            assert was_ending or receipt.cause is CancelCause.caller, f"line {line}: nobody ended it"
            endings += was_ending
            if endings == 20:
                break  # each of these has to wait for the time limit, and the lines are the same again and again


def test_an_exception_of_a_signal_handler_ends_the_run_too() -> None:
    """A soft time limit, as task queues have it: what the handler raises is an ordinary Exception."""

    class SoftTimeLimitError(Exception):
        pass

    class Ready(Item):
        async def play(self, sink: Any, model: ScriptedModel) -> None:
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGUSR1)  # it is blocked in `run`, and handlers run there
            await asyncio.get_running_loop().create_future()

    def handler(*_: object) -> None:
        raise SoftTimeLimitError

    agent = Agent("T", ScriptedModel(Ready()))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(SoftTimeLimitError):
            agent.run("go", run_id="r")
    finally:
        signal.signal(signal.SIGUSR1, before)
    left = agent.runtime.runs
    agent.cancel()
    assert left == []
