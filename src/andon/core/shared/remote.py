# SPDX-License-Identifier: Apache-2.0
"""Reads the events of a run that another process holds, or that has ended: from the store, as they are written.

A reader works like `core.journal.Reader`: from any sequence number on, to the terminal event or to a pause. A client
may have read events that were then lost: the run's holder died before it wrote them, or the database before they were
on disk. Then the terminal event has a number that the client has seen already. It is delivered nevertheless.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from andon.core.events import Event, RunEvent
from andon.core.receipt import Receipt
from andon.core.records import RunRecord
from andon.core.shared.call_cancels import cancel_call_there
from andon.core.shared.event_cache import RunFeed
from andon.core.shared.link import StoreLink
from andon.core.shared.store import CallAnswer, SharedStore
from andon.core.single_reader import Seat
from andon.core.states import CancelOutcome, RunStatus

EVENTS_AT_ONCE = 2_000
"""How many events of a run are read with one query."""


class EventSource(Protocol):
    """A source of events that can be read in batches."""

    async def batch(self, limit: int) -> list[Event]:
        """Wait for at least one event, and return all new ones, up to a limit. Empty after the last event."""
        ...

    @property
    def at_end(self) -> bool:
        """True if it has read the last event, or the last event before a person answers."""
        ...


class StoredReader:
    """Reads a run's events from a shared store."""

    def __init__(self, link: StoreLink, run_id: str, after: int = 0, *, was_going: bool = False) -> None:
        """`was_going`: the run had not ended a moment ago, so there is an end to tell, whatever its number."""
        self._link, self._run_id, self._taken = link, run_id, after
        self._feed: RunFeed | None = None
        self._was_going, self.at_end = was_going, False
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
        link.start()  # one listener serves all readers
        feed = self._feed = self._feed or link.cache.feed(self._run_id)
        topic = feed.topic
        while not self.at_end:
            seen = topic.count
            if events := await self._read(feed, limit):
                return events
            if not self.at_end:
                await topic.wait(lambda seen=seen: topic.count != seen or feed.has(self._taken))  # type: ignore[misc]
                link.check_open()
        return []

    async def _read(self, feed: RunFeed, limit: int) -> list[Event]:
        """The new events. Empty if there are none, or the run is over."""
        look = await feed.look(self._taken, limit)
        events, record = list(look.events), look.record
        if look.at_record:
            if (record is None or record.status.final) and self._was_going and not events:
                events = await end_of(self._link, self._run_id)  # it was not read yet, though its number was
            self.at_end = self._is_over(record, events, limit)
        else:
            self.at_end = bool(events) and events[-1].event.terminal
        self._was_going = self._was_going or bool(events) or (record is not None and not record.status.final)
        if events:
            self._taken = events[-1].seq
        return events

    def _is_over(self, record: RunRecord | None, events: list[Event], limit: int) -> bool:
        if events and events[-1].event.terminal:
            return True
        if len(events) == limit:
            return False
        if record is None or record.status.final:  # events that are missing now are not kept any more
            return not events
        paused = record.status is RunStatus.paused
        return paused and (not events or events[-1].event is RunEvent.run_paused)


async def read_all(store: SharedStore, run_id: str) -> list[Event]:
    """Every event of a run that the store has."""
    events: list[Event] = []
    while batch := await store.read_events(run_id, len(events), EVENTS_AT_ONCE):
        events += batch
    return events


async def last_event(link: StoreLink, run_id: str) -> list[Event]:
    """The last event of a run, if the store has any."""
    last = await link.retry(lambda: link.store.last_event(run_id))
    return [] if last is None else [last]


async def end_of(link: StoreLink, run_id: str) -> list[Event]:
    """The event with which a run has ended, or waits for a person. Empty if the last event in the store is another one:
    a database that is killed may lose an end that it has shown for a moment.
    """
    last = await last_event(link, run_id)
    return [event for event in last if event.event.terminal or event.event is RunEvent.run_paused]


async def follow(link: StoreLink, run_id: str, *, to_pause: bool = False) -> RunRecord | None:
    """Wait until a run has ended, in any process. With `to_pause`, also return when it waits for a person."""
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
    """A run that another process holds, or that has ended. All that is known of it is in the store."""

    def __init__(self, link: StoreLink, record: RunRecord) -> None:
        self._link, self.record = link, record

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def status(self) -> RunStatus:
        return self.record.status

    async def look(self) -> RunRecord:
        """Read its current record."""
        self.record = await self._link.store.find(self.run_id) or self.record
        return self.record

    async def asked(self, outcome: CancelOutcome) -> None:
        """It was cancelled. If this was the first request, the status is known without a query."""
        if outcome is CancelOutcome.requested:
            self.record = msgspec.structs.replace(self.record, status=RunStatus.cancelling)
        else:
            await self.look()

    async def cancel_tool(self, call_id: str, reason: str | None, force: bool) -> CallAnswer | None:
        """Cancel one tool call, and keep the run. None if the run is not known any more."""
        return await cancel_call_there(self._link, self.run_id, call_id, reason, force)

    async def gone(self, seconds: float) -> Receipt | None:
        """Wait for its end, for at most `seconds`. Later leftovers are known only in its own process."""
        try:
            async with asyncio.timeout(seconds):
                self.record = await follow(self._link, self.run_id) or self.record
        except TimeoutError:
            await self.look()
        return self.record.receipt

    async def rested(self, after: int) -> RunRecord:
        """Wait until it has ended, or waits for a person, after the event of this number. Returns its record."""
        reader = StoredReader(self._link, self.run_id, after)
        while await reader.batch():
            pass
        return await self.look()

    def read(self, after: int) -> StoredReader:
        """A reader of its events after a number, for a run that will have more."""
        return StoredReader(self._link, self.run_id, after, was_going=True)

    async def has_events(self) -> bool:
        """Does the store have events of it?"""
        return bool(await last_event(self._link, self.run_id))

    async def reader(self, after: int) -> StoredReader | None:
        """A reader of its events after a number. None if no more events will come, or they are not kept any more."""
        store, rests = self._link.store, self.status.final or self.status is RunStatus.paused
        if rests and not await store.read_events(self.run_id, after, 1):
            if after == 0 or await store.read_events(self.run_id, after - 1, 1) or not await self.has_events():
                return None
            # The client has read events that were lost: it gets the end. If that is lost too, the run goes on.
            if last := await end_of(self._link, self.run_id):
                after = last[-1].seq - 1
            else:
                rests = False
        return StoredReader(self._link, self.run_id, after, was_going=not rests)
