# SPDX-License-Identifier: Apache-2.0
"""Keeps runs that ended recently, for a reader that reconnects, or a client that asks for the result later.

A server switches this on (`Runtime.keep_ended`). Without it an ended run is freed with its last handle. The archive is
bounded by time, with one timer, and by bytes: the oldest runs are dropped first. The store keeps more, for longer.
"""

from __future__ import annotations

import asyncio
import bisect
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from andon.core.run.run import LocalRun
from andon.core.selection import CancelEntry
from andon.errors import show
from andon.messages import media_of, pieces_of

if TYPE_CHECKING:
    from andon.core.states import CancelCause, RunStatus

CANCELS_KEPT = 10_000


class Latencies:
    """A histogram of how long cancels took, with buckets as Prometheus wants them: by their upper bounds."""

    BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(self.BOUNDS, seconds)] += 1
        self.total += seconds


class Archive:
    """Ended runs and their journals, kept for `seconds`, and at most `max_bytes` of them."""

    def __init__(self, seconds: float, max_bytes: int, have_copies: Callable[[], bool] = lambda: False) -> None:
        self.seconds, self.max_bytes = seconds, max_bytes
        self._have_copies = have_copies
        """True if each run has its own copy of the conversation, read from a shared store. Else runs share it."""
        self.held = 0
        """How many bytes are kept, roughly."""
        self.counts: Counter[RunStatus] = Counter()
        """How many runs have ended so far, and how."""
        self.cancels: deque[CancelEntry] = deque(maxlen=CANCELS_KEPT)
        """The last cancels: by whom, when and why. They are kept longer than the runs."""
        self.causes: Counter[CancelCause] = Counter()
        self.latencies = Latencies()
        self._runs: dict[str, LocalRun] = {}
        self._sizes: dict[str, int] = {}
        self._order: deque[tuple[float, str]] = deque()
        self._lock = threading.Lock()  # runs end on any loop; its holder never waits, and a cancel never takes it
        self._timer: asyncio.TimerHandle | None = None
        self._home: asyncio.AbstractEventLoop | None = None  # the loop of the timer
        self._due = 0.0

    def start_over(self) -> None:
        """Start over in a forked child: the lock may be held for ever there, and the timer is the parent's."""
        self._lock, self._timer, self._home = threading.Lock(), None, None

    def find(self, run_id: str) -> LocalRun | None:
        return self._runs.get(run_id)

    @property
    def runs(self) -> list[LocalRun]:
        return list(self._runs.copy().values())

    def add(self, run: LocalRun) -> None:
        """Keep a run that ends. Called on the run's own loop."""
        now = time.monotonic()
        with self._lock:
            self.counts[run.status] += 1
            if (request := run.signal.request) is not None:
                self.cancels.append(CancelEntry(run.run_id, request, run.session.key))
                self.causes[request.cause] += 1
                self.latencies.add(run.receipt.latency if run.receipt else 0.0)
            self._runs[run.run_id] = run
            self._order.append((now, run.run_id))
            self._drop(now)
        # Later, because it takes a while, and readers wait for the terminal event that the run is about to write.
        asyncio.get_running_loop().call_soon(self._weigh, run)
        if not self._is_armed(now):
            self._arm(now)

    def _weigh(self, run: LocalRun) -> None:
        size = run.journal.events.rest()
        if self._have_copies():
            said = run.conversation
        else:
            said = [message for message in run.own_messages if message.role == "user"]  # the rest is in the events
        size += sum(len(piece) for message in said for piece in pieces_of(message))
        size += sum(len(media.data) for message in said for media in media_of(message))
        size += len(show(run.metadata)) if run.metadata else 0
        with self._lock:
            if run.run_id in self._runs:
                self._sizes[run.run_id] = size
                self.held += size
                self._drop(time.monotonic())

    def sweep(self) -> None:
        """Drop the runs that are too old."""
        now = time.monotonic()
        with self._lock:
            self._drop(now)
        self._timer = self._home = None  # the archive keeps no loop alive
        if self._order:
            self._arm(now)

    def _is_armed(self, now: float) -> bool:
        # The timer of a loop that was closed, or does not run, never fires. The next run that ends sets another one.
        if self._timer is None or self._home is None or self._home.is_closed():
            return False
        return now <= self._due + self.seconds

    def _arm(self, now: float) -> None:
        loop = asyncio.get_running_loop()
        self._due = now + self.seconds
        self._home, self._timer = loop, loop.call_later(self.seconds, self.sweep)

    def _drop(self, now: float) -> None:
        while self._order and (self._order[0][0] + self.seconds <= now or self.held > self.max_bytes):
            _, run_id = self._order.popleft()
            self._runs.pop(run_id, None)
            self.held -= self._sizes.pop(run_id, 0)
