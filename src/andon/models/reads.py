# SPDX-License-Identifier: Apache-2.0
"""What the HTTP library below the official SDKs needs to be told, and is not told by them.

`join_chunks`: one read of the network, one piece of data. Servers put every token into an HTTP chunk of its own, and
the library walks through a dozen frames for each of them: two thirds of what a token costs. Chunks that have arrived
together are handed on together. It reaches into the library's inside, so whatever doesn't look as expected is left as
it is: slower, and right.

`watch_handshake`: a cancel during the TLS handshake closes the connection, which the library itself would forget.
"""

from __future__ import annotations

from typing import Any

_TO_THE_PARSER = ("stream", "_stream", "_httpcore_stream", "_stream", "_connection", "_h11_state")


def join_chunks(response: Any) -> bool:
    """Have this response's chunks joined, as they arrive; False if it can't be done."""
    parser: Any = response
    for name in _TO_THE_PARSER:
        parser = getattr(parser, name, None)
    reader = getattr(parser, "_reader", None)
    if type(reader).__name__ != "ChunkedReader":  # other bodies come whole anyway
        return False
    parser._reader = _Joined(reader)
    return True


class _Joined:
    """Reads chunks as the parser does, as many as there are."""

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
        except Exception as error:  # noqa: BLE001 - raised the next time: what came before it is good
            self._next = error
        return kind(b"".join(pieces))


async def watch_handshake(request: Any) -> None:
    """A hook for each request: follow how its connection is made."""
    request.extensions["trace"] = _Handshake()


class _Handshake:
    __slots__ = ("_stream",)

    def __init__(self) -> None:
        self._stream: Any = None

    async def __call__(self, name: str, info: dict[str, Any]) -> None:
        if name.endswith("connect_tcp.complete"):
            self._stream = info["return_value"]
        elif name.endswith("start_tls.failed") and self._stream is not None:
            # Other errors are closed there already; to do it twice does no harm.
            await self._stream.aclose()
