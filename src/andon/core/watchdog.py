# SPDX-License-Identifier: Apache-2.0
"""One timer for all steps of a loop that were cut and must end within the same time.

Most steps end at once, so a timer for each would be set only to be cancelled. Steps are due in the order in which they
were cut, so the first in the queue is the first to be late. A watchdog refers to its loop, and must not keep it alive:
only the steps of that loop refer to the watchdog.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakValueDictionary


class Watched(Protocol):
    """A step, as the watchdog sees it."""

    @property
    def finished(self) -> bool: ...

    def cut_again(self) -> None:
        """It was cut a while ago, and has not ended."""
        ...


_watchdogs: WeakValueDictionary[tuple[int, float], Watchdog] = WeakValueDictionary()
"""By the id of the loop and the seconds. The id is unique as long as the watchdog, and so its loop, lives."""


class Watchdog:
    """Cuts steps again that were cut and have not ended after some seconds."""

    __slots__ = ("__weakref__", "_loop", "_open", "_queue", "_seconds", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop, self._seconds = loop, seconds
        self._queue: deque[tuple[float, Sequence[Watched]]] = deque()
        self._open: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop, seconds: float) -> Watchdog:
        key = id(loop), seconds
        watchdog = _watchdogs.get(key)
        if watchdog is None:
            watchdog = _watchdogs[key] = cls(loop, seconds)
        return watchdog

    def watch(self, steps: Sequence[Watched]) -> None:
        """These were cut just now. Each of them calls `release` when it has ended."""
        due = self._loop.time() + self._seconds
        self._open.update(steps)
        self._queue.append((due, steps))
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._act)

    def release(self, step: Watched) -> None:
        """The step has ended, cut or not. With the last one that was cut, the queue is empty."""
        self._open.discard(step)
        if self._timer is not None and not self._open:
            self._queue.clear()
            self._timer.cancel()
            self._timer = None

    def _act(self) -> None:
        self._timer = None
        now, queue = self._loop.time(), self._queue
        late: list[Watched] = []
        while queue and (queue[0][0] <= now or all(step.finished for step in queue[0][1])):
            late += [step for step in queue.popleft()[1] if not step.finished]
        if queue:
            self._timer = self._loop.call_at(queue[0][0], self._act)
        for step in late:
            step.cut_again()
