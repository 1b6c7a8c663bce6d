# SPDX-License-Identifier: Apache-2.0
"""What is done to servers and databases, by chance."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import Sequence
from random import Random

from bench.chaos.proxy import MOMENTARY
from bench.chaos.servers import Database, Server
from bench.chaos.ways import Way


class Trouble:
    """Kills and stops at random, and counts it. Servers and database have their troubles at the same time."""

    def __init__(
        self, servers: Sequence[Server], ways: Sequence[Way], database: Database, lease: float, chance: Random
    ) -> None:
        self._servers, self._ways, self._database = servers, ways, database
        self._lease, self._chance = lease, chance
        self.counts: Counter[str] = Counter()

    @property
    def was_had(self) -> bool:
        """Has each kind of it come at least once?"""
        return len(self.counts) == (4 if self._database.can_die else 3)

    async def make(self, over: asyncio.Event) -> None:
        """Until it is over; then all that was killed or stopped is there again."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._with_servers(over))
            tasks.create_task(self._with_database(over))

    async def _with_servers(self, over: asyncio.Event) -> None:
        all_kinds = (self._kill, self._stop, self._cut)
        kinds = list(all_kinds)  # each, however short it is: the trial waits for them
        while not await self._pause(over, 0.3, 2.5):
            kind = kinds.pop() if kinds else self._chance.choice(all_kinds)
            await kind(self._chance.randrange(len(self._servers)), over)

    async def _kill(self, number: int, over: asyncio.Event) -> None:
        server = self._servers[number]
        await server.kill()
        self.counts["kills of a server"] += 1
        await self._pause(over, 0, 1.5 * self._lease)
        await server.start_again()

    async def _stop(self, number: int, over: asyncio.Event) -> None:
        """Past its lease."""
        server = self._servers[number]
        server.signal(signal.SIGSTOP)
        self.counts["stops of a server"] += 1
        try:
            await self._pause(over, 1.1 * self._lease, 2 * self._lease)
        finally:
            server.signal(signal.SIGCONT)

    async def _cut(self, number: int, over: asyncio.Event) -> None:
        """From its database, for less than its lease or more."""
        way = self._ways[number]
        how = self._chance.choice(way.cuts)
        await way.cut(how)
        self.counts["cuts between a server and its database"] += 1
        try:
            if how not in MOMENTARY:
                await self._pause(over, 0.3 * self._lease, 2 * self._lease)
        finally:
            await way.mend()

    async def _with_database(self, over: asyncio.Event) -> None:
        while self._database.can_die and not await self._pause(over, 2.0, 10.0):
            await self._database.kill()
            self.counts["kills of the database"] += 1
            await self._pause(over, 0, self._lease)
            await self._database.start()

    async def _pause(self, over: asyncio.Event, least: float, most: float) -> bool:
        """Wait for so long, or until it is over: then True."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), self._chance.uniform(least, most))
        return over.is_set()
