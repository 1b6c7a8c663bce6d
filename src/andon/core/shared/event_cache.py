# SPDX-License-Identifier: Apache-2.0
"""What the readers of one run in one process share: each new event is fetched once for all of them.

A `RunFeed` holds the newest events of one run, its window. A reader that is in the window needs no query. The others
fetch what they need from the store; readers that want the same at the same moment share one fetch. A fetch runs on the
worker's thread, so a reader that is cancelled ends only its own wait. A slow reader falls out of the window, and then
fetches for itself: it holds back no other reader.

What must stay true: a reader that looks after some news gets the answer of a fetch that began after that news. All that
a feed holds is changed on the worker's thread alone.
"""

from __future__ import annotations

import bisect
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

from andon.core.events import Event, RunEvent, approximate_size
from andon.core.records import RunRecord
from andon.core.shared.news import News, Topic
from andon.core.shared.store import SharedStore
from andon.core.states import RunStatus
from andon.errors import StoreError

T = TypeVar("T")

WINDOW_BYTES = 256 * 1024
"""How much of one run is held for its readers, roughly. The newest batch is held in any case."""

CACHE_BYTES = 64 * 2**20
"""How much of all runs together."""

AHEAD_EVENTS = 2_000
"""How many events of an event channel wait for the events before them, at the most."""


class FetchLink(Protocol):
    """The link to the store, as feeds see it."""

    store: SharedStore
    news: News
    closed: bool

    def check_open(self) -> None: ...

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]: ...

    async def retry(self, make: Callable[[], Awaitable[T]]) -> T: ...


class Look(NamedTuple):
    """The answer of one look at a run: its events after a number, at most a limit. None, and no record: it goes on, and
    there is nothing new.
    """

    events: Sequence[Event]
    at_record: bool = False
    """The record was read too, and before the events: all that it says holds for them."""
    record: RunRecord | None = None

    @property
    def has_end(self) -> bool:
        """The store has the end of the run."""
        if self.events:
            return self.events[-1].event.terminal
        return self.record is not None and self.record.status.final


class Fetch:
    """One fetch from the store, for all readers that wait for it."""

    __slots__ = ("count", "error", "look")

    def __init__(self, count: int, look: Look | None = None) -> None:
        self.count = count
        """The number of the last news before it began."""
        self.look = look
        self.error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        return self.look is not None or self.error is not None


class Window:
    """The newest events of a run, without a gap, in batches. It is replaced, and never changed."""

    __slots__ = ("_batches", "end", "size")

    def __init__(self, batches: tuple[Sequence[Event], ...], size: int) -> None:
        self._batches, self.size = batches, size
        self.end = batches[-1][-1].seq
        """The number of its last event."""

    @property
    def last(self) -> Event:
        return self._batches[-1][-1]

    def after(self, after: int, limit: int) -> Sequence[Event]:
        """The events after this number, from one batch. Empty if the next one is not in the window."""
        if not self._batches[0][0].seq <= after + 1 <= self.end:
            return ()
        batch = self._batches[bisect.bisect_right(self._batches, after + 1, key=lambda each: each[0].seq) - 1]
        begin = after + 1 - batch[0].seq
        return batch if begin == 0 and len(batch) <= limit else batch[begin : begin + limit]

    def newest(self) -> Window:
        return Window(self._batches[-1:], _size(self._batches[-1]))

    def with_batch(self, events: Sequence[Event], size: int) -> Window:
        batches, total = (*self._batches, events), self.size + size
        while total > WINDOW_BYTES and len(batches) > 1:
            total -= _size(batches[0])
            batches = batches[1:]
        return Window(batches, total)


def _size(events: Sequence[Event]) -> int:
    return sum(map(approximate_size, events))


