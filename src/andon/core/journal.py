# SPDX-License-Identifier: Apache-2.0
"""The append-only record of a run's events, and the wake-ups of whoever reads it.

One writer (the run's loop), any number of readers, on any loop or thread, from any sequence number. The writer appends
and *then* wakes (`core/waiters.py`), so no lock is needed. A woken reader takes all there is: a burst of events costs
one wake-up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from andon.core.events import Event, RunEvent
from andon.core.single_reader import Seat
from andon.core.waiters import Waiters

LOOK_TEXT = 65_536
"""With so many characters more than at the last look, the limit on what a run may write is looked at again."""


class Journal:
    """A run's events. Closed by its terminal event; what comes later is refused."""

    __slots__ = (
        "_agent_id",
        "_limit",
        "_look",
        "_run_id",
        "_session_id",
        "_text",
        "closed",
        "events",
        "resting",
        "waiters",
    )

    def __init__(self, run_id: str, session_id: str, agent_id: str) -> None:
        self._run_id, self._session_id, self._agent_id = run_id, session_id, agent_id
        self._limit, self._text = math.inf, 0
        self._look: Callable[[], float] | None = None
        self.events: list[Event] = []
        self.waiters = Waiters()
        self.closed = False
        self.resting = False
        """The run is paused: readers end here, though it may go on."""

    def limit(self, first: float, look: Callable[[], float]) -> None:
        """Have `look` called with the event of this number, with each that is of a tool, and after every 64 KB of text.
        It says with which event it is to be called again. Each way to write counts for itself: it may be called more
        often than it asked for.
        """
        self._limit, self._look = first, look

    def pen(self, kind: RunEvent) -> Callable[[str], None]:
        """A function that appends one content event and wakes the readers.

        This is the hot path, once per token, so all that it needs is looked up once, here.
        """
        run_id, session_id, agent_id, now = self._run_id, self._session_id, self._agent_id, time.time
        events, wakes, wake = self.events, self.waiters.wakes, self.waiters.wake
        append = events.append

        def write(content: str) -> None:
            append(Event(kind, run_id, session_id, agent_id, len(events) + 1, now(), content))
            if wakes:
                wake()

        if (look := self._look) is None:
            return write
        limit, text = self._limit, 0

        def write_up_to_limit(content: str) -> None:
            nonlocal limit, text
            append(Event(kind, run_id, session_id, agent_id, (seq := len(events) + 1), now(), content))
            if wakes:
                wake()
            text += len(content)
            if seq >= limit or text >= LOOK_TEXT:
                limit, text = look(), 0

        return write_up_to_limit

    def add(self, kind: RunEvent, content: str = "", **facts: Any) -> None:
        """Append one event and wake the readers; after the terminal one, nothing."""
        self.append(kind, content, **facts)
        if self.waiters.wakes:
            self.waiters.wake()

    def append(self, kind: RunEvent, content: str = "", **facts: Any) -> None:
        """The same without the wake-up."""
        if not self.closed:
            self._put(self.draft(kind, content, **facts))

    def ends_with(self, kind: RunEvent) -> bool:
        """Is its last event of this kind, and not one that is shown here for another run?"""
        return bool(self.events) and self.events[-1].event is kind and self.events[-1].run_id == self._run_id

    def relay(self, event: Event) -> None:
        """Show an event of another run here, in this journal's order."""
        if not self.closed:
            self._put(_numbered(event, len(self.events) + 1))
            self.waiters.wake()

    def draft(self, kind: RunEvent, content: str = "", **facts: Any) -> Event:
        """The next event, to be stored before anybody may read it: then `publish` it."""
        seq = len(self.events) + 1
        return Event(kind, self._run_id, self._session_id, self._agent_id, seq, time.time(), content, **facts)

    def publish(self, event: Event) -> None:
        """Append what was drafted. Whoever calls it wakes the readers."""
        if not self.closed:
            self._put(event if event.seq == len(self.events) + 1 else _numbered(event, len(self.events) + 1))

    def _put(self, event: Event) -> None:
        self.events.append(event)
        if self._look is None:
            return
        self._text += len(event.content)
        if event.seq >= self._limit or event.tool is not None or self._text >= LOOK_TEXT:
            self._limit, self._text = self._look(), 0

    def close(self, event: Event) -> None:
        """Append the terminal event."""
        self.publish(event)
        self.closed = True
        self._look = None  # it knows the run: let go
        self.waiters.wake()

    def rest(self, event: Event) -> None:
        """Append an event after which nothing comes for a while. Whoever calls it wakes the readers."""
        self.publish(event)
        self.resting = True


def _numbered(event: Event, seq: int) -> Event:
    return msgspec.structs.replace(event, seq=seq)


class Reader:
    """Reads a journal from a sequence number on, and ends after its terminal event, or where the run is paused.

    An object, not a generator: nothing is held open across a `yield`, so a reader may leave at any moment. It is for
    one task, or one thread: a second one that reads while the first one waits is refused, or events would be lost.
    """

    __slots__ = ("_journal", "_taken", "at_hand", "seat")

    def __init__(self, journal: Journal, after: int = 0) -> None:
        self._journal = journal
        self._taken = after
        self.at_hand: Iterator[Event] = iter(())
        """The events that were taken from the journal and not given out yet."""
        self.seat = Seat()

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Event:
        for event in self.at_hand:  # the quickest way to ask for one that may not be there
            return event
        me = object()
        try:
            self.seat.take(me)
            return self.next_at_hand() or await self.more()
        finally:
            self.seat.leave(me)

    async def more(self) -> Event:
        """Wait for what comes next."""
        await self._journal.waiters.wait(self._ready)
        if (event := self._take()) is None:
            raise StopAsyncIteration
        return event

    async def batch(self, limit: int) -> list[Event]:
        """All that is there, up to a limit, and at least one; empty after the last one."""
        me = object()
        try:
            self.seat.take(me)
            await self._journal.waiters.wait(self._ready)
            batch = self._journal.events[self._taken : self._taken + limit]
            self._taken += len(batch)
            return batch
        finally:
            self.seat.leave(me)

    @property
    def at_end(self) -> bool:
        """Has it read the last event that there will be, or that there will be before a person answers?"""
        journal = self._journal
        return (journal.closed or journal.resting) and self._taken >= len(journal.events)

    def next_blocking(self) -> Event | None:
        """The next event, or None after the last one."""
        for event in self.at_hand:
            return event
        me = object()
        try:
            self.seat.take(me)
            return self.next_at_hand() or self.wait_blocking()
        finally:
            self.seat.leave(me)

    def next_at_hand(self) -> Event | None:
        """The next event at hand. A reader that has the seat looks again: the one before it may have left some."""
        return next(self.at_hand, None)

    def drop(self) -> None:
        """Give out none of the events at hand."""
        self.at_hand = iter(())

    def wait_blocking(self) -> Event | None:
        """Wait for what comes next, in a thread that has the seat."""
        self._journal.waiters.wait_blocking(self._ready)
        return self._take()

    def _ready(self) -> bool:
        journal = self._journal
        return journal.closed or journal.resting or self._taken < len(journal.events)

    def _take(self) -> Event | None:
        """Take all there is: the first event is returned, the others are the batch, a copy of what the journal has."""
        events = self._journal.events[self._taken :]
        self._taken += len(events)
        batch = iter(events)
        first = next(batch, None)  # before another thread can read from it
        self.at_hand = batch
        return first
