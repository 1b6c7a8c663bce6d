# SPDX-License-Identifier: Apache-2.0
"""The cost of a database for a server: stored tokens, watchers, short runs, and silent runs.

Each server is `andon serve` in its own process. CPU is the CPU time of that process, without that of Postgres itself.
Each token has five bytes.

- Tokens: at full speed, one client reads one run; at 100 a second there are 20 runs at once. `table` is the growth of
  the table of events and its index. `all tables` is the growth of all tables (the text is also in the run's messages,
  its record and its last event). `log` is the size of the write-ahead log. All are in kB per 1,000 tokens.
- Watchers read silent runs at a second server, while another run streams at the first. `cpu percent` is the second
  server's share of a core. `watching percent` is its increase over the same server without watchers.
- Short runs: 16 clients, each of which waits for a result before it starts the next run. `times memory` compares with a
  server that keeps everything in memory; the two alternate.
- Silent runs have streamed one word, and wait for their model.

Postgres has its default settings, so it waits for the disk; SQLite has Andon's settings. `others` is the CPU steal
(`bench/stolen.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.chaos.servers import DATABASES, Database, Server, database, serving
from bench.gauges import Cpu, Written, written
from bench.loads import PER_SECOND, hold, running, short_runs, stream, watching
from bench.report import Figure, Goal, Progress, Row
from bench.stolen import Stolen

AGENT = "bench.loads:agent"
LEASE = 10.0
MEMORY = "memory"
SHORT_GOALS = {"sqlite": (0.19, 4.5), "postgres": (0.15, 5.6)}
"""Twice what it was when this figure was made: 112 and 90 a second, beside 1,180 in memory. And the processor time that
each run may then take: the server's process is the limit, and its time can be compared on a busy machine too.
"""
BESIDE_GOAL = 0.9
SILENT_GOAL = 5
TOKENS_GOAL_MS = 10
TABLE_GOAL = Goal("table_kb_per_1000", 25)
WATCHING_GOAL = 1
"""Percent of a core, for all of them: less can't be told from nothing."""
WATCHING_TURNS = 2
SLOW_RUNS = 20
"""A few would write too little: tables grow by pages of 4 or 8 kB, and Postgres adds several at once."""
ROWS = 7 * len(DATABASES) + 4
SPEEDS = {"fast": "at full speed", "slow": f"at {PER_SECOND} a second"}


@dataclass(frozen=True)
class Scale:
    """How much is done. Most of it is done in several short turns, of which the median counts."""

    turns: int = 5
    short_seconds: float = 1.0
    held: int = 1_000
    settle_seconds: float = 4.0
    silent_seconds: float = 10.0
    tokens: int = 20_000
    slow_seconds: float = 10.0
    watchers: int = 10
    watching_seconds: float = 1.5


QUICK = Scale(1, 0.2, 20, 0.2, 0.5, 2_000, 0.2, 2, 0.2)


@contextlib.contextmanager
def place(kind: str) -> Iterator[Database]:
    if kind != MEMORY:
        with database(kind, settings="") as made:
            yield made
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Database("memory://", Path(folder))


class Bench:
    """The rows, and what they have in common."""

    def __init__(self, scale: Scale, progress: Progress) -> None:
        self.scale, self._progress = scale, progress
        self.figure = Figure("store", "short runs, silent runs, tokens and watchers, by database")
        self._done, self._stolen = 0, Stolen()

    def step(self, what: str) -> None:
        self._done += 1
        self._stolen = Stolen()
        self._progress(self._done, ROWS, what)

    def row(self, name: str, values: dict[str, float], *goals: Goal) -> None:
        if (share := self._stolen.share()) is not None:
            values = {"others_percent": share * 100} | values
        self.figure.rows.append(Row(name, values, goals))


