# SPDX-License-Identifier: Apache-2.0
"""Many streams over HTTP, all cancelled at once: the time until each client has read the end, and the memory after it.

The server is `andon serve` in its own process. The clients are bare sockets in this process, on the same machine. The
time starts when the first cancel is sent. The server's store deletes conversations, which an in-memory store would
keep, and ended runs can be read for one second only. So growth of the memory is a leak.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from pathlib import Path

from andon import Agent, MemoryStore, Message, RunRecord, Runtime
from andon.core.store import DONE
from andon.models.base import ModelRequest
from andon.models.scripted import Item, Pause, ScriptedModel, Stall
from bench.report import Figure, Goal, Progress, Row, percentile

ROOT = Path(__file__).parent.parent
GOAL_MS = 150
GROWTH = 1.05
SETTLED = 5
"""The round after which memory is compared: by then every cache and pool has been filled."""


class Forgetful(MemoryStore):
    """A store that keeps nothing of its runs."""

    def save(self, record: RunRecord, messages: Sequence[Message]) -> Awaitable[None]:
        return DONE


def _talk(request: ModelRequest) -> Iterator[str | Item]:
    """Waits after its first word, or, if it was asked to, says two a second."""
    yield "Well, "
    while request.messages[-1].text == "talk":
        yield Pause(0.5)
        yield "well, "
    yield Stall()


runtime = Runtime(Forgetful())
runtime.keep_ended(seconds=1)
agent = Agent("Bench", ScriptedModel(then=_talk), runtime=runtime)
talker = Agent("Bench", ScriptedModel(then=_talk))
"""The same without a runtime: on the database that a server is given."""


class Client:
    """One stream, on a bare socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, run_id: str) -> None:
        self.reader, self.writer, self.run_id = reader, writer, run_id
        self.last = b""
        """The terminal event, once it was read."""

    @classmethod
    async def begin(cls, port: int, run_id: str, message: str) -> Client:
        self = cls(*await asyncio.open_connection("127.0.0.1", port), run_id)
        self.writer.write(_request("/agents/bench/runs", f"message={message}&run_id={run_id}"))
        await self.reader.readuntil(b"event: RunContent")
        return self

    async def end(self) -> float:
        """When the terminal event was read."""
        while not (line := await self.reader.readline()).startswith(b"event: RunCancelled"):
            if not line:
                raise RuntimeError(f"the stream of {self.run_id} ended without its end")
        at = time.perf_counter()
        self.last = (await self.reader.readline()).removeprefix(b"data: ")
        await self.close()
        return at

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def _request(path: str, body: str) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-www-form-urlencoded\r\n"
        f"content-length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def post(port: int, path: str, body: str = "") -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_request(path, body))
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{path}: {status!r}")
    writer.close()


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[int, int]]:
    """The port and the process id."""
    command = [sys.executable, "-m", "andon", "serve", "bench.http:agent", "--port", "0", "--drain", "0"]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        found = re.search(r":(\d+)$", line)
        if found is None:
            raise RuntimeError(f"the server did not start: {line!r}")
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        await process.wait()


def _resident(pid: int) -> float:
    """The process's memory in MB."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def cancel_round(port: int, number: int, count: int, message: str, *, singly: bool) -> list[float]:
    """Milliseconds from the cancel to each client's last event."""
    names = [f"{message}-{singly}-{number}-{each}" for each in range(count)]
    clients = [await Client.begin(port, name, message) for name in names]
    ends = [asyncio.ensure_future(client.end()) for client in clients]
    start = time.perf_counter()
    if singly:
        await asyncio.gather(*(post(port, f"/agents/bench/runs/{name}/cancel") for name in names))
    else:
        await post(port, "/runs/cancel", "all=true")
    return [(end - start) * 1000 for end in await asyncio.gather(*ends)]


KINDS = {
    "waiting, one request for all": ("wait", False, 20),
    "streaming, one request for all": ("talk", False, 10),
    "waiting, one request each": ("wait", True, 10),
}
"""What the streams do, how they are cancelled, and in how many rounds."""


async def _measure(count: int, share: float, progress: Progress) -> Figure:
    figure = Figure(
        "http", f"{count} streams over HTTP, all cancelled at once; ms to each one's end, and MB at the end"
    )
    total, done = sum(max(1, int(rounds * share)) for _, _, rounds in KINDS.values()), 0
    gc.collect()
    gc.freeze()  # what other figures have left here is not the clients' to look after
    async with serving() as (port, pid):
        await cancel_round(port, -1, count, "wait", singly=False)
        for name, (message, singly, rounds) in KINDS.items():
            taken: list[float] = []
            worst: list[float] = []
            memory = []
            for number in range(max(1, int(rounds * share))):
                done += 1
                progress(done, total, name)
                ends = await cancel_round(port, number, count, message, singly=singly)
                taken += ends
                worst.append(percentile(ends, 0.99))
                memory.append(_resident(pid))
            values = {"p50_ms": percentile(taken, 0.5), "p99_ms": percentile(taken, 0.99), "max_ms": max(taken)}
            values["round_p99_ms"] = statistics.median(worst)  # a slow moment of the machine spoils one round
            early = memory[min(SETTLED, len(memory)) - 1]
            values |= {"mb": memory[-1], "growth": memory[-1] / early}
            # With a request each, what is measured is how fast requests are answered: that has no goal here.
            goals = [Goal("growth", GROWTH)] if singly else [Goal("p99_ms", GOAL_MS), Goal("growth", GROWTH)]
            figure.rows.append(Row(name, values, goals))
    return figure


def measure(quick: bool, progress: Progress) -> Figure:
    count, share = (30, 0.1) if quick else (500, 1)
    return asyncio.run(_measure(count, share, progress))
