# SPDX-License-Identifier: Apache-2.0
"""What a tool prints: the end of it is kept, and pieces of it are passed on, with a limit for each second."""

from __future__ import annotations

import time

from andon.tools.process.protocol import MISSED, OUTPUT, frame

PIECE_BYTES = 8 * 1024
PIECE_SECONDS = 0.05
"""The shortest time between two pieces that are passed on, and the longest piece. A tool may print much more."""


class Output:
    """What one call has printed so far. Its memory is bounded."""

    __slots__ = ("_fresh", "_kept", "_left_out", "_next", "_total", "due", "keep")

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._kept, self._total = bytearray(), 0
        self._fresh, self._left_out = bytearray(), 0
        self._next = 0.0
        self.due: float | None = None
        """When the next piece is to be passed on."""

    def add(self, data: bytes) -> None:
        self._total += len(data)
        self._kept += data
        if len(self._kept) > 2 * self.keep:
            del self._kept[: len(self._kept) - self.keep]
        self._fresh += data
        if (over := len(self._fresh) - PIECE_BYTES) > 0:
            del self._fresh[:over]
            self._left_out += over
        if self.due is None:
            self.due = max(time.monotonic(), self._next)

    def take(self) -> bytes:
        """What is to be passed on now, as a frame; nothing if there is nothing."""
        self.due = None
        if not self._fresh:
            return b""
        piece = frame(OUTPUT, MISSED.pack(min(self._left_out, 2**32 - 1)) + self._fresh)
        self._fresh, self._left_out = bytearray(), 0
        self._next = time.monotonic() + PIECE_SECONDS
        return piece

    @property
    def kept(self) -> bytes:
        """The end of it."""
        return bytes(self._kept[-self.keep :]) if self.keep else b""

    @property
    def missed(self) -> int:
        """How many bytes came before that."""
        return self._total - min(self._total, self.keep)
