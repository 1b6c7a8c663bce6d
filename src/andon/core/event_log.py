# SPDX-License-Identifier: Apache-2.0
"""The events of a run, in little memory.

An event is a struct of 20 fields, and takes 300 bytes. A run may have a hundred thousand events, and almost all of them
are pieces of text. So the log holds only the text and the time of each piece, in stretches. It makes the events when a
reader asks for them. A full stretch takes 17 bytes for a token of four characters.

One thread writes. Any thread may read at the same moment, without a lock. The time of a piece is written before its
text. So readers count the texts: a piece that has a text is complete.
"""

from __future__ import annotations

import bisect
import itertools
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, repeat
from operator import attrgetter
from typing import Any, NamedTuple

from andon.core.events import EVENT_BYTES, Event, RunEvent, approximate_size

STRETCH = 512
"""The most pieces in one stretch."""

SHARED = 4
"""How many lists of events are kept for other readers."""

_FIRST = attrgetter("seq")


class Stretch:
    """Pieces of text that were written one directly after another. `seq` is the number of the first one."""

    __slots__ = ("_ends", "_whole", "kind", "seq", "texts", "times")

    def __init__(self, kind: RunEvent, seq: int) -> None:
        self.kind, self.seq = kind, seq
        self.times = array("d")
        self.texts: list[str] | None = []
        """None once the stretch is sealed."""
        self._whole = ""
        self._ends = array("I")

    def __len__(self) -> int:
        texts = self.texts
        return len(self._ends if texts is None else texts)

    def seal(self) -> None:
        """Nothing more will be written: join the pieces. A reader that has the list of pieces still uses that list."""
        texts = self.texts or []
        self._whole, self._ends = "".join(texts), array("I", accumulate(map(len, texts)))
        self.texts = None

    def pieces(self, begin: int, end: int) -> tuple[Sequence[float], list[str]]:
        """The times and texts of some pieces. There may be more times: a time is written before its text."""
        texts, times = self.texts, self.times[begin:end]
        if texts is None:
            first = self._ends[begin - 1] if begin else 0
            ends = pairwise((first, *self._ends[begin:end]))
            return times, [self._whole[start:stop] for start, stop in ends]
        return times, texts[begin:end]

    def text(self) -> str:
        texts = self.texts
        return self._whole if texts is None else "".join(texts)

    def size(self, begin: int = 0, end: int | None = None) -> int:
        """How many characters the pieces from `begin` to `end` have."""
        texts = self.texts
        if texts is not None:
            return sum(map(len, texts[begin:end]))
        last = len(self._whole) if end is None else self._ends[end - 1]
        return last - (self._ends[begin - 1] if begin else 0)


class TextSpan(NamedTuple):
    """Pieces of text that were written one directly after another, without their texts."""

    event: RunEvent
    run_id: str
    seq: int
    """The number of the last piece."""
    created_at: float
    """When the first piece was written."""
    characters: int