class Pace:
    """Short runs at one server, in turns."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._rates: list[float] = []
        self._costs: list[float] = []

    async def warm_up(self, seconds: float) -> None:
        await short_runs(self._server.port, seconds)

    async def turn(self, seconds: float) -> None:
        cpu = Cpu(self._server.pid)
        count, taken = await short_runs(self._server.port, seconds)
        self._rates.append(count / taken)
        self._costs.append(cpu.ms / count)

    @property
    def rate(self) -> float:
        return statistics.median(self._rates)

    @property
    def values(self) -> dict[str, float]:
        return {"runs_per_second": self.rate, "cpu_ms_each": statistics.median(self._costs)}


def _written(sizes: Written, count: int) -> dict[str, float]:
    return {
        "table_kb_per_1000": sizes.table / count,
        "all_tables_kb_per_1000": sizes.tables / count,
        "log_kb_per_1000": sizes.log / count,
    }


async def _tokens(bench: Bench, kind: str, where: Database, server: Server) -> None:
    name = f"{kind}, tokens {SPEEDS['fast']}"
    bench.step(name)
    count, taken = bench.scale.tokens, []
    for _ in range(bench.scale.turns + 1):  # the first one warms up
        cpu = Cpu(server.pid)
        await stream(server.port, f"fast {count}")
        taken.append(cpu.ms * 1000 / count)
    values = {"cpu_ms_per_1000": statistics.median(taken[1:])}
    goals = [Goal("cpu_ms_per_1000", TOKENS_GOAL_MS)] if kind == "sqlite" else []
    if kind != MEMORY:
        with written(where) as sizes:
            await stream(server.port, f"fast {count}")
        values |= _written(sizes, count)
        goals.append(TABLE_GOAL)
    bench.row(name, values, *goals)


async def _slow_tokens(bench: Bench, kind: str, where: Database, server: Server) -> None:
    name = f"{kind}, tokens {SPEEDS['slow']}"
    bench.step(name)
    each = int(bench.scale.slow_seconds * PER_SECOND)
    cpu, count = Cpu(server.pid), each * SLOW_RUNS
    with written(where) as sizes:
        await asyncio.gather(*(stream(server.port, f"slow {each}") for _ in range(SLOW_RUNS)))
        values = {"cpu_ms_per_1000": cpu.ms * 1000 / count}
    values |= _written(sizes, count)
    bench.row(name, values, TABLE_GOAL)


async def _watchers(bench: Bench, kind: str, here: Server, there: Server) -> None:
    scale = bench.scale
    await hold(here.port, range(scale.watchers))
    for speed, how in SPEEDS.items():
        name = f"{kind}, {scale.watchers} watchers, another run {how}"
        bench.step(name)
        watched, not_watched = [], []
        for _ in range(WATCHING_TURNS):
            not_watched.append(await _beside(here, there, speed, scale))
            async with watching(there.port, scale.watchers):
                watched.append(await _beside(here, there, speed, scale))
        cpu, without = statistics.mean(watched), statistics.mean(not_watched)
        values = {"cpu_percent": cpu, "watching_percent": max(0.0, cpu - without)}
        bench.row(name, values, Goal("watching_percent", WATCHING_GOAL))


async def _beside(here: Server, there: Server, speed: str, scale: Scale) -> float:
    """The percentage of a core that one server needs while a run speaks at the other one."""
    until, cpu = time.perf_counter() + scale.watching_seconds, Cpu(there.pid)
    if speed == "slow":
        await stream(here.port, f"slow {int(scale.watching_seconds * PER_SECOND)}")
    while time.perf_counter() < until:
        await stream(here.port, f"fast {scale.tokens}")
    return cpu.percent


async def _short_runs(bench: Bench, kind: str, server: Server, base: Server | None = None) -> Pace:
    """With a base, in turns with the same there."""
    seconds, name = bench.scale.short_seconds, f"{kind}, short runs"
    bench.step(name)
    alone, *compared = paces = [Pace(each) for each in (server, base) if each is not None]
    for pace in paces:
        await pace.warm_up(seconds)
    for _ in range(bench.scale.turns):
        for pace in paces:
            await pace.turn(seconds)
    if compared:
        share, ms = SHORT_GOALS[kind]
        values = alone.values | {"times_memory": alone.rate / compared[0].rate}
        bench.row(name, values, Goal("times_memory", share, at_least=True), Goal("cpu_ms_each", ms))
    else:
        bench.row(name, alone.values)
    return alone


async def _silent_runs(bench: Bench, kind: str, server: Server, alone: Pace) -> None:
    """They alone, and short ones beside them."""
    scale = bench.scale
    bench.step(f"{kind}, {scale.held:,} silent runs")
    await hold(server.port, range(await running(server.port), scale.held))
    await asyncio.sleep(scale.settle_seconds)
    cpu = Cpu(server.pid)
    await asyncio.sleep(scale.silent_seconds)
    bench.row(f"{kind}, {scale.held:,} silent runs", {"cpu_percent": cpu.percent}, Goal("cpu_percent", SILENT_GOAL))

    name = f"{kind}, short runs beside {scale.held:,} silent ones"
    bench.step(name)
    beside = Pace(server)
    for _ in range(scale.turns):
        await beside.turn(scale.short_seconds)
    values = beside.values | {"times_alone": beside.rate / alone.rate, "silent_left": await running(server.port)}
    # A lease that was lost meanwhile costs nothing any more: what is cheap in that way doesn't count.
    goals = [Goal("times_alone", BESIDE_GOAL, at_least=True), Goal("silent_left", scale.held, at_least=True)]
    bench.row(name, values, *goals)


async def _measure(scale: Scale, progress: Progress) -> Figure:
    bench = Bench(scale, progress)
    gc.collect()
    gc.freeze()  # what other figures have left here is not the clients' to look after
    options = ["--max-runs", str(2 * scale.held)]
    with place(MEMORY) as nowhere:
        async with serving(AGENT, nowhere, 1, LEASE, options=options) as (memory,):
            for kind in DATABASES:
                with place(kind) as where:
                    async with serving(AGENT, where, 1, LEASE, options=options) as (here,):
                        await _tokens(bench, kind, where, here)
                        await _slow_tokens(bench, kind, where, here)
                        async with serving(AGENT, where, 1, LEASE) as (there,):
                            await _watchers(bench, kind, here, there)
                        alone = await _short_runs(bench, kind, here, memory)
                        await _silent_runs(bench, kind, here, alone)
            await _tokens(bench, MEMORY, nowhere, memory)
            await _silent_runs(bench, MEMORY, memory, await _short_runs(bench, MEMORY, memory))
    return bench.figure


def measure(quick: bool, progress: Progress) -> Figure:
    return asyncio.run(_measure(QUICK if quick else Scale(), progress))
