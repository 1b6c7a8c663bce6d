# SPDX-License-Identifier: Apache-2.0
"""The Redis that carries text between servers and workers, and how each of them reaches it. It may be lost at any
moment, for all of them or for one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from bench.chaos.forward import forwarded
from bench.chaos.proxy import CUTS, OPEN, Proxy, proxy
from tests.support.redis_server import RedisServer, redis_server


class RedisPlace:
    """It has nothing on a disk, so whoever kills it also empties it."""

    def __init__(self, server: RedisServer, network: Proxy, urls: Sequence[str]) -> None:
        self._server, self._network, self.urls = server, network, urls
        self.entries = 0
        """How many entries of text it had when it was lost, or in the end: at least so many were sent."""

    async def kill(self) -> None:
        await self.count()
        await asyncio.to_thread(self._server.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)

    def stop(self) -> None:
        self._server.hang()

    def go_on(self) -> None:
        self._server.go_on()

    async def empty(self) -> None:
        await self.count()
        await asyncio.to_thread(self._empty)

    async def cut(self, number: int, how: str) -> None:
        """One server or worker from it."""
        await self._network.change(number, CUTS[how])

    async def mend(self, number: int) -> None:
        await self._network.change(number, OPEN)

    async def count(self) -> None:
        self.entries += await asyncio.to_thread(self._entries)

    def _empty(self) -> None:
        with self._server.client() as client:
            client.flushall()

    def _entries(self) -> int:
        with self._server.client() as client:
            return sum(int(client.xlen(key)) for key in client.scan_iter("andon:text:*", 1000))


@contextlib.asynccontextmanager
async def redis_place(addresses: Sequence[str]) -> AsyncIterator[RedisPlace]:
    """With a URL for each server and worker: at the address of this machine that its namespace reaches, or anywhere on
    this machine if that is empty.
    """
    with redis_server() as server:
        async with proxy(f"127.0.0.1:{server.port}", len(addresses)) as network, contextlib.AsyncExitStack() as stack:
            urls = list[str]()
            for near, address in zip(network.addresses, addresses, strict=True):
                urls += await stack.enter_async_context(forwarded(f"redis://{near}/0", [address]))
            yield RedisPlace(server, network, urls)
