# SPDX-License-Identifier: Apache-2.0
"""What the figure `store` asks of a server: an agent, and clients of it on bare sockets, which leave most of the
processor time to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random

from andon import Agent
from andon.models.base import ModelRequest, Sink
from andon.models.scripted import Item, ScriptedModel, Stall, Turn

CLIENTS = 16
TOGETHER = 50
"""At full speed, so many tokens come at once, as many as a provider's client often finds in one network read."""
PER_SECOND = 100
_chance = Random(8)
WORDS = ["".join(_chance.choices("abcdefghijklmnopqrstuvwxyz", k=4)) + " " for _ in range(10_000)]
"""Tokens of five bytes. They differ: a database that compresses would make too little of one word repeated."""


@dataclass(frozen=True, slots=True)
class Words(Item):
    """So many tokens: at full speed, or `PER_SECOND`."""

    count: int
    fast: bool

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        began = time.monotonic()
        for place in range(self.count):
            sink.text(WORDS[place % len(WORDS)])
            if not self.fast:  # the clock decides, so that one wait that was too long is made up for
                await asyncio.sleep(began + (place + 1) / PER_SECOND - time.monotonic())
            elif (place + 1) % TOGETHER == 0:
                await asyncio.sleep(0)


def _answer(request: ModelRequest) -> Turn:
    """To `short`, to `silent`, and to `fast 1000` or `slow 1000`, which asks for so many tokens."""
    kind, _, count = request.messages[-1].text.partition(" ")
    if kind == "short":
        return "A few words."
    return ["Well, ", Stall()] if kind in ("silent", "wait") else Words(int(count), fast=kind == "fast")


agent = Agent("Bench", ScriptedModel(then=_answer))
queued = [agent, Agent("Idle", ScriptedModel(then=_answer), queue="idle")]
"""Also an agent whose runs wait, because no worker has it."""
PATH = "/agents/bench/runs"


class Connection:
    """An HTTP connection, for one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, port: int) -> AsyncIterator[Connection]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def ask(self, method: str, path: str, body: str = "") -> bytes:
        """The answer's head, in small letters."""
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-www-form-urlencoded\r\n"
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not answer.startswith((b"http/1.1 200 ", b"http/1.1 202 ")):
            raise RuntimeError(f"{method} {path}: {answer!r}")
        return answer

    async def fetch(self, method: str, path: str, body: str = "") -> bytes:
        """The answer's body."""
        head = await self.ask(method, path, body)
        return await self._reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))

    async def chunks(self) -> AsyncIterator[bytes]:
        """What comes, to the end of the connection."""
        while chunk := await self._reader.read(1 << 16):
            yield chunk

    async def read_to(self, what: bytes) -> None:
        """Read a stream up to where this stands in it."""
        read = b""
        while what not in read:
            chunk = await self._reader.read(1 << 16)
            if not chunk:
                raise RuntimeError(f"the stream has ended without {what!r}")
            read = read[-len(what) :] + chunk


async def short_runs(port: int, seconds: float) -> tuple[int, float]:
    """So many were done by all clients, each of which starts one when it has the result of the one before; and in how
    many seconds.
    """

    async def client() -> int:
        count = 0
        async with Connection.to(port) as connection:
            while time.perf_counter() < began + seconds:
                said = await connection.fetch("POST", PATH, "message=short&stream=false")
                if b"COMPLETED" not in said:
                    raise RuntimeError(f"a short run has not completed: {said!r}")
                count += 1
        return count

    began = time.perf_counter()
    counts = await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return sum(counts), time.perf_counter() - began


async def hold(port: int, which: range) -> None:
    """Start runs of these numbers, which say a word and then nothing more."""
    numbers = iter(which)

    async def client() -> None:
        async with Connection.to(port) as connection:
            for number in numbers:
                body = f"message=silent&stream=false&background=true&run_id=silent-{number}"
                await connection.fetch("POST", PATH, body)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def running(port: int) -> int:
    """How many runs a server says that it has."""
    async with Connection.to(port) as connection:
        found = re.search(rb'andon_runs{status="running"} (\d+)', await connection.fetch("GET", "/metrics"))
    return int(found[1]) if found else 0


async def stream(port: int, message: str) -> None:
    """A run that one client reads as SSE, to its end."""
    async with Connection.to(port) as connection:
        await connection.ask("POST", PATH, f"message={message}")
        await connection.read_to(b"event: RunCompleted")


@contextlib.asynccontextmanager
async def watching(port: int, count: int) -> AsyncIterator[None]:
    """As long as the block runs, one reader each of so many of the silent runs."""
    async with contextlib.AsyncExitStack() as stack:
        for number in range(count):
            connection = await stack.enter_async_context(Connection.to(port))
            await connection.ask("GET", f"{PATH}/silent-{number}/events")
            await connection.read_to(b"event: RunContent")
        yield
