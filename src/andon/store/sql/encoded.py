# SPDX-License-Identifier: Apache-2.0
"""What is to be stored of a run, as text. It is encoded before the transaction, so that others don't wait for that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from andon.core.events import Event
from andon.core.records import RunRecord
from andon.core.shared.run_queue import QueuedStart
from andon.core.shared.store import Lease, Progress
from andon.core.states import RunStatus
from andon.messages import Message
from andon.store.sql import cancels
from andon.store.sql.batches import write_rows
from andon.store.sql.codec import dump

PART = 2_000_000
"""About how many characters one transaction writes."""


class EncodedEnd(NamedTuple):
    """The end of a run, or its pause."""

    lease: Lease
    record: RunRecord
    text: str
    """The record."""
    messages: str
    rows: list[tuple[int, str]]
    """The events that are not stored yet: for each row the number of its last event, and the text."""
    request: str | None
    """The cancel that ended it, for the log."""

    @classmethod
    def of(cls, lease: Lease, record: RunRecord, messages: Sequence[Message], events: Sequence[Event]) -> EncodedEnd:
        stopped = record.receipt if record.status is RunStatus.cancelled else None
        request = None if stopped is None else dump(cancels.request_of(stopped))
        return cls(lease, record, dump(record), dump(messages), write_rows(lease.run_id, events), request)

    @property
    def last_seq(self) -> int | None:
        return self.rows[-1][0] if self.rows else None


class EncodedStart(NamedTuple):
    """A run that is put into the queue."""

    record: RunRecord
    text: str
    messages: str | None
    rows: list[tuple[int, str]]
    """Its first event."""
    request: str
    timeout: float | None
    goes_on: bool
    continues: str | None

    @classmethod
    def of(cls, start: QueuedStart) -> EncodedStart:
        record, said = start.record, dump(list(start.messages)) if start.messages else None
        rows = write_rows(record.run_id, [start.first])
        request, timeout, goes_on, continues = start.request.decode(), start.timeout, start.goes_on, start.continues
        return cls(record, dump(record), said, rows, request, timeout, goes_on, continues)


class EncodedProgress(NamedTuple):
    """What is new of a run."""

    lease: Lease
    messages: str | None
    rows: list[tuple[int, str]]
    continues: str | None

    @property
    def size(self) -> int:
        return len(self.messages or "") + sum(len(text) for _, text in self.rows)


def encode_progress(batch: Iterable[Progress]) -> Iterator[EncodedProgress]:
    for lease, messages, events, continues in batch:
        said = None if messages is None else dump(messages)
        yield EncodedProgress(lease, said, write_rows(lease.run_id, events), continues)


def in_parts(news: Iterable[EncodedProgress]) -> Iterator[list[EncodedProgress]]:
    """The same, in parts that are not much larger than `PART`."""
    part: list[EncodedProgress] = []
    size = 0
    for each in news:
        part.append(each)
        size += each.size
        if size >= PART:
            yield part
            part, size = [], 0
    if part:
        yield part
