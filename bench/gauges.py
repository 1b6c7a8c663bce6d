# SPDX-License-Identifier: Apache-2.0
"""What a server costs: its processor time, and what it writes to its database."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.chaos.servers import Database


class Cpu:
    """The processor time of a process, all its threads together, from here on."""

    def __init__(self, pid: int) -> None:
        # The clock that clock_getcpuclockid(3) names on Linux. /proc tells the same, but only in steps of 10 ms.
        self._clock = ~pid << 3 | 2
        self._before, self._began = time.clock_gettime(self._clock), time.perf_counter()

    @property
    def ms(self) -> float:
        return (time.clock_gettime(self._clock) - self._before) * 1000

    @property
    def percent(self) -> float:
        """Of one core."""
        return self.ms / (time.perf_counter() - self._began) / 10


@dataclass
class Written:
    """Bytes, known when the block of `written` has ended."""

    table: int = 0
    """By how much the table of events has grown, its index included."""
    tables: int = 0
    """By how much all tables have grown: a run's text is also in its messages, its record and its last event."""
    log: int = 0
    """What was written to the write-ahead log."""


@contextlib.contextmanager
def written(place: Database) -> Iterator[Written]:
    """What a database writes while the block runs. Nothing may be half done before and after it."""
    answer = Written()
    with (_in_file if place.url.startswith("sqlite") else _in_server)(place.url, answer):
        yield answer


@contextlib.contextmanager
def _in_file(url: str, answer: Written) -> Iterator[None]:
    path = Path(url.removeprefix("sqlite:///"))
    events, everything = _sizes_of_file(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        # While one connection still reads the old state, SQLite can't reuse the log from its start: it only grows.
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM andon_meta").fetchall()
        yield
        answer.log = path.with_name(f"{path.name}-wal").stat().st_size
    events_now, everything_now = _sizes_of_file(path)
    answer.table, answer.tables = events_now - events, everything_now - everything


def _sizes_of_file(path: Path) -> tuple[int, int]:
    """Of the events, and of all pages in use. Before that all of the log is brought to the file, and it is emptied."""
    with contextlib.closing(sqlite3.connect(path, timeout=10)) as connection:

        def ask(pragma: str) -> int:
            return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])

        if ask("wal_checkpoint(TRUNCATE)"):
            raise RuntimeError("the database is busy: its log could not be emptied")
        of_events = "SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE name LIKE '%andon_events%'"
        events = int(connection.execute(of_events).fetchone()[0])
        return events, (ask("page_count") - ask("freelist_count")) * ask("page_size")


_SIZES = """
SELECT sum(pg_relation_size(oid)) FILTER (WHERE oid = ANY (events.parts))::bigint,
  sum(pg_relation_size(oid))::bigint, (pg_current_wal_insert_lsn() - '0/0')::bigint
FROM pg_class, LATERAL (
  SELECT array_agg(part) AS parts FROM (
    SELECT 'andon_events'::regclass::oid
    UNION ALL SELECT reltoastrelid FROM pg_class WHERE oid = 'andon_events'::regclass
    UNION ALL SELECT indexrelid FROM pg_index WHERE indrelid = 'andon_events'::regclass
  ) AS parts (part)
) AS events
WHERE oid >= 16384 AND relkind IN ('r', 'i', 't')
"""
"""The events, and all tables and indexes that are not Postgres' own, with the tables where it puts long values. Its
maps of free space are not counted: vacuuming makes them, at any moment.
"""


@contextlib.contextmanager
def _in_server(url: str, answer: Written) -> Iterator[None]:
    with psycopg.connect(url, autocommit=True) as connection:

        def sizes() -> tuple[int, int, int]:
            table, tables, log = connection.execute(_SIZES).fetchone() or (0, 0, 0)
            return table, tables, log

        before = sizes()
        yield
        answer.table, answer.tables, answer.log = (now - then for now, then in zip(sizes(), before, strict=True))
