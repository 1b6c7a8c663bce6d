# SPDX-License-Identifier: Apache-2.0
"""Readers who know more of a run than was written before its holder died: they are told its end all the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from andon import Agent, Event, RunEvent, RunRecord, RunStatus, Runtime
from andon.core.shared.remote import RemoteRun, StoredReader
from andon.core.shared.store import Granted, Lease, Progress
from andon.core.shared.worker import Worker
from andon.errors import ReaderBusyError
from andon.models.scripted import ScriptedModel
from andon.store.sql import SQLStore
from andon.testing import probe
from tests.store.making import LONG, events, opened, record, said
from tests.support import Flag, play, until

END = RunStatus.cancelled


class Looked(SQLStore):
    """Says that somebody has looked for the run. May show a record that the database loses again."""

    was_looked_for = False
    showing: RunRecord | None = None

    async def find(self, run_id: str) -> RunRecord | None:
        found = await super().find(run_id)
        self.was_looked_for = True
        return self.showing or found


@contextlib.asynccontextmanager
async def watching(folder: Path) -> AsyncIterator[tuple[Worker, SQLStore, Lease]]:
    """A worker, and a run of another process of which three events are written."""
    url = f"sqlite:///{folder}/andon.db"
    runtime = Runtime(Looked(url))
    worker = Agent("Watcher", ScriptedModel.story(), runtime=runtime).runtime.worker
    assert worker is not None
    async with opened(url) as store:
        lease = await store.enter(record("r1"), "another", LONG, "queue")
        await store.write([Progress(lease, said("x"), events("r1", (1, 2, 3)))])
        try:
            yield worker, store, lease
        finally:
            await runtime.close()


async def end(store: SQLStore, lease: Lease) -> None:
    last = msgspec.structs.replace(events("r1", [4])[0], event=RunEvent.run_cancelled, status=END)
    assert await store.finish(lease, record("r1", END), said("x"), [last]) is None


async def read(reader: StoredReader) -> list[Event]:
    found = []
    while batch := await reader.batch(100):
        found += batch
    return found


def test_who_follows_a_run_beyond_what_is_written_is_told_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with watching(tmp_path) as (worker, store, lease):
            # One knows more events than there will be; one just as many, the last of them another one.
            readers = [StoredReader(worker.link, "r1", after) for after in (9, 4)]
            reading = [asyncio.create_task(read(reader)) for reader in readers]
            await until(lambda: all(reader._was_going for reader in readers))
            await end(store, lease)
            for found in await asyncio.gather(*reading):
                assert [(event.seq, event.status) for event in found] == [(4, END)]

    play(main)


def test_who_comes_back_after_the_end_is_told_it_unless_it_was_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with watching(tmp_path) as (worker, store, lease):
            await end(store, lease)
            found = await store.find("r1")
            assert found is not None
            distant = RemoteRun(worker.link, found)
            for after in (3, 9):
                reader = await distant.reader(after)
                assert reader is not None
                assert [event.seq for event in await read(reader)] == [4]
            assert await distant.reader(4) is None

    play(main)


def test_an_end_that_the_database_has_lost_again_tells_nothing_twice(tmp_path: Path) -> None:
    """It was seen before it was on the disk, and the client had read text that was never stored."""

    async def main() -> None:
        async with watching(tmp_path) as (worker, store, lease):
            found = await store.find("r1")
            assert found is not None
            looked = worker.store
            assert isinstance(looked, Looked)
            looked.showing = msgspec.structs.replace(found, status=END)
            back = await RemoteRun(worker.link, looked.showing).reader(9)
            assert back is not None
            assert await read(StoredReader(worker.link, "r1", 9, was_going=True)) == []
            looked.showing = None
            await end(store, lease)
            assert [event.seq for event in await read(back)] == [4]

    play(main)


def test_one_reader_is_read_by_one_task_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with watching(tmp_path) as (worker, store, lease):
            reader = StoredReader(worker.link, "r1", 3)
            first = asyncio.create_task(reader.batch(100))
            looked = worker.store
            assert isinstance(looked, Looked)
            await until(lambda: looked.was_looked_for)
            with pytest.raises(ReaderBusyError):
                await reader.batch(100)
            first.cancel()
            await asyncio.wait([first])
            second = asyncio.create_task(reader.batch(100))  # a cancelled read leaves the reader free
            await end(store, lease)
            assert [event.seq for event in await second] == [4]

    play(main)


class Slow(SQLStore):
    """Takes a run in when it is told to."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked, self.goes_on = Flag(), Flag()

    async def enter(self, *arguments: Any, **options: Any) -> Granted:
        self.asked.set()
        await self.goes_on.arrived()
        return await super().enter(*arguments, **options)


def test_one_stream_is_read_by_one_task_while_its_run_is_taken_in(tmp_path: Path) -> None:
    async def main() -> None:
        store = Slow(f"sqlite:///{tmp_path}/andon.db")
        runtime = Runtime(store)
        stream = Agent("Slow", ScriptedModel("Hello."), runtime=runtime).stream_async("go")
        reader = asyncio.create_task(anext(stream))
        await store.asked.arrived()
        with pytest.raises(ReaderBusyError):
            await anext(stream)
        store.goes_on.set()
        seen = [await reader, *[event async for event in stream]]
        assert seen == probe(stream.run).events
        await runtime.close()

    play(main)


def test_of_a_paused_run_there_is_nothing_to_read_beyond_its_pause(tmp_path: Path) -> None:
    async def main() -> None:
        async with watching(tmp_path) as (worker, store, lease):
            last = msgspec.structs.replace(events("r1", [4])[0], event=RunEvent.run_paused, interrupts=[])
            assert await store.finish(lease, record("r1", RunStatus.paused), said("x"), [last]) is None
            found = await store.find("r1")
            assert found is not None
            assert await RemoteRun(worker.link, found).reader(4) is None
            reader = await RemoteRun(worker.link, found).reader(3)
            assert reader is not None
            assert [event.seq for event in await read(reader)] == [4]

    play(main)
