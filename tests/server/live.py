# SPDX-License-Identifier: Apache-2.0
"""A real server on loopback, in a thread of its own, and clients that do as they please with their sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx
import uvicorn
from fastapi import FastAPI

from andon import Agent, Run, Runtime
from andon.server import create_app
from andon.store import open_store
from tests.support import HANG, Flag, Worker, eventually

NEVER = 3600.0
"""A heartbeat that doesn't come: what is noticed is noticed without it."""


class _Server(uvicorn.Server):
    """Says when it has started, and ends when it is told, not at the next tick of a clock."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = Flag()
        self.down = Flag()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.down.arrived()


@dataclass
class Frame:
    """One server-sent event."""

    id: int
    event: str
    data: dict[str, Any]


class Live:
    """A server that runs, and a client to it."""

    def __init__(self, app: FastAPI, port: int, server: _Server) -> None:
        self.app, self.port, self.server = app, port, server
        self.url = f"http://127.0.0.1:{port}"
        self.client = self.another_client()

    def another_client(self) -> httpx.Client:
        # No certificates: to load them takes longer than most tests.
        return httpx.Client(base_url=self.url, timeout=HANG, verify=False)

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    def run_of(self, agent: Agent, run_id: str) -> Run:
        run = agent.runtime.recent(run_id)
        assert run is not None
        return run

    def post(self, path: str, **fields: Any) -> httpx.Response:
        return self.client.post(path, data=fields)

    @contextmanager
    def stream(self, path: str, **fields: Any) -> Iterator[Iterator[Frame]]:
        """Start a run and read it; leaving the block leaves the connection."""
        with self.client.stream("POST", path, data=fields) as response:
            assert response.status_code == 200, response.read()
            yield frames(response.iter_lines())

    @contextmanager
    def watch(self, path: str, after: int | None = None) -> Iterator[Iterator[Frame]]:
        headers = {} if after is None else {"last-event-id": str(after)}
        with self.client.stream("GET", path, headers=headers) as response:
            assert response.status_code == 200, response.read()
            yield frames(response.iter_lines())

    def connect(self, *, receive_buffer: int | None = None) -> socket.socket:
        """A bare connection."""
        bare = socket.socket()
        if receive_buffer is not None:
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        bare.settimeout(HANG)
        bare.connect(("127.0.0.1", self.port))
        return bare

    def send(self, bare: socket.socket, path: str, **fields: Any) -> None:
        body = urlencode(fields)
        bare.sendall(
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-www-form-urlencoded\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}".encode()
        )


def frames(lines: Iterable[str]) -> Iterator[Frame]:
    """Server-sent events, each checked for its form."""
    told: list[str] = []
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            told.append(line)
            continue
        if told:
            number, kind, data = told
            assert number.startswith("id: ")
            assert kind.startswith("event: ")
            assert data.startswith("data: ")
            yield Frame(int(number[4:]), kind[7:], json.loads(data[6:]))
            told = []
    assert not told, "the stream ended in the middle of an event"


def read_until(bare: socket.socket, word: bytes) -> None:
    tail = b""
    while word not in tail:
        part = bare.recv(1 << 20)
        assert part, "the stream ended too early"
        tail = tail[-len(word) :] + part


def reset(bare: socket.socket) -> None:
    """Leave without a goodbye."""
    bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    bare.close()


@contextmanager
def serving_app(app: FastAPI, **config: Any) -> Iterator[Live]:
    """Serve an app. At the end no connection, request or run may be left."""
    listener = socket.create_server(("127.0.0.1", 0))
    settings: dict[str, Any] = {"log_level": "critical", "access_log": False}
    server = _Server(uvicorn.Config(app, **settings, **{"timeout_graceful_shutdown": 10} | config))
    worker = Worker(lambda: asyncio.run(server.serve([listener])))
    server.up.wait()
    live = Live(app, listener.getsockname()[1], server)
    try:
        yield live
        live.client.close()
        eventually(lambda: not server.server_state.tasks)
    finally:
        live.client.close()
        server.down.set()
        worker.done()


@contextmanager
def serving(*agents: Agent, **settings: Any) -> Iterator[Live]:
    with serving_app(create_app(agents, **{"heartbeat": NEVER, "drain": 0.0} | settings)) as live:
        yield live


@contextmanager
def serving_on(url: str, *agents: Agent, **settings: Any) -> Iterator[Live]:
    """Serve agents on a database, and close it at the end."""
    runtime = Runtime(open_store(url))
    try:
        with serving(*agents, runtime=runtime, **settings) as live:
            yield live
    finally:
        asyncio.run(runtime.close())
