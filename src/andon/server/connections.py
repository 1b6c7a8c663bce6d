# SPDX-License-Identifier: Apache-2.0
"""What a connection may cost, before anybody has been asked for a token.

uvicorn bounds none of this by itself: the size and the number of headers, the time that they take, the connections, and
the requests that a client sends without reading the answers. What must stay true: a connection holds a bounded amount
of memory, and one that waits for its client, for whatever reason, has a deadline. There is none while the server owes
an answer: a run may take its time.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import deque
from http import HTTPStatus
from typing import Any, cast

from msgspec import Struct
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from andon.server.open_files import CONNECTIONS
from andon.server.responses import to_json

log = logging.getLogger(__name__)

PIECE = 1024
"""So many bytes are parsed at once. What came behind a request is looked at only after that, and the shortest request
has 18 bytes: so there are never more than 57 that wait for the answer to another one. Of a body whose length is known,
all is parsed at once.
"""

SPARE = 100
"""So many connections above the limit are told that there is no room; the others are closed without a word."""

FULL_SECONDS = 1.0
"""How long one that is told so has to send its request: who is answered before may never read it."""

FRAGMENTS = 1000
"""In so many pieces one message of a WebSocket may come. Empty ones count: they take memory too."""

LOG_SECONDS = 60.0
"""So often the log says that there is no room."""


class Bounds(Struct, frozen=True, kw_only=True):
    """The bounds of one connection, and how many there may be."""

    connections: int = CONNECTIONS
    head_bytes: int = 65536
    """Of the request line and the headers; and once more of the trailers behind a body."""
    headers: int = 128
    head_seconds: float = 10.0
    """From the connection, or from the answer before, to the last header."""
    request_seconds: float = 300.0
    """From there to the end of the body."""


class ConnectionLimit:
    """Makes connections, and knows whether there is room for one more."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._logged_at = float("-inf")

    def excess(self, connections: int) -> int:
        """By how many these are too many."""
        excess = connections - self.bounds.connections
        if excess > 0 and time.monotonic() - self._logged_at > LOG_SECONDS:
            self._logged_at = time.monotonic()
            log.warning("all %d connections are taken: others are refused (--max-connections)", self.bounds.connections)
        return excess


def http_protocol(bounds: Bounds) -> type[asyncio.Protocol]:
    """What uvicorn is to speak HTTP with. It only calls it, for each connection."""
    return cast(type[asyncio.Protocol], functools.partial(HttpProtocol, ConnectionLimit(bounds)))


