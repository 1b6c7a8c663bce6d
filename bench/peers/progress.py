# SPDX-License-Identifier: Apache-2.0
"""How far the comparison has come, on standard error: a bar on a terminal, lines in a file."""

from __future__ import annotations

import sys
import time

WIDTH = 24


class Bar:
    """One bar for all pieces; each piece may say how far it is itself."""

    def __init__(self, pieces: int) -> None:
        self._pieces = pieces
        self._done = 0
        self._what = ""
        self._began = time.monotonic()
        self._live = sys.stderr.isatty()

    def begin(self, what: str) -> None:
        self._what = what
        if self._live:
            self.step(0, 1)

    def step(self, done: int, of: int) -> None:
        """Of the piece that has begun."""
        if self._live:
            share = (self._done + done / of) / max(1, self._pieces)
            full = round(share * WIDTH)
            bar = "█" * full + "·" * (WIDTH - full)
            print(f"\r\x1b[K{bar} {share:4.0%} {self._what} {done}/{of}", end="", file=sys.stderr, flush=True)

    def end(self, result: str) -> None:
        self._done += 1
        spent = time.monotonic() - self._began
        start = "\r\x1b[K" if self._live else ""
        print(f"{start}{self._done}/{self._pieces} {spent:5.0f} s  {self._what}: {result}", file=sys.stderr, flush=True)