class RunFeed:
    """The newest events of one run, for its readers in this process. It lives as long as a reader refers to it."""

    __slots__ = (
        "__weakref__",
        "_ahead",
        "_base",
        "_fetches",
        "_grown",
        "_has_ended",
        "_link",
        "_lock",
        "_quiet",
        "place",
        "run_id",
        "topic",
        "window",
    )

    def __init__(self, link: FetchLink, run_id: str, grown: Callable[[int], None]) -> None:
        self._link, self.run_id, self._grown = link, run_id, grown
        self.topic: Topic = link.news.watch(run_id)
        self.window: Window | None = None
        self.place: str | None = None
        """How far an event channel was read (`event_channel.py`)."""
        self._base: int | None = None
        """While there is no window: the number after which a reader was told that there are no events yet."""
        self._ahead: list[Sequence[Event]] = []
        self._has_ended = False
        """The store has the end of the run: what an event channel still has of it does not count."""
        self._fetches: dict[tuple[int, int], Fetch] = {}
        """What is being fetched, by the number after which, and the limit."""
        self._quiet: tuple[int, Fetch] | None = None
        """The last fetch that found nothing more, and after which number."""
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """How much it holds, roughly, in bytes."""
        window = self.window
        return (0 if window is None else window.size) + sum(map(_size, self._ahead))

    def has(self, after: int) -> bool:
        """Is the event after this number in the window?"""
        window = self.window
        return window is not None and bool(window.after(after, 1))

    async def look(self, after: int, limit: int) -> Look:
        """The events after this number. If there are none, or a person must answer, the run's record as well."""
        window = self.window
        events = () if window is None else window.after(after, limit)
        if events and events[-1].event is not RunEvent.run_paused:
            return Look(events)
        fetch = self._fetch((after, limit))
        await self.topic.wait(lambda: fetch.is_over or self._link.closed)
        if fetch.error is not None:
            raise fetch.error
        if fetch.look is None:
            self._link.check_open()
        assert fetch.look is not None
        return fetch.look

    # -- fetching -----------------------------------------------------------------------------------------------------

    def _fetch(self, wanted: tuple[int, int]) -> Fetch:
        """A fetch that begins now, or one that began after the last news of the run and says enough."""
        with self._lock:
            count, quiet = self.topic.count, self._quiet
            if quiet is not None and quiet[1].count == count and wanted[0] >= quiet[0]:
                return quiet[1]
            fetch = self._fetches.get(wanted)
            if fetch is not None and fetch.count == count:
                return fetch
            fetch = self._fetches[wanted] = Fetch(count)
        try:
            work = self._link.submit(lambda: self._ask(wanted, fetch))
        except BaseException as error:
            self._end(wanted, fetch, error=error)
            raise
        work.add_done_callback(lambda work: self._fetched(wanted, fetch, work))
        return fetch

    async def _ask(self, wanted: tuple[int, int], fetch: Fetch) -> Look:
        """On the worker's thread."""
        look = await _look(self._link, self.run_id, *wanted)
        # Until there is news, no reader that has read up to here need ask.
        if not look.events:
            self._quiet = wanted[0], fetch
        elif len(look.events) < wanted[1] and not look.at_record and not look.has_end:
            self._quiet = look.events[-1].seq, Fetch(fetch.count, Look(()))
        self._note(wanted[0], look)
        return look

    def _fetched(self, wanted: tuple[int, int], fetch: Fetch, work: concurrent.futures.Future[Look]) -> None:
        """Called on any thread: the fetch may be over before it is known here that it has begun."""
        if work.cancelled():
            error = StoreError("the runtime was closed while the events of a run were being read")
            self._end(wanted, fetch, error=error)
        elif (failure := work.exception()) is not None:
            self._end(wanted, fetch, error=failure)
        else:
            self._end(wanted, fetch, work.result())

    def _end(
        self, wanted: tuple[int, int], fetch: Fetch, look: Look | None = None, error: BaseException | None = None
    ) -> None:
        with self._lock:
            if self._fetches.get(wanted) is fetch:
                del self._fetches[wanted]
        fetch.look, fetch.error = look, error
        self.topic.wake()

    def _note(self, after: int, look: Look) -> None:
        """The store has answered this when it was asked for the events after that number."""
        events = look.events
        if look.has_end:
            self._end_text(events)
        if not events:
            self._base = after if self._base is None else min(self._base, after)
        elif self.window is None or events[-1].seq > self.window.end:
            self._extend(events)
        ahead, self._ahead = self._ahead, []
        for batch in ahead:
            self._join(batch)

    def _end_text(self, events: Sequence[Event]) -> None:
        """The run has ended. Text that was not stored before that is lost with its holder: no new reader gets it."""
        self._has_ended, self._ahead = True, []
        window = self.window
        if window is not None and not window.last.event.terminal and (not events or events[-1].seq <= window.end):
            self.window = None

    # -- what comes through an event channel, on the worker's thread --------------------------------------------------

    def receive(self, events: Sequence[Event]) -> None:
        """These events were read from an event channel. The store may not have them yet."""
        before = self.window
        self._join(events)
        if self.window is not before:
            self.topic.wake()

    def _join(self, events: Sequence[Event]) -> None:
        """Append the events to the window. If others are missing before them, they wait until the store has those."""
        window = self.window
        end = self._base if window is None else window.end
        if self._has_ended:
            return  # its holder did not know that yet
        if end is None or events[0].seq > end + 1:
            self._ahead.append(events)
            self._grown(_size(events))
            while sum(map(len, self._ahead)) > AHEAD_EVENTS:
                del self._ahead[0]
        elif events[-1].seq > end:
            self._extend(events[end + 1 - events[0].seq :])

    # -- the window ---------------------------------------------------------------------------------------------------

    def _extend(self, events: Sequence[Event]) -> None:
        """Append events, or begin anew with them if they do not follow the window."""
        window = self.window
        if window is None or not events[0].seq <= window.end + 1 <= events[-1].seq:
            self.window = Window((events,), size := _size(events))
        else:
            new = events[window.end + 1 - events[0].seq :]
            self.window = window.with_batch(new, size := _size(new))
        self._grown(size)

    def shrink(self) -> None:
        """Hold the newest batch alone."""
        self._ahead = []
        if self.window is not None:
            self.window = self.window.newest()


