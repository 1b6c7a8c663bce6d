# SPDX-License-Identifier: Apache-2.0
"""One round: runs in the midst of trouble, and then, when all is quiet, what has come of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random

from andon.cli.event_options import VARIABLE
from andon.store.sql import SQLStore
from bench.chaos import cutoff
from bench.chaos.agent import CLOCK, GOES_ON, NOTES, PATIENCE, PROVIDER
from bench.chaos.checks import FAULTS, Checks
from bench.chaos.clients import Clients
from bench.chaos.cutoff import CutOff
from bench.chaos.forward import forwarded
from bench.chaos.holders import Holders
from bench.chaos.provider import make_provider
from bench.chaos.redis_place import redis_place
from bench.chaos.servers import Member, database, serving, working
from bench.chaos.trouble import Trouble
from bench.chaos.ways import ways

SERVED = "bench.chaos.agent:agent"
IN_FLIGHT = 25
RUNS_PER_SESSION = 6
TELL_SECONDS = 5.0
WRONG_SECONDS = 300.0
"""By how much the clocks of workers are wrong, at the most."""
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


async def hold_with_workers(
    servers: int,
    workers: int,
    runs: int,
    seed: str,
    lease: float = 1.5,
    *,
    goes_on: bool = True,
    with_redis: bool = False,
) -> Outcome:
    """So many runs, which servers accept and workers execute; each of them in a network namespace of its own. With
    Redis, text goes through it, and it is lost too.
    """
    chance = Random(seed)
    with make_provider(seed) as provider, database("postgres") as place:
        notes = place.folder / "notes"
        environment = {NOTES: str(notes), **({GOES_ON: "yes"} if goes_on else {})}
        async with contextlib.AsyncExitStack() as stack:
            routes = await stack.enter_async_context(ways(place, servers + workers, homes=True))
            outsides = [way.home.outside if way.home else "" for way in routes]
            providers = await stack.enter_async_context(forwarded(provider.base_url, outsides))
            redis = await stack.enter_async_context(redis_place(outsides)) if with_redis else None
            own = [dict(environment) for _ in routes]
            for each, url in zip(own, redis.urls if redis else [""] * len(own), strict=True):
                each |= {VARIABLE: url}
            for each, url in zip(own[servers:], providers[servers:], strict=True):
                each |= {PROVIDER: url, CLOCK: str(chance.uniform(-WRONG_SECONDS, WRONG_SECONDS))}
            urls, homes = [way.url for way in routes], [way.home for way in routes]
            clients = Clients(max(IN_FLIGHT, runs // RUNS_PER_SESSION), seed, chance)
            store, holders = SQLStore(place.url), Holders(place.url)
            checks = Checks(store, clients, provider, holders, lease, store.run_queue())
            serve = partial(serving, SERVED, place, servers, lease, options=("--no-execute",))
            try:
                async with (
                    serve(urls=urls[:servers], homes=homes[:servers], own=own[:servers]) as fleet,
                    working(SERVED, place, lease, urls[servers:], homes[servers:], own[servers:]) as executors,
                ):
                    await asyncio.to_thread(holders.begin)
                    clients.servers = fleet
                    members: list[Member] = [*fleet, *executors]
                    trouble = Trouble(members, routes, place, lease, chance, redis)
                    await _play("postgres", runs, clients, trouble)
                    survivors: tuple[Member, ...] = (at := chance.choice(fleet), chance.choice(executors))
                    for member in members:
                        if member not in survivors:
                            await member.program.kill()
                    await checks.make(at.url, notes)
                checks.note_defects(members)
                if redis is not None:
                    await redis.count()
                    clients.ledger.counts["entries of text in Redis, at least"] += redis.entries
            finally:
                await store.close()
                await clients.close()
    return _outcome(checks, clients, trouble)


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
            store, holders = SQLStore(place.url), Holders(place.url)
            checks = Checks(store, clients, provider, holders, lease)
            try:
                async with serve(lease=cutoff.LEASE) as fleet:
                    await asyncio.to_thread(holders.begin)
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
                            await server.program.kill()
                    await checks.make(survivor.url, notes, cut_off.held)
                checks.note_defects(fleet)
            finally:
                await store.close()
                await clients.close()
    return _outcome(checks, clients, trouble)


def _outcome(checks: Checks, clients: Clients, trouble: Trouble) -> Outcome:
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
