# SPDX-License-Identifier: Apache-2.0
"""An address at which connecting never ends, to test a cancel while the client connects.

What must stay true: the client gets no error and no answer.
"""

from __future__ import annotations

import select
import socket
from types import TracebackType
from typing import Self

from andon.testing.providers.served import Changes
from andon.testing.providers.server import Connection, Request, Server


class ConnectNever:
    """`with connect_never() as nowhere:`, and then `nowhere.base_url`.

    It is a listening socket whose queue is full: the system drops each further attempt to connect, and no client can be
    seen there. With `tls`, the connection is accepted but its TLS handshake is never answered. Then `open_connections`
    and `wait_left` tell whether the client is still there.
    """

    api_key = "sk-fake"

    def __init__(self, *, tls: bool = False) -> None:
        self._tls = tls
        self._changes = Changes()
        self._came = 0
        self._server = Server(_answer, self._changed)
        self._sockets: list[socket.socket] = []
        self.base_url = ""

    def __enter__(self) -> Self:
        if self._tls:
            self._server.start()
            self.base_url = f"https://127.0.0.1:{self._server.port}/v1"
        else:
            self.base_url = f"http://127.0.0.1:{self._fill()}/v1"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._server.stop()
        for each in self._sockets:
            each.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    @property
    def open_connections(self) -> int:
        """How many clients wait for their TLS handshake."""
        return len(self._server.connections)

    def wait_connected(self, timeout: float = 10.0) -> None:
        """Blocks until a client waits for its TLS handshake."""
        self._check(self._changes.wait(lambda: self.open_connections > 0, timeout), "no client came")

    async def wait_connected_async(self, timeout: float = 10.0) -> None:
        self._check(await self._changes.wait_async(lambda: self.open_connections > 0, timeout), "no client came")

    def wait_left(self, timeout: float = 10.0) -> None:
        """Blocks until every client that came has left."""
        self._check(self._changes.wait(self._left, timeout), "not every client has left")

    async def wait_left_async(self, timeout: float = 10.0) -> None:
        self._check(await self._changes.wait_async(self._left, timeout), "not every client has left")

    def _left(self) -> bool:
        return self._came > 0 and self.open_connections == 0

    def _check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise TimeoutError(f"{otherwise}; {self.open_connections} connections are open")

    def _changed(self) -> None:
        self._came = max(self._came, len(self._server.connections))
        self._changes.notify()

    def _fill(self) -> int:
        listening = socket.create_server(("127.0.0.1", 0), backlog=0)
        self._sockets.append(listening)
        address = listening.getsockname()
        for _ in range(64):
            filler = socket.socket()
            self._sockets.append(filler)
            filler.setblocking(False)
            filler.connect_ex(address)
            # On loopback a connection that can be made is made at once.
            if not select.select([], [filler], [], 0.05)[1]:
                return int(address[1])
        raise RuntimeError("this system goes on taking connections; use connect_never(tls=True)")  # pragma: no cover


def connect_never(*, tls: bool = False) -> ConnectNever:
    """An address at which connecting hangs; with `tls`, the TLS handshake does."""
    return ConnectNever(tls=tls)


async def _answer(connection: Connection, request: Request) -> bool:
    raise AssertionError("a TLS handshake is no request")  # pragma: no cover
