# SPDX-License-Identifier: Apache-2.0
"""The frameworks' own servers: speed, cost, the cancel route, clients that leave, other processes, many at once."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gauges import Cpu
from bench.peers.dialects import DIALECTS, Dialect
from bench.peers.lines import Lines, PeerError, speaking
from bench.peers.parts import Size, Step
from bench.peers.scripts import FAST, FIRST, SPEAKS_AFTER
from bench.peers.serving import Server, Stream, exchange, serving
from bench.peers.trial import PROVIDER, SETTLE
from bench.report import percentile

Json = dict[str, Any]
PATIENCE = SPEAKS_AFTER + 7
MANY = 500
READERS = 10
LEAVES_AFTER = 1.0
SHARES = (0.5, 0.99, 1.0)
"""Of the streams that are cancelled at once: within how many seconds so many of them have ended."""
AT_MOST = 60.0
"""Seconds for all tokens. Whole runs are measured: a server may read ahead and send most of it late."""


@dataclass
class House:
    """A provider, and one or two servers on the same database."""

    dialect: Dialect
    provider: Lines
    servers: list[Server]

    @property
    def port(self) -> int:
        return self.servers[0].port

    async def begin(self, now: str, *, streams: bool = True) -> Stream:
        self.provider.ask("play", now=now)
        return await self.another(streams=streams)

    async def another(self, *, streams: bool = True) -> Stream:
        return await Stream.begin(self.port, self.dialect, str(uuid.uuid4()), FIRST, streams=streams)

    async def until(self, state: str, pieces: int = 0) -> None:
        wanted: Json = {"state": state, "pieces": pieces, "timeout": PATIENCE, "patience": PATIENCE + 5}
        await asyncio.to_thread(self.provider.ask, "wait", **wanted)

    async def requests(self, asked: float | None = None) -> list[Json]:
        answer = await asyncio.to_thread(self.provider.ask, "requests", asked=asked)
        found: list[Json] = answer["requests"]
        return found

    async def finished_requests(self, asked: float) -> list[Json]:
        """All requests, when nothing more is sent for any of them."""
        async with asyncio.timeout(PATIENCE):
            while True:
                found = await self.requests(asked)
                if all(each["over"] for each in found):
                    return found
                await asyncio.sleep(0.1)

    async def run_id(self, stream: Stream) -> str:
        async with asyncio.timeout(PATIENCE):
            await stream.ready.wait()
        return stream.run_id

    async def cancel(self, stream: Stream, port: int | None = None) -> tuple[int, bytes]:
        assert self.dialect.cancel is not None
        return await exchange(port or self.port, self.dialect.cancel(stream.run_id, stream.session))


@contextlib.asynccontextmanager
async def house(dialect: Dialect, *, sqlite: bool, servers: int = 1) -> AsyncIterator[House]:
    with tempfile.TemporaryDirectory() as folder, speaking(PROVIDER) as provider:
        url = provider.event("ready")["urls"]["openai"]
        file = str(Path(folder, "peers.db")) if sqlite else None
        async with contextlib.AsyncExitStack() as stack:
            log = Path(folder, "log")
            started = [await stack.enter_async_context(serving(dialect, url, file, log)) for _ in range(servers)]
            place = House(dialect, provider, started)
            for server in started:
                await warm_up(place, server.port)
            yield place


async def warm_up(place: House, port: int) -> None:
    place.provider.ask("play", now="short")
    stream = await Stream.begin(port, place.dialect, str(uuid.uuid4()), FIRST)
    async with asyncio.timeout(60):
        await stream.read()
    if stream.pieces < 5:
        raise PeerError(f"a first prompt over HTTP failed: {stream.pieces} tokens, {stream.last}")


# -- the pieces -------------------------------------------------------------------------------------------------------


async def speed(dialect: Dialect, size: Size, step: Step, *, sqlite: bool) -> Json:
    """Tokens per second to one reader and to ten with a run each, and what they cost the server.

    It is the same number of tokens for both.
    """
    answer: Json = {}
    for readers, now in ((1, "fast"), (READERS, "a tenth")):
        rates, costs, peaks = [], [], []
        for number in range(size.attempts):
            async with house(dialect, sqlite=sqlite) as place:
                place.provider.ask("play", now=now)
                cpu, began = Cpu(place.servers[0].process.pid), time.monotonic()
                streams = [await place.another() for _ in range(readers)]
                reading = [asyncio.create_task(stream.read()) for stream in streams]
                await asyncio.wait(reading, timeout=AT_MOST)
                spent, used = time.monotonic() - began, cpu.ms
                pieces = sum(stream.pieces for stream in streams)
                if pieces < FAST:
                    raise PeerError(f"{pieces} of {FAST} tokens came within {spent:.0f} s")
                rates.append(pieces / spent)
                costs.append(used * 1000 / pieces)
                peaks.append(place.servers[0].peak_mb)
                for each in reading:
                    each.cancel()
            step(number + 1, size.attempts)
        answer[str(readers)] = {"tokens_per_s": rates, "cpu_ms_per_1000": costs, "peak_mb": peaks}
    return answer


MOMENTS = {
    "silent": ("paused", 0),
    "streaming": ("text", 10),
    "stalled": ("paused", 0),
    "async tool": ("finished", 0),
    "sync tool": ("finished", 0),
}


async def cancels(dialect: Dialect, size: Size, step: Step, *, sqlite: bool) -> Json:
    """The cancel route in each situation, for a run that has ended, and for one that was never there."""
    if dialect.cancel is None:
        return {"route": False}
    answer: Json = {"route": True}
    async with house(dialect, sqlite=sqlite) as place:
        for now, (state, pieces) in MOMENTS.items():
            answer[now] = []
            for number in range(size.attempts):
                stream = await place.begin(now)
                reading = asyncio.create_task(stream.read())
                await place.until(state, pieces)
                await asyncio.sleep(SETTLE)
                await place.run_id(stream)
                asked = time.monotonic()
                status, _ = await place.cancel(stream)
                answered = time.monotonic()
                async with asyncio.timeout(PATIENCE):
                    await reading
                answer[now].append(
                    {
                        "seconds": stream.ended_at - asked,
                        "answered": answered - asked,
                        "status": status,
                        "last": stream.last,
                    }
                )
                step(number + 1, size.attempts)
        ended = await place.begin("short")
        await ended.read()
        answer["of an ended run"] = (await place.cancel(ended))[0]
        ended.run_id = "nobody-has-this-id"
        answer["of an unknown run"] = (await place.cancel(ended))[0]
    return answer


async def leaving(dialect: Dialect, size: Size, step: Step, *, sqlite: bool) -> Json:
    """A client that leaves in the middle: when the provider's connection is closed, and whether the tokens go on."""
    answer: Json = {}
    async with house(dialect, sqlite=sqlite) as place:
        # For a client that does not stream, a server may ask its provider for one whole answer, which comes late.
        for name, now, streams in (("streaming", "streaming", True), ("not streaming", "silent", False)):
            answer[name] = []
            for number in range(size.attempts):
                stream = await place.begin(now, streams=streams)
                reading = asyncio.create_task(stream.read())
                await place.until("received")
                await asyncio.sleep(LEAVES_AFTER)
                left = time.monotonic()
                stream.close()
                await asyncio.wait({reading}, timeout=5)
                gone = [each["left_at"] for each in await place.finished_requests(left)]
                answer[name].append({"closed": gone[0] - left if gone and gone[0] else None})
                step(number + 1, size.attempts)
    return answer


