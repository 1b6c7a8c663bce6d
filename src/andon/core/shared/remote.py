# SPDX-License-Identifier: Apache-2.0
"""Reading the events of a run that another process holds, or that has ended: from the store, as they are written.

It reads like `core.journal.Reader`: from any sequence number on, to the terminal event or to a pause. Whoever has read
the run before may know events that died, unwritten, with its holder, or with the database before they were on its disk;
then its end has a number that was seen before, and is told all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from andon.core.events import Event, RunEvent
from andon.core.single_reader import Seat
from andon.core.states import RunStatus

if TYPE_CHECKING:
    from andon.core.records import RunRecord
    from andon.core.shared.worker import Keeper

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

    def __init__(self, keeper: Keeper, run_id: str, after: int = 0) -> None:
        self._keeper, self._run_id, self._taken = keeper, run_id, after
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
        keeper = self._keeper
        keeper.start()  # it listens for all of us
        with keeper.news.watch(self._run_id) as topic:
            while not self.at_end:
                seen = topic.count
                if events := await self._read(limit):
                    return events
                if not self.at_end:
                    await topic.changed(seen)
                    keeper.check_open()
        return []

    async def _read(self, limit: int) -> list[Event]:
        """What is there; nothing, if nothing is new, or it is over."""
        keeper, record = self._keeper, None
        events = await self._read_events(limit)
        if not events or events[-1].event is RunEvent.run_paused:
            # The record first: what it says is true of all events that are read after it.
            record = await keeper.ask(lambda: keeper.store.find(self._run_id))
            events = await self._read_events(limit)
            if (record is None or record.status.final) and self._was_going and not events:
                events = await last_event(keeper, self._run_id)  # not told yet, so it is not what was read before
            self.at_end = self._is_over(record, events, limit)
        else:
            self.at_end = events[-1].event.terminal
        self._was_going = self._was_going or bool(events) or (record is not None and not record.status.final)
        if events:
            self._taken = events[-1].seq
        return events

    async def _read_events(self, limit: int) -> list[Event]:
        return await self._keeper.ask(lambda: self._keeper.store.read_events(self._run_id, self._taken, limit))

    def _is_over(self, record: RunRecord | None, events: list[Event], limit: int) -> bool:
        if events and events[-1].event.terminal:
            return True
        if len(events) == limit:
            return False
        if record is None or record.status.final:  # what is not there is not kept any more
            return not events
        paused = record.status is RunStatus.paused
        return paused and (not events or events[-1].event is RunEvent.run_paused)


async def last_event(keeper: Keeper, run_id: str) -> list[Event]:
    """The last one of a run, if any are kept."""
    last = await keeper.ask(lambda: keeper.store.last_event(run_id))
    return [] if last is None else [last]


async def follow(keeper: Keeper, run_id: str, *, to_pause: bool = False) -> RunRecord | None:
    """Wait until a run has ended, wherever that is; or, with `to_pause`, until it waits for a person."""
    keeper.start()
    with keeper.news.watch(run_id) as topic:
        while True:
            seen = topic.count
            record = await keeper.ask(lambda: keeper.store.find(run_id))
            if record is None or record.status.final or (to_pause and record.status is RunStatus.paused):
                return record
            await topic.changed(seen)
            keeper.check_open()
