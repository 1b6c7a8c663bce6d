# SPDX-License-Identifier: Apache-2.0
"""How many events a run may write, and how many bytes of them. With more than that it is cancelled.

Per token only its length is added up. The journal asks with every event of a tool, which may be large, with every
thousandth of the other events, and after every 64 KB of text. So a run may exceed its bytes by that much text and one
event.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from andon.core.journal import Journal

LOOK_EVERY = 1_000


class EventLimit:
    """What one run may write. `cancel` is called with the reason, once, when the run has written more."""

    __slots__ = ("_bytes", "_cancel", "_journal", "_max_bytes", "_max_events", "_seen")

    def __init__(self, journal: Journal, cancel: Callable[[str], object], max_events: int, max_bytes: int) -> None:
        self._journal, self._cancel = journal, cancel
        self._max_events, self._max_bytes = max_events or math.inf, max_bytes or math.inf
        self._seen = self._bytes = 0
        journal.limit(min(self._max_events, LOOK_EVERY), self._look)

    def _look(self) -> float:
        """Cancel the run if it has written too much. Returns the number of the event with which to ask again."""
        events = self._journal.events
        if self._max_bytes is not math.inf:
            self._bytes += events.written(self._seen)
        self._seen = len(events)
        if self._seen >= self._max_events:
            return self._stop(f"it has written {self._max_events:,} events, as many as a run may")
        if self._bytes > self._max_bytes:
            return self._stop(f"it has written events of {self._max_bytes:,} bytes, as many as a run may")
        return min(self._max_events, self._seen + LOOK_EVERY)

    def _stop(self, why: str) -> float:
        self._cancel(why)
        self._max_events = self._max_bytes = math.inf
        return math.inf
