# SPDX-License-Identifier: Apache-2.0
"""A pooler in front of Postgres, as PgBouncer is one. In transaction mode each transaction gets the session that was
used last, if it is idle; in session mode a client keeps the one that it has.

It knows of Postgres' protocol where messages end, and, by ReadyForQuery, where transactions do. It asks for
no password.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import struct
import threading
from collections.abc import Iterator

from psycopg.conninfo import conninfo_to_dict

SESSIONS = 3
SSL, GSS, CANCEL = 80877103, 80877104, 80877102
ASKING = (b"Q", b"S")
"""The messages that the server answers with ReadyForQuery: Query and Sync."""


class _Link:
    """A socket, read message by message, and never further: whoever waits for it sees what is left."""

    def __init__(self, to: socket.socket) -> None:
        self.socket = to

    def fileno(self) -> int:
        return self.socket.fileno()

    def _exactly(self, size: int) -> bytes:
        read = b""
        while len(read) < size:
            if not (more := self.socket.recv(size - len(read))):
                raise ConnectionResetError
            read += more
        return read

    def startup(self) -> bytes:
        """What a client says first, in the clear."""
        while True:
            head = self._exactly(8)
            size, code = struct.unpack("!ii", head)
            if code == CANCEL:
                raise ConnectionResetError
            if code not in (SSL, GSS):
                return head + self._exactly(size - 8)
            self.socket.sendall(b"N")

    def message(self) -> bytes:
        head = self._exactly(5)
        return head + self._exactly(struct.unpack("!i", head[1:])[0] - 4)


class Pooler:
    def __init__(self, url: str, *, by_transaction: bool) -> None:
        where = conninfo_to_dict(url)
        self._server = f"{where['host']}/.s.PGSQL.{where.get('port') or 5432}"
        self._by_transaction = by_transaction
        self._idle: queue.LifoQueue[_Link] = queue.LifoQueue()
        self._lock = threading.Lock()
        self._greeting = b""
        self._open: list[socket.socket] = []
        self._closing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"postgresql://{where['user']}@127.0.0.1:{self._listener.getsockname()[1]}/{where['dbname']}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            client = self._keep(self._listener.accept()[0])
            if self._closing:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
            self._threads[-1].start()

    def _keep(self, to: socket.socket) -> _Link:
        self._open.append(to)
        return _Link(to)

    def _session(self, startup: bytes) -> tuple[_Link, bytes]:
        """A fresh one, and what the server said first."""
        to = socket.socket(socket.AF_UNIX)
        to.connect(self._server)
        session = self._keep(to)
        to.sendall(startup)
        said = b""
        while True:
            message = session.message()
            said += message
            if message[:1] == b"Z":
                return session, said

    def _serve(self, client: _Link) -> None:
        with contextlib.suppress(OSError):  # either side has left
            startup = client.startup()
            if not self._by_transaction:
                session, greeting = self._session(startup)
                client.socket.sendall(greeting)
                self._relay(client, session)
                session.socket.close()
            else:
                with self._lock:
                    while self._idle.qsize() < SESSIONS and not self._greeting:
                        session, greeting = self._session(startup)
                        self._idle.put(session)
                    self._greeting = self._greeting or greeting
                client.socket.sendall(self._greeting)
                while self._waits(client):
                    session = self._idle.get()
                    last = self._relay(client, session)
                    self._idle.put(session)  # first, as PgBouncer does it: who is answered asks again at once
                    client.socket.sendall(last)
        client.socket.close()

    def _waits(self, client: _Link) -> bool:
        """Until a client says something. False if that is its goodbye."""
        said = client.socket.recv(1, socket.MSG_PEEK)
        return said not in (b"", b"X")

    def _relay(self, client: _Link, session: _Link) -> bytes:
        """Up to the end of a transaction, or until one of them leaves. What says that it has ended is not passed on."""
        owed = 0
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ)
            selector.register(session, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if client in ready:
                    message = client.message()
                    session.socket.sendall(message)
                    owed += message[:1] in ASKING
                if session in ready:
                    message = session.message()
                    owed -= message[:1] == b"Z"
                    if self._by_transaction and owed == 0 and message == b"Z\0\0\0\5I":
                        return message
                    client.socket.sendall(message)

    def close(self) -> None:
        self._closing = True
        socket.create_connection(self._listener.getsockname()).close()  # wakes who accepts
        self._threads[0].join()
        for each in self._open:
            with contextlib.suppress(OSError):  # it has left already
                each.shutdown(socket.SHUT_RDWR)  # wakes who reads from it; to close it at once would not
        for thread in self._threads[1:]:
            thread.join()
        for each in (self._listener, *self._open):
            each.close()


@contextlib.contextmanager
def pooling(url: str, *, by_transaction: bool) -> Iterator[str]:
    pooler = Pooler(url, by_transaction=by_transaction)
    try:
        yield pooler.url
    finally:
        pooler.close()
