# SPDX-License-Identifier: Apache-2.0
"""What is done to servers and databases, by chance."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from bench.chaos.proxy import CUTS, MOMENTARY
from bench.chaos.redis_place import RedisPlace
from bench.chaos.servers import Database, Member, start_again
from bench.chaos.ways import Proxied, Way

Kind = Callable[[int, asyncio.Event], Awaitable[None]]

FLICKERS = 6
REDIS_SECONDS = 8.0
"""How long Redis, or the way to it, is lost at the most: longer than anybody waits for its answer."""
SILENCES = ("silence in both directions", "silence towards the database", "silence from the database")


class Trouble:
    """Kills and stops at random, and counts it. Servers and database have their troubles at the same time."""

    def __init__(
        self,
        members: Sequence[Member],
        ways: Sequence[Way],
        database: Database,
        lease: float,
        chance: Random,
        redis: RedisPlace | None = None,
    ) -> None:
        """`ways` has the way of each member to the database."""
        self._members, self._ways, self._database, self._redis = members, ways, database, redis
        self._lease, self._chance = lease, chance
        self.counts: Counter[str] = Counter()

    @property
    def was_had(self) -> bool:
        """Has each kind of it come at least once?"""
        of_members = len({member.program.name for member in self._members}) * len(self._kinds)
        of_redis = 0 if self._redis is None else len(self._kinds_of_redis(self._redis))
        return len(self.counts) == of_members + self._database.can_die + of_redis

    async def make(self, over: asyncio.Event) -> None:
        """Until it is over; then all that was killed or stopped is there again."""
        async with asyncio.TaskGroup() as tasks:
            for name in {member.program.name for member in self._members}:
                tasks.create_task(self._with_members(name, over))
            tasks.create_task(self._with_database(over))
            if self._redis is not None:
                tasks.create_task(self._with_redis(self._redis, over))

    @property
    def _kinds(self) -> list[Kind]:
        kinds: list[Kind] = [self._kill, self._stop, self._cut]
        if isinstance(self._ways[0], Proxied):
            kinds += [self._slow, self._flicker]
        return kinds if self._redis is None else [*kinds, self._cut_from_redis]

    async def _with_members(self, name: str, over: asyncio.Event) -> None:
        numbers = [number for number, member in enumerate(self._members) if member.program.name == name]
        kinds = self._kinds  # each, however short it is: the trial waits for them
        while not await self._pause(over, 0.3, 2.5):
            kind = kinds.pop() if kinds else self._chance.choice(self._kinds)
            await kind(self._chance.choice(numbers), over)

    def _count(self, what: str, number: int, rest: str = "") -> None:
        self.counts[f"{what} a {self._members[number].program.name}{rest}"] += 1

    async def _kill(self, number: int, over: asyncio.Event) -> None:
        member = self._members[number]
        await member.program.kill()
        self._count("kills of", number)
        await self._pause(over, 0, 1.5 * self._lease)
        await start_again(member)

    async def _stop(self, number: int, over: asyncio.Event) -> None:
        """Past its lease."""
        program = self._members[number].program
        program.signal(signal.SIGSTOP)
        self._count("stops of", number)
        try:
            await self._pause(over, 1.1 * self._lease, 2 * self._lease)
        finally:
            program.signal(signal.SIGCONT)

    async def _cut(self, number: int, over: asyncio.Event) -> None:
        """From its database, for less than its lease or more."""
        way = self._ways[number]
        how = self._chance.choice(way.cuts)
        await way.cut(how)
        self._count("cuts between", number, " and its database")
        try:
            if how not in MOMENTARY:
                await self._pause(over, 0.3 * self._lease, 2 * self._lease)
        finally:
            await way.mend()

    async def _slow(self, number: int, over: asyncio.Event) -> None:
        """Its database is far away for a while."""
        way = self._ways[number]
        assert isinstance(way, Proxied)
        await way.slow(self._chance.uniform(0.02, 0.2))
        self._count("slow ways between", number, " and its database")
        try:
            await self._pause(over, self._lease, 2 * self._lease)
        finally:
            await way.slow(0)

    async def _flicker(self, number: int, over: asyncio.Event) -> None:
        """Its way to the database loses what is sent, again and again, each time for a moment."""
        way = self._ways[number]
        self._count("lossy ways between", number, " and its database")
        for _ in range(FLICKERS):
            await way.cut(self._chance.choice(SILENCES))
            try:
                await self._pause(over, 0.02, 0.2)
            finally:
                await way.mend()
            if await self._pause(over, 0.05, 0.3):
                return

    async def _with_database(self, over: asyncio.Event) -> None:
        while self._database.can_die and not await self._pause(over, 2.0, 10.0):
            await self._database.kill()
            self.counts["kills of the database"] += 1
            await self._pause(over, 0, self._lease)
            await self._database.start()

    # -- Redis --------------------------------------------------------------------------------------------------------

    async def _cut_from_redis(self, number: int, over: asyncio.Event) -> None:
        redis = self._redis
        assert redis is not None
        how = self._chance.choice(list(CUTS))
        await redis.cut(number, how)
        self._count("cuts between", number, " and Redis")
        try:
            if how not in MOMENTARY:
                await self._pause(over, 0.5, REDIS_SECONDS)
        finally:
            await redis.mend(number)

    def _kinds_of_redis(self, redis: RedisPlace) -> dict[str, Callable[[asyncio.Event], Awaitable[None]]]:
        async def kill(over: asyncio.Event) -> None:
            await redis.kill()
            await self._pause(over, 0, REDIS_SECONDS / 2)
            await redis.start()

        async def stop(over: asyncio.Event) -> None:
            redis.stop()
            try:
                await self._pause(over, 0.5, REDIS_SECONDS)
            finally:
                redis.go_on()

        async def empty(_: asyncio.Event) -> None:
            await redis.empty()

        return {"kills of Redis": kill, "stops of Redis": stop, "losses of all that Redis had": empty}

    async def _with_redis(self, redis: RedisPlace, over: asyncio.Event) -> None:
        kinds = self._kinds_of_redis(redis)
        first = list(kinds)  # each, however short it is
        while not await self._pause(over, 1.0, 4.0):
            name = first.pop() if first else self._chance.choice(list(kinds))
            self.counts[name] += 1
            await kinds[name](over)

    async def _pause(self, over: asyncio.Event, least: float, most: float) -> bool:
        """Wait for so long, or until it is over: then True."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), self._chance.uniform(least, most))
        return over.is_set()
