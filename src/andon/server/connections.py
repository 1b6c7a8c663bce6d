# SPDX-License-Identifier: Apache-2.0
"""Limits per connection that apply before a token is checked.

uvicorn has no limits for these: the size and number of headers, the time that they take, the number of connections, and
the requests that a client sends without reading the responses. What must stay true: a connection holds a bounded amount
of memory, and while the server waits for the client there is a deadline. There is no deadline while the server owes a
response: a run may take long.
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
"""How many bytes are parsed at once. Parsing stops while a request is pipelined, and the shortest request has 18 bytes:
so at most 57 requests wait behind another one. A body of known length is parsed at once.
"""

SPARE = 100
"""How many connections above the limit get a 503. Further ones are closed without a response."""

FULL_SECONDS = 1.0
"""How long such a connection has to send its request: a client that gets a response too early may never read it."""

FRAGMENTS = 1000
"""In how many fragments one WebSocket message may come. Empty ones count: they take memory too."""

LOG_SECONDS = 60.0
"""How often the log repeats that the limit is reached."""


class Bounds(Struct, frozen=True, kw_only=True):
    """The limits of one connection, and of their number."""

    connections: int = CONNECTIONS
    head_bytes: int = 65536
    """For the request line and the headers; and again for the trailers after a body."""
    headers: int = 128
    head_seconds: float = 10.0
    """From the connection, or the previous response, to the last header."""
    request_seconds: float = 300.0
    """From the last header to the end of the body."""


class ConnectionLimit:
    """The limit on connections of a server."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._logged_at = float("-inf")

    def excess(self, connections: int) -> int:
        """How many connections there are above the limit."""
        excess = connections - self.bounds.connections
        if excess > 0 and time.monotonic() - self._logged_at > LOG_SECONDS:
            self._logged_at = time.monotonic()
            log.warning("all %d connections are taken: others are refused (--max-connections)", self.bounds.connections)
        return excess


def http_protocol(bounds: Bounds) -> type[asyncio.Protocol]:
    """The HTTP protocol for uvicorn, which only calls it, once per connection."""
    return cast(type[asyncio.Protocol], functools.partial(HttpProtocol, ConnectionLimit(bounds)))


class PausableFlow(FlowControl):
    """Stops reading from the socket while received bytes are not parsed yet."""

    full = False

    def set_full(self, full: bool) -> None:
        if full != self.full:
            self.full = full
            (self.pause_reading if full else self.resume_reading)()

    def resume_reading(self) -> None:
        if not self.full:
            super().resume_reading()


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits. Requests that are pipelined behind the current one are not parsed yet."""

    flow: PausableFlow

    def __init__(self, limit: ConnectionLimit, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limit, self._bounds = limit, limit.bounds
        self._unparsed = memoryview(b"")
        """Bytes that were received and not parsed yet."""
        self._head_bytes = 0
        """Bytes of a head, or of trailers, that were parsed since the last piece of a body."""
        self._body = 0
        """Bytes of a body that are still to come, if its length is known."""
        self._open: deque[RequestResponseCycle] = deque()
        """The requests without a complete response, in order. uvicorn only knows the last one."""
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
        for cycle in self._open:  # else the current one would go on writing to a closed connection
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._full:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "this server has reached its limit of connections: try later")
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
        if not self._upgraded and not self.transport.is_closing():  # after that, the WebSocket protocol reads
            self.flow.set_full(bool(self._unparsed))

    # -- callbacks of the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._set_deadline(self._bounds.head_seconds)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= self._bounds.headers:
            self._fault = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise ValueError("too many headers")  # the parser stops, and the request is refused
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._set_deadline(self._bounds.request_seconds)
        length = next((value for name, value in self.headers if name == b"content-length"), b"")
        self._body = int(length) if length.isdigit() else 0
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:  # else it is the handshake of a WebSocket
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
        elif self.cycle.response_complete:  # else the next request has begun, and has its deadline
            self._set_deadline(self._bounds.head_seconds)
        self._parse()

    @property
    def _owes_response(self) -> bool:
        """Whether the client waits for a response."""
        cycle = self.cycle
        return bool(self.pipeline) or (cycle is not None and not (cycle.response_complete or cycle.more_body))

    def handle_websocket_upgrade(self) -> None:
        self._set_deadline(None)
        self._unparsed, self._upgraded = memoryview(b""), True
        super().handle_websocket_upgrade()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _set_deadline(self, seconds: float | None) -> None:
        """The client must send something within these seconds; None for no deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._on_deadline)

    def _on_deadline(self) -> None:
        if self._owes_response:  # the late bytes belong to the next request
            self._set_deadline(self._bounds.head_seconds)
        else:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()  # another response is half written
        elif self._fault == HTTPStatus.BAD_REQUEST:
            self._refuse(self._fault, "this is no HTTP request")
        else:
            most, size = self._bounds.headers, self._bounds.head_bytes
            self._refuse(self._fault, f"a request may have {most} headers, and {size:,} bytes of them")

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        self.transport.write(refusal(status, detail))
        self.transport.close()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol with limits. While a client does not read, nothing is read from it: its pings would pile up
    answers. Nothing is read either before the handshake is accepted.
    """

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:  # else no response is sent
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
            self.handshake_complete = True  # else uvicorn logs that the app sent no response

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
    """A response that closes the connection."""
    body = to_json({"detail": detail})
    head = [f"HTTP/1.1 {status.value} {status.phrase}", "content-type: application/json", "connection: close"]
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        head.append("retry-after: 1")
    return "\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode() + body