class EventLog:
    """The events of one run, numbered from 1 without gaps."""

    __slots__ = ("_held", "_segments", "agent_id", "is_shared", "open", "run_id", "session_id")

    def __init__(self, run_id: str, session_id: str, agent_id: str) -> None:
        self.run_id, self.session_id, self.agent_id = run_id, session_id, agent_id
        self._segments: list[Event | Stretch] = []
        self.open: Stretch | None = None
        """The stretch that the next piece of text goes into: the last segment, or none."""
        self.is_shared = False
        """Several readers read it: the events that were made for one reader are kept for the others."""
        self._held: dict[int, list[Event]] | None = None

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, event: Event) -> None:
        """Append an event whose number is the next one."""
        self.seal()
        self._segments.append(event)

    def extend(self, events: Iterable[Event]) -> None:
        for event in events:
            self.append(event)

    def begin(self, kind: RunEvent) -> Stretch:
        """A new stretch, for pieces of text of one kind. Write the time of each piece, and then its text."""
        self.seal()
        stretch = Stretch(kind, len(self) + 1)
        self._segments.append(stretch)  # first: an interrupt (Ctrl-C) may come between these two lines
        self.open = stretch
        return stretch

    def seal(self) -> None:
        """Close the open stretch."""
        if (stretch := self.open) is not None:
            self.open = None
            stretch.seal()

    def draft(self, kind: RunEvent, seq: int, at: float, content: str = "", **facts: Any) -> Event:
        return Event(kind, self.run_id, self.session_id, self.agent_id, seq, at, content, **facts)

    # -- reading ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        segments = self._segments
        return _last(segments[-1]) if segments else 0

    def __iter__(self) -> Iterator[Event]:
        taken = 0
        while events := self.since(taken, STRETCH):
            yield from events
            taken = events[-1].seq

    @property
    def last(self) -> Event | None:
        """The last event."""
        events = self.since(len(self) - 1, 1)
        return events[0] if events else None

    def since(self, seq: int, most: int = sys.maxsize) -> list[Event]:
        """The events after the one of this number, `most` of them at most."""
        events: list[Event] = []
        ids = repeat(self.run_id), repeat(self.session_id), repeat(self.agent_id)
        for place in range(self._place(seq), len(self._segments)):
            segment = self._segments[place]
            room, after = most - len(events), seq + len(events)
            if room <= 0:
                break
            if isinstance(segment, Stretch):
                begin, end = after + 1 - segment.seq, len(segment)
                if begin < end:
                    pieces = segment.pieces(begin, min(end, begin + room))
                    # The hot path of readers: by `map`, an event takes half the time that it takes in a loop.
                    events += map(Event, repeat(segment.kind), *ids, itertools.count(after + 1), *pieces)
            elif segment.seq > after:
                events.append(segment)
        return events

    def next_batch(self, seq: int, most: int) -> list[Event]:
        """For a reader: events after the one of this number, perhaps not all of them. Other readers may get the same
        list: don't change it.
        """
        held = self._held
        if held is not None and (events := held.get(seq)) is not None and len(events) <= most:
            return events
        events = self.since(seq, most)
        if self.is_shared and 1 < len(events) <= STRETCH:
            self._hold(seq, events)
        return events

    def glimpse(self, seq: int) -> list[Event | TextSpan]:
        """What was written after the event of this number. Text is told as spans, which cost little."""
        found: list[Event | TextSpan] = []
        for segment in self._segments[self._place(seq) :]:
            if isinstance(segment, Event):
                if segment.seq > seq:
                    found.append(segment)
            elif (begin := max(0, seq + 1 - segment.seq)) < (count := len(segment)):
                last, at = segment.seq + count - 1, segment.times[begin]
                found.append(TextSpan(segment.kind, self.run_id, last, at, segment.size(begin, count)))
        return found

    def written(self, seq: int) -> int:
        """The bytes of the events after the one of this number, roughly, as the limit of a run counts them."""
        size = 0
        for segment in self._segments[self._place(seq) :]:
            if isinstance(segment, Event):
                size += approximate_size(segment) if segment.seq > seq else 0
            elif (begin := max(0, seq + 1 - segment.seq)) < (count := len(segment)):
                size += (count - begin) * EVENT_BYTES + segment.size(begin)
        return size

    def kinds(self, seq: int) -> set[RunEvent]:
        """The kinds of the events after the one of this number."""
        later = [segment for segment in self._segments[self._place(seq) :] if _last(segment) > seq]
        return {segment.kind if isinstance(segment, Stretch) else segment.event for segment in later}

    def rest(self) -> int:
        """The run has ended: keep no lists for readers. Returns the memory that the events take, roughly."""
        self._held, self.is_shared = None, False
        return sum(map(_memory, self._segments.copy()))

    def _place(self, seq: int) -> int:
        """The place of the segment that has the event after this one."""
        return max(0, bisect.bisect_right(self._segments, seq + 1, key=_FIRST) - 1)

    def _hold(self, seq: int, events: list[Event]) -> None:
        held = {} if self._held is None else self._held.copy()
        held[seq] = events
        if len(held) > SHARED:
            del held[next(iter(held))]
        self._held = held


def _last(segment: Event | Stretch) -> int:
    return segment.seq - 1 + len(segment) if isinstance(segment, Stretch) else segment.seq


def _memory(segment: Event | Stretch) -> int:
    if isinstance(segment, Event):
        return approximate_size(segment)
    return EVENT_BYTES + segment.size() + 12 * len(segment)
