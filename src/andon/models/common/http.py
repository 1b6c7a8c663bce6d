# SPDX-License-Identifier: Apache-2.0
"""What the HTTP library below the official SDKs (httpx2) needs to be told, and what the SDKs don't tell it.

`client_options`: certificates that are read once, and connections that are closed after a cancelled TLS handshake.

`join_chunks`: one read of the network gives one piece of data. Servers put every token into an HTTP chunk of its own,
and the library passes a dozen frames for each chunk: two thirds of the cost of a token. Here, the chunks that have
arrived together are handed on together. This uses private names of the library. If these don't look as expected, the
response stays as it is: slower, and correct.
"""

from __future__ import annotations

import functools
from typing import Any

_PATH_TO_PARSER = ("stream", "_stream", "_httpcore_stream", "_stream", "_connection", "_h11_state")


def response_type() -> Any:
    """The class that an SDK must be asked for, to return a response as it is."""
    import httpx2

    return httpx2.Response


def client_options() -> dict[str, Any]:
    """Options for an `httpx2.AsyncClient`, or for an SDK's subclass of it."""
    return {"verify": _certificates(), "event_hooks": {"request": [close_failed_handshake]}}


@functools.cache
def _certificates() -> Any:
    """Read once: reading takes time and memory, and any number of loops can share them."""
    import httpx2

    return httpx2.create_ssl_context()


def join_chunks(response: Any) -> bool:
    """Join this response's chunks as they arrive; False if that is not possible."""
    parser: Any = response
    for name in _PATH_TO_PARSER:
        parser = getattr(parser, name, None)
    reader = getattr(parser, "_reader", None)
    if type(reader).__name__ != "ChunkedReader":  # other bodies are not cut into chunks
        return False
    parser._reader = _JoinedReader(reader)
    return True


class _JoinedReader:
    """Reads chunks as the parser does, but all that are there at once."""

    __slots__ = ("_next", "_reader", "read_eof")

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.read_eof = reader.read_eof
        self._next: Any = None  # what came after the data: the end of the body, or an error

    def __call__(self, buffer: Any) -> Any:
        event, self._next = self._next, None
        if event is None:
            event = self._reader(buffer)
        if isinstance(event, Exception):
            raise event
        kind = type(event)
        if kind.__name__ != "Data":
            return event
        pieces = [event.data]
        try:
            while type(event := self._reader(buffer)) is kind:
                pieces.append(event.data)
            self._next = event
        except Exception as error:  # noqa: BLE001 - raised by the next call: the data before it is good
            self._next = error
        return kind(b"".join(pieces))


async def close_failed_handshake(request: Any) -> None:
    """A hook for each request: close its connection if the TLS handshake fails or is cancelled.

    The library itself leaves the connection open after a cancel there.
    """
    request.extensions["trace"] = _HandshakeTrace()


class _HandshakeTrace:
    __slots__ = ("_stream",)

    def __init__(self) -> None:
        self._stream: Any = None

    async def __call__(self, name: str, info: dict[str, Any]) -> None:
        if name.endswith("connect_tcp.complete"):
            self._stream = info["return_value"]
        elif name.endswith("start_tls.failed") and self._stream is not None:
            # After other errors it is closed already; closing it twice does no harm.
            await self._stream.aclose()
