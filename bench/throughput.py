# SPDX-License-Identifier: Apache-2.0
"""Events per second from a scripted model through the journal to one reader, and to each of ten readers.

The model yields to the loop once per 50 pieces, like a client that finds 50 pieces in one network read. The baselines
do the same with a plain `asyncio.Queue` between two tasks, and with a bare loop that appends the pieces to a list.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from andon import Agent, Run
from andon.models.scripted import Burst, ScriptedModel
from bench.report import Figure, Goal, Progress, Row

EVERY = 50
PIECE = "word "


async def through_list(count: int) -> int:
    pieces: list[str] = []
    for number in range(1, count + 1):
        pieces.append(PIECE)
        if number % EVERY == 0:
            await asyncio.sleep(0)
    return len(pieces)


async def through_queue(count: int) -> int:
    queue: asyncio.Queue[str | None] = asyncio.Queue()

    async def produce() -> None:
        for number in range(1, count + 1):
            queue.put_nowait(PIECE)
            if number % EVERY == 0:
                await asyncio.sleep(0)
        queue.put_nowait(None)

    producer, seen = asyncio.create_task(produce()), 0
    while await queue.get() is not None:
        seen += 1
    await producer
    return seen


async def to_one(count: int) -> int:
    seen = 0
    async for _ in _agent(count).stream_async("Hello"):
        seen += 1
    return seen


async def to_ten(count: int) -> int:
    async def read(run: Run) -> int:
        seen = 0
        async for _ in run:
            seen += 1
        return seen

    async with _agent(count).start("Hello") as run:
        return min(await asyncio.gather(*(read(run) for _ in range(10))))


def _agent(count: int) -> Agent:
    return Agent("Fast", ScriptedModel(Burst(PIECE, count, every=EVERY)))


WAYS: list[tuple[str, Callable[[int], Awaitable[int]], tuple[Goal, ...]]] = [
    ("bare loop", through_list, ()),
    ("asyncio.Queue", through_queue, ()),
    ("to one reader", to_one, (Goal("per_second", 800_000, at_least=True),)),
    ("to each of ten", to_ten, (Goal("per_second", 250_000, at_least=True),)),
]


async def _rate(way: Callable[[int], Awaitable[int]], count: int) -> float:
    began = time.perf_counter()
    seen = await way(count)
    took = time.perf_counter() - began
    assert seen >= count
    return count / took


def measure(quick: bool, progress: Progress) -> Figure:
    count, repeats = (20_000, 3) if quick else (200_000, 11)
    rates: list[list[float]] = [[] for _ in WAYS]
    for repeat in range(repeats):
        progress(repeat + 1, repeats, "rounds over all ways")
        for (_, way, _), them in zip(WAYS, rates, strict=True):
            them.append(asyncio.run(_rate(way, count)))
    figure = Figure("throughput", f"events per second, {count:,} of them, {repeats} times")
    for (name, _, goals), them in zip(WAYS, rates, strict=True):
        figure.rows.append(Row(name, {"per_second": statistics.median(them), "best_per_second": max(them)}, goals))
    return figure
