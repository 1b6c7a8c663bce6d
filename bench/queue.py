# SPDX-License-Identifier: Apache-2.0
"""Runs that one process accepts and another one executes, beside runs that the server executes itself.

Servers (`andon serve --no-execute`), workers (`andon worker`) and clients share this machine, and use one Postgres with
its default settings, so it waits for the disk. First token: from the request until the client has read the first text;
one request at a time. Started: short runs per second, by 16 clients, each of which waits for a result before it starts
the next run. Cancel at a worker: from the request until a reader of the run, at the server, has read its end. Cancel of
a waiting run: from the request until the answer with the receipt. Waiting runs belong to an agent that no worker has,
each to a user of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from bench.across import cancel_once
from bench.chaos.servers import Database, Server, database, serving, working
from bench.http import Client, post
from bench.loads import CLIENTS, Connection, short_runs
from bench.report import Figure, Goal, Progress, Row, percentile
from bench.stolen import Stolen

SERVED = "bench.loads:queued"
WORKED = "bench.loads:agent"
LEASE = 10.0
CANCEL_GOAL_MS = 25.0
WARM_UP = 5


@dataclass(frozen=True)
class Scale:
    """How much is done."""

    samples: int
    seconds: float
    workers: tuple[int, ...]
    waiting: tuple[int, ...]


FULL = Scale(150, 4.0, (1, 2, 3, 6), (100, 1_000, 5_000))
QUICK = Scale(3, 0.3, (1,), (5,))


async def _first_token(server: Server, name: str) -> float:
    began = time.perf_counter()
    client = await Client.begin(server.port, name, "wait")
    taken = time.perf_counter() - began
    end = asyncio.ensure_future(client.end())
    await post(server.port, f"/agents/bench/runs/{name}/cancel")
    await end
    return taken * 1000


async def _cancel_waiting(server: Server, name: str) -> float:
    path = f"/agents/idle/runs/{name}/cancel?wait=10"
    async with Connection.to(server.port) as connection:
        await connection.fetch("POST", "/agents/idle/runs", f"message=go&stream=false&background=true&run_id={name}")
        began = time.perf_counter()
        await connection.fetch("POST", path)
        return (time.perf_counter() - began) * 1000


async def _sampled(count: int, once: Callable[[str], Awaitable[float]], name: str) -> dict[str, float]:
    for number in range(WARM_UP):
        await once(f"{name}-warm-{number}")
    taken = [await once(f"{name}-{number}") for number in range(count)]
    return {"p50_ms": percentile(taken, 0.5), "p99_ms": percentile(taken, 0.99)}


async def _put_waiting(server: Server, which: range) -> None:
    """Runs that no worker takes."""
    numbers = iter(which)

    async def client() -> None:
        async with Connection.to(server.port) as connection:
            for number in numbers:
                body = f"message=go&stream=false&background=true&run_id=idle-{number}&user_id=user-{number}"
                await connection.fetch("POST", "/agents/idle/runs", f"{body}&on_full=queue")

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


@contextlib.asynccontextmanager
async def _queue(place: Database, workers: int, agents: str = WORKED) -> AsyncIterator[Server]:
    options = ("--no-execute", "--max-runs", "100000", "--max-agent-runs", "100000", "--max-waiting-runs", "100000")
    urls, nowhere = [place.url] * workers, [None] * workers
    async with (
        serving(SERVED, place, 1, LEASE, options=options) as (server,),
        working(agents, place, LEASE, urls, nowhere, [{}] * workers),
    ):
        yield server


async def _measure(scale: Scale, progress: Progress) -> Figure:
    figure = Figure("queue", "Runs through the queue to worker processes, beside runs in the server's own process")
    gc.collect()
    gc.freeze()  # what other figures have left here is not the clients' to look after
    total, done = 4 + 2 * len(scale.workers) + 3 * len(scale.waiting), 0

    async def row(name: str, values: Awaitable[dict[str, float]], *goals: Goal) -> None:
        nonlocal done
        done += 1
        progress(done, total, name)
        stolen = Stolen()
        measured = await values
        if (share := stolen.share()) is not None:
            measured["others_percent"] = share * 100
        figure.rows.append(Row(name, measured, goals))

    async def started(server: Server) -> dict[str, float]:
        count, seconds = await short_runs(server.port, scale.seconds)
        return {"runs_per_second": count / seconds}

    with database("postgres", settings="") as place:
        async with serving(SERVED, place, 1, LEASE) as (server,):
            own = server
            await row(
                "first token, in the server", _sampled(scale.samples, lambda name: _first_token(own, name), "own")
            )
            await row("started, in the server", started(own))
        for workers in scale.workers:
            async with _queue(place, workers) as through:
                named = f"{workers} worker{'s' if workers > 1 else ''}"

                async def first(name: str, server: Server = through) -> float:
                    return await _first_token(server, name)

                async def cancel(name: str, server: Server = through) -> float:
                    return (await cancel_once(server, server, name, "wait"))[0]

                await row(f"first token, {named}", _sampled(scale.samples, first, f"first-{workers}"))
                await row(f"started, {named}", started(through))
                if workers == 1:
                    cancelled = _sampled(scale.samples, cancel, "cancel")
                    await row("cancel at a worker", cancelled, Goal("p99_ms", CANCEL_GOAL_MS))
        async with _queue(place, 1) as through:
            before = 0
            for count in scale.waiting:
                await _put_waiting(through, range(before, count))
                before = count

                async def first(name: str, server: Server = through) -> float:
                    return await _first_token(server, name)

                async def waiting(name: str, server: Server = through) -> float:
                    return await _cancel_waiting(server, name)

                await row(f"first token, {count:,} waiting", _sampled(scale.samples, first, f"among-{count}"))
                await row(f"started, {count:,} waiting", started(through))
                await row(
                    f"cancel of a waiting run, {count:,} waiting", _sampled(scale.samples, waiting, f"of-{count}")
                )
    return figure


def measure(quick: bool, progress: Progress) -> Figure:
    return asyncio.run(_measure(QUICK if quick else FULL, progress))
