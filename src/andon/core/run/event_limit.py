# SPDX-License-Identifier: Apache-2.0
"""How much a run may write: so many events, and so many bytes of them. With more than that it is cancelled.

Per token only its length is added up. The journal asks with every event of a tool, which may be large, with every
thousandth of the others, and after every 64 KB of text. So a run may exceed its bytes by that much text and one event.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from andon.core.archive import weight
from andon.core.states import CancelCause

if TYPE_CHECKING:
    from andon.core.run.life import Life

LOOK_EVERY = 1_000


class Quota:
    """What one run may write."""

    __slots__ = ("_bytes", "_max_bytes", "_max_events", "_run", "_seen")

    def __init__(self, run: Life, max_events: int, max_bytes: int) -> None:
        self._run = run
        self._max_events, self._max_bytes = max_events or math.inf, max_bytes or math.inf
        self._seen = self._bytes = 0

    @property
    def first(self) -> float:
        """With which event the journal asks for the first time."""
        return min(self._max_events, LOOK_EVERY)

    def look(self) -> float:
        """Cancel the run if it has written too much. Returns with which event to ask again, if not before."""
        events = self._run.journal.events
        if self._max_bytes is not math.inf:
            self._bytes += sum(map(weight, events[self._seen :]))
        self._seen = len(events)
        if self._seen >= self._max_events:
            return self._stop(f"it has written {self._max_events:,} events, as many as a run may")
        if self._bytes > self._max_bytes:
            return self._stop(f"it has written events of {self._max_bytes:,} bytes, as many as a run may")
        return min(self._max_events, self._seen + LOOK_EVERY)

    def _stop(self, why: str) -> float:
        self._run.cancel_for(CancelCause.budget, why)
        self._max_events = self._max_bytes = math.inf  # said once
        return math.inf


def limit_events(run: Life) -> None:
    """Have the run cancelled with the event that makes them too many, or too large."""
    runtime = run.runtime
    if runtime.max_events or runtime.max_event_bytes:
        quota = Quota(run, runtime.max_events, runtime.max_event_bytes)
        run.journal.limit(quota.first, quota.look)
