# SPDX-License-Identifier: Apache-2.0
"""Reading the events of a run that another process holds, or that has ended: from the store, as they are written.

It reads like `core.journal.Reader`: from any sequence number on, to the terminal event or to a pause. Whoever has read
the run before may know events that died, unwritten, with its holder, or with the database before they were on its disk;
then its end has a number that was seen before, and is told all the same.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from andon.core.events import Event, RunEvent
from andon.core.receipt import Receipt
from andon.core.records import RunRecord
from andon.core.shared.link import StoreLink
from andon.core.single_reader import Seat
from andon.core.states import CancelOutcome, RunStatus

EVENTS_AT_ONCE = 2_000
"""How many events of a run are asked for with one question."""


class EventSource(Protocol):
    """What can be read in batches."""

    async def batch(self, limit: int) -> list[Event]:
        """All that is there, up to a limit, and at least one; empty after the last one."""
        ...

    @property
    def at_end(self) -> bool:
        """Has it read the last event that there will be, or that there will be before a person answers?"""
        ...


class StoredReader:
    """Reads a run's events from a shared store."""

    def __init__(self, link: StoreLink, run_id: str, after: int = 0) -> None:
        self._link, self._run_id, self._taken = link, run_id, after
        self._was_going = self.at_end = False
        self._seat = Seat()

    async def batch(self, limit: int = EVENTS_AT_ONCE) -> list[Event]:
        me = object()
        try:
            self._seat.take(me)
            return await self._more(limit)
        finally:
            self._seat.leave(me)

    async def _more(self, limit: int) -> list[Event]:
        link = self._link
        link.start()  # it listens for all of us
        with link.news.watch(self._run_id) as topic:
            while not self.at_end:
                seen = topic.count
                if events := await self._read(limit):
                    return events
                if not self.at_end:
                    await topic.changed(seen)
                    link.check_open()
        return []

    async def _read(self, limit: int) -> list[Event]:
        """What is there; nothing, if nothing is new, or it is over."""
        link, record = self._link, None
        events = await self._read_events(limit)
        if not events or events[-1].event is RunEvent.run_paused:
            # The record first: what it says is true of all events that are read after it.
            record = await link.retry(lambda: link.store.find(self._run_id))
            events = await self._read_events(limit)
            if (record is None or record.status.final) and self._was_going and not events:
                events = await last_event(link, self._run_id)  # not told yet, so it is not what was read before
            self.at_end = self._is_over(record, events, limit)
        else:
            self.at_end = events[-1].event.terminal
        self._was_going = self._was_going or bool(events) or (record is not None and not record.status.final)
        if events:
            self._taken = events[-1].seq
        return events

    async def _read_events(self, limit: int) -> list[Event]:
        return await self._link.retry(lambda: self._link.store.read_events(self._run_id, self._taken, limit))

    def _is_over(self, record: RunRecord | None, events: list[Event], limit: int) -> bool:
        if events and events[-1].event.terminal:
            return True
        if len(events) == limit:
            return False
        if record is None or record.status.final:  # what is not there is not kept any more
            return not events
        paused = record.status is RunStatus.paused
        return paused and (not events or events[-1].event is RunEvent.run_paused)


async def last_event(link: StoreLink, run_id: str) -> list[Event]:
    """The last one of a run, if any are kept."""
    last = await link.retry(lambda: link.store.last_event(run_id))
    return [] if last is None else [last]


async def follow(link: StoreLink, run_id: str, *, to_pause: bool = False) -> RunRecord | None:
    """Wait until a run has ended, wherever that is; or, with `to_pause`, until it waits for a person."""
    link.start()
    with link.news.watch(run_id) as topic:
        while True:
            seen = topic.count
            record = await link.retry(lambda: link.store.find(run_id))
            if record is None or record.status.final or (to_pause and record.status is RunStatus.paused):
                return record
            await topic.changed(seen)
            link.check_open()


class RemoteRun:
    """A run that this process does not hold: another process does, or it has ended. The store has all of it."""

    def __init__(self, link: StoreLink, record: RunRecord) -> None:
        self._link, self.record = link, record

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def status(self) -> RunStatus:
        return self.record.status

    async def look(self) -> RunRecord:
        """How it stands with it now."""
        self.record = await self._link.store.find(self.run_id) or self.record
        return self.record

    async def asked(self, outcome: CancelOutcome) -> None:
        """It was asked to stop: if that was news, nobody has to look how it stands with it."""
        if outcome is CancelOutcome.requested:
            self.record = msgspec.structs.replace(self.record, status=RunStatus.cancelling)
        else:
            await self.look()

    async def gone(self, seconds: float) -> Receipt | None:
        """Wait for its end, for so long at the most. What it has left behind, its own process knows."""
        try:
            async with asyncio.timeout(seconds):
                self.record = await follow(self._link, self.run_id) or self.record
        except TimeoutError:
            await self.look()
        return self.record.receipt

    async def rested(self, after: int) -> RunRecord:
        """How it stands with it once it has ended, or waits for a person, after the event of that number."""
        reader = StoredReader(self._link, self.run_id, after)
        while await reader.batch():
            pass
        return await self.look()

    async def reader(self, after: int) -> StoredReader | None:
        """Its events from a number on; None if there are none to come."""
        store, rests = self._link.store, self.status.final or self.status is RunStatus.paused
        if rests and not await store.read_events(self.run_id, after, 1):
            if after == 0 or await store.read_events(self.run_id, after - 1, 1):
                return None
            # It has read what died, unwritten: it is told the end.
            last = await last_event(self._link, self.run_id)
            after = last[-1].seq - 1 if last else after
        return StoredReader(self._link, self.run_id, after)
