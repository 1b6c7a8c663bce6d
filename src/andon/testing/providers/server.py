# SPDX-License-Identifier: Apache-2.0
"""A tiny HTTP/1.1 server on loopback, in a thread with an event loop of its own.

So it serves blocking and async clients alike, and notices a disconnect even while the client's own loop is busy. What
must stay true: an answer is one task, and is cancelled when its connection is lost. So nothing is sent to a client that
has left, wherever the answer waits.

A client may have a virtual clock. It asks the server whether there is something to wait for (`testing/neighbours`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import struct
import threading
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from itertools import count

from andon.testing import neighbours

MAX_REQUEST = 64 * 1024 * 1024

ACCEPTING_TURNS = 4
"""The most turns of the loop between accepting a connection and `connection_made`."""

ANSWERING_TURNS = 20
"""More turns of the loop than there are between a request, or a word of an answer, and the next bytes that are sent."""

_pauses: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[float]] = weakref.WeakKeyDictionary()
"""When the answers that pause go on, by the loop of their server."""


async def pause(seconds: float) -> None:
    """Pause an answer, in real time."""
    loop = asyncio.get_running_loop()
    due, pauses = loop.time() + seconds, _pauses.setdefault(loop, [])
    pauses.append(due)
    try:
        await asyncio.sleep(seconds)
    finally:
        pauses.remove(due)


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class BadRequestError(Exception):
    """The bytes received are not an HTTP request that this server understands."""


class Connection(asyncio.Protocol):
    """One client's connection: requests in, bytes out, one after the other."""

    def __init__(self, number: int, server: Server) -> None:
        self.number = number
        self.on_left: Callable[[], None] | None = None
        """Called when the client disconnects during an answer."""
        self._server = server
        self._received = bytearray()
        self._changed = asyncio.Event()
        self._gone = False
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # `drain` then waits until the system has taken everything, so that a cut comes after the bytes before it.
        transport.set_write_buffer_limits(high=0)
        self._server.connections.add(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())
        self._server.changed()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._changed.set()

    def eof_received(self) -> None:
        self._leave()

    def pause_writing(self) -> None:
        self._server.full.add(self)
        self._server.changed()

    def resume_writing(self) -> None:
        self._server.full.discard(self)
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._server.full.discard(self)
        self._server.connections.discard(self)
        self._server.changed()
        if not self.lost.done():
            self.lost.set_result(None)

    def _leave(self) -> None:
        if self._gone:
            return
        self._gone = True
        if self.on_left is not None:
            self.on_left()
        self._task.cancel()

    # -- used by answers

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def drain(self) -> None:
        # Other connections get their turn even if there is nothing to wait for.
        await asyncio.sleep(0)
        while self in self._server.full or self._transport.is_closing():
            self._changed.clear()
            await self._changed.wait()

    def close(self, *, reset: bool = False) -> None:
        """Close it from our side: this does not count as the client leaving."""
        self._gone = True
        if reset:
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
        else:
            self._transport.close()

    async def respond(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.write(head(status, {**headers, "content-length": str(len(body))}) + body)
        await self.drain()

    # -- requests

    async def _serve(self) -> None:
        try:
            while await self._server.answer(self, await self._request()):
                pass
        except BadRequestError as error:
            await self.respond(400, {"content-type": "text/plain", "connection": "close"}, str(error).encode())
        finally:
            if not self._gone:
                self.close()

    async def _request(self) -> Request:
        start = await self._until(b"\r\n\r\n")
        lines = start.decode("latin-1").split("\r\n")
        try:
            method, path, version = lines[0].split(" ")
            fields = [line.split(":", 1) for line in lines[1:]]
            headers = {name.strip().lower(): value.strip() for name, value in fields}
            size = int(headers.get("content-length", "0"))
        except ValueError:
            raise BadRequestError(f"no HTTP request: {lines[0]!r}") from None
        if version != "HTTP/1.1" or "transfer-encoding" in headers or not 0 <= size <= MAX_REQUEST:
            raise BadRequestError("only HTTP/1.1 with a content-length of up to 64 MiB is understood here")
        body = await self._take(size)
        return Request(method, path, headers, body)

    async def _until(self, mark: bytes) -> bytes:
        while (end := self._received.find(mark)) < 0:
            self._changed.clear()
            await self._changed.wait()
        taken = bytes(self._received[:end])
        del self._received[: end + len(mark)]
        return taken

    async def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            self._changed.clear()
            await self._changed.wait()
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken


class Server:
    """The thread, its loop, and the connections that are open."""

    def __init__(self, answer: Callable[[Connection, Request], Awaitable[bool]], changed: Callable[[], None]) -> None:
        self.answer = answer
        """Answers a request; returns whether the connection can be used again."""
        self.changed = changed
        self.connections: set[Connection] = set()
        self.full: set[Connection] = set()
        self.port = 0
        self._numbers = count(1)
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def start(self) -> None:
        if self._thread is not None:
            raise RuntimeError("this fake is, or was, running already; make a new one")
        self._thread = threading.Thread(target=self._run, name="andon-fake-provider", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed
        neighbours.add(self)

    def stop(self) -> None:
        """Closes every connection, and waits until the thread has ended. May be called twice."""
        neighbours.remove(self)
        if self._thread is None or self._loop is None or self._stop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._stop.set)
        except RuntimeError:  # it has ended already
            pass
        self._thread.join()

    def look(self, seconds: float) -> float | None:
        """Let it send all that it can send now. See `Neighbour.look`."""
        loop, found = self._loop, concurrent.futures.Future[float | None]()
        if loop is None or self._thread is None or not self._thread.is_alive():  # in a forked child it is not
            return None

        def turn(left: int) -> None:
            if left:
                loop.call_soon(turn, left - 1)
            else:
                pauses = _pauses.get(loop)
                found.set_result(max(0.0, min(pauses) - loop.time()) if pauses else None)

        try:
            loop.call_soon_threadsafe(turn, ANSWERING_TURNS)
            return found.result(seconds)
        except (RuntimeError, TimeoutError):  # it has ended, or its thread is blocked
            return None

    def _run(self) -> None:
        try:
            # Always asyncio's own loop, also with another policy: the work with sockets here relies on it.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised by start(), which waits for it
            self._failed = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await self._loop.create_server(
            lambda: Connection(next(self._numbers), self), "127.0.0.1", 0, backlog=1024
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        # A connection accepted a moment ago is made only now, and only while the server is open.
        for listening in server.sockets:
            self._loop.remove_reader(listening.fileno())
        for _ in range(ACCEPTING_TURNS):
            await asyncio.sleep(0)
        server.close()
        open_ones = list(self.connections)
        for connection in open_ones:
            connection.close(reset=True)
        await asyncio.gather(*(connection.lost for connection in open_ones))


def head(status: int, headers: dict[str, str]) -> bytes:
    """A response's first lines."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
