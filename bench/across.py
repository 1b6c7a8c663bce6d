# SPDX-License-Identifier: Apache-2.0
"""A cancel that goes through the database: the run is in one server process, the cancel is sent to another.

`p50` and `p99` go from the moment at which the cancel is sent, over HTTP, to the one at which whoever watches the run,
at the first server, has read its end, which is stored by then. `asked` is the part of it that the receipt tells: from
the other server's asking to the moment at which the run stood still. One cancel at a time. Postgres has its own default
settings, and so waits for the disk at each commit; SQLite has ours.
"""

from __future__ import annotations

import asyncio
import gc
import time

import msgspec

from andon import Receipt
from bench.chaos.servers import DATABASES, Server, database, serving
from bench.http import Client, post
from bench.report import Figure, Goal, Progress, Row, percentile

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
                    for number in range(count):
                        done += 1
                        progress(done, total, f"{kind}, {name}")
                        taken.append(await cancel_once(here, there, f"{message}-{number}", message))
                    ends, stops = zip(*taken, strict=True)
                    values = {"p50_ms": percentile(ends, 0.5), "p99_ms": percentile(ends, 0.99), "max_ms": max(ends)}
                    values |= {"asked_p50_ms": percentile(stops, 0.5), "asked_p99_ms": percentile(stops, 0.99)}
                    figure.rows.append(Row(f"{kind}, {name}", values, [Goal("p99_ms", GOAL_MS[kind])]))
    return figure


def measure(quick: bool, progress: Progress) -> Figure:
    return asyncio.run(_measure(10 if quick else 300, progress))
