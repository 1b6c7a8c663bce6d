# SPDX-License-Identifier: Apache-2.0
"""Gemini's stream: server-sent events, after which an error may come as bare JSON, over several lines.

What must stay true: an error that ends the stream is found, and is the last event.
"""

from __future__ import annotations

import json

from andon.models.common.sse import SseSplitter

_BEGINNINGS = (b"{", b"[")


class Splitter:
    """Takes the bytes of each read, and returns the payloads that are complete by then."""

    __slots__ = ("_bare", "_events", "_fresh")

    def __init__(self) -> None:
        self._events = SseSplitter()
        self._bare: list[bytes] = []  # the pieces of an error that is not in an event
        self._fresh = True  # a new line begins

    def feed(self, read: bytes) -> list[bytes]:
        if self._bare:
            self._bare.append(read)
            return []
        start = self._start_of_bare(read)
        if start >= 0:
            self._bare.append(read[start:])
            read = read[:start]
        self._fresh = read.endswith((b"\n", b"\r")) if read else self._fresh
        return self._events.feed(read)

    def finish(self) -> list[bytes]:
        found = self._events.finish()
        bare = b"".join(self._bare)
        try:
            json.loads(bare)
        except ValueError:  # there is none, or it was cut
            return found
        return [*found, bare]

    def _start_of_bare(self, read: bytes) -> int:
        """Where a line begins with a brace or a bracket; -1 if there is none. No line of an event does."""
        if self._fresh and read.startswith(_BEGINNINGS):
            return 0
        ends = [at + 1 for each in _LINES if (at := read.find(each)) >= 0]
        return min(ends, default=-1)


_LINES = tuple(end + beginning for end in (b"\n", b"\r") for beginning in _BEGINNINGS)
