# SPDX-License-Identifier: Apache-2.0
"""The log holds text, and makes events when they are read. Readers must not see a difference from a list of events."""

from __future__ import annotations

import threading
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon.core import event_log
from andon.core.event_log import STRETCH, EventLog, TextSpan
from andon.core.events import EVENT_BYTES, Event, RunEvent, approximate_size
from andon.core.journal import Journal, Reader

TEXTS = [RunEvent.run_content, RunEvent.reasoning]


class Both:
    """A journal, and beside it the list of events that it must be equal to. Each piece has its number as its time."""

    def __init__(self) -> None:
        self.journal = Journal("r", "s", "a")
        self.events: list[Event] = []
        self.texts = dict.fromkeys(TEXTS, "")
        self.pens = {kind: self.journal.pen(kind) for kind in TEXTS}

    def write(self, kind: RunEvent, text: str) -> None:
        self.pens[kind].write(text)
        self.texts[kind] += text
        self._expect(kind, text)

    def add(self) -> None:
        self.journal.add(RunEvent.tool_output, "out", call_id="c")
        self._expect(RunEvent.tool_output, "out", call_id="c")

    def _expect(self, kind: RunEvent, text: str, call_id: str | None = None) -> None:
        self.events.append(Event(kind, "r", "s", "a", len(self.events) + 1, 0.0, text, call_id=call_id))

    def seen(self, seq: int = 0, most: int = 10**9) -> list[Event]:
        return [msgspec.structs.replace(event, created_at=0.0) for event in self.journal.events.since(seq, most)]

    def batch(self, seq: int, most: int) -> list[Event]:
        return [msgspec.structs.replace(event, created_at=0.0) for event in self.journal.events.next_batch(seq, most)]


PIECES = st.lists(
    st.one_of(
        st.tuples(st.just("text"), st.sampled_from(TEXTS), st.text(max_size=5), st.integers(1, 700)),
        st.tuples(st.just("event"), st.none(), st.none(), st.integers(1, 3)),
    ),
    max_size=8,
)


@given(PIECES, st.data())
def test_it_is_equal_to_a_list_of_events(
    pieces: list[tuple[str, RunEvent | None, str | None, int]], data: st.DataObject
) -> None:
    both = Both()
    log = both.journal.events
    log.is_shared = data.draw(st.booleans())
    for _, kind, text, times in pieces:
        for _ in range(times):
            both.add() if kind is None or text is None else both.write(kind, text)
        seq, most = data.draw(st.integers(0, len(both.events) + 2)), data.draw(st.integers(1, 600))
        assert both.seen(seq, most) == both.events[seq : seq + most]
        batch = both.batch(seq, most)
        assert batch == both.events[seq : seq + len(batch)]
        assert batch or not both.events[seq:]
        assert len(batch) <= most
        assert log.written(seq) == sum(map(approximate_size, both.events[seq:]))
        assert log.kinds(seq) == {event.event for event in both.events[seq:]}
        check_glimpse(log, both.events, seq)
    assert len(log) == len(both.events)
    assert bool(log) is bool(both.events)
    assert both.seen() == both.events
    assert [event.seq for event in log] == list(range(1, len(both.events) + 1))
    last = log.last
    assert (None if last is None else last.seq) == (len(both.events) or None)
    assert {kind: pen.text() for kind, pen in both.pens.items()} == both.texts


def check_glimpse(log: EventLog, events: list[Event], seq: int) -> None:
    """It tells of the same events, and of text only how much there is."""
    last, characters, others = seq, 0, []
    for each in log.glimpse(seq):
        if isinstance(each, TextSpan):
            characters += each.characters
            assert all(event.event is each.event for event in events[last : each.seq])
        else:
            others.append(each.seq)
        assert each.seq > last
        last = each.seq
    assert last == max(seq, len(events))
    assert characters == sum(len(event.content) for event in events[seq:] if event.event in TEXTS)
    assert others == [event.seq for event in events[seq:] if event.event not in TEXTS]


