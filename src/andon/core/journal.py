# SPDX-License-Identifier: Apache-2.0
"""The append-only record of a run's events, and the wake-ups of its readers.

There is one writer (the run's loop), and any number of readers, on any loop or thread, from any sequence number. The
writer appends and *then* wakes (`core/waiters.py`), so no lock is needed. A woken reader takes all new events: a burst
of events costs one wake-up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from andon.core.event_log import STRETCH, EventLog, Stretch
from andon.core.events import Event, RunEvent
from andon.core.single_reader import Seat
from andon.core.waiters import Waiters

LOOK_TEXT = 65_536
"""After each such number of characters, the limit on what a run may write is checked again."""


class Pen:
    """Writes the pieces of one text, and knows that text."""

    __slots__ = ("_stretches", "write")

    def __init__(self, write: Callable[[str], None], stretches: list[Stretch]) -> None:
        self.write, self._stretches = write, stretches

    def text(self) -> str:
        """All that was written with it."""
        return "".join([stretch.text() for stretch in self._stretches])


class Journal:
    """A run's events. The terminal event closes it; later events are ignored."""

    __slots__ = (
        "_is_read",
        "_limit",
        "_look",
        "_text",
        "closed",
        "events",
        "resting",
        "waiters",
    )

    def __init__(self, run_id: str, session_id: str, agent_id: str) -> None:
        self._limit, self._text = math.inf, 0
        self._look: Callable[[], float] | None = None
        self.events = EventLog(run_id, session_id, agent_id)
        self.waiters = Waiters()
        self._is_read = False
        self.closed = False
        self.resting = False
        """The run is paused: readers end here, though the run may go on later."""

    def limit(self, first: float, look: Callable[[], float]) -> None:
        """Call `look` at the event of this number, at each event of a tool, and after every 64 KB of text. It returns
        the number of the event at which to call it again. It may be called more often than it asked for.
        """
        self._limit, self._look = first, look

    def pen(self, kind: RunEvent) -> Pen:
        """Writes content events, and wakes the readers. Its `write` is the hot path: it is called once per token. So
        all that it needs is looked up here.
        """
        log, now, wakes, wake = self.events, time.time, self.waiters.wakes, self.waiters.wake
        stretches: list[Stretch] = []
        stretch: Stretch | None = None
        count = most = chars = 0
        add_time: Callable[[float], None]
        add_text: Callable[[str], None]

        def write(content: str) -> None:
            nonlocal count, chars
            if stretch is None or log.open is not stretch:  # the first piece, or another event came between
                begin()
            add_time(now())
            add_text(content)
            if wakes:
                wake()
            count += 1
            chars += len(content)
            if count >= most or chars >= LOOK_TEXT:
                log.seal()
                self._look_again()

        def begin() -> None:
            nonlocal stretch, count, most, chars, add_time, add_text
            stretches.append(stretch := log.begin(kind))
            assert stretch.texts is not None
            add_time, add_text, count, chars = stretch.times.append, stretch.texts.append, 0, 0
            most = int(min(STRETCH, max(1, self._limit + 1 - stretch.seq)))

        return Pen(write, stretches)

    def add(self, kind: RunEvent, content: str = "", **facts: Any) -> None:
        """Append one event and wake the readers. After the terminal event, append nothing."""
        self.append(kind, content, **facts)
        if self.waiters.wakes:
            self.waiters.wake()

    def append(self, kind: RunEvent, content: str = "", **facts: Any) -> None:
        """The same without the wake-up."""
        if not self.closed:
            self._put(self.draft(kind, content, **facts))

    def ends_with(self, kind: RunEvent) -> bool:
        """True if the last event is of this kind, and is the run's own, not one relayed from another run."""
        last = self.events.last
        return last is not None and last.event is kind and last.run_id == self.events.run_id

    def relay(self, event: Event) -> None:
        """Show an event of another run here, in this journal's order."""
        if not self.closed:
            self._put(_numbered(event, len(self.events) + 1))
            self.waiters.wake()

    def draft(self, kind: RunEvent, content: str = "", **facts: Any) -> Event:
        """The next event, to be stored before readers may see it. Then `publish` it."""
        return self.events.draft(kind, len(self.events) + 1, time.time(), content, **facts)

    def publish(self, event: Event) -> None:
        """Append a drafted event. The caller wakes the readers."""
        if not self.closed:
            self._put(event if event.seq == len(self.events) + 1 else _numbered(event, len(self.events) + 1))

    def _put(self, event: Event) -> None:
        self.events.append(event)
        if self._look is None:
            return
        self._text += len(event.content)
        if event.seq >= self._limit or event.tool is not None or self._text >= LOOK_TEXT:
            self._look_again()

    def _look_again(self) -> None:
        if self._look is not None:
            self._limit, self._text = self._look(), 0

    def close(self, event: Event) -> None:
        """Append the terminal event."""
        self.publish(event)
        self.closed = True
        self._look = None  # it refers to the run: drop the reference
        self.waiters.wake()

    def read_by_one_more(self) -> None:
        self.events.is_shared, self._is_read = self._is_read and not self.closed, True

    def rest(self, event: Event | None = None) -> None:
        """The run is paused; `event` tells it, unless that was told before. The caller wakes the readers."""
        if event is not None:
            self.publish(event)
        self.resting = True

    def go_on(self) -> None:
        """The pause is over: readers that come now read on."""
        self.resting = False


