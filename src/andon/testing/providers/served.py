# SPDX-License-Identifier: Apache-2.0
"""What a fake has seen and done, for tests to look at and to wait for.

Records are written by the fake's own thread and may be read from any. What must stay true: who waits is woken by the
change itself, in a thread or in any event loop; nothing is polled.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from andon.testing.providers.script import Word


class Bell:
    """Rung at every change; wakes threads and event loops that wait until something is so."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def ring(self) -> None:
        with self._condition:
            self._condition.notify_all()
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # the loop was closed: nobody waits there any more
                pass

    def wait(self, so: Callable[[], bool], timeout: float) -> bool:
        with self._condition:
            return self._condition.wait_for(so, timeout)

    async def wait_async(self, so: Callable[[], bool], timeout: float) -> bool:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                while True:
                    event = asyncio.Event()
                    # Registered first, then looked at: a change in between rings for us already.
                    with self._condition:
                        self._waiting.append((loop, event))
                    try:
                        if so():
                            return True
                        await event.wait()
                    finally:
                        self._forget(event)
        except TimeoutError:
            return so()

    def _forget(self, event: asyncio.Event) -> None:
        with self._condition:
            self._waiting = [each for each in self._waiting if each[1] is not event]


class Served:
    """One request and what became of it. Times are of `time.monotonic`."""

    def __init__(self, number: int, connection: int, body: dict[str, Any], headers: dict[str, str], bell: Bell) -> None:
        self.number = number
        self.connection = connection
        """Which connection it came by, counted from 1: the same number twice means that it was used again."""
        self.body = body
        self.headers = headers
        """By lower-case name."""
        self.reached: dict[str, float] = {}
        """When each state was first come to."""
        self.state = ""
        """`received`, `rejected`, `silent`, `text`, `reasoning`, `call`, `raw`, `paused`, `held`, `stalled`,
        and the ends: `finished`, `failed`, `cut`, `left`."""
        self.sent: list[Word] = []
        """The words that were sent whole."""
        self.bytes_sent = 0
        self.pieces_sent = 0
        """How many events with a piece of text, of reasoning or of a call."""
        self.left_at: float | None = None
        """When the client was seen to leave before the answer was complete; None if it didn't."""
        self.error: dict[str, Any] | None = None
        """What it was told if it was rejected."""
        self._writes: list[tuple[float, int]] = []
        self._bell = bell
        self.mark("received")

    @property
    def finished(self) -> bool:
        """Whether the whole answer was sent."""
        return "finished" in self.reached

    @property
    def over(self) -> bool:
        """Whether nothing more will be sent."""
        return bool(self.reached.keys() & {"finished", "rejected", "failed", "cut", "left"})

    @property
    def sent_after_left(self) -> int:
        """The bytes that were sent although the client had been seen to leave."""
        return 0 if self.left_at is None else self.sent_after(self.left_at)

    def sent_after(self, moment: float) -> int:
        """The bytes that were sent after a moment, such as that of a cancel."""
        return sum(size for at, size in self._writes if at > moment)

    def mark(self, state: str) -> None:
        now = time.monotonic()
        if state == "left":
            self.left_at = now
        self.state = state
        self.reached.setdefault(state, now)
        self._bell.ring()

    def wrote(self, size: int) -> None:
        self.bytes_sent += size
        self._writes.append((time.monotonic(), size))
        self._bell.ring()

    def __repr__(self) -> str:
        return f"<request {self.number}: {self.state}, {self.bytes_sent} bytes sent>"
