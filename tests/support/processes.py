# SPDX-License-Identifier: Apache-2.0
"""What tests of processes share: a run whose tool prints who is at work, and who is gone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from andon import Agent, Run, RunEvent, Runtime
from andon.models.scripted import Call, ScriptedModel
from tests.support.flags import HANG, eventually


def run_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a loop of its own. The warm processes stay for the next test, so files are not counted."""

    async def bounded() -> None:
        async with asyncio.timeout(HANG):
            await main()

    asyncio.run(bounded())


def agent_with(*tools: Any, calls: list[Call] | None = None, **options: Any) -> Agent:
    """An agent that calls each of its tools once, or what is given, and then answers."""
    turn = [Call(tool.name, id=f"c{number}") for number, tool in enumerate(tools)] if calls is None else calls
    return Agent("Tester", ScriptedModel(turn, then="OK."), tools=tools, **options)


async def told(tool: Any, arguments: dict[str, Any] | None = None, **options: Any) -> str:
    """What the model is told of one call."""
    result = await agent_with(tool, calls=[Call(tool.name, arguments or {}, id="c")]).invoke_async("go", **options)
    return str(result.messages[2].tool_results[0].content)


@asynccontextmanager
async def at_work(
    tool: Any, arguments: dict[str, Any] | None = None, runtime: Runtime | None = None
) -> AsyncIterator[tuple[Run, list[int]]]:
    """A run whose tool has said that it is at work, and the processes that it named."""
    agent = agent_with(tool, calls=[Call(tool.name, arguments or {}, id="c")], runtime=runtime)
    async with agent.start("go") as run:
        yield run, await pids_of(run)


async def pids_of(run: Run) -> list[int]:
    """Wait until the tool has printed `up … .`, and return the numbers in between."""
    text = ""
    async for event in run:
        assert event.event is not RunEvent.tool_call_error, event
        if event.event is RunEvent.tool_output:
            text += event.content
            if "up" in text and text.rstrip().endswith("."):
                return [int(word) for word in text.partition("up ")[2].split() if word.isdigit()]
    raise AssertionError(f"the run ended; it had printed {text!r}")


def is_gone(pid: int) -> bool:
    """There is no such process, not even a zombie."""
    return not Path(f"/proc/{pid}").exists()


def is_dead(pid: int) -> bool:
    """It has ended, though it may be a zombie. A signal takes a moment to do that."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def describe_process(pid: int) -> str:
    """What a process that should be gone is, and whose: its state, its parent, its command."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        return f"{pid} {state} {Path(f'/proc/{pid}/cmdline').read_bytes()!r}"
    except OSError as error:
        return f"{pid} {error}"


def check_gone(*pids: int) -> None:
    assert pids
    left = [describe_process(pid) for pid in pids if not is_gone(pid)]
    assert not left, left


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def below(pid: int) -> list[int]:
    """The processes below this one, and the zombies among them."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = parent_of(int(name))
            except OSError:
                pass
    found, frontier = list[int](), {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        found += frontier
    return found


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def eventually_gone(*pids: int) -> None:
    eventually(lambda: all(map(is_gone, pids)))
