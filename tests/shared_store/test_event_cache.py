# SPDX-License-Identifier: Apache-2.0
"""The readers of one run in one process share what was read, and none holds back another."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from andon import Agent, Event, RunEvent, RunRecord, RunStatus, Runtime
from andon.core.shared import event_cache
from andon.core.shared.remote import RemoteRun, StoredReader
from andon.core.shared.store import Lease, Progress
from andon.core.shared.worker import Worker
from andon.errors import StoreError
from andon.models.scripted import ScriptedModel
from andon.store.sql import SQLStore
from tests.store.making import LONG, events, opened, record, said
from tests.support import Flag, play, until

READERS = 30
BATCHES = 5


class Counting(SQLStore):
    """Counts how often events and records are read, and can hold the answer of such a read back, or fail."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reads = self.finds = 0
        self.held, self.goes_on = Flag(), Flag()
        self.holds = self.breaks = False

    async def read_events(self, run_id: str, after: int, limit: int) -> list[Event]:
        self.reads += 1
        if self.holds:
            self.held.set()
            await self.goes_on.arrived()
        if self.breaks:
            raise ValueError("broken, says the test")
        return await super().read_events(run_id, after, limit)

    async def find(self, run_id: str) -> RunRecord | None:
        self.finds += 1
        return await super().find(run_id)


class Told:
    """A run of another process, which writes as the test wants."""

    def __init__(self, store: SQLStore, lease: Lease) -> None:
        self._store, self._lease, self._seq = store, lease, 0

    async def say(self, count: int) -> None:
        numbers = range(self._seq + 1, self._seq + count + 1)
        await self._store.write([Progress(self._lease, None, events("r1", numbers))])
        self._seq += count

    async def end(self) -> None:
        last = msgspec.structs.replace(
            events("r1", [self._seq + 1])[0], event=RunEvent.run_cancelled, status=RunStatus.cancelled
        )
        assert await self._store.finish(self._lease, record("r1", RunStatus.cancelled), said("x"), [last]) is None


@contextlib.asynccontextmanager
async def telling(url: str) -> AsyncIterator[tuple[Worker, Counting, Told]]:
    """A worker of this process, its store, and a run elsewhere."""
    counting = Counting(url)
    runtime = Runtime(counting, lease_seconds=LONG)
    worker = Agent("Watcher", ScriptedModel.story(), runtime=runtime).runtime.worker
    assert worker is not None
    async with opened(url) as store:
        lease = await store.enter(record("r1"), "another", LONG, "queue")
        try:
            yield worker, counting, Told(store, lease)
        finally:
            await runtime.close()


