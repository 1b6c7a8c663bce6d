# SPDX-License-Identifier: Apache-2.0
"""One round: runs in the midst of trouble, and then, when all is quiet, what has come of them."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random

from andon.store.sql import SQLStore
from bench.chaos import cutoff
from bench.chaos.agent import NOTES, PATIENCE, PROVIDER
from bench.chaos.checks import FAULTS, Checks
from bench.chaos.clients import Clients
from bench.chaos.cutoff import CutOff
from bench.chaos.provider import make_provider
from bench.chaos.servers import database, serving
from bench.chaos.trouble import Trouble
from bench.chaos.ways import ways

SERVED = "bench.chaos.agent:agent"
IN_FLIGHT = 25
RUNS_PER_SESSION = 6
TELL_SECONDS = 5.0
LOCK_PATIENCE = 0.5
"""How long a server waits for a file that another process has locked. By default that is 10 s: too long for a trial."""


@dataclass
class Outcome:
    """What was done, and what was wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in FAULTS})

    @property
    def sound(self) -> bool:
        return not any(self.faults.values())

    def add(self, other: Outcome) -> None:
        self.counts += other.counts
        for kind, found in other.faults.items():
            self.faults[kind] += found

    def show(self) -> str:
        numbers = {**self.counts, **{kind: len(found) for kind, found in self.faults.items()}}
        lines = [f"{number:8,}  {name}" for name, number in numbers.items()]
        details = [f"{kind}: {each}" for kind, found in self.faults.items() for each in found[:20]]
        return "\n".join([*lines, *details])


async def hold(kind: str, servers: int, runs: int, seed: str, lease: float = 1.5, cuts: int = 4) -> Outcome:
    """So many runs on so many servers of one database; before that, one of these is cut off from it so many times."""
    chance = Random(seed)
    with make_provider(seed) as provider, database(kind) as place:
        notes = place.folder / "notes"
        environment = {PROVIDER: provider.base_url, NOTES: str(notes)}
        if not place.can_die:
            environment[PATIENCE] = str(LOCK_PATIENCE)
        async with ways(place, servers) as routes:
            urls = [way.url for way in routes]
            serve = partial(serving, SERVED, place, servers, environment=environment, urls=urls)
            clients = Clients(max(IN_FLIGHT, runs // RUNS_PER_SESSION), seed, chance)
            store = SQLStore(place.url)
            checks = Checks(store, clients, provider, lease)
            try:
                async with serve(lease=cutoff.LEASE) as fleet:
                    cut_off = CutOff(fleet, routes, clients, notes, chance)
                    await cut_off.hold(cuts, seed)
                checks.note_defects(fleet)
                async with serve(lease=lease) as fleet:
                    clients.servers = fleet
                    trouble = Trouble(fleet, routes, place, lease, chance)
                    await _play(kind, runs, clients, trouble)
                    survivor = chance.choice(fleet)
                    for server in fleet:
                        if server is not survivor:
                            await server.kill()
                    await checks.make(survivor.url, notes, cut_off.held)
                checks.note_defects(fleet)
            finally:
                await store.close()
                await clients.close()
    told = Counter({"runs": checks.ends.total(), "cancels acknowledged": len(clients.ledger.acknowledged)})
    ends = Counter({f"runs {name}": number for name, number in sorted(checks.ends.items())})
    return Outcome(told + ends + clients.ledger.counts + trouble.counts, checks.faults)


async def _play(kind: str, runs: int, clients: Clients, trouble: Trouble) -> None:
    numbers, over, done = itertools.count(), asyncio.Event(), 0

    async def use() -> None:
        nonlocal done
        while (number := next(numbers)) < runs or not trouble.was_had:  # on a quick machine some more
            await clients.use(number)
            done += 1

    async def tell() -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(TELL_SECONDS)
            so_far = f"{done}/{runs} runs, {len(clients.ledger.acknowledged)} cancels acknowledged"
            troubles = ", ".join(f"{number} {name}" for name, number in trouble.counts.items())
            print(f"{kind} {time.monotonic() - began:.0f} s: {so_far}, {troubles}", file=sys.stderr, flush=True)

    telling = asyncio.create_task(tell())
    troubling = asyncio.create_task(trouble.make(over))
    try:
        await asyncio.gather(*(use() for _ in range(min(runs, IN_FLIGHT))))
    finally:
        over.set()
        telling.cancel()
        await troubling
