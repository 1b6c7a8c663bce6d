# SPDX-License-Identifier: Apache-2.0
"""The network of `bench.chaos`, between servers and database: a cut does what its name says, and can be mended."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.chaos.proxy import CUTS, OPEN, Proxy, Streams, proxy
from bench.chaos.wires import can_be_laid
from tests.support.guard import play

pytestmark = pytest.mark.parametrize("wired", [False, *([True] if can_be_laid() else [])])

HANG = 30.0
SHORT = 0.2
"""How long something is waited for that must not come; should it come later, the test passes for nothing."""


class Echo:
    """Says what it is told, in capitals, and keeps it."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            self.heard.put_nowait(data)
            writer.write(data.upper())
        writer.close()


@contextlib.asynccontextmanager
async def echoing(wired: bool) -> AsyncIterator[tuple[Proxy, Echo]]:
    echo = Echo()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "echo"))
        async with (
            asyncio.timeout(HANG),
            await asyncio.start_unix_server(echo.serve, path),
            proxy(path, 2, wired=wired) as network,
        ):
            yield network, echo


async def connected(network: Proxy, number: int = 0) -> Streams:
    host, _, port = network.addresses[number].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"HELLO"
    return reader, writer


async def comes_not(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(SHORT):
            return not await reader.read(100)
    except TimeoutError:
        return True


@pytest.mark.parametrize("how", [name for name in CUTS if name.startswith("silence")])
def test_silence_keeps_what_was_sent_until_it_is_mended(how: str, wired: bool) -> None:
    async def main() -> None:
        async with echoing(wired) as (network, echo):
            reader, writer = await connected(network)
            await echo.heard.get()
            await network.change(0, CUTS[how])
            writer.write(b"cut")
            assert await comes_not(reader)
            if how == "silence from the database":
                assert await echo.heard.get() == b"cut"  # it is only not answered
            assert echo.heard.empty()
            other = await connected(network, 1)  # another server's link is another one
            await network.change(0, OPEN)
            assert await reader.readexactly(3) == b"CUT"
            writer.close()
            other[1].close()

    play(main)


def test_who_connects_to_silence_is_served_when_it_is_mended(wired: bool) -> None:
    async def main() -> None:
        async with echoing(wired) as (network, _):
            await network.change(0, CUTS["silence from the database"])
            connecting = asyncio.create_task(connected(network))
            done, _ = await asyncio.wait([connecting], timeout=SHORT)
            assert not done
            await network.change(0, OPEN)
            (await connecting)[1].close()

    play(main)


def test_connections_are_refused_and_those_that_were_there_are_reset(wired: bool) -> None:
    async def main() -> None:
        async with echoing(wired) as (network, _):
            reader, writer = await connected(network)
            await network.change(0, CUTS["refused connections"])
            with pytest.raises(ConnectionResetError):
                await reader.read(100)
            with pytest.raises(ConnectionRefusedError):
                await connected(network)
            await network.change(0, OPEN)
            writer.close()
            (await connected(network))[1].close()

    play(main)


def test_connections_are_reset_or_closed_and_others_can_be_made_at_once(wired: bool) -> None:
    async def main() -> None:
        async with echoing(wired) as (network, _):
            reader, writer = await connected(network)
            await network.change(0, CUTS["reset connections"])
            with pytest.raises(ConnectionResetError):
                await reader.read(100)
            writer.close()
            reader, writer = await connected(network)
            await network.change(0, CUTS["closed connections"])
            assert await reader.read(100) == b""
            writer.close()
            (await connected(network))[1].close()

    play(main)


def test_a_round_trip_takes_as_long_as_is_said(wired: bool) -> None:
    async def main() -> None:
        async with echoing(wired) as (network, _):
            reader, writer = await connected(network)
            await network.change(0, {"latency": SHORT})
            loop = asyncio.get_running_loop()
            before = loop.time()
            writer.write(b"slow")
            assert await reader.readexactly(4) == b"SLOW"
            assert loop.time() - before >= SHORT
            writer.close()

    play(main)