def without_news(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's news are not heard. Called before the worker begins to listen."""
    for name in ("tell", "tell_all"):
        monkeypatch.setattr(worker.link.news, name, lambda *_: None)


async def read(reader: StoredReader, limit: int = 100) -> list[int]:
    found: list[int] = []
    while batch := await reader.batch(limit):
        found += [event.seq for event in batch]
    return found


def test_many_readers_ask_the_store_as_often_as_one(url: str) -> None:
    async def ask(readers: int) -> int:
        async with telling(url) as (worker, counting, told):
            reading = [asyncio.create_task(read(StoredReader(worker.link, "r1"))) for _ in range(readers)]
            for _ in range(BATCHES):
                await told.say(3)
            await told.end()
            everything = list(range(1, 3 * BATCHES + 2))
            assert await asyncio.gather(*reading) == [everything] * readers
            return counting.reads

    async def main() -> None:
        # A batch is read once, and perhaps once more, if its news comes later. A worker that begins looks again.
        assert await ask(READERS) <= 2 * (BATCHES + 2)

    play(main)


def test_without_news_a_reader_does_not_ask_whether_there_is_more(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with telling(sqlite_url) as (worker, counting, told):
            without_news(worker, monkeypatch)
            reader = StoredReader(worker.link, "r1")
            waiting = asyncio.create_task(reader.batch())
            feed = worker.link.cache.feed("r1")
            await until(lambda: feed._quiet is not None and bool(feed.topic._waiters.wakes))
            asked = counting.reads, counting.finds
            assert asked == (1, 1)  # there are no events: its record says that it goes on
            for number in range(1, BATCHES + 1):
                await told.say(3)
                feed.topic.tell()
                assert [event.seq for event in await waiting] == [3 * number - each for each in (2, 1, 0)]
                waiting = asyncio.create_task(reader.batch())
                await until(lambda: bool(feed.topic._waiters.wakes))
                assert (counting.reads, counting.finds) == (1 + number, 1)
            await told.end()
            feed.topic.tell()
            assert [event.event for event in await waiting] == [RunEvent.run_cancelled]

    play(main)


def test_a_reader_that_is_cancelled_in_a_read_ends_only_its_own(sqlite_url: str) -> None:
    async def main() -> None:
        async with telling(sqlite_url) as (worker, counting, told):
            await told.say(3)
            counting.holds = True
            first, second = (asyncio.create_task(StoredReader(worker.link, "r1").batch(100)) for _ in range(2))
            await counting.held.arrived()
            first.cancel()
            await asyncio.wait([first])
            assert first.cancelled()
            reads = counting.reads
            counting.goes_on.set()
            assert [event.seq for event in await second] == [1, 2, 3]
            assert counting.reads == reads

    play(main)


def test_a_slow_reader_misses_nothing_and_holds_back_no_other(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_cache, "WINDOW_BYTES", 1_000)

    async def main() -> None:
        async with telling(sqlite_url) as (worker, _, told):
            quick, slow = StoredReader(worker.link, "r1"), StoredReader(worker.link, "r1")
            for number in range(BATCHES):
                await told.say(3)
                for reader in (quick,) if number else (quick, slow):
                    assert [event.seq for event in await reader.batch()] == [3 * number + each for each in (1, 2, 3)]
            feed = worker.link.cache.feed("r1")
            assert feed.has(3 * BATCHES - 1)
            assert not feed.has(3), "the window is larger than it may be"
            await told.end()
            assert await read(slow, 2) == list(range(4, 3 * BATCHES + 2))
            assert await read(quick) == [3 * BATCHES + 1]

    play(main)


def test_what_is_shared_is_freed_with_the_last_reader(sqlite_url: str) -> None:
    async def main() -> None:
        async with telling(sqlite_url) as (worker, _, told):
            await told.say(3)
            one, other = StoredReader(worker.link, "r1"), StoredReader(worker.link, "r1")
            cache = worker.link.cache
            assert len(await one.batch()) == len(await other.batch()) == 3
            assert cache.size > 0
            assert worker.link.news.run_ids == ["r1"]
            del one
            assert cache.size > 0
            del other
            await until(lambda: cache.feeds == [])  # the worker's thread may still be in the last read
            assert cache.size == 0
            assert worker.link.news.run_ids == []

    play(main)


def test_all_feeds_together_are_bounded(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_cache, "CACHE_BYTES", 16_000)  # 50 events or so

    async def main() -> None:
        async with telling(sqlite_url) as (worker, _, told):
            reader = StoredReader(worker.link, "r1")
            for _ in range(30):
                await told.say(3)
                await reader.batch()
            assert 0 < worker.link.cache.size < 18_000
            assert [event.seq for event in await StoredReader(worker.link, "r1").batch()] == list(range(1, 91))

    play(main)


def test_what_breaks_a_read_is_told_to_each_reader_and_the_next_read_is_new(sqlite_url: str) -> None:
    async def main() -> None:
        async with telling(sqlite_url) as (worker, counting, told):
            await told.say(3)
            readers = [StoredReader(worker.link, "r1") for _ in range(2)]
            counting.breaks = True
            for found in await asyncio.gather(*(reader.batch() for reader in readers), return_exceptions=True):
                assert isinstance(found, ValueError)
            counting.breaks = False
            for reader in readers:
                assert [event.seq for event in await reader.batch()] == [1, 2, 3]

    play(main)


def test_readers_are_told_when_the_runtime_is_closed(sqlite_url: str) -> None:
    async def main() -> None:
        async with telling(sqlite_url) as (worker, counting, told):
            await told.say(3)
            counting.holds = True
            reading = asyncio.create_task(StoredReader(worker.link, "r1").batch())
            await counting.held.arrived()
            await worker.close()
            with pytest.raises(StoreError, match="closed"):
                await reading
            counting.goes_on.set()

    play(main)


def test_text_of_a_channel_waits_for_what_is_missing_before_it(sqlite_url: str) -> None:
    async def main() -> None:
        async with telling(sqlite_url) as (worker, _, told):
            await told.say(3)
            reader = StoredReader(worker.link, "r1")
            feed = worker.link.cache.feed("r1")
            feed.receive(events("r1", [2, 3, 4]))  # before anything was read
            assert [event.seq for event in await reader.batch()] == [1, 2, 3]
            assert [event.seq for event in await reader.batch()] == [4]
            feed.receive(events("r1", [6, 7]))
            feed.receive(events("r1", [7, 8, 9]))
            assert not feed.has(4)
            await told.say(2)  # 4 and 5
            found: list[int] = []
            while len(found) < 5:
                found += [event.seq for event in await reader.batch()]
            assert found == [5, 6, 7, 8, 9]

    play(main)


def test_text_of_a_channel_costs_no_read_of_the_store(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with telling(sqlite_url) as (worker, counting, told):
            without_news(worker, monkeypatch)
            await told.say(3)
            reader = StoredReader(worker.link, "r1")
            assert len(await reader.batch()) == 3
            waiting = asyncio.create_task(reader.batch())
            feed = worker.link.cache.feed("r1")
            await until(lambda: feed._quiet is not None and not feed._fetches and bool(feed.topic._waiters.wakes))
            reads = counting.reads
            for number in range(4, 50):
                feed.receive(events("r1", [number]))
                assert [event.seq for event in await waiting] == [number]
                waiting = asyncio.create_task(reader.batch())
                await asyncio.sleep(0)
            assert counting.reads == reads
            waiting.cancel()
            await asyncio.wait([waiting])

    play(main)


def test_what_waits_is_bounded(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_cache, "AHEAD_EVENTS", 10)

    async def main() -> None:
        async with telling(sqlite_url) as (worker, _, told):
            await told.say(3)
            reader = StoredReader(worker.link, "r1")
            assert len(await reader.batch()) == 3
            feed = worker.link.cache.feed("r1")
            for number in range(5, 50):
                feed.receive(events("r1", [number]))
            assert sum(map(len, feed._ahead)) == 10
            await told.say(42)  # up to 45
            assert [event.seq for event in await reader.batch()] == list(range(4, 46))
            assert [event.seq for event in await reader.batch()] == [46]

    play(main)


def test_what_waits_counts_as_held(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_cache, "CACHE_BYTES", 16_000)  # 50 events or so

    async def main() -> None:
        async with telling(sqlite_url) as (worker, _, told):
            await told.say(3)
            reader = StoredReader(worker.link, "r1")
            assert len(await reader.batch()) == 3
            feed = worker.link.cache.feed("r1")
            for number in range(5, 500):  # without 4
                feed.receive(events("r1", [number]))
                assert sum(map(len, feed._ahead)) < 100
            assert 0 < worker.link.cache.size < 18_000

    play(main)


def test_text_that_was_lost_with_its_holder_is_given_to_no_later_reader(sqlite_url: str) -> None:
    async def main() -> None:
        async with telling(sqlite_url) as (worker, _, told):
            await told.say(3)
            reader = StoredReader(worker.link, "r1")
            assert len(await reader.batch()) == 3
            feed = worker.link.cache.feed("r1")
            feed.receive(events("r1", [4, 5, 6]))
            assert [event.seq for event in await reader.batch()] == [4, 5, 6]
            await told.end()  # another process ends the run: 4 is its end
            assert [(event.seq, event.event) for event in await reader.batch()] == [(4, RunEvent.run_cancelled)]
            feed.receive(events("r1", [7]))
            assert await read(StoredReader(worker.link, "r1")) == [1, 2, 3, 4]
            assert await read(StoredReader(worker.link, "r1", 2)) == [3, 4]

    play(main)


def test_a_reader_that_has_read_further_than_the_end_is_told_the_end(sqlite_url: str) -> None:
    """Its client comes back with the number of the last event that it has seen, and just then the run is lost."""

    async def main() -> None:
        async with telling(sqlite_url) as (worker, _, told):
            await told.say(3)
            found = await worker.store.find("r1")
            assert found is not None
            run = RemoteRun(worker.link, found)
            readers = [await run.reader(6), run.read(6)]
            await told.end()
            for reader in readers:
                assert reader is not None
                assert [event.event for event in await reader.batch()] == [RunEvent.run_cancelled]
                assert await reader.batch() == []

    play(main)


def test_a_feed_is_changed_on_one_thread_alone(sqlite_url: str) -> None:
    """Text of a channel comes on the worker's thread: a fetch that was over at once must not be noted beside it."""

    async def main() -> None:
        async with telling(sqlite_url) as (worker, _, told):
            await told.say(3)
            link, threads = worker.link, list[str]()
            submit = link.submit

            def submit_and_wait(make: Any) -> Any:
                work = submit(make)
                concurrent.futures.wait([work])
                return work

            link.submit = submit_and_wait  # type: ignore[method-assign]
            feed = link.cache.feed("r1")
            feed._grown = lambda _: threads.append(threading.current_thread().name)
            assert len((await feed.look(0, 100)).events) == 3
            link.submit = submit  # type: ignore[method-assign]
            assert threads == ["andon-worker"]

    play(main)