async def elsewhere(dialect: Dialect, size: Size, step: Step, *, sqlite: bool) -> Json:
    """Two processes on one database: the run is on the first, the cancel is sent to the second."""
    if dialect.cancel is None:
        return {"route": False}
    answer: Json = {"route": True, "attempts": []}
    async with house(dialect, sqlite=True, servers=2) as place:
        for number in range(size.attempts):
            stream = await place.begin("streaming")
            reading = asyncio.create_task(stream.read())
            await place.until("text", 10)
            await place.run_id(stream)
            asked = time.monotonic()
            status, _ = await place.cancel(stream, place.servers[1].port)
            async with asyncio.timeout(PATIENCE):
                await reading
            took = stream.ended_at - asked
            answer["attempts"].append({"seconds": took, "status": status, "last": stream.last})
            step(number + 1, size.attempts)
    return answer


async def many(dialect: Dialect, size: Size, step: Step, *, sqlite: bool) -> Json:
    """Many streams, each waiting for its model, all cancelled at once with a request each."""
    if dialect.cancel is None:
        return {"route": False}
    count = MANY if size.attempts > 1 else 20
    async with house(dialect, sqlite=sqlite) as place:
        place.provider.ask("play", now="held")
        streams: list[Stream] = []
        reading = []
        for _ in range(count):
            streams.append(await place.another())
            reading.append(asyncio.create_task(streams[-1].read()))
        async with asyncio.timeout(120):
            for stream in streams:
                await stream.ready.wait()
        step(1, 2)
        await place.until("text", 5)
        await asyncio.sleep(3)
        asked = time.monotonic()
        statuses = await asyncio.gather(*(place.cancel(stream) for stream in streams), return_exceptions=True)
        done, waiting = await asyncio.wait(reading, timeout=60)
        taken = [stream.ended_at - asked for stream in streams if stream.ended_at]
        for each in waiting:
            each.cancel()
        return {
            "count": count,
            "ended": len(done),
            "ok": sum(not isinstance(each, BaseException) and each[0] == 200 for each in statuses),
            "seconds": [percentile(taken, share) for share in SHARES] if taken else [],
            "peak_mb": place.servers[0].peak_mb,
        }


Measure = Callable[..., Awaitable[Json]]
KINDS: dict[str, tuple[Measure, tuple[bool, ...]]] = {
    "speed": (speed, (False, True)),
    "cancel": (cancels, (False, True)),
    "leaving": (leaving, (False,)),
    "elsewhere": (elsewhere, (True,)),
    "many": (many, (False, True)),
}
"""Each piece, and whether it is measured in memory, on SQLite, or both."""


def measure(dialect: Dialect, kind: str, sqlite: bool, size: Size, step: Step) -> Json:
    async def bounded() -> Json:
        async with asyncio.timeout(580):
            return await KINDS[kind][0](dialect, size, step, sqlite=sqlite)

    try:
        return asyncio.run(bounded())
    except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        raise PeerError(f"{type(error).__name__}: {error}") from error


def dialect_of(name: str) -> Dialect | None:
    return next((dialect for dialect in DIALECTS if dialect.system.name == name), None)


def name_of(kind: str, sqlite: bool) -> str:
    return f"{kind}, {'SQLite' if sqlite else 'memory'}"