class PausableFlow(FlowControl):
    """Reads nothing more while there is something that has not been parsed."""

    full = False

    def set_full(self, full: bool) -> None:
        if full != self.full:
            self.full = full
            (self.pause_reading if full else self.resume_reading)()

    def resume_reading(self) -> None:
        if not self.full:
            super().resume_reading()


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's own, with bounds. What the client waits for an answer to is parsed; what comes behind it is not."""

    flow: PausableFlow

    def __init__(self, limit: ConnectionLimit, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limit, self._bounds = limit, limit.bounds
        self._unparsed = memoryview(b"")
        """What has come and was not parsed yet."""
        self._head_bytes = 0
        """How many bytes were parsed since the last piece of a body: those of a head, or of trailers."""
        self._body = 0
        """How many bytes of a body are still to come, if its length is known."""
        self._open: deque[RequestResponseCycle] = deque()
        """What has not been answered yet, in the order in which it came. uvicorn knows the last one alone."""
        self._full = self._upgraded = False
        self._fault = HTTPStatus.BAD_REQUEST
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = PausableFlow(transport)
        excess = self._limit.excess(len(self.connections))
        if excess > SPARE:
            transport.abort()
            return
        self._full = excess > 0
        self._set_deadline(FULL_SECONDS if self._full else self._bounds.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unparsed = memoryview(b"")
        self._set_deadline(None)
        for cycle in self._open:  # or the one that is being answered would go on, and write to nobody
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._full:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "this server has no room for another connection: try later")
            return
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        self._parse()

    def _parse(self) -> None:
        while self._unparsed and not self.pipeline and not self.transport.is_closing():
            size = max(PIECE, self._body)
            piece, self._unparsed = self._unparsed[:size], self._unparsed[size:]
            self._head_bytes += len(piece)
            super().data_received(bytes(piece))
            if self._head_bytes > self._bounds.head_bytes and not self.transport.is_closing():
                self._fault = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                self.send_400_response("")
        if not self._upgraded and not self.transport.is_closing():  # after that, the socket says what is read
            self.flow.set_full(bool(self._unparsed))

    # -- what the parser says -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._set_deadline(self._bounds.head_seconds)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= self._bounds.headers:
            self._fault = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise ValueError("too many headers")  # the parser stops, and has the request refused
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._set_deadline(self._bounds.request_seconds)
        length = next((value for name, value in self.headers if name == b"content-length"), b"")
        self._body = int(length) if length.isdigit() else 0
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:  # else it is no request, but a WebSocket
            self._open.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._head_bytes, self._body = 0, max(0, self._body - len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._body = 0
        super().on_message_complete()
        self._set_deadline(None if self._owes_response else self._bounds.head_seconds)

    def on_response_complete(self) -> None:
        self._open.popleft()
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._owes_response:
            self._set_deadline(None)
        elif self.cycle.response_complete:  # else the rest of the next request is on its way, and has a deadline
            self._set_deadline(self._bounds.head_seconds)
        self._parse()

    @property
    def _owes_response(self) -> bool:
        """Is it the server that the client waits for?"""
        cycle = self.cycle
        return bool(self.pipeline) or (cycle is not None and not (cycle.response_complete or cycle.more_body))

    def handle_websocket_upgrade(self) -> None:
        self._set_deadline(None)
        self._unparsed, self._upgraded = memoryview(b""), True
        super().handle_websocket_upgrade()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _set_deadline(self, seconds: float | None) -> None:
        """Something of the client, within so many seconds; None if it is the client who waits."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._on_deadline)

    def _on_deadline(self) -> None:
        if self._owes_response:  # what is late belongs to the next request
            self._set_deadline(self._bounds.head_seconds)
        else:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()  # another answer is half written
        elif self._fault == HTTPStatus.BAD_REQUEST:
            self._refuse(self._fault, "this is no HTTP request")
        else:
            most, size = self._bounds.headers, self._bounds.head_bytes
            self._refuse(self._fault, f"a request may have {most} headers, and {size:,} bytes of them")

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        self.transport.write(refusal(status, detail))
        self.transport.close()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's own, with bounds: a client that reads nothing is not listened to, since its pings are answered. Nor is
    one that has not been accepted: it has nothing to say yet, and may never have.
    """

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:  # it would be kept, and never answered
            self.transport.write(refusal(HTTPStatus.BAD_REQUEST, "this is no handshake of a WebSocket"))
            self.transport.close()
        self._pause_if_unready()

    async def receive(self) -> Any:
        message = await super().receive()
        self._pause_if_unready()
        return message

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.accept" and not (self.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()
            self._pause_if_unready()
        elif message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True  # else uvicorn logs an error: that the app has not answered

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.handshake_complete and not (self.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def _pause_if_unready(self) -> None:
        if not (self.transport.is_closing() or (self.handshake_complete and self.writable.is_set())):
            self.transport.pause_reading()

    def handle_cont(self, event: Frame) -> None:
        super().handle_cont(event)
        if len(self.frames) > FRAGMENTS:
            self.conn.fail(1009, f"a message may come in {FRAGMENTS} pieces")
            self.handle_parser_exception()


def refusal(status: HTTPStatus, detail: str) -> bytes:
    """An answer, and the end of the connection."""
    body = to_json({"detail": detail})
    head = [f"HTTP/1.1 {status.value} {status.phrase}", "content-type: application/json", "connection: close"]
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        head.append("retry-after: 1")
    return "\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode() + body
