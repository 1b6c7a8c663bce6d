# SPDX-License-Identifier: Apache-2.0
"""What open boards cost a server, and how smoothly a browser shows one.

- `cpu percent` is the server's CPU time, as a share of one core, while 1,000 runs are silent: without a board, and with
  100 boards. On SQLite the runs are at one server, and the boards at a second one. `boards percent` is the difference.
- A real Chromium shows a board with 1,000 runs, and 100 of them stream. A frame is the time from one drawing of the
  page to the next: at best 16.7 ms. A task is what keeps the page's thread busy without a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
import statistics
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from playwright.async_api import async_playwright

from bench.chaos.servers import Server, serving
from bench.gauges import Cpu
from bench.loads import PER_SECOND, Connection, hold, running, stream
from bench.network import network_at_rest
from bench.report import Figure, Goal, Progress, Row, percentile
from bench.store import AGENT, LEASE, MEMORY, place

CORE_GOAL = 10.0
FRAME_GOAL_MS = 50.0
WARM_UP_SECONDS = 2.0
BROWSER = "chromium"

WATCH_FRAMES = """() => {
  const seen = { frames: [], tasks: [] }
  window.benchSeen = seen
  let last = performance.now()
  const frame = (now) => { seen.frames.push(now - last); last = now; requestAnimationFrame(frame) }
  requestAnimationFrame(frame)
  new PerformanceObserver((list) => { for (const each of list.getEntries()) seen.tasks.push(each.duration) })
    .observe({ type: "longtask" })
}"""


@dataclass(frozen=True)
class Scale:
    turns: int = 5
    held: int = 1_000
    boards: int = 100
    streams: int = 100
    seconds: float = 5.0


QUICK = Scale(1, 20, 3, 3, 0.5)


@contextlib.asynccontextmanager
async def open_boards(port: int, count: int) -> AsyncIterator[None]:
    """So many boards, each of which reads all that it is sent."""

    async def read(connection: Connection) -> None:
        await connection.read_to(b"never")

    async with contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(count):
            connection = await stack.enter_async_context(Connection.to(port))
            await connection.ask("GET", "/board/events")
            await connection.read_to(b'"reset":true')
            readers.append(asyncio.create_task(read(connection)))
        try:
            yield
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.wait(readers)


async def cost(server: Server, boards: int, seconds: float) -> float:
    """The server's share of a core."""
    async with contextlib.AsyncExitStack() as stack:
        if boards:
            await stack.enter_async_context(open_boards(server.port, boards))
        await asyncio.sleep(min(seconds, WARM_UP_SECONDS))
        cpu = Cpu(server.pid)
        await asyncio.sleep(seconds)
        return cpu.percent


async def quiet(name: str, server: Server, scale: Scale, turn: Any) -> Row:
    """In turns, of which the median counts."""
    without, watched = [], []
    for _ in range(scale.turns):
        turn(name)
        without.append(await cost(server, 0, scale.seconds))
        watched.append(await cost(server, scale.boards, scale.seconds))
    percent, base = statistics.median(watched), statistics.median(without)
    values = {"cpu_percent": percent, "without_percent": base, "boards_percent": max(0.0, percent - base)}
    return Row(name, values, [Goal("boards_percent", CORE_GOAL)])


@contextlib.asynccontextmanager
async def streaming(port: int, count: int, seconds: float) -> AsyncIterator[None]:
    tokens = int(PER_SECOND * (seconds + WARM_UP_SECONDS + 10))
    tasks = [asyncio.create_task(stream(port, f"slow {tokens}")) for _ in range(count)]
    try:
        yield
    finally:
        for task in tasks:  # a client that leaves ends its run
            task.cancel()
        await asyncio.wait(tasks)


async def shown(server: Server, scale: Scale, seconds: float) -> dict[str, float]:
    """How a browser draws the board, in milliseconds."""
    async with async_playwright() as playwright, streaming(server.port, scale.streams, seconds):
        browser = await playwright.chromium.launch(executable_path=shutil.which(BROWSER), args=["--no-sandbox"])
        try:
            page = await browser.new_page()
            await page.goto(server.url)
            await page.get_by_text("silent-0", exact=True).first.wait_for()
            await asyncio.sleep(min(seconds, WARM_UP_SECONDS))
            await page.evaluate(WATCH_FRAMES)
            await asyncio.sleep(seconds)
            seen = await page.evaluate("() => window.benchSeen")
        finally:
            await browser.close()
    frames = seen["frames"][1:]
    return {
        "frame_p50_ms": statistics.median(frames),
        "frame_p99_ms": percentile(frames, 0.99),
        "longest_frame_ms": max(frames),
        "long_tasks": len(seen["tasks"]),
    }


async def _measure(scale: Scale, progress: Progress) -> Figure:
    figure = Figure("boards", f"{scale.boards} boards of {scale.held:,} runs; medians of {scale.turns} turns")
    done, steps = 0, 3 * scale.turns

    def turn(what: str) -> None:
        nonlocal done
        done += 1
        progress(done, steps, what)

    gc.collect()
    gc.freeze()  # what other figures have left here is not the clients' to look after
    options = ["--max-runs", str(2 * scale.held)]
    with place("sqlite") as where:
        async with (
            serving(AGENT, where, 1, LEASE, options=options) as (here,),
            serving(AGENT, where, 1, LEASE, options=options) as (there,),
        ):
            await hold(here.port, range(await running(here.port), scale.held))
            figure.rows.append(await quiet("sqlite, runs at another server", there, scale, turn))
    with place(MEMORY) as nowhere:
        async with serving(AGENT, nowhere, 1, LEASE, options=options) as (memory,):
            await hold(memory.port, range(scale.held))
            figure.rows.append(await quiet("memory", memory, scale, turn))
            taken = []
            for _ in range(scale.turns):
                turn("a browser")
                taken.append(await shown(memory, scale, scale.seconds))
            values = {name: statistics.median(each[name] for each in taken) for name in taken[0]}
            goals = [Goal("frame_p99_ms", FRAME_GOAL_MS), Goal("longest_frame_ms", FRAME_GOAL_MS)]
            figure.rows.append(Row(f"a browser, {scale.streams} runs stream", values, goals))
    return figure


def measure(quick: bool, progress: Progress) -> Figure:
    with network_at_rest():
        return asyncio.run(_measure(QUICK if quick else Scale(), progress))
