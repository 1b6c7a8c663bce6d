# SPDX-License-Identifier: Apache-2.0
"""Lets processes in network namespaces reach the provider, which listens on this machine's own loopback alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

CHUNK = 65536


@contextlib.asynccontextmanager
async def forwarded(url: str, addresses: list[str]) -> AsyncIterator[list[str]]:
    """The same service at each of these addresses of this machine: its URLs there. An address that is empty needs none.

    A connection that ends on one side ends on the other one, so the provider notices a client that has left.
    """
    parts = urlsplit(url)
    joining: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        joining.add(task)
        try:
            with contextlib.suppress(OSError):
                there = await asyncio.open_connection(parts.hostname, parts.port)
                await _join((reader, writer), there)
        finally:
            joining.discard(task)
            writer.close()

    async with contextlib.AsyncExitStack() as stack:
        urls = []
        for address in addresses:
            if not address:
                urls.append(url)
                continue
            server = await stack.enter_async_context(await asyncio.start_server(serve, address, 0))
            port = server.sockets[0].getsockname()[1]
            urls.append(urlunsplit(parts._replace(netloc=f"{address}:{port}")))
        try:
            yield urls
        finally:
            for task in list(joining):
                task.cancel()


async def _join(
    here: tuple[asyncio.StreamReader, asyncio.StreamWriter], there: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    pumps = [asyncio.ensure_future(_pump(here[0], there[1])), asyncio.ensure_future(_pump(there[0], here[1]))]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        there[1].close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
