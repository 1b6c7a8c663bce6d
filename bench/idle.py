# SPDX-License-Identifier: Apache-2.0
"""The memory of a run that waits for its model, and the time to cancel many such runs at once.

Each run has its own session. Memory is the growth of the process, so every sample is a fresh interpreter. The baseline
is the same number of bare tasks, each of which waits for a future.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from andon import Agent, Run, RunStatus
from andon.models.scripted import ScriptedModel, Stall
from bench import fresh
from bench.cancelling import Cue
from bench.latency import Tell
from bench.report import Figure, Goal, Progress, Row

WARM_UP = 20
PAGE = os.sysconf("SC_PAGE_SIZE")


def memory() -> int:
    """The bytes of this process that are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


class Crowd:
    """Many runs of one agent, all waiting for a model that stays silent."""

    def __init__(self) -> None:
        self.cue = Cue()
        self.agent = Agent("Idle", ScriptedModel(then=[Tell(self.cue), Stall()]))
        self.runs: list[Run] = []
        self._sessions = 0

    async def gather(self, count: int) -> None:
        waiting = self.cue.expect(count)
        for _ in range(count):
            self._sessions += 1
            run = self.agent.start("Hello", session_id=f"idle{self._sessions}")
            self.runs.append(await run.__aenter__())
        await waiting

    async def cancel(self) -> float:
        """Cancel all; the seconds until every result is there."""
        began = time.perf_counter()
        self.agent.cancel()
        results = [await run.result() for run in self.runs]
        took = time.perf_counter() - began
        assert all(result.status is RunStatus.cancelled for result in results)
        await self._leave()
        return took

    async def cancel_from_thread(self) -> float:
        began = time.perf_counter()
        thread = threading.Thread(target=self.agent.cancel)
        thread.start()
        for run in self.runs:
            await run.result()
        took = time.perf_counter() - began
        thread.join()
        await self._leave()
        return took

    async def cancel_with_readers(self) -> float:
        """The same with a reader each, until every reader has read all."""
        readers = [asyncio.create_task(_read(run)) for run in self.runs]
        await asyncio.sleep(0)
        began = time.perf_counter()
        self.agent.cancel()
        for reader in readers:
            await reader
        took = time.perf_counter() - began
        await self._leave()
        return took

    async def _leave(self) -> None:
        for run in self.runs:
            await run.__aexit__(None, None, None)
        self.runs.clear()


async def _read(run: Run) -> int:
    seen = 0
    async for _ in run:
        seen += 1
    return seen


class Tasks:
    """Many bare tasks, each of which waits for a future."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    async def gather(self, count: int) -> None:
        loop = asyncio.get_running_loop()

        async def wait() -> None:
            await loop.create_future()

        self._tasks = [asyncio.create_task(wait()) for _ in range(count)]
        await asyncio.sleep(0)

    async def cancel(self) -> float:
        began = time.perf_counter()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        took = time.perf_counter() - began
        self._tasks = []
        return took


async def _weigh(kind: str, count: int, weight: Callable[[], int]) -> fresh.Values:
    crowd = Tasks() if kind == "tasks" else Crowd()
    await crowd.gather(WARM_UP)
    await crowd.cancel()
    before = weight()
    await crowd.gather(count)
    grown = weight() - before
    if kind == "readers" and isinstance(crowd, Crowd):
        seconds = await crowd.cancel_with_readers()
    elif kind == "thread" and isinstance(crowd, Crowd):
        seconds = await crowd.cancel_from_thread()
    else:
        seconds = await crowd.cancel()
    return {"kb": grown / 1000 / count, "seconds": seconds}


def weigh(kind: str, count: int) -> fresh.Values:
    return asyncio.run(_weigh(kind, count, memory))


def trace(kind: str, count: int) -> fresh.Values:
    tracemalloc.start()
    return asyncio.run(_weigh(kind, count, traced))


KINDS = {
    "tasks": ("bare tasks", ()),
    "runs": ("runs", (Goal("kb_each", 10), Goal("cancel_all_s", 0.8))),
    "readers": ("runs with a reader each", (Goal("cancel_all_s", 1.0),)),
    "thread": ("runs, cancelled from another thread", (Goal("cancel_all_s", 0.8),)),
}


def measure(quick: bool, progress: Progress) -> Figure:
    count, repeats = (500, 1) if quick else (10_000, 5)
    taken: dict[str, list[fresh.Values]] = {kind: [] for kind in KINDS}
    for repeat in range(repeats):
        for number, (kind, (name, _)) in enumerate(KINDS.items(), 1):
            progress(repeat * len(KINDS) + number, repeats * len(KINDS), name)
            taken[kind].append(fresh.measure(weigh, kind, count))
    figure = Figure("idle", f"{count:,} waiting runs, a session each; medians of {repeats} fresh processes")
    for kind, (name, goals) in KINDS.items():
        values = {"cancel_all_s": statistics.median(each["seconds"] for each in taken[kind])}
        if kind in ("tasks", "runs"):
            values["kb_each"] = statistics.median(each["kb"] for each in taken[kind])
            values["traced_kb_each"] = fresh.measure(trace, kind, count)["kb"]
        figure.rows.append(Row(name, values, goals))
    return figure
