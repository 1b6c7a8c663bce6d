# SPDX-License-Identifier: Apache-2.0
"""How a server reaches its database, and how it can lose it.

Postgres: through a proxy (`proxy`), so that one server can be cut off while the others are not; where namespaces can be
made, over a cable for each server (`wires`). A SQLite file has no
network: there another process holds the file's write lock for longer than a server waits for it, as a backup or an
open shell does. All servers lose it then, for what they write; they can still read.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from typing import Protocol

import psycopg.conninfo

from bench.chaos.proxy import CUTS, OPEN, Proxy, proxy
from bench.chaos.servers import Database
from bench.chaos.wires import Home, can_be_laid

LOCKED = "a locked file"
LOCK_SECONDS = 30.0
"""How long the lock itself may take to get, from servers that write all the time."""


class Way(Protocol):
    """The way of one server."""

    url: str
    cuts: tuple[str, ...]
    """How it can be cut."""
    home: Home | None
    """The namespace of the server or worker, if it has one of its own."""
    alone: bool
    """Whether the other servers keep the database meanwhile."""

    async def cut(self, how: str) -> None: ...
    async def mend(self) -> None: ...


class Proxied:
    """To Postgres."""

    cuts: tuple[str, ...] = tuple(CUTS)
    alone = True

    def __init__(self, through: Proxy, number: int, url: str) -> None:
        self._proxy, self._number, self.url = through, number, url
        self.home = through.homes[number]

    async def cut(self, how: str) -> None:
        await self._proxy.change(self._number, CUTS[how])

    async def mend(self) -> None:
        await self._proxy.change(self._number, OPEN)

    async def slow(self, seconds: float) -> None:
        """Each round trip takes so much longer."""
        await self._proxy.change(self._number, {"latency": seconds})


class File:
    """To a file of SQLite's."""

    cuts: tuple[str, ...] = (LOCKED,)
    alone = False
    home: Home | None = None

    def __init__(self, url: str) -> None:
        self.url = url
        self._holder: sqlite3.Connection | None = None

    async def cut(self, how: str) -> None:
        assert how == LOCKED
        self._holder = await asyncio.to_thread(_lock, self.url.removeprefix("sqlite:///"))

    async def mend(self) -> None:
        if self._holder is not None:
            self._holder.close()  # which lets go of the lock
            self._holder = None


def _lock(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN EXCLUSIVE")
    return connection


@contextlib.asynccontextmanager
async def ways(place: Database, count: int, *, homes: bool = False) -> AsyncIterator[list[Proxied] | list[File]]:
    """One for each of so many servers and workers; all are mended at the end. With `homes`, each of these is in a
    network namespace of its own, where namespaces can be made.
    """
    if not place.can_die:
        files = [File(place.url) for _ in range(count)]
        try:
            yield files
        finally:
            for file in files:
                await file.mend()
        return
    known = psycopg.conninfo.conninfo_to_dict(place.url)
    host, port = str(known["host"]), str(known.get("port") or 5432)
    target = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else f"{host}:{port}"
    wired = target.startswith("/") and await asyncio.to_thread(can_be_laid)
    async with proxy(target, count, wired=wired, homes=homes and wired) as through:
        address = f"postgresql://{known['user']}@%s/{known['dbname']}?sslmode=disable"
        yield [Proxied(through, number, address % each) for number, each in enumerate(through.addresses)]
