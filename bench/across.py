# SPDX-License-Identifier: Apache-2.0
"""A cancel that goes through the database: the run is in one server process, the cancel is sent to another.

`p50` and `p99` start when the cancel is sent over HTTP. They end when a reader of the run, at the first server, has
read its end, which is stored by then. `asked` is the part that is in the receipt: from the request at the other server
until the run has stopped. There is one cancel at a time. Postgres has its default settings, so it waits for the disk;
SQLite has Andon's settings. The baseline shows the time of the database itself: one connection commits a change,
another one is notified if the database does that, and answers with a second commit; in one process, with the bare
driver. `others` is the CPU steal (`bench/stolen.py`): each row takes only seconds, and in some of them it is a third.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
import time
from collections.abc import Callable, Iterator

import msgspec
import psycopg

from andon import Receipt
from bench.chaos.servers import DATABASES, Database, Server, database, serving
from bench.http import Client, post
from bench.report import Figure, Goal, Progress, Row, percentile
from bench.stolen import Stolen

GOAL_MS = {"sqlite": 50, "postgres": 20}
KINDS = {"waiting": "wait", "streaming": "talk"}
LEASE = 10.0
WARM_UP = 5


class Ended(msgspec.Struct):
    """What is of interest of a terminal event."""

    receipt: Receipt


async def cancel_once(here: Server, there: Server, run_id: str, message: str) -> tuple[float, float]:
    """Milliseconds from the cancel to the reader's last event, and from the asking to the stop."""
    client = await Client.begin(here.port, run_id, message)
    end = asyncio.ensure_future(client.end())
    start = time.perf_counter()
    await post(there.port, f"/agents/bench/runs/{run_id}/cancel")
    taken = await end - start
    receipt = msgspec.json.decode(client.last, type=Ended).receipt
    return taken * 1000, receipt.latency * 1000


def _bare(place: Database, count: int) -> list[float]:
    exchange = _bare_file if place.url.startswith("sqlite") else _bare_server
    with exchange(place.url) as once:
        once()
        taken = []
        for _ in range(count):
            start = time.perf_counter()
            once()
            taken.append((time.perf_counter() - start) * 1000)
        return taken


@contextlib.contextmanager
def _bare_file(url: str) -> Iterator[Callable[[], None]]:
    path = url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path)) as one, contextlib.closing(sqlite3.connect(path)) as two:
        for connection in (one, two):
            connection.isolation_level = None
            connection.execute("PRAGMA synchronous=normal")
        one.execute("CREATE TABLE bare (asked INTEGER, ended INTEGER)")
        one.execute("INSERT INTO bare VALUES (0, 0)")

        def once() -> None:
            one.execute("UPDATE bare SET asked = asked + 1")
            two.execute("UPDATE bare SET ended = ended + 1")

        yield once


@contextlib.contextmanager
def _bare_server(url: str) -> Iterator[Callable[[], None]]:
    with psycopg.connect(url) as one, psycopg.connect(url, autocommit=True) as two:
        two.execute("CREATE TABLE bare AS SELECT 0 AS asked, 0 AS ended")
        two.execute("LISTEN bare")

        def once() -> None:
            one.execute("UPDATE bare SET asked = asked + 1")
            one.execute("NOTIFY bare")
            one.commit()
            next(two.notifies(timeout=10, stop_after=1))
            two.execute("UPDATE bare SET ended = ended + 1")

        yield once


async def _measure(count: int, progress: Progress) -> Figure:
    figure = Figure("across", f"{count} cancels sent to another server process than the run's; ms to its end")
    gc.collect()
    gc.freeze()  # what other figures have left here is not the clients' to look after
    total, done = len(DATABASES) * len(KINDS) * count, 0
    for kind in DATABASES:
        with database(kind, settings="") as place:
            async with serving("bench.http:talker", place, 2, LEASE) as (here, there):
                for number in range(WARM_UP):
                    await cancel_once(here, there, f"warm-{number}", "wait")
                for name, message in KINDS.items():
                    taken: list[tuple[float, float]] = []
                    stolen = Stolen()
                    for number in range(count):
                        done += 1
                        progress(done, total, f"{kind}, {name}")
                        taken.append(await cancel_once(here, there, f"{message}-{number}", message))
                    ends, stops = zip(*taken, strict=True)
                    values = {"p50_ms": percentile(ends, 0.5), "p99_ms": percentile(ends, 0.99), "max_ms": max(ends)}
                    values |= {"asked_p50_ms": percentile(stops, 0.5), "asked_p99_ms": percentile(stops, 0.99)}
                    if (share := stolen.share()) is not None:
                        values["others_percent"] = share * 100
                    figure.rows.append(Row(f"{kind}, {name}", values, [Goal("p99_ms", GOAL_MS[kind])]))
            bare = await asyncio.to_thread(_bare, place, count)
            values = {"p50_ms": percentile(bare, 0.5), "p99_ms": percentile(bare, 0.99), "max_ms": max(bare)}
            figure.rows.append(Row(f"{kind}, two bare commits", values))
    return figure


def measure(quick: bool, progress: Progress) -> Figure:
    return asyncio.run(_measure(10 if quick else 300, progress))
