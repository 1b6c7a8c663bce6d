# SPDX-License-Identifier: Apache-2.0
"""A network between servers and their database that can be cut: a proxy in a process of its own, with a port for each
server.

What a firewall does to packets is done here to bytes, so that it works on every machine and for every user. A link that
passes nothing keeps its connections: what was sent waits, and comes through when the link is mended, as it does when
packets are sent again. So a request may be done though its answer came too late, or not at all. Where namespaces can be
made, there are real cables (`wires`) in front of it, and silence is theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

from bench.chaos.ports import free_port
from bench.chaos.wires import Wire, wires

CHUNK, PIECES = 65536, 100
"""How much is read at a time, and how many of those wait at most; then the sender does."""
HOST = "127.0.0.1"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CUTS: dict[str, dict[str, Any]] = {
    "refused connections": {"listens": False, "drop": "reset"},
    "silence in both directions": {"up": False, "down": False},
    "silence towards the database": {"up": False},
    "silence from the database": {"down": False},
    "reset connections": {"drop": "reset"},
    "closed connections": {"drop": "close"},
}
"""How a link can be cut. The last two harm the connections that are there, and none that is made later."""
MOMENTARY = ("reset connections", "closed connections")
OPEN: dict[str, Any] = {"up": True, "down": True, "listens": True}


# -- in the process of the proxy --------------------------------------------------------------------------------------


class Link:
    """The way from one server to the database."""

    def __init__(self, host: str, port: int, target: str) -> None:
        self._host, self._port, self._target = host, port, target
        self._gates = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._latency = 0.0
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._listener: asyncio.Server | None = None

    async def change(
        self,
        up: bool | None = None,
        down: bool | None = None,
        listens: bool | None = None,
        latency: float | None = None,
        drop: str = "",
    ) -> None:
        """What is not given stays as it is."""
        for gate, passes in ((self._gates["up"], up), (self._gates["down"], down)):
            if passes is not None:
                (gate.set if passes else gate.clear)()
        if latency is not None:
            self._latency = latency
        if listens is True and self._listener is None:
            self._listener = await asyncio.start_server(self._serve, self._host, self._port, backlog=1024)
        if listens is False and self._listener is not None:
            self._listener.close()
            self._listener = None
        if drop:
            for task, writer in list(self._open.items()):
                if drop == "reset":
                    _reset(writer)
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            for gate in self._gates.values():  # a connection is made by packets in both directions
                await gate.wait()
            with contextlib.suppress(OSError):
                await self._join((reader, writer), await self._reach())
        except asyncio.CancelledError:
            pass  # dropped: the closing below is what the server sees of it
        finally:
            del self._open[task]
            writer.close()

    async def _reach(self) -> Streams:
        if self._target.startswith("/"):
            return await asyncio.open_unix_connection(self._target)
        host, _, port = self._target.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _join(self, here: Streams, there: Streams) -> None:
        pumps = [
            asyncio.ensure_future(self._pump(here[0], there[1], self._gates["up"])),
            asyncio.ensure_future(self._pump(there[0], here[1], self._gates["down"])),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            there[1].close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        """Pass on what comes, each piece when it is due; the end, too, comes through only where anything does."""
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES)

        async def read() -> None:
            data = b"-"
            while data:
                try:
                    data = await reader.read(CHUNK)
                except OSError:
                    data = b""
                await pieces.put((loop.time() + self._latency / 2, data))

        reading = asyncio.ensure_future(read())
        try:
            while True:
                due, data = await pieces.get()
                if (early := due - loop.time()) > 0:
                    await asyncio.sleep(early)
                await gate.wait()
                if not data:
                    return
                with contextlib.suppress(OSError):
                    writer.write(data)
                    await writer.drain()
        finally:
            reading.cancel()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no goodbye
    writer.transport.abort()


async def _main(target: str, addresses: Sequence[str]) -> None:
    """Each line of the input names a link and what changes about it, and is answered by a line. Ends with the input."""
    places = [address.split(":") for address in addresses]
    links = [Link(host, int(port), target) for host, port in places]
    for link in links:
        await link.change(**OPEN)
    loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print("ready", flush=True)
    while line := await lines.readline():
        number, change = json.loads(line)
        await links[number].change(**change)
        print("done", flush=True)


# -- in the process of the trial --------------------------------------------------------------------------------------


class Proxy:
    """The process, as it is told what to do."""

    def __init__(self, process: asyncio.subprocess.Process, addresses: Sequence[str], laid: Sequence[Wire]) -> None:
        self._process, self.addresses, self._wires = process, addresses, laid
        self.homes = [wire.home for wire in laid] or [None] * len(addresses)
        self._lock = asyncio.Lock()

    async def change(self, number: int, change: dict[str, Any]) -> None:
        """Of one link; it is done when this returns."""
        if self._wires:
            change = dict(change)
            await self._wires[number].change(change.pop("up", None), change.pop("down", None))
        async with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps([number, change]).encode() + b"\n")
            await self.answered()

    async def answered(self) -> None:
        assert self._process.stdout is not None
        if not await self._process.stdout.readline():
            raise RuntimeError("the proxy has ended")


@contextlib.asynccontextmanager
async def proxy(target: str, count: int, *, wired: bool = False, homes: bool = False) -> AsyncIterator[Proxy]:
    """So many links to a database: the path of its socket, or `host:port`. With `wired`, each link has a cable, and the
    database must be given by a path: sockets of files are reached from every namespace. With `homes`, each cable begins
    in a namespace of its own.
    """
    with wires(count, homes=homes) if wired else contextlib.nullcontext(("", ())) as (namespace, laid):
        hosts = [wire.far for wire in laid] or [HOST] * count
        addresses = [f"{host}:{free_port()}" for host in hosts]
        inside = ("ip", "netns", "exec", namespace) if wired else ()
        command = (*inside, sys.executable, "-m", "bench.chaos.proxy", target, *addresses)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        try:
            made = Proxy(process, addresses, laid)
            await made.answered()
            yield made
        finally:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2:]))
