# SPDX-License-Identifier: Apache-2.0
"""Tools in processes: what a call costs, and how long it takes from a cancel until nothing of it is left.

A call is a whole run of a scripted model with one call of a tool that adds one. Calls in a thread, in a waiting process
and in a new process alternate. `the first call` starts everything, once per program. "Gone" means that the run has
ended and that none of the processes is in `/proc` any more, not even as a zombie.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from andon import Agent, RunEvent, Runtime, ToolOutcome
from andon.models.scripted import Call, ScriptedModel
from andon.tools.process.pool import pool
from bench import process_tools as tools
from bench.report import Figure, Goal, Progress, Row, percentile

KINDS = {"in a thread": tools.in_thread, "in a waiting process": tools.in_process, "in a new one": tools.in_new_process}
KILLS = {
    "ends when asked": (tools.polite, 1, (Goal("p50_ms", 10),)),
    "ignores SIGTERM (0.2 s of grace)": (tools.stubborn, 1, (Goal("p99_ms", 300),)),
    "a grandchild in another session ignores it": (tools.daemon, 2, (Goal("p99_ms", 300),)),
}


async def call(tool: Any) -> float:
    """The microseconds of a run with one call."""
    agent = Agent("Caller", ScriptedModel(Call(tool.name, {"number": 1}), then="OK."), tools=[tool])
    began = time.perf_counter()
    result = await agent.invoke_async("Go.")
    took = time.perf_counter() - began
    assert result.messages[2].tool_results[0].content == "2"
    return took * 1e6


async def kill(tool: Any, count: int, processes: int) -> tuple[float, float, int]:
    """Have `count` calls at work, and cancel their run: the seconds until all are at work, those until all are gone,
    and how many processes are there then.
    """
    runtime = Runtime(cut_seconds=60, abandon_seconds=60)  # on a slow machine hundreds at once take longer than these
    calls = [Call(tool.name, id=f"c{number}") for number in range(count)]
    agent = Agent("Killer", ScriptedModel(calls, then="OK."), tools=[tool], runtime=runtime)
    began = time.perf_counter()
    text: dict[str, str] = {}
    async with agent.start("Go.") as run:
        async for event in run:
            if event.event is RunEvent.tool_output and event.call_id is not None:
                text[event.call_id] = text.get(event.call_id, "") + event.content
                if len(text) == count and all(said.endswith("\n") for said in text.values()):
                    break
        ready = time.perf_counter()
        run.cancel()
        result = await run.result()
        gone = time.perf_counter()
    pids = [int(word) for said in text.values() for word in said.split()]
    assert len(pids) == count * processes
    assert result.receipt is not None
    assert {each.outcome for each in result.receipt.tools} == {ToolOutcome.cut}
    return ready - began, gone - ready, sum(map(_exists, pids))


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def _measure(quick: bool, progress: Progress) -> Figure:
    calls, kills, crowd = (10, 3, 20) if quick else (500, 100, 500)
    steps = calls + kills * len(KILLS) + 1
    figure = Figure("processes", f"{calls} calls of each kind, {kills} kills, and {crowd} at once")
    pool.close()
    first = await call(tools.in_process)
    took: dict[str, list[float]] = {name: [] for name in KINDS}
    for number in range(calls):
        progress(number + 1, steps, "calls")
        for name, each in KINDS.items():
            took[name].append(await call(each))
    thread = percentile(took["in a thread"], 0.5)
    for name, samples in took.items():
        p50 = percentile(samples, 0.5)
        values = {"p50_us": p50, "p99_us": percentile(samples, 0.99), "of_a_thread": p50 / thread}
        goals = (Goal("of_a_thread", 5),) if name == "in a waiting process" else ()
        figure.rows.append(Row(name, values, goals))
    figure.rows.append(Row("the first call", {"p50_us": first, "of_a_thread": first / thread}))
    done, left = calls, 0
    for name, (tool, processes, kill_goals) in KILLS.items():
        samples = []
        for _ in range(kills):
            progress(done := done + 1, steps, name)
            _, seconds, survivors = await kill(tool, 1, processes)
            samples.append(seconds * 1e3)
            left += survivors
        values = {"p50_ms": percentile(samples, 0.5), "p99_ms": percentile(samples, 0.99), "survivors": float(left)}
        figure.rows.append(Row(name, values, (*kill_goals, Goal("survivors", 0))))
    progress(steps, steps, f"{crowd} at once")
    started, seconds, survivors = await kill(tools.stubborn, crowd, 1)
    crowd_values = {"started_s": started, "gone_s": seconds, "survivors": float(survivors)}
    figure.rows.append(Row(f"{crowd} at once, which ignore SIGTERM", crowd_values, (Goal("survivors", 0),)))
    return figure


def measure(quick: bool, progress: Progress) -> Figure:
    figure = asyncio.run(_measure(quick, progress))
    pool.close()
    return figure
