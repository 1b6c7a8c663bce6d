# SPDX-License-Identifier: Apache-2.0
"""One open transaction, as those who work in it see it: what they do, and what others are told of it."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from sqlalchemy import Connection, CursorResult, Executable, Table, func, select
from sqlalchemy.dialects import postgresql, sqlite

from andon.store.sql import clocks, schema
from andon.store.sql.codec import CHANGED
from andon.store.sql.faults import CutOffError
from andon.store.sql.notifications import CHANNEL

T = TypeVar("T")
Values = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None

CHUNK = 5_000


class TxMode(NamedTuple):
    """What kind of transaction it is."""

    writes: bool
    """Whether it is one transaction, which changes something."""
    early: bool
    """Whether others may see it before it is on the disk."""


AUTOCOMMIT = TxMode(writes=False, early=False)


class Tx:
    """An open transaction."""

    __slots__ = ("_connection", "_said", "_unsent", "began", "early", "ended", "now", "postgres", "wall")

    def __init__(self, connection: Connection, postgres: bool, how: TxMode) -> None:
        self._connection, self.postgres = connection, postgres
        self._unsent: list[tuple[Executable, Values]] = []
        self.early = how.early
        """See `How`. Who has changed nothing after all may say so."""
        self._said: list[str] = []
        self.ended: str | None = None
        """The run that has ended, on a server: who is next in its line is found, and told, after the commit."""
        self.began = time.monotonic()
        """When it was begun, and not when it was asked for: a lease counts from then on."""
        self.now, self.wall = clocks.now(postgres), clocks.wall(postgres)
        """The clocks that leases go by, and ages."""

    @property
    def _driver(self) -> Any:
        return self._connection.connection.driver_connection

    def execute(self, statement: Executable, values: Values = None, **options: Any) -> CursorResult[Any]:
        """Do this, and wait for the answer."""
        self._send()
        return cast("CursorResult[Any]", self._connection.execute(statement, values, **options))

    def read_value(self, statement: str) -> Any:
        """The one value that this finds. On SQLite it costs a hundredth of what `execute` does."""
        if self.postgres:
            return self._connection.exec_driver_sql(statement).scalar()
        return next(self.execute_sqlite(statement), (None,))[0]

    def execute_sqlite(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """With SQLite: do this, in the driver's own words."""
        self._send()
        if not self._connection.in_transaction():
            self._connection.begin()
        return cast("sqlite3.Cursor", self._driver.execute(statement, values))

    def write(self, statement: Executable, values: Values = None) -> None:
        """Do this before whatever comes next, the commit at the latest. Nobody needs an answer."""
        self._unsent.append((statement, values))

    def notify(self, said: Iterable[str]) -> None:
        """Have others told of what is changed here (`codec`), once it is committed."""
        self._said += said

    def commit(self) -> None:
        """Send what was not sent yet, and the commit with it."""
        if not self.postgres and self._said:
            self._keep_news()
        if not (self.postgres and (self._unsent or self.early)):
            self._send()
            self._connection.commit()
            return
        driver = self._driver
        try:
            with driver.pipeline():  # all in one go; should one of them fail, so does what comes after it
                self._send()
                if self.early:
                    self._commit_early(driver)
                else:
                    driver.execute("COMMIT")
        except BaseException:
            self._connection.invalidate()  # nobody knows what state it is in
            raise
        self._connection.commit()  # SQLAlchemy has to know as well; the driver finds that nothing is left to do

    def _commit_early(self, driver: Any) -> None:
        driver.execute("SET LOCAL synchronous_commit TO off")
        said, self._said = self._said, []
        for each in said:
            driver.execute(_NOTIFY, (CHANNEL, each))
        driver.execute("COMMIT")
        driver.execute(_WAIT_FOR_DISK)

    def _keep_news(self) -> None:
        """A file can't tell anybody: who watches it reads there what is new (`notifications.watch_file`)."""
        for each in self._said:
            number = self.execute_sqlite(_KEEP_NEWS, (each,)).lastrowid or 0
            if number % NEWS_KEPT == 0:
                self.execute_sqlite(_FORGET_NEWS, (number - NEWS_KEPT,))

    def send_notifications(self) -> None:
        """Wake who listens, if the commit has not. Of all who notify, one at a time may commit, so nobody does while it
        waits for the disk; this alone writes nothing there. Should it fail, they look by themselves before long.
        """
        if not self.postgres or not (self._said or self.ended is not None):
            return
        driver = self._driver
        with contextlib.suppress(self._connection.dialect.loaded_dbapi.Error):
            for each in self._said:
                driver.pgconn.exec_params(_TELL, [each.encode()])
            if self.ended is not None:
                driver.pgconn.exec_params(_TELL_END, [self.ended.encode()])
        if driver.closed:
            self._connection.invalidate()

    def execute_autocommit(self, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """On a server: one statement of the driver's, which is a whole transaction. Returns its rows. Should the
        connection be gone, what is done `at_once` is all done again.

        No pipeline: there the server would have the statement, and hold its locks, before it has the end of it.
        """
        driver = self._driver
        try:
            return cast("list[tuple[Any, ...]]", driver.execute(statement, values).fetchall())
        except BaseException as error:
            if (broken := self._broken(error)) is error:
                raise
            raise broken from error

    def execute_pipeline(self, *steps: tuple[str, Mapping[str, Any]]) -> list[tuple[Any, ...]]:
        """On a server: statements that are sent together, and are one transaction, in which each sees what was there
        when it began. Returns the rows of the last one.
        """
        driver = self._driver
        try:
            with driver.pipeline():
                driver.execute("BEGIN")
                *_, last = [driver.execute(statement, values) for statement, values in steps]
                driver.execute("COMMIT")
            return cast("list[tuple[Any, ...]]", last.fetchall())
        except BaseException as error:
            if (broken := self._broken(error)) is error:
                raise
            raise broken from error

    def _broken(self, error: BaseException) -> BaseException:
        """Nobody knows what state the connection is in. If it is gone, what was done is done again."""
        gone = self._driver.closed
        self._connection.invalidate()
        return CutOffError() if gone else error

    def wait_for_disk(self) -> None:
        """Until all that was committed so far is there; for whoever has committed early by itself."""
        self.execute_autocommit(_WAIT_FOR_DISK)

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        for statement, values in unsent:
            self._connection.execute(statement, values)

    def insert(self, table: Table) -> Any:
        """An INSERT that knows ON CONFLICT, which the two databases write alike and SQLAlchemy has twice. It does not
        ask for new keys.
        """
        return (postgresql.insert(table) if self.postgres else sqlite.insert(table)).inline()

    def limit_lock_wait(self) -> None:
        """On a server: wait for a lock only for a moment, and raise `LockedError` then."""
        if self.postgres:
            self._connection.exec_driver_sql("SET LOCAL lock_timeout = '200ms'")

    def lock_blocks(self, *, exclusive: bool = False) -> None:
        """Many may pass at once, but nobody while another one shuts it: who comes after sees what that one wrote."""
        if self.postgres:
            lock = func.pg_advisory_xact_lock if exclusive else func.pg_advisory_xact_lock_shared
            self.execute(select(lock(schema.LOCK, 2)))


_TELL = f"SELECT pg_notify('{CHANNEL}', $1)".encode()
_TELL_END = f"""
SELECT pg_notify('{CHANNEL}', '{CHANGED}' || json_build_array(ended.run_id, (
  SELECT run_id FROM andon_runs WHERE session = ended.session AND ended IS NULL ORDER BY number LIMIT 1
))) FROM andon_runs AS ended WHERE run_id = $1
""".encode()
_KEEP_NEWS, _FORGET_NEWS = "INSERT INTO andon_news (said) VALUES (?)", "DELETE FROM andon_news WHERE id <= ?"
NEWS_KEPT = 1_000
_NOTIFY = "SELECT pg_notify(%s, %s)"
_WAIT_FOR_DISK = "SELECT pg_logical_emit_message(true, 'andon', '')"
"""A commit waits until all that was written before it is on the disk, but only if it has written something itself: this
is read by nobody, and any role may write it.
"""


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """A statement takes only so many values."""
    return (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
