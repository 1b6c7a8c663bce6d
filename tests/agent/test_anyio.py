# SPDX-License-Identifier: Apache-2.0
"""Hosts that use anyio: their scopes cancel again and again, and another thread may be importing anyio just now."""

from __future__ import annotations

import asyncio
import importlib.machinery
import importlib.util
import subprocess
import sys
from types import ModuleType

import anyio
import anyio.lowlevel
import pytest

from andon import CancelCause, RunStatus, tool
from andon.core.run.waits import hold_off
from andon.models.scripted import Call
from tests.support import HANG, Flag, Silence, forever, make, play, record_of

BACKEND = "anyio._backends._asyncio"
TURNS = 500
"""Of the loop, in a tenth of a second: an idle one takes a few, one whose task is cancelled at each turn thousands."""


def test_a_scope_ends_the_run_and_has_its_cancellation_back() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", silence])
        with anyio.CancelScope() as scope:
            async with asyncio.TaskGroup() as group:
                group.create_task(_cancel_when(silence.reached, scope))
                await agent.invoke_async("go", run_id="r")
        assert scope.cancelled_caught
        record = await record_of(agent, "r")
        assert (record.status, record.content) == (RunStatus.cancelled, "Half a ")
        assert record.receipt is not None
        assert record.receipt.cause is CancelCause.caller

    play(main)


async def _cancel_when(reached: Flag, scope: anyio.CancelScope) -> None:
    await reached.arrived()
    scope.cancel()


class CountingLoop(asyncio.SelectorEventLoop):
    turns = 0

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]


def test_a_scope_does_not_keep_the_loop_busy_while_a_tool_cleans_up() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        began, took = Flag(), 0

        @tool
        async def work() -> str:
            nonlocal took
            try:
                began.set()
                await forever()
            finally:
                before = loop.turns
                await asyncio.sleep(0.1)
                took = loop.turns - before

        agent = make([Call("work")], tools=[work])
        with anyio.CancelScope() as scope:
            async with asyncio.TaskGroup() as group:
                group.create_task(_cancel_when(began, scope))
                await agent.invoke_async("go")
        assert scope.cancelled_caught
        assert 0 < took < TURNS

    play(main, loop=CountingLoop)


# -- half imported ----------------------------------------------------------------------------------------------------


def half_imported(name: str) -> ModuleType:
    """A module as it is in sys.modules while another thread executes its first line."""
    spec = importlib.machinery.ModuleSpec(name, None)
    spec._initializing = True  # type: ignore[attr-defined]  # as Python's own import sets it
    return importlib.util.module_from_spec(spec)


@pytest.mark.parametrize("name", ["anyio", BACKEND])
def test_nothing_is_held_off_while_anyio_is_half_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        anyio.lowlevel.current_token()  # has the backend imported
        with hold_off() as scope:
            assert isinstance(scope, anyio.CancelScope)
        monkeypatch.setitem(sys.modules, name, half_imported(name))
        with hold_off() as scope:
            assert scope is None
        monkeypatch.delitem(sys.modules, name)
        with hold_off() as scope:
            assert scope is None

    play(main)


EVERY_MOMENT = """
import asyncio, importlib, sys, threading
from andon import Agent, RunStatus
from andon.models.scripted import ScriptedModel, Stall

class Gate:
    "Stops the import of anyio before the n-th module."

    def __init__(self, number):
        self.left, self.reached, self.goes_on = number, threading.Event(), threading.Event()

    def find_spec(self, name, path, target=None):
        if threading.current_thread().name == "importer":
            self.left -= 1
            if self.left == 0:
                self.reached.set()
                assert self.goes_on.wait(30), f"the loop is blocked by the import of {name}"

def load(gate):
    importlib.import_module("anyio").CancelScope
    importlib.import_module("anyio._backends._asyncio")
    gate.reached.set()

async def cancel_host():
    agent = Agent("A", ScriptedModel(then=["Half", Stall()]))
    task = asyncio.create_task(agent.invoke_async("go", run_id="r"))
    while (run := agent.runtime.run("r")) is None or run.status is not RunStatus.running:
        await asyncio.sleep(0)
    task.cancel("the host's own")
    try:
        await task
    except asyncio.CancelledError as error:
        assert error.args == ("the host's own",), error
    assert run.status is RunStatus.cancelled

def cancel_before(number):
    before = set(sys.modules)
    gate = Gate(number)
    sys.meta_path.insert(0, gate)
    importer = threading.Thread(target=load, args=[gate], name="importer", daemon=True)
    importer.start()
    assert gate.reached.wait(30)
    try:
        asyncio.run(cancel_host())
    finally:
        gate.goes_on.set()
        importer.join()
        sys.meta_path.remove(gate)
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in ("anyio", "sniffio"):
                del sys.modules[name]
    return gate.left <= 0

asyncio.run(cancel_host())
assert "anyio" not in sys.modules
count = 1
while cancel_before(count):
    count += 1
print(count)
"""


def test_the_hosts_cancellation_at_every_moment_of_anyios_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EVERY_MOMENT], capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20
