# SPDX-License-Identifier: Apache-2.0
"""One timer for all steps of a loop that were cut, and are to end within the same time.

Most of them do so at once, so a timer for each would be set only to be taken back. They are due in the order in which
they were cut: whoever is first in the queue is the first to be late. An alarm is held by the steps of its loop alone,
because it knows that loop, and no loop may be kept alive by us.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from andon.core.steps import Step

_alarms: WeakValueDictionary[tuple[int, float], Alarm] = WeakValueDictionary()
"""By the id of its loop, which is nobody else's while the alarm lives, and its seconds."""


class Alarm:
    """Reminds steps that were cut, and have not ended after so many seconds."""

    __slots__ = ("__weakref__", "_loop", "_open", "_queue", "_seconds", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop, self._seconds = loop, seconds
        self._queue: deque[tuple[float, Sequence[Step[Any]]]] = deque()
        self._open: set[Step[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop, seconds: float) -> Alarm:
        key = id(loop), seconds
        alarm = _alarms.get(key)
        if alarm is None:
            alarm = _alarms[key] = cls(loop, seconds)
        return alarm

    def watch(self, steps: Sequence[Step[Any]]) -> None:
        """These were cut just now; each of them lets go when it has ended."""
        due = self._loop.time() + self._seconds
        self._open.update(steps)
        self._queue.append((due, steps))
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._ring)

    def let_go(self, step: Step[Any]) -> None:
        """It has ended, cut or not. With the last one that was cut, nothing is left of the others either."""
        self._open.discard(step)
        if self._timer is not None and not self._open:
            self._queue.clear()
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        now, queue = self._loop.time(), self._queue
        late: list[Step[Any]] = []
        while queue and (queue[0][0] <= now or all(step.finished for step in queue[0][1])):
            late += [step for step in queue.popleft()[1] if not step.finished]
        if queue:
            self._timer = self._loop.call_at(queue[0][0], self._ring)
        for step in late:
            step.cut_again()
