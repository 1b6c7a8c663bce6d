# SPDX-License-Identifier: Apache-2.0
"""Another process that runs agents on the same database, each up to a certain point, to be killed or stopped there.

It writes one line for each thing that happens: that a run has come to its point, and how it ended.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from andon import Agent, Run, Runtime, ToolContext, tool
from andon.models.scripted import Call, ScriptedModel, Stall, Turn
from andon.store.sql import SQLStore
from andon.testing import probe
from tests.support import Do, Piece, forever
from tests.support.till import DELETE, PAY, Till

Say = Callable[[], None]


@tool
async def quick() -> str:
    return "quickly done"


def _agent(runtime: Runtime, name: str, *turns: Turn, **more: Any) -> Agent:
    return Agent(name, ScriptedModel(*turns), runtime=runtime, **more)


def _slow(reached: Say) -> Any:
    @tool
    async def slow() -> str:
        reached()
        await forever()

    return slow


def _stubborn(reached: Say) -> Any:
    @tool
    async def stubborn(ctx: ToolContext) -> str:
        try:
            reached()
            await forever()
        finally:
            reached()
            await forever()

    return stubborn


def scene(name: str, runtime: Runtime, reached: Say) -> Agent:
    """An agent whose run calls `reached` when it is where its name says, and stays there."""
    here = Do(reached)
    if name == "waiting":
        return _agent(runtime, name, [here, Stall()])
    if name == "streaming":
        return _agent(runtime, name, ["Once upon", here, Stall()])
    if name == "arguments":
        return _agent(runtime, name, [Piece("c", "quick", '{"a'), here, Stall()])
    if name == "tools":
        calls = [Call("quick", id="q"), Call("slow", id="s")]
        return _agent(runtime, name, calls, tools=[quick, _slow(reached)])
    if name == "second-turn":
        return _agent(runtime, name, ["Let me see.", Call("quick", id="q")], ["I have", here, Stall()], tools=[quick])
    if name == "cancelling":
        return _agent(runtime, name, Call("stubborn", id="s"), tools=[_stubborn(reached)])
    if name == "family":
        child = _agent(runtime, "child", ["Hm", here, Stall()])
        return _agent(runtime, name, Call("child", {"prompt": "help"}, id="c"), tools=[child.as_tool()])
    if name == "paused":
        return _agent(runtime, name, [DELETE, PAY], tools=Till().tools)
    if name == "asking-family":
        child = _agent(runtime, "asker", DELETE, tools=Till().tools)
        return _agent(runtime, name, Call("asker", {"prompt": "help"}, id="c"), tools=[child.as_tool()])
    raise AssertionError(name)


def _print(*what: Any) -> None:
    print(msgspec.json.encode(what).decode(), flush=True)


async def _play(name: str, runtime: Runtime) -> None:
    run: Run = scene(name, runtime, lambda: _print("reached", name)).start("go", session_id=name, run_id=name)
    await run.begin()
    await probe(run).settled()
    result = await run.result()
    if result.interrupts:
        _print("reached", name)
        return
    _print("ended", name, result.status, result.receipt and result.receipt.cause, probe(run).events[-1].event)


async def _main(url: str, lease: str, *names: str) -> None:
    runtime = Runtime(SQLStore(url), lease_seconds=float(lease))
    await asyncio.gather(*(_play(name, runtime) for name in names))
    await runtime.close()
    _print("closed")


class Worker:
    """Starts it, and reads what it says."""

    def __init__(self, url: str, lease: float, *names: str, module: str = __name__) -> None:
        program = [sys.executable, "-m", module, url, str(lease), *names]
        self._process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def hears(self) -> list[Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the worker is gone"
        heard: list[Any] = msgspec.json.decode(line)
        return heard

    def reached(self, *names: str) -> None:
        """Wait until these have come to their points."""
        heard = [self.hears() for _ in names]
        assert sorted(heard) == sorted(["reached", name] for name in names), heard

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self.leave()

    def leave(self) -> int:
        with self._process:
            assert self._process.stdout is not None
            self._process.stdout.close()
        return self._process.returncode


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
