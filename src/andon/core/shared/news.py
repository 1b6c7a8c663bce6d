# SPDX-License-Identifier: Apache-2.0
"""Which tasks wait for news of which run. News of a run wakes only the tasks that wait for that run."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection
from types import TracebackType
from weakref import WeakValueDictionary

from andon.core.waiters import Waiters

_numbers = itertools.count(1)


class Topic:
    """One run, and the tasks that wait for news of it."""

    __slots__ = ("__weakref__", "_waiters", "count")

    def __init__(self) -> None:
        self._waiters = Waiters()
        self.count = 0
        """A new number each time there is news."""

    def __enter__(self) -> Topic:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        pass

    async def changed(self, seen: int) -> None:
        """Wait for news that is later than the news of this number."""
        await self._waiters.wait(lambda: self.count != seen)

    async def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()` is true. It is asked again after each news, and after each `wake`."""
        await self._waiters.wait(ready)

    def tell(self) -> None:
        self.count = next(_numbers)  # two threads at once may set it back, but never to a number that a waiter has seen
        self._waiters.wake()

    def wake(self) -> None:
        """Have the tasks that wait look again, though there is no news of the run."""
        self._waiters.wake()


class News:
    """The runs for whose news tasks wait."""

    def __init__(self) -> None:
        self._topics: WeakValueDictionary[str, Topic] = WeakValueDictionary()
        self._watchers: tuple[Callable[[Collection[str]], None], ...] = ()
        self._lock = threading.Lock()

    def watch(self, run_id: str) -> Topic:
        """A topic that is woken by news of this run, for as long as something refers to the topic."""
        with self._lock:
            topic = self._topics.get(run_id)
            if topic is None:
                topic = self._topics[run_id] = Topic()
            return topic

    def watch_all(self, watcher: Callable[[Collection[str]], None]) -> None:
        """Call `watcher` whenever runs have changed, until `unwatch_all`. It gets the ids of the runs; none means all
        runs. It is called from any thread, and must not wait.
        """
        with self._lock:
            self._watchers = (*self._watchers, watcher)

    def unwatch_all(self, watcher: Callable[[Collection[str]], None]) -> None:
        with self._lock:
            self._watchers = tuple(each for each in self._watchers if each != watcher)

    @property
    def run_ids(self) -> list[str]:
        with self._lock:  # a new topic in between would break the iteration
            return list(self._topics)

    def tell(self, run_ids: Collection[str]) -> None:
        """There may be news of these runs. Called from any thread."""
        for watcher in self._watchers:
            watcher(run_ids)
        for run_id in run_ids:
            if (topic := self._topics.get(run_id)) is not None:
                topic.tell()

    def tell_all(self) -> None:
        """There may be news of any run."""
        for watcher in self._watchers:
            watcher(())
        with self._lock:
            topics = list(self._topics.values())
        for topic in topics:
            topic.tell()
