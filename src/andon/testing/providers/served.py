# SPDX-License-Identifier: Apache-2.0
"""Records of the requests that a fake has served, for tests to read and to wait for.

The fake's own thread writes the records; any thread may read them. What must stay true: each change wakes the threads
and event loops that wait, and nothing is polled.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from andon.testing.providers.script import Word


class Changes:
    """Wakes the threads and event loops that wait for a condition, at every change."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def notify(self) -> None:
        with self._condition:
            self._condition.notify_all()
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # the loop is closed, and nothing waits there
                pass

    def wait(self, holds: Callable[[], bool], timeout: float) -> bool:
        with self._condition:
            return self._condition.wait_for(holds, timeout)

    async def wait_async(self, holds: Callable[[], bool], timeout: float) -> bool:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                while True:
                    event = asyncio.Event()
                    # Registered before the condition is checked: a change between the two is not missed.
                    with self._condition:
                        self._waiting.append((loop, event))
                    try:
                        if holds():
                            return True
                        await event.wait()
                    finally:
                        self._forget(event)
        except TimeoutError:
            return holds()

    def _forget(self, event: asyncio.Event) -> None:
        with self._condition:
            self._waiting = [each for each in self._waiting if each[1] is not event]


class Served:
    """One request, and the state of its answer. Times are of `time.monotonic`."""

    def __init__(
        self, number: int, connection: int, body: dict[str, Any], headers: dict[str, str], changes: Changes
    ) -> None:
        self.number = number
        self.connection = connection
        """The number of its connection, from 1: two requests with the same number used the same connection."""
        self.body = body
        self.headers = headers
        """By lower-case name."""
        self.reached: dict[str, float] = {}
        """When each state was reached first."""
        self.state = ""
        """`received`, `rejected`, `silent`, `text`, `reasoning`, `call`, `raw`, `paused`, `held`, `stalled`,
        and the ends: `finished`, `failed`, `cut`, `left`. An answer in the background goes on after `cut` and `left`,
        and may be `cancelled`."""
        self.sent: list[Word] = []
        """The words that were sent completely."""
        self.bytes_sent = 0
        self.pieces_sent = 0
        """How many events with a piece of text, of reasoning or of a call."""
        self.left_at: float | None = None
        """When the client disconnected before the answer was complete; None if it did not."""
        self.error: dict[str, Any] | None = None
        """The error that was sent, if the request was rejected."""
        self.response_id: str | None = None
        """Of an answer in the background: what its cancels and resumed streams ask for."""
        self.resumed: list[int] = []
        """After which event each resumed stream of it began."""
        self.cancels = 0
        """How many requests to cancel it came."""
        self._writes: list[tuple[float, int]] = []
        self._changes = changes
        self.mark("received")

    @property
    def finished(self) -> bool:
        """Whether the whole answer was sent."""
        return "finished" in self.reached

    @property
    def over(self) -> bool:
        """Whether nothing more will be sent."""
        return bool(self.reached.keys() & {"finished", "rejected", "failed", "cut", "left", "cancelled"})

    @property
    def sent_after_left(self) -> int:
        """How many bytes were sent after the client had disconnected."""
        return 0 if self.left_at is None else self.sent_after(self.left_at)

    def sent_after(self, moment: float) -> int:
        """How many bytes were sent after a moment, such as that of a cancel."""
        return sum(size for at, size in self._writes if at > moment)

    def mark(self, state: str) -> None:
        now = time.monotonic()
        if state == "left":
            self.left_at = now
        self.state = state
        self.reached.setdefault(state, now)
        self._changes.notify()

    def notify(self) -> None:
        """Wake what waits for a change of this record."""
        self._changes.notify()

    def wrote(self, size: int) -> None:
        self.bytes_sent += size
        self._writes.append((time.monotonic(), size))
        self._changes.notify()

    def __repr__(self) -> str:
        return f"<request {self.number}: {self.state}, {self.bytes_sent} bytes sent>"
