# SPDX-License-Identifier: Apache-2.0
"""Text of a run that one process executes and another one streams to its clients: through Postgres, and through Redis.

`embedded` is the base: one `andon serve` that executes the run itself, on the same Postgres. In the other rows a
worker process executes the run, and a server with --no-execute streams it; `redis` adds `--events`. The readers are SSE
clients of that server, all in the process of this benchmark.

- At full speed: `tokens per s` is from the first token at any reader to the last one at all readers. `times embedded`
  is this rate divided by that of the embedded row with as many readers. `read` counts the tokens at all readers.
- At 50 tokens a second: 20 runs at once, each with one reader. `p50` and `p99` are from the model's push to the reader.
  `rows` are the rows in the table of events.

`server`, `worker`, `postgres` and `redis` are CPU times in ms, per 1,000 tokens, with what the processes do besides.
`table` and `log` are kB per 1,000 tokens: the growth of the table of events with its index, and the size of the
write-ahead log. Postgres has its default settings. `others` is the CPU steal (`bench/stolen.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped] # it comes with the Postgres of the tests
import psycopg

from bench.chaos.servers import ROOT, Database, database, serving
from bench.event_loads import PER_SECOND
from bench.gauges import Cpu, written
from bench.loads import PATH, Connection
from bench.report import Figure, Goal, Progress, Row, percentile
from bench.stolen import Stolen
from tests.support.redis_server import RedisServer

AGENT = "bench.event_loads:agent"
LEASE = 10.0
PROGRAM = "redis-server"
WAYS = ("embedded", "postgres", "redis")
GOALS = {"postgres": (300, 160), "redis": (100, 20)}
"""At 50 tokens a second: the p99 of the delay in ms, and the rows per 1,000 tokens."""
APART_SECONDS = 0.13
"""Between the starts of two paced runs: else all would end in the same moment."""
STAMP = re.compile(rb'"content":"(\d+\.\d{6}) "')
END = b"event: RunCompleted"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Scale:
    readers: tuple[int, ...] = (1, 10, 100)
    read: int = 400_000
    """How many tokens all readers read together, at the most."""
    tokens: int = 20_000
    turns: int = 3
    paced_seconds: float = 20.0
    paced_runs: int = 20

    def tokens_for(self, readers: int) -> int:
        return min(self.tokens, self.read // readers)


QUICK = Scale((1, 10, 100), 20_000, 2_000, 1, 2.0, 5)
ROWS = len(WAYS) * (len(Scale.readers) + 1)


class PostgresCpu:
    """The processor time of all processes of a Postgres, in steps of 10 ms."""

    def __init__(self, where: Database) -> None:
        self._pid = int((where.folder / "data" / "postmaster.pid").read_text().split()[0])
        self._before = self._now()

    def _now(self) -> float:
        main = psutil.Process(self._pid)
        total = 0.0
        for each in [main, *main.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                total += times.user + times.system
        return total

    @property
    def ms(self) -> float:
        return max(0.0, self._now() - self._before) * 1000


@dataclass
class Processes:
    """What takes part in one way of streaming."""

    port: int
    where: Database
    pids: dict[str, int] = field(default_factory=dict)

    def gauges(self) -> dict[str, Cpu | PostgresCpu]:
        return {"postgres": PostgresCpu(self.where), **{name: Cpu(pid) for name, pid in self.pids.items()}}


@contextlib.asynccontextmanager
async def working(where: Database, options: Sequence[str]) -> AsyncIterator[int]:
    """A worker process, by its id."""
    command = [sys.executable, "-m", "andon", "worker", AGENT, "--db", where.url, "--lease", str(LEASE), *options]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_")}
    with (where.folder / "worker.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=inherited, stdout=asyncio.subprocess.PIPE, stderr=log
        )
    assert process.stdout is not None
    try:
        if b"serves" not in await process.stdout.readline():
            raise RuntimeError(f"the worker did not start: {(where.folder / 'worker.log').read_text()[-2000:]}")
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def started(way: str, where: Database) -> AsyncIterator[Processes]:
    async with contextlib.AsyncExitStack() as stack:
        options: list[str] = []
        found: dict[str, int] = {}
        if way == "redis":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            redis = RedisServer(shutil.which(PROGRAM) or PROGRAM, Path(folder))
            stack.callback(redis.kill)
            options, found = ["--events", redis.url], {"redis": redis.pid}
        execute = [] if way == "embedded" else ["--no-execute"]
        (server,) = await stack.enter_async_context(serving(AGENT, where, 1, LEASE, options=[*options, *execute]))
        found["server"] = server.pid
        if way != "embedded":
            found["worker"] = await stack.enter_async_context(working(where, options))
        yield Processes(server.port, where, found)


class Reading:
    """One client that reads a run to its end."""

    def __init__(self) -> None:
        self.first = self.last = 0.0
        self.delays: list[float] = []

    async def read(self, connection: Connection, run_id: str) -> None:
        await connection.ask("GET", f"{PATH}/{run_id}/events")
        left = b""
        async for chunk in connection.chunks():
            now, left = time.monotonic(), left[-200:] + chunk
            if not self.first and b"event: RunContent" in left:
                self.first = now
            self.delays += [now - float(stamp) for stamp in STAMP.findall(chunk)]
            if END in left:
                self.last = now
                return


async def read_run(port: int, message: str, readers: int, delay: float = 0.0) -> list[Reading]:
    await asyncio.sleep(delay)
    run_id = f"run-{next(_numbers)}"
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(Connection.to(port)) for _ in range(readers)]
        first = await stack.enter_async_context(Connection.to(port))
        await first.fetch("POST", PATH, f"message={message}&stream=false&background=true&run_id={run_id}")
        readings = [Reading() for _ in opened]
        pairs = zip(readings, opened, strict=True)
        await asyncio.gather(*(reading.read(connection, run_id) for reading, connection in pairs))
    return readings


class Bench:
    def __init__(self, scale: Scale, progress: Progress) -> None:
        self._scale, self._progress, self._done = scale, progress, 0
        self.figure = Figure(
            "events", "text of a run elsewhere, to its readers: CPU and kB per 1,000 tokens, delay in ms"
        )
        self._base: dict[str, float] = {}

    def _step(self, name: str) -> Stolen:
        self._done += 1
        self._progress(self._done, ROWS, name)
        return Stolen()

    def _row(self, name: str, values: dict[str, float], stolen: Stolen, *goals: Goal) -> None:
        if (share := stolen.share()) is not None:
            values = {"others_percent": share * 100} | values
        self.figure.rows.append(Row(name, values, goals))

    async def fast(self, way: str, processes: Processes, readers: int) -> None:
        name, count = f"{way}, {readers} readers", self._scale.tokens_for(readers)
        stolen, rates = self._step(name), []
        await read_run(processes.port, "fast 100", 1)
        gauges = processes.gauges()
        for _ in range(self._scale.turns):
            readings = await read_run(processes.port, f"fast {count}", readers)
            rates.append(count / (max(each.last for each in readings) - min(each.first for each in readings)))
        rate = sorted(rates)[len(rates) // 2]
        base = self._base.setdefault(f"{readers} readers", rate)
        values = {"tokens_per_s": rate, "read_per_s": rate * readers, "times_embedded": rate / base}
        values |= self._cpu(gauges, count * self._scale.turns)
        self._row(name, values, stolen)

    async def paced(self, way: str, processes: Processes) -> None:
        name, each = f"{way}, {PER_SECOND} tokens a second", int(self._scale.paced_seconds * PER_SECOND)
        stolen, gauges, count = self._step(name), processes.gauges(), each * self._scale.paced_runs
        rows = count_rows(processes.where.url)
        with written(processes.where) as sizes:
            starts = (number * APART_SECONDS for number in range(self._scale.paced_runs))
            runs = (read_run(processes.port, f"stamps {each}", 1, delay) for delay in starts)
            delays = [delay for (reading,) in await asyncio.gather(*runs) for delay in reading.delays]
        p50 = percentile(delays, 0.5) * 1000
        values = {"p50_ms": p50, "p99_ms": percentile(delays, 0.99) * 1000}
        values |= {"times_embedded": p50 / self._base.setdefault("paced", p50)}
        values |= {"rows_per_1000": (count_rows(processes.where.url) - rows) * 1000 / count}
        values |= {"table_kb_per_1000": sizes.table / count, "log_kb_per_1000": sizes.log / count}
        goals = [Goal(of, limit) for of, limit in zip(("p99_ms", "rows_per_1000"), GOALS.get(way, ()), strict=False)]
        self._row(name, values | self._cpu(gauges, count), stolen, *goals)

    def _cpu(self, gauges: dict[str, Cpu | PostgresCpu], count: int) -> dict[str, float]:
        return {f"{name}_ms_per_1000": gauge.ms * 1000 / count for name, gauge in gauges.items()}


def count_rows(url: str) -> int:
    with psycopg.connect(url) as connection:
        (count,) = connection.execute("SELECT count(*) FROM andon_events").fetchone() or (0,)
        return int(count)


async def _measure(scale: Scale, progress: Progress) -> Figure:
    bench = Bench(scale, progress)
    gc.collect()
    gc.freeze()  # what other figures have left here is not the clients' to look after
    with database("postgres", settings="") as where:
        for way in WAYS:
            async with started(way, where) as processes:
                for readers in scale.readers:
                    await bench.fast(way, processes, readers)
                await bench.paced(way, processes)
    return bench.figure


def measure(quick: bool, progress: Progress) -> Figure:
    return asyncio.run(_measure(QUICK if quick else Scale(), progress))
