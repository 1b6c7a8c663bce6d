# SPDX-License-Identifier: Apache-2.0
"""One open transaction: executes statements, commits, and notifies listeners of what has changed."""

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
    """Whether it is one transaction that changes something."""
    early: bool
    """Whether others may see its changes before they are on the disk."""


AUTOCOMMIT = TxMode(writes=False, early=False)


class Tx:
    """An open transaction."""

    __slots__ = ("_connection", "_said", "_unsent", "began", "early", "ended", "now", "postgres", "wall")

    def __init__(self, connection: Connection, postgres: bool, how: TxMode) -> None:
        self._connection, self.postgres = connection, postgres
        self._unsent: list[tuple[Executable, Values]] = []
        self.early = how.early
        """See `TxMode`. Work that has changed nothing may set it to False."""
        self._said: list[str] = []
        self.ended: str | None = None
        """With Postgres: the run that has ended. After the commit, the next run in its queue is found and notified."""
        self.began = time.monotonic()
        """When it began, not when it was queued: a lease counts from then on."""
        self.now, self.wall = clocks.now(postgres), clocks.wall(postgres)
        """The clocks for leases and for ages."""

    @property
    def _driver(self) -> Any:
        return self._connection.connection.driver_connection

    def execute(self, statement: Executable, values: Values = None, **options: Any) -> CursorResult[Any]:
        """Execute this, and wait for the answer."""
        self._send()
        return cast("CursorResult[Any]", self._connection.execute(statement, values, **options))

    def read_value(self, statement: str) -> Any:
        """The one value that this selects. On SQLite it costs a hundredth of `execute`."""
        if self.postgres:
            return self._connection.exec_driver_sql(statement).scalar()
        return next(self.execute_sqlite(statement), (None,))[0]

    def execute_sqlite(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """With SQLite: execute this with the driver, without SQLAlchemy."""
        self._send()
        if not self._connection.in_transaction():
            self._connection.begin()
        return cast("sqlite3.Cursor", self._driver.execute(statement, values))

    def write(self, statement: Executable, values: Values = None) -> None:
        """Execute this together with the next statement, or with the commit. There is no answer."""
        self._unsent.append((statement, values))

    def notify(self, said: Iterable[str]) -> None:
        """Notify listeners of these changes (`codec`), once they are committed."""
        self._said += said

    def commit(self) -> None:
        """Send the statements that were not sent yet, and the commit with them."""
        if not self.postgres and self._said:
            self._keep_news()
        if not (self.postgres and (self._unsent or self.early)):
            self._send()
            self._connection.commit()
            return
        driver = self._driver
        try:
            with driver.pipeline():  # one round trip; if a statement fails, so do those after it
                self._send()
                if self.early:
                    self._commit_early(driver)
                else:
                    driver.execute("COMMIT")
        except BaseException:
            self._connection.invalidate()  # its state is unknown
            raise
        self._connection.commit()  # tells SQLAlchemy; for the driver nothing is left to do

    def _commit_early(self, driver: Any) -> None:
        driver.execute(_EARLY)
        said, self._said = self._said, []
        for each in said:
            driver.execute(_NOTIFY, (CHANNEL, each))
        driver.execute("COMMIT")
        driver.execute(_WAIT_FOR_DISK)

    def _keep_news(self) -> None:
        """SQLite has no notifications: they are rows, which watchers read (`notifications.watch_file`)."""
        for each in self._said:
            number = self.execute_sqlite(_KEEP_NEWS, (each,)).lastrowid or 0
            if number % NEWS_KEPT == 0:
                self.execute_sqlite(_FORGET_NEWS, (number - NEWS_KEPT,))

    def send_notifications(self) -> None:
        """Send the notifications that the commit has not sent. On Postgres only one transaction with notifications can
        commit at a time, so none may wait for the disk meanwhile. This one writes nothing to the disk. If it fails,
        listeners see the change at their next poll.
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
        """With Postgres: one statement that is a whole transaction, through the driver. Returns its rows. If the
        connection was lost, the work is done again from its beginning, so its statements must be repeatable.

        Not in a pipeline: there the server would execute the statement, and hold its locks, until the end arrives.
        """
        driver = self._driver
        try:
            return cast("list[tuple[Any, ...]]", driver.execute(statement, values).fetchall())
        except BaseException as error:
            if (broken := self._broken(error)) is error:
                raise
            raise broken from error

    @property
    def connection(self) -> Connection:
        """For what needs one: the creation of tables, and looking at those that there are."""
        self._send()
        return self._connection

    def execute_script(self, script: str) -> None:
        """With Postgres: execute several statements, without values."""
        self._send()
        self._driver.execute(script)

    def execute_pipeline(self, *steps: tuple[str, Mapping[str, Any]], early: bool = False) -> list[tuple[Any, ...]]:
        """With Postgres: statements that are sent together as one transaction. Each sees what was committed before it
        began. Returns the rows of the last one. With `early`, others see the changes before they are on the disk; when
        this returns, they are.
        """
        driver = self._driver
        try:
            with driver.pipeline():
                driver.execute("BEGIN")
                *_, last = [driver.execute(statement, values) for statement, values in steps]
                if early:
                    driver.execute(_EARLY)
                driver.execute("COMMIT")
                if early:
                    driver.execute(_WAIT_FOR_DISK)
            return cast("list[tuple[Any, ...]]", last.fetchall())
        except BaseException as error:
            if (broken := self._broken(error)) is error:
                raise
            raise broken from error

    def _broken(self, error: BaseException) -> BaseException:
        """The state of the connection is unknown, so it is closed. If it was lost, the work is done again."""
        gone = self._driver.closed
        self._connection.invalidate()
        return CutOffError() if gone else error

    def wait_for_disk(self) -> None:
        """Wait until all commits so far are on the disk; for statements that commit early by themselves."""
        self.execute_autocommit(_WAIT_FOR_DISK)

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        for statement, values in unsent:
            self._connection.execute(statement, values)

    def insert(self, table: Table) -> Any:
        """An INSERT with ON CONFLICT, which is the same SQL on both databases, but two classes in SQLAlchemy. It does
        not fetch new keys.
        """
        return (postgresql.insert(table) if self.postgres else sqlite.insert(table)).inline()

    def limit_lock_wait(self) -> None:
        """With Postgres: wait for a lock only briefly, and then raise `LockedError`."""
        if self.postgres:
            self._connection.exec_driver_sql("SET LOCAL lock_timeout = '200ms'")

    def lock_blocks(self, *, exclusive: bool = False) -> None:
        """Order new runs and blocks: a run that enters after a block was stored sees it. New runs share the lock."""
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
_EARLY = "SET LOCAL synchronous_commit TO off"
_WAIT_FOR_DISK = "SELECT pg_logical_emit_message(true, 'andon', '')"
"""A commit waits until all earlier writes are on the disk, but only if it has written something itself. This writes a
message to the log that no process reads. Any role may do it.
"""


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Parts of a size that one statement can take as values."""
    return (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
