# SPDX-License-Identifier: Apache-2.0
"""What the HTTP library below the official SDKs (httpx2) needs to be told, and what the SDKs don't tell it.

`client_options`: certificates that are read once, and connections that are closed after a cancelled TLS handshake.

`join_chunks`: one read of the network gives one piece of data. Servers put every token into an HTTP chunk of its own,
and the library passes a dozen frames for each chunk: two thirds of the cost of a token. Here, the chunks that have
arrived together are handed on together. This uses private names of the library. If these don't look as expected, the
response stays as it is: slower, and correct. The log says so once.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import msgspec

JOINED_BYTES = 16_384
"""How many bytes are handed on at once, so that the objects made of them stay small."""

_log = logging.getLogger("andon.models")
_is_told = False
_PATH_TO_PARSER = ("stream", "_stream", "_httpcore_stream", "_stream", "_connection", "_h11_state")


def response_type() -> Any:
    """The class that an SDK must be asked for, to return a response as it is."""
    import httpx2

    return httpx2.Response


def _plain(value: Any) -> Any:
    """What an SDK can write besides plain JSON: pydantic models. Anything else was refused by `check_setup`."""
    return value.model_dump(mode="json", by_alias=True, exclude_unset=True)


write_json = msgspec.json.Encoder(enc_hook=_plain).encode
"""Writes the body of a request, several times as fast as an SDK."""


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
        if not hasattr(parser, name):
            _tell_once(response)
            return False
        parser = getattr(parser, name)
    reader = getattr(parser, "_reader", None)
    if type(reader).__name__ != "ChunkedReader":  # other bodies are not cut into chunks
        return False
    parser._reader = _JoinedReader(reader)
    return True


def _tell_once(response: Any) -> None:
    """Say that a private name is gone. Other transports (aiohttp's, a mock's) and HTTP/2 have never had these names."""
    global _is_told
    stream = getattr(response, "stream", None)
    kinds = (type(stream).__name__, type(getattr(stream, "_stream", None)).__name__)
    is_expected = kinds in (("BoundAsyncStream", "AsyncResponseStream"), ("BoundAsyncStream", "NoneType"))
    if not _is_told and is_expected and response.http_version == "HTTP/1.1":
        _is_told = True
        _log.warning("this version of httpx2 hides how it reads chunks, so tokens that come one by one take more time")


class _JoinedReader:
    """Reads chunks as the parser does, but many that are there at once."""

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
        pieces, size = [event.data], len(event.data)
        try:
            while size < JOINED_BYTES and type(event := self._reader(buffer)) is kind:
                pieces.append(event.data)
                size += len(event.data)
            if size < JOINED_BYTES:
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
