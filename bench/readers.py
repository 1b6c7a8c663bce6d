# SPDX-License-Identifier: Apache-2.0
"""A run with a thousand readers on other event loops: events per second, and the time of a cancel.

The run writes a piece of text in each iteration of its loop, and each piece wakes all waiting readers. They share one
interpreter with the run, so their CPU time slows the run. The baseline has as many readers on the run's own loop. A
cancel is timed without readers, with all of them waiting, and with all of them being woken by one piece after another.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from andon import Agent, Run
from andon.core.run.handle import local_run
from andon.models.scripted import Burst, Say, ScriptedModel
from andon.testing import probe
from bench.report import Figure, Goal, Progress, Row, percentile

LOOPS = 4
PIECE = "word "
QUIET_SECONDS = 0.02
CANCELS = [
    ("cancel, without readers", 0, 0.005),
    ("cancel, all wait", 1, 1000.0),
    ("cancel, all are woken", 1, 0.005),
]
"""A name, the share of the readers, and the seconds between two pieces."""

Loops = list[asyncio.AbstractEventLoop]


@contextlib.contextmanager
def loops() -> Iterator[Loops]:
    """Event loops in threads of their own."""
    made = [asyncio.new_event_loop() for _ in range(LOOPS)]
    threads = [threading.Thread(target=loop.run_forever, daemon=True) for loop in made]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        for loop, thread in zip(made, threads, strict=True):
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


async def everywhere(elsewhere: Loops, readers: int, read: Callable[[], Awaitable[Any]]) -> None:
    """Do it so many times in all, on the other loops, and wait for it here."""

    async def some() -> None:
        await asyncio.gather(*(read() for _ in range(readers // len(elsewhere))))

    await asyncio.gather(*(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(some(), each)) for each in elsewhere))


async def _read(run: Run) -> int:
    seen = 0
    async for _ in run:
        seen += 1
    return seen


async def written(elsewhere: Loops, readers: int, count: int) -> float:
    """Events per second, until every reader has read every one. Without other loops, they are read on this one."""
    agent = Agent("Read", ScriptedModel(Burst(PIECE, count, every=1)))
    began = time.perf_counter()
    async with agent.start("Hello") as run:
        if elsewhere:
            await everywhere(elsewhere, readers, lambda: _read(run))
        else:
            await asyncio.gather(*(_read(run) for _ in range(readers)))
        return len(probe(run).events) / (time.perf_counter() - began)


async def cancels(elsewhere: Loops, readers: int, pace: float, rounds: int) -> list[float]:
    """Milliseconds from `cancel()` in this task to the run's end."""
    taken = []
    for number in range(rounds):
        agent = Agent("Stopped", ScriptedModel(["First. ", Say(PIECE * 100_000, pace=pace)]))
        async with agent.start("Hello", session_id=str(number)) as run:
            reading = asyncio.create_task(everywhere(elsewhere, readers, partial(_read, run)))
            while len(local_run(run).journal.waiters.wakes) < readers // 2:  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.001)
            await asyncio.sleep(QUIET_SECONDS)
            began = time.perf_counter()
            run.cancel()
            await run.result()
            taken.append((time.perf_counter() - began) * 1000)
            await reading
    return taken


def measure(quick: bool, progress: Progress) -> Figure:
    readers, count, repeats, rounds = (100, 20, 1, 3) if quick else (1_000, 200, 7, 50)
    title = f"{readers:,} readers, {count} pieces, medians of {repeats}; {rounds} cancels"
    figure, steps = Figure("readers", title), repeats + len(CANCELS)
    own, others = [], []
    with loops() as elsewhere:
        for repeat in range(repeats):
            progress(repeat + 1, steps, "events")
            own.append(asyncio.run(written([], readers, count)))
            others.append(asyncio.run(written(elsewhere, readers, count)))
        here, there = statistics.median(own), statistics.median(others)
        values = {"events_per_second": there, "times_own_loop": there / here}
        figure.rows.append(Row("on the run's own loop", {"events_per_second": here}))
        figure.rows.append(Row(f"on {LOOPS} other loops", values, (Goal("times_own_loop", 0.2, at_least=True),)))
        for number, (name, share, pace) in enumerate(CANCELS, 1):
            progress(repeats + number, steps, name)
            taken = asyncio.run(cancels(elsewhere, int(readers * share), pace, rounds))
            figure.rows.append(Row(name, {"p50_ms": statistics.median(taken), "p99_ms": percentile(taken, 0.99)}))
    return figure