def _numbered(event: Event, seq: int) -> Event:
    return msgspec.structs.replace(event, seq=seq)


class Reader:
    """Reads a journal from a sequence number on. It ends after the terminal event, or where the run is paused.

    It is an object, not a generator: nothing is held open across a `yield`, so a reader may stop at any moment. It is
    for one task or one thread. A second one that reads while the first one waits is refused, because events would be
    lost.
    """

    __slots__ = ("_journal", "_taken", "at_hand", "seat")

    def __init__(self, journal: Journal, after: int = 0) -> None:
        self._journal = journal
        self._taken = after
        journal.read_by_one_more()
        self.at_hand: Iterator[Event] = iter(())
        """The events that were taken from the journal and not given out yet."""
        self.seat = Seat()

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Event:
        for event in self.at_hand:  # the quickest way to get the first item of an iterator that may be empty
            return event
        me = object()
        try:
            self.seat.take(me)
            return self.next_at_hand() or await self.more()
        finally:
            self.seat.leave(me)

    async def more(self) -> Event:
        """Wait for the next event."""
        await self._journal.waiters.wait(self._ready)
        if (event := self._take()) is None:
            raise StopAsyncIteration
        return event

    async def batch(self, limit: int) -> list[Event]:
        """Wait for at least one event, and return all new ones, up to a limit. Empty after the last event."""
        me = object()
        try:
            self.seat.take(me)
            await self._journal.waiters.wait(self._ready)
            batch = self._journal.events.next_batch(self._taken, limit)
            self._taken += len(batch)
            return batch
        finally:
            self.seat.leave(me)

    @property
    def at_end(self) -> bool:
        """True if it has read the last event, or the last event before a person answers."""
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
        """The next event at hand. A reader that has taken the seat looks again: the previous one may have left some."""
        return next(self.at_hand, None)

    def drop(self) -> None:
        """Drop the events at hand."""
        self.at_hand = iter(())

    def wait_blocking(self) -> Event | None:
        """Wait for the next event, in a thread that has the seat."""
        self._journal.waiters.wait_blocking(self._ready)
        return self._take()

    def _ready(self) -> bool:
        journal = self._journal
        return journal.closed or journal.resting or self._taken < len(journal.events)

    def _take(self) -> Event | None:
        """Take new events, not too many. Return the first one, and keep the others at hand."""
        events = self._journal.events.next_batch(self._taken, STRETCH)
        self._taken += len(events)
        batch = iter(events)
        first = next(batch, None)  # before another thread can read from it
        self.at_hand = batch
        return first