def test_a_glimpse_has_the_time_of_the_first_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr("time.time", lambda: float(next(clock)))
    journal = Journal("r", "s", "a")
    pen = journal.pen(RunEvent.run_content)
    for _ in range(STRETCH + 10):
        pen.write("word ")
    spans = [(each.seq, each.created_at) for each in journal.events.glimpse(3)]
    assert spans == [(STRETCH, 3.0), (STRETCH + 10, float(STRETCH))]


def test_times_stay_with_their_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr("time.time", lambda: float(next(clock)))
    journal = Journal("r", "s", "a")
    pen = journal.pen(RunEvent.run_content)
    for _ in range(STRETCH * 2 + 10):
        pen.write("word ")
    assert [event.created_at for event in journal.events] == [float(n) for n in range(STRETCH * 2 + 10)]
    assert journal.events.since(STRETCH - 2, 4) == list(journal.events)[STRETCH - 2 : STRETCH + 2]


def test_a_thread_reads_all_of_it_while_it_is_written() -> None:
    journal = Journal("r", "s", "a")
    pen = journal.pen(RunEvent.run_content)
    seen: list[list[Event]] = [[], [], []]

    def read(into: list[Event]) -> None:
        reader = Reader(journal)
        while (event := reader.next_blocking()) is not None:
            into.append(event)

    threads = [threading.Thread(target=read, args=(each,), daemon=True) for each in seen]
    for thread in threads:
        thread.start()
    count = STRETCH * 20 + 7
    for number in range(count):
        pen.write(f"{number} ")
        if number % 1000 == 999:
            journal.add(RunEvent.tool_output, "out", call_id="c")
    journal.close(journal.draft(RunEvent.run_completed))
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    whole = list(journal.events)
    assert [event.content for event in whole if event.event is RunEvent.run_content] == [f"{n} " for n in range(count)]
    assert seen == [whole] * 3


def test_readers_that_come_one_after_another_share_the_events() -> None:
    journal = Journal("r", "s", "a")
    first, second = Reader(journal), Reader(journal)
    pen = journal.pen(RunEvent.run_content)
    for _ in range(STRETCH * event_log.SHARED):
        pen.write("word ")
    taken = [[reader.next_blocking() for _ in range(STRETCH * event_log.SHARED)] for reader in (first, second)]
    assert all(one is other for one, other in zip(*taken, strict=True))


def test_a_single_reader_leaves_nothing_in_the_log() -> None:
    journal = Journal("r", "s", "a")
    reader = Reader(journal)
    pen = journal.pen(RunEvent.run_content)
    for _ in range(STRETCH):
        pen.write("word ")
    one = reader.next_blocking()
    assert one == journal.events.since(0, 1)[0]
    assert one is not journal.events.since(0, 1)[0]


def test_a_token_takes_few_bytes() -> None:
    """An event is 300 bytes. Ten thousand tokens must take less than a tenth of that."""
    journal = Journal("r", "s", "a")
    pen = journal.pen(RunEvent.run_content)
    count = 10_000
    tracemalloc.start()
    try:
        for number in range(count):
            pen.write(f"{number:04d}")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < count * 30
    told = journal.events.rest()
    assert held / 2 < told < held * 2
    assert journal.events.written(0) == count * (EVENT_BYTES + 4)


def test_the_log_of_a_run_that_has_ended_holds_nothing_for_its_readers() -> None:
    journal = Journal("r", "s", "a")
    pen = journal.pen(RunEvent.run_content)
    for _ in range(STRETCH):
        pen.write("word ")
    journal.close(journal.draft(RunEvent.run_completed))
    journal.events.rest()
    readers = Reader(journal), Reader(journal)
    taken = [reader.next_blocking() for reader in readers]
    assert taken[0] == taken[1]
    assert taken[0] is not taken[1]


def test_events_of_another_process_are_taken_over() -> None:
    old = Journal("r", "s", "a")
    old.pen(RunEvent.run_content).write("One ")
    old.add(RunEvent.run_paused)
    log = EventLog("r", "s", "a")
    log.extend(old.events)
    assert list(log) == list(old.events)
    assert log.last is not None
    assert log.last.event is RunEvent.run_paused
