# SPDX-License-Identifier: Apache-2.0
"""Which tasks wait for news of which run. News of a run wakes only the tasks that wait for that run."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from types import TracebackType

from andon.core.waiters import Waiters

_numbers = itertools.count(1)


class Topic:
    """One run, and the tasks that wait for news of it."""

    __slots__ = ("_news", "_run_id", "_waiters", "count", "users")

    def __init__(self, news: News, run_id: str) -> None:
        self._news, self._run_id, self._waiters = news, run_id, Waiters()
        self.count = 0
        """A new number each time there is news."""
        self.users = 0

    def __enter__(self) -> Topic:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._news._leave(self, self._run_id)

    async def changed(self, seen: int) -> None:
        """Wait for news that is later than the news of this number."""
        await self._waiters.wait(lambda: self.count != seen)

    def tell(self) -> None:
        self.count = next(_numbers)  # two threads at once may set it back, but never to a number that a waiter has seen
        self._waiters.wake()


class News:
    """The runs for whose news tasks wait."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._lock = threading.Lock()

    def watch(self, run_id: str) -> Topic:
        """A topic that is woken by news of this run, until it is left: `with news.watch(run_id) as topic`."""
        with self._lock:
            topic = self._topics.get(run_id)
            if topic is None:
                topic = self._topics[run_id] = Topic(self, run_id)
            topic.users += 1
        return topic

    def _leave(self, topic: Topic, run_id: str) -> None:
        with self._lock:
            topic.users -= 1
            if topic.users == 0:
                self._topics.pop(run_id, None)

    @property
    def run_ids(self) -> list[str]:
        return list(self._topics.copy())

    def tell(self, run_ids: Iterable[str]) -> None:
        """There may be news of these runs. Called from any thread."""
        for run_id in run_ids:
            if (topic := self._topics.get(run_id)) is not None:
                topic.tell()

    def tell_all(self) -> None:
        """There may be news of any run."""
        for topic in list(self._topics.copy().values()):
            topic.tell()
