# SPDX-License-Identifier: Apache-2.0
"""More work than one server can take at once: does it keep the runs that it has?

    python -m bench.chaos --load

Each case has a fresh server with the default lease of 10 seconds. A run that is lost here is lost to load alone: no
process dies, and the database is there all the time. A server that is behind may refuse new runs (429), or take longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from andon import Agent, CancelCause, RunRecord, RunStatus
from andon.core.selection import Selection
from andon.models.base import ModelRequest
from andon.models.scripted import Item, Pause, ScriptedModel
from andon.store.sql import SQLStore
from bench.chaos.checks import GOING, read_records
from bench.chaos.servers import database, serving
from bench.chaos.ways import Proxied, ways

LEASE = 10.0
LONG, SHORT, SHORTEST = "30 0.05", "1 0.25", "0.1 0.1"
"""Prompts: for how many seconds to talk, and how many to wait after each word. Long runs are there before others."""
LOOP_SECONDS = 20.0
ROUND_TRIP = 0.020
ANSWER_SECONDS = 120.0
END_SECONDS = 180.0
"""What the last run may take to end after the last start was answered."""
RUNS = "/agents/load/runs"


def _talk(request: ModelRequest) -> Iterator[str | Item]:
    """As long and as fast as the prompt says."""
    seconds, pace = map(float, request.messages[-1].text.split())
    for _ in range(max(1, round(seconds / pace))):
        yield "well, "
        yield Pause(pace)


agent = Agent("Load", ScriptedModel(then=_talk))


@dataclass
class Case:
    """What has come of one case."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    leases_lost: int | None = None

    @property
    def sound(self) -> bool:
        return not self.ends["lost"] and not self.ends["never"] and self.ends["completed"] > 0

    def show(self) -> str:
        told = {
            "started": self.counts["started"],
            "completed": self.ends["completed"],
            "lost": self.ends["lost"],
            "ended otherwise": self.ends["otherwise"],
            "without an end": self.ends["never"],
            "refused (429)": self.counts["429"],
            "other answers": sum(number for name, number in self.counts.items() if name not in ("started", "429")),
            "leases lost": "not told" if self.leases_lost is None else self.leases_lost,
        }
        figures = ", ".join(f"{number} {name}" for name, number in told.items())
        others = {name: number for name, number in self.counts.items() if name not in ("started", "429")}
        return f"{self.name}: {self.seconds:.1f} s, {figures} {others or ''}".rstrip()


class Load:
    """Those who start runs, at one server."""

    def __init__(self, port: int, case: Case) -> None:
        self._port, self._case = port, case

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """On a bare socket, since a real client would take as much of the machine as the server; 0 if it broke."""
        sent = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                with contextlib.closing(writer):
                    writer.write(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)
                    answer = await reader.read()
        except (OSError, TimeoutError):
            return 0, b""
        found = re.match(rb"HTTP/1.1 (\d+)", answer)
        return int(found[1]) if found else 0, answer.partition(b"\r\n\r\n")[2]

    async def start(self, message: str, **options: Any) -> bool:
        """Start a run and let it go; with `background=False`, wait for its end."""
        body = {"message": message, "stream": False, "background": True, **options}
        status, _ = await self.ask("POST", RUNS, body)
        began = status in (200, 202)
        self._case.counts["started" if began else str(status)] += 1
        return began

    async def start_all(self, count: int, message: str, **options: Any) -> None:
        await asyncio.gather(*(self.start(message, **options) for _ in range(count)))

    async def loop(self, until: float) -> None:
        while time.monotonic() < until:
            if not await self.start(SHORT, background=False):
                await asyncio.sleep(1)  # as `retry-after` says

    async def leases_lost(self) -> int | None:
        _, said = await self.ask("GET", "/metrics")
        found = re.search(rb"^andon_leases_lost_total (\d+)", said, re.MULTILINE)
        return int(found[1]) if found else None


async def _starts(load: Load) -> None:
    await load.start_all(20, LONG)
    await load.start_all(900, SHORT)


async def _loops(load: Load) -> None:
    until = time.monotonic() + LOOP_SECONDS
    await asyncio.gather(*(load.loop(until) for _ in range(800)))


async def _few_starts(load: Load) -> None:
    await load.start_all(20, LONG)
    await load.start_all(200, SHORT)


async def _queue(load: Load) -> None:
    await load.start_all(12, LONG)
    await load.start_all(300, SHORTEST, session_id="one", on_busy="queue")


CASES: dict[str, tuple[Callable[[Load], Awaitable[None]], float]] = {
    "900 starts at once beside 20 long runs": (_starts, 0.0),
    "800 clients in a closed loop for 20 s": (_loops, 0.0),
    "200 starts at once beside 20 long runs, 20 ms to the database": (_few_starts, ROUND_TRIP),
    "300 runs in the queue of one session beside 12 long runs": (_queue, 0.0),
}
"""What is done, and how long a round trip to the database takes in addition; a file has none."""


async def _hold(kind: str, name: str) -> Case:
    case = Case(f"{kind}, {name}")
    work, latency = CASES[name]
    with database(kind) as place:
        async with ways(place, 1) as (way,):
            if isinstance(way, Proxied):
                await way.slow(latency)
            urls = [way.url] if latency else []  # without need, nothing stands between the two
            async with serving("bench.chaos.load:agent", place, 1, LEASE, urls=urls) as (server,):
                load, store = Load(server.port, case), SQLStore(place.url)
                try:
                    began = time.monotonic()
                    await work(load)
                    await _ended(store)
                    case.seconds = time.monotonic() - began
                    case.leases_lost = await load.leases_lost()
                    case.ends.update(map(_end_of, await read_records(store)))
                finally:
                    await store.close()
    return case


async def _ended(store: SQLStore) -> None:
    deadline = time.monotonic() + END_SECONDS
    while await store.list_runs(Selection(statuses=GOING), 1):
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(0.25)


def _end_of(record: RunRecord) -> str:
    if not record.status.final:
        return "never"
    if record.status is RunStatus.completed:
        return "completed"
    return "lost" if record.receipt is not None and record.receipt.cause is CancelCause.lost else "otherwise"


def hold_load(kinds: tuple[str, ...], pick: str = "") -> bool:
    """All cases, or those whose name has this in it; prints each. Whether none has lost a run."""
    sound = True
    for kind in kinds:
        for name, (_, latency) in CASES.items():
            if pick not in name or (latency and kind == "sqlite"):
                continue
            print(f"{kind}, {name}…", file=sys.stderr, flush=True)
            case = asyncio.run(_hold(kind, name))
            print(case.show(), flush=True)
            sound = sound and case.sound
    return sound
