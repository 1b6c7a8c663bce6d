# SPDX-License-Identifier: Apache-2.0
"""The answers of a worker process to probes, over HTTP: `GET /health` and `GET /ready`, and nothing else.

A probe costs nothing: no query is made for it. It must not be possible to hold up the worker by probes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import cast

READ_SECONDS = 5.0
"""How long a client may take to send its request."""
MOST_BYTES = 8192
MOST_CLIENTS = 50
"""At once. The next one is turned away: the open files of this process are for its runs."""

_NAMES = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}

WhyNotReady = Callable[[], str | None]


@contextlib.asynccontextmanager
async def answering(listener: socket.socket, why_not_ready: WhyNotReady) -> AsyncIterator[None]:
    """Answer probes on this socket in this block. `why_not_ready` returns None if the worker is ready."""
    clients: set[_Probe] = set()
    server = await asyncio.get_running_loop().create_server(lambda: _Probe(why_not_ready, clients), sock=listener)
    try:
        yield
    finally:
        server.close()


class _Probe(asyncio.Protocol):
    """The connection of one client. It has no task, so there is nothing to wait for at the end."""

    def __init__(self, why_not_ready: WhyNotReady, clients: set[_Probe]) -> None:
        self._why_not_ready, self._clients, self._read = why_not_ready, clients, b""
        self._transport: asyncio.Transport | None = None
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is no subclass of it
        if len(self._clients) >= MOST_CLIENTS:
            self._transport.abort()
            return
        self._clients.add(self)
        self._late = asyncio.get_running_loop().call_later(READ_SECONDS, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._read += data
        head, end, _ = self._read.partition(b"\r\n\r\n")
        if end and not self._transport.is_closing():
            self._transport.write(_respond(head, self._why_not_ready))
            self._transport.close()
        elif len(self._read) > MOST_BYTES:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._clients.discard(self)
        if self._late is not None:
            self._late.cancel()


def _respond(head: bytes, why_not_ready: WhyNotReady) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    status, text = 200, "ok"
    if path not in (b"/health", b"/ready"):
        status, text = 404, "there are /health and /ready"
    elif method not in (b"GET", b"HEAD"):
        status, text = 405, "use GET"
    elif path == b"/ready" and (why := why_not_ready()) is not None:
        status, text = 503, why
    elif path == b"/ready":
        text = "ready"
    body = b"" if method == b"HEAD" else f"{text}\n".encode()
    lines = [f"HTTP/1.1 {status} {_NAMES[status]}", "content-type: text/plain; charset=utf-8", "connection: close"]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body