async def _look(link: FetchLink, run_id: str, after: int, limit: int) -> Look:
    store = link.store
    events = await link.retry(lambda: store.read_events(run_id, after, limit))
    if events and events[-1].event is not RunEvent.run_paused:
        return Look(events)
    record = await link.retry(lambda: store.find(run_id))
    if record is not None and not (record.status.final or record.status is RunStatus.paused):
        return Look(events, True, record)  # it goes on, so there is news of each event that comes
    return Look(await link.retry(lambda: store.read_events(run_id, after, limit)), True, record)


class EventCache:
    """The feeds of a process, and what they hold together."""

    def __init__(self, link: FetchLink) -> None:
        self._link = link
        self._feeds: WeakValueDictionary[str, RunFeed] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._grown = 0
        self.on_new: Callable[[], None] | None = None
        """Called when a run gets its first reader, from any thread."""

    def feed(self, run_id: str) -> RunFeed:
        """The feed of this run, one for all of its readers."""
        with self._lock:
            feed = self._feeds.get(run_id)
            if feed is not None:
                return feed
            feed = self._feeds[run_id] = RunFeed(self._link, run_id, self._hold)
        if self.on_new is not None:
            self.on_new()
        return feed

    def find(self, run_id: str) -> RunFeed | None:
        """The feed of this run, if it has readers."""
        return self._feeds.get(run_id)

    @property
    def is_empty(self) -> bool:
        return not self._feeds

    @property
    def feeds(self) -> list[RunFeed]:
        """The feeds that have readers."""
        with self._lock:
            return list(self._feeds.values())

    @property
    def size(self) -> int:
        """How much is held, roughly, in bytes."""
        return sum(feed.size for feed in self.feeds)

    def _hold(self, size: int) -> None:
        """A window has grown. If all of them hold too much, each keeps only its newest batch."""
        self._grown += size
        if self._grown > CACHE_BYTES // 16:  # to add up the sizes each time would cost more than it saves
            self._grown = 0
            if self.size > CACHE_BYTES:
                for feed in self.feeds:
                    feed.shrink()
