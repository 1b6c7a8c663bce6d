# SPDX-License-Identifier: Apache-2.0
"""One user keeps the server as busy as possible: how long the cancels of other users take, and whether they lose runs.

The bad neighbour sends states of 4 MB, which are refused. He has several connections, and fills one session per
connection with the largest allowed state. Then, on all connections at once and without a pause, he changes a part of
those states, reads the sessions, lists them, creates new ones, and sends the 4 MB again. Meanwhile other users start
runs and cancel them, one at a time: `p50`, `p99` and `max` go from sending the cancel to reading the end. Some of their
runs stay active all the time: `lost_runs` counts those that were not running any more at the end. The lease is short,
so it is renewed many times. `requests_per_s` counts the neighbour's answered requests. He and the clients are in this
process, the server is in another one, on the same machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import time
from collections.abc import AsyncIterator

from andon.store.state import MAX_STATE
from bench.chaos.servers import DATABASES, database, serving
from bench.http import Client, post
from bench.report import Figure, Goal, Progress, Row, percentile

GOAL_MS = 500
LEASE = 2.0
CONNECTIONS = 14
HELD = 5
WARM_UP = 3
SESSIONS = "/apps/bench/users/mallory/sessions"
TOO_LARGE = json.dumps({"stateDelta": {"x": "x" * (4 * 2**20 - 100)}}).encode()
LARGEST = json.dumps({"state": {"x": "x" * (MAX_STATE - 1000)}}).encode()


class Neighbour:
    """One connection of his."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.answer = b""
        """The body of the last one."""

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, port: int) -> AsyncIterator[Neighbour]:
        self = cls(*await asyncio.open_connection("127.0.0.1", port))
        try:
            yield self
        finally:
            self._writer.close()

    async def ask(self, method: str, path: str, body: bytes = b"") -> int:
        """The status of the answer."""
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        self.answer = await self._reader.readexactly(int(answer.partition("content-length: ")[2].partition("\r\n")[0]))
        return int(answer.split()[1])

    async def fill(self, name: str) -> None:
        """Have one session with the largest state that is taken."""
        made = await self.ask("POST", SESSIONS, json.dumps({"sessionId": name}).encode()[:-1] + b", " + LARGEST[1:])
        refused = await self.ask("PATCH", f"{SESSIONS}/{name}", TOO_LARGE)
        if (made, refused) != (200, 413):
            raise RuntimeError(f"a session was answered with {made}, and a state of 4 MB with {refused}")

    async def disturb(self, name: str, answered: list[float]) -> None:
        """Without a pause, until it is cancelled."""
        for number in itertools.count():
            small = json.dumps({"stateDelta": {"n": number}}).encode()
            await self.ask("PATCH", f"{SESSIONS}/{name}", small)
            if number % 10 == 0:
                await self.ask("GET", f"{SESSIONS}/{name}")
                await self.ask("POST", SESSIONS, b"{}")
            if number % 50 == 0:
                await self.ask("GET", SESSIONS)
                await self.ask("PATCH", f"{SESSIONS}/{name}", TOO_LARGE)
            answered.append(time.perf_counter())


@contextlib.asynccontextmanager
async def disturbed(port: int, connections: int) -> AsyncIterator[list[float]]:
    """While he is at work. What he was answered is counted."""
    answered: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        there = [await stack.enter_async_context(Neighbour.connected(port)) for _ in range(connections)]
        await asyncio.gather(*(each.fill(f"s{number}") for number, each in enumerate(there)))
        tasks = [asyncio.ensure_future(each.disturb(f"s{number}", answered)) for number, each in enumerate(there)]
        try:
            yield answered
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def cancel_once(port: int, run_id: str) -> float:
    """Milliseconds from the cancel to the end that was read."""
    client = await Client.begin(port, run_id, "talk")
    end = asyncio.ensure_future(client.end())
    start = time.perf_counter()
    await post(port, f"/agents/bench/runs/{run_id}/cancel")
    return (await end - start) * 1000


async def count_lost(port: int, names: list[str]) -> float:
    """Those of these runs that do not go on, and are ended now."""
    lost = 0
    async with Neighbour.connected(port) as asking:
        for name in names:
            await asking.ask("GET", f"/agents/bench/runs/{name}")
            lost += json.loads(asking.answer)["status"] != "RUNNING"
            await asking.ask("POST", f"/agents/bench/runs/{name}/cancel?wait=10")
    return float(lost)


async def trial(port: int, count: int, seconds: float, *, neighbour: bool) -> dict[str, float]:
    name = "with" if neighbour else "without"
    held = [await Client.begin(port, f"held-{name}-{number}", "talk") for number in range(HELD)]
    for number in range(WARM_UP):
        await cancel_once(port, f"warm-{name}-{number}")
    async with disturbed(port, CONNECTIONS if neighbour else 0) as answered:
        began, before = time.perf_counter(), len(answered)
        taken = [await cancel_once(port, f"{name}-{number}") for number in range(count)]
        while time.perf_counter() < began + seconds:
            taken.append(await cancel_once(port, f"{name}-{len(taken)}"))
        rate = (len(answered) - before) / (time.perf_counter() - began)
        lost = await count_lost(port, [client.run_id for client in held])
    for client in held:
        await client.close()
    values = {"p50_ms": percentile(taken, 0.5), "p99_ms": percentile(taken, 0.99), "max_ms": max(taken)}
    return {**values, "lost_runs": lost, "requests_per_s": rate}


async def _measure(count: int, seconds: float, progress: Progress) -> Figure:
    title = f"{count} cancels and more beside a user who is in the way; ms to the end that was read"
    figure = Figure("neighbour", title)
    gc.collect()
    gc.freeze()  # what other figures have left here is not the clients' to look after
    done = 0
    for kind in DATABASES:
        with database(kind, settings="") as place:
            async with serving("bench.http:talker", place, 1, LEASE) as (server,):
                for neighbour in (False, True):
                    done += 1
                    progress(done, 2 * len(DATABASES), f"{kind}, {'beside him' if neighbour else 'alone'}")
                    values = await trial(server.port, count, seconds, neighbour=neighbour)
                    goals = [Goal("max_ms", GOAL_MS), Goal("lost_runs", 0)] if neighbour else []
                    figure.rows.append(Row(f"{kind}, {'beside him' if neighbour else 'alone'}", values, goals))
    return figure


def measure(quick: bool, progress: Progress) -> Figure:
    count, seconds = (10, 0.0) if quick else (200, 3 * LEASE)  # for long enough to lose a lease
    return asyncio.run(_measure(count, seconds, progress))
