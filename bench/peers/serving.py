# SPDX-License-Identifier: Apache-2.0
"""A server of a framework in a process of its own, and clients on bare sockets.

What must stay true: no wait is without a timeout, and each server is gone when its block is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers.dialects import SERVERS, Dialect
from bench.peers.environments import QUIET
from bench.peers.lines import PeerError

PATIENCE = 30.0
STARTS_WITHIN = 90.0
_RUN_ID = re.compile(rb'"run_id": ?"([^"]+)"')


@dataclass
class Server:
    port: int
    process: subprocess.Popen[bytes]

    @property
    def peak_mb(self) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text("ascii")
        return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) / 1000  # type: ignore[index]


@contextlib.asynccontextmanager
async def serving(dialect: Dialect, url: str, file: str | None, logs: Path) -> AsyncIterator[Server]:
    """The server, once it takes connections."""
    port = free_port()
    process = start(dialect.command(port, file), url, logs)
    try:
        until = time.monotonic() + STARTS_WITHIN
        while not await listens(port):
            if process.poll() is not None or time.monotonic() > until:
                raise PeerError(f"the server did not start: {last_of(logs)}")
            await asyncio.sleep(0.1)
        yield Server(port, process)
    finally:
        process.kill()
        process.wait()


def start(command: list[str], url: str, logs: Path) -> subprocess.Popen[bytes]:
    environment = {**QUIET, "PEERS_URL": url}
    with logs.open("ab") as log:
        return subprocess.Popen(command, cwd=SERVERS, env=environment, stdout=log, stderr=subprocess.STDOUT)


def last_of(logs: Path) -> str:
    return logs.read_text("utf-8")[-300:]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


async def listens(port: int) -> bool:
    for host in ("127.0.0.1", "localhost"):
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            continue
        writer.close()
        return True
    return False


@dataclass
class Stream:
    """One client's run: what was read of it."""

    dialect: Dialect
    session: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    run_id: str = ""
    pieces: int = 0
    last: str = ""
    """The name of the last event, or what the stream ended with instead."""
    ended_at: float = 0.0
    first_at: float = 0.0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the run's id is known, or its first bytes were read where there are no ids."""

    @classmethod
    async def begin(cls, port: int, dialect: Dialect, session: str, prompt: str, *, streams: bool = True) -> Stream:
        if (first := dialect.prepare(session)) is not None:
            status, body = await exchange(port, first)
            if status != 200:
                raise PeerError(f"a session could not be made: {status} {body[:200]!r}")
        self = cls(dialect, session, *await asyncio.open_connection("127.0.0.1", port))
        self.writer.write(dialect.begin(session, prompt, streams))
        return self

    async def read(self) -> None:
        """To the end of the run."""
        tail = b""
        while chunk := await self.reader.read(1 << 16):
            self.first_at = self.first_at or time.monotonic()
            data = tail + chunk
            self.pieces += data.count(self.dialect.piece)
            tail = data[-len(self.dialect.piece) + 1 :]
            if not self.run_id and (found := _RUN_ID.search(data)):
                self.run_id = found[1].decode()
            if self.run_id or not self.dialect.last:
                self.ready.set()
            if ended := [(data.find(name), name) for name in self.dialect.last if name in data]:
                self.last = min(ended)[1].decode().removeprefix("event: ")
                break
            if data.endswith(b"0\r\n\r\n"):
                self.last = "the stream ends"
                break
        else:
            self.last = "the connection was closed"
        self.ended_at = time.monotonic()
        self.ready.set()
        self.close()

    def close(self) -> None:
        self.writer.close()


async def exchange(port: int, request: bytes) -> tuple[int, bytes]:
    """The status and the body of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1])) if length else b""
        return int(head.split()[1]), body
    finally:
        writer.close()


def as_object(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return {}
