# SPDX-License-Identifier: Apache-2.0
"""Where transactions run. Each is one function that is called with an open transaction, in a thread of ours; it is
committed when the function returns, and undone when it raises: all of it or nothing, whatever cancels the caller. Where
there is a server, what only reads is a transaction for each statement, and what is done `at_once` says itself what is.

SQLite takes one writer at a time, so there is one thread for all changes. With Postgres, progress of runs has a thread
of its own: what two calls write about one run must not change places. And who asks runs to stop does not wait here
behind runs that end, each of which waits for the disk. On both, what keeps runs alive, stops and ends them does not
wait behind what begins: leases are renewed first, however much there is to do. Locks are taken in one order everywhere,
sessions by id and then runs by number; should two transactions still meet, the one that was undone is tried again.

Someone waits for most of these, so they are short: a server is asked as few times as can be. What only writes goes
along with the commit, and statements are made once (to make one takes longer than the server needs for it). Whoever
waits is answered as soon as the commit is; others are told, and the connection is given back, after that.

Nobody waits for another one's disk without need. What a call has answered is on the disk, always. But where it harms
nobody that others see a change a moment earlier (`early`), Postgres commits it without waiting, which lets go of its
locks and wakes who listens, and then waits. A later commit is never on the disk before an earlier one.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import itertools
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from sqlalchemy import Connection, CursorResult, Engine, Executable, Table, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from andon.core.portal import portal
from andon.store.sql import clocks, schema
from andon.store.sql.address import parse
from andon.store.sql.codec import CHANGED
from andon.store.sql.engine import make_engine
from andon.store.sql.faults import CutOffError, is_transient, translate
from andon.store.sql.lanes import Answer, Lane
from andon.store.sql.opening import Opening
from andon.store.sql.patience import Patience
from andon.store.sql.push import CHANNEL, Hub, watch_file, watch_server
from andon.store.sql.version import Version

T = TypeVar("T")
Values = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None

CHUNK = 5_000
READERS = 3
CHANGERS = 3
HOLDERS = 3
ASKERS = 2
CONNECTIONS = READERS + CHANGERS + HOLDERS + ASKERS + 1 + 1
"""All that a process ever has at once: one for each thread of the lanes below (progress has one thread), and one that
listens. docs/storage.md says the number.
"""
FIRST, SOON, LATER = range(3)
"""The ranks of what is done: leases are renewed first; then runs are asked to stop, and end; then all else."""
RETRY_SECONDS = 10.0
"""For how long a transaction is tried again while others are in its way."""
RETRY_PAUSE = 0.002
ANSWER_SECONDS = 15.0
"""For how long a caller waits."""
CHECKPOINT_CHANGES = 100
"""After so many changes, what SQLite has in its log is brought to its place in the file, which waits for the disk."""


class How(NamedTuple):
    """What kind of transaction it is."""

    writes: bool
    """Whether it is one transaction, which changes something."""
    early: bool
    """Whether others may see it before it is on the disk."""


_BY_STATEMENT = How(writes=False, early=False)


class Tx:
    """An open transaction."""

    __slots__ = ("_connection", "_said", "_unsent", "began", "early", "ended", "now", "postgres", "wall")

    def __init__(self, connection: Connection, postgres: bool, how: How) -> None:
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

    def peek(self, statement: str) -> Any:
        """The one value that this finds. On SQLite it costs a hundredth of what `execute` does."""
        if self.postgres:
            return self._connection.exec_driver_sql(statement).scalar()
        if not self._connection.in_transaction():
            self._connection.begin()
        return next(self._driver.execute(statement), (None,))[0]

    def write(self, statement: Executable, values: Values = None) -> None:
        """Do this before whatever comes next, the commit at the latest. Nobody needs an answer."""
        self._unsent.append((statement, values))

    def say(self, said: Iterable[str]) -> None:
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
        """A file can't tell anybody: who watches it reads there what is new (`push.watch_file`)."""
        for each in self._said:
            number = self._connection.exec_driver_sql(_KEEP_NEWS, (each,)).lastrowid
            if number % NEWS_KEPT == 0:
                self._connection.exec_driver_sql(_FORGET_NEWS, (number - NEWS_KEPT,))

    def tell(self) -> None:
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

    def at_once(self, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """On a server: one statement of the driver's, which is a whole transaction. Returns its rows. Should the
        connection be gone, what is done `at_once` is all done again.

        No pipeline: there the server would have the statement, and hold its locks, before it has the end of it.
        """
        driver = self._driver
        try:
            return cast("list[tuple[Any, ...]]", driver.execute(statement, values).fetchall())
        except BaseException as error:
            gone = driver.closed
            self._connection.invalidate()
            if gone:
                raise CutOffError from error
            raise

    def wait_for_disk(self) -> None:
        """Until all that was committed so far is there; for whoever has committed early by itself."""
        self.at_once(_WAIT_FOR_DISK)

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        for statement, values in unsent:
            self._connection.execute(statement, values)

    def insert(self, table: Table) -> Any:
        """An INSERT that knows ON CONFLICT, which the two databases write alike and SQLAlchemy has twice. It does not
        ask for new keys.
        """
        return (postgresql.insert(table) if self.postgres else sqlite.insert(table)).inline()

    def pass_gate(self, *, shut: bool = False) -> None:
        """Many may pass at once, but nobody while another one shuts it: who comes after sees what that one wrote."""
        if self.postgres:
            lock = func.pg_advisory_xact_lock if shut else func.pg_advisory_xact_lock_shared
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


class Database:
    """One database, for any thread and loop."""

    def __init__(self, url: str) -> None:
        self.address = parse(url)
        self.postgres = self.address.path is None
        self.version = Version(self.address)
        self._engine = make_engine(self.address, CONNECTIONS)
        # A server sees to it by itself that a question sees one state: no transaction has to be begun and ended for it.
        reading = {"isolation_level": "AUTOCOMMIT"} if self.postgres else {}
        self._reading = self._engine.execution_options(**reading)
        self._writing = self._engine.execution_options(andon_writes=True)
        self._start()
        _open.add(self)
        # A store that is forgotten without a `close` leaves no thread and no connection behind.
        self._release = self._make_release()

    def _make_release(self) -> weakref.finalize[[Engine, list[Lane], Hub], Database]:
        release = weakref.finalize(self, _release_soon, self._engine, self._lanes, self._hub)
        release.atexit = False  # see `_at_exit`
        return release

    def release(self) -> None:
        if (held := self._release.detach()) is not None:
            _release(*held[2])

    def _start(self) -> None:
        self._opening = Opening(self.address.shown)
        changes = Lane("andon-store", CHANGERS if self.postgres else 1)
        self._reads, self._changes = Lane("andon-store-reads", READERS), changes
        self._progress = Lane("andon-store-progress", 1) if self.postgres else changes
        self._asks = Lane("andon-store-asks", ASKERS) if self.postgres else changes
        self._holding = Lane("andon-store-holding", HOLDERS) if self.postgres else changes
        self._checkpoints, self._changed = Lane("andon-store-checkpoints", 1), itertools.count(1)
        self._lanes = [self._reads, changes, self._progress, self._asks, self._holding, self._checkpoints]
        watch = watch_server if self.postgres else watch_file
        self._hub = Hub(watch, self._engine, weakref.WeakMethod(self.open))

    # -- from loops ---------------------------------------------------------------------------------------------------

    async def read(self, work: Callable[[Tx], T]) -> T:
        return await self._run(self._reads, work, _BY_STATEMENT)

    async def change(self, work: Callable[[Tx], T]) -> T:
        """Write."""
        return await self._run(self._changes, work, How(writes=True, early=False))

    async def renew(self, work: Callable[[Tx], T]) -> T:
        """Write what keeps runs alive."""
        return await self._run(self._holding, work, How(writes=True, early=True), FIRST)

    async def end(self, work: Callable[[Tx], T], *, at_once: bool = False) -> T:
        """Write the end of a run."""
        return await self._run(self._holding, work, _BY_STATEMENT if at_once else How(writes=True, early=False), SOON)

    async def sweep(self, work: Callable[[Tx], T], *, writes: bool) -> T:
        """What may take its time, and is nothing to others."""
        lane = self._changes if writes else self._reads
        return await self._run(lane, work, How(writes=writes, early=False), bounded=False)

    async def ask(self, work: Callable[[Tx], T], *, at_once: bool = False) -> T:
        """Write what others are asked to do."""
        return await self._run(self._asks, work, _BY_STATEMENT if at_once else How(writes=True, early=True), SOON)

    async def progress(self, work: Callable[[Tx], T], *, at_once: bool = False) -> T:
        """Write what runs have done."""
        return await self._run(self._progress, work, _BY_STATEMENT if at_once else How(writes=True, early=True))

    async def _run(
        self, lane: Lane, work: Callable[[Tx], T], how: How, rank: int = LATER, *, bounded: bool = True
    ) -> T:
        patience = Patience(self.address.shown)

        def do(tx: Tx) -> T:
            patience.check()
            self.version.check(tx.peek)
            result = work(tx)
            if how.writes:  # else it is done by now, whatever it was
                patience.check()
            return result

        def attempt(answer: Answer[T]) -> None:
            self._attempt(do, how, answer, patience.began)

        # A migration takes as long as it takes.
        return await patience.lasts(lane.run(attempt, rank), ANSWER_SECONDS if bounded and self._opening.done else None)

    @property
    def lag(self) -> float:
        """How many seconds what begins now would wait for its turn."""
        return self._changes.lag

    @property
    def hub(self) -> Hub:
        return self._hub

    async def close(self) -> None:
        def release(answer: Answer[None]) -> None:
            self.release()
            answer(None)

        closer = Lane("andon-store-close", 1)
        try:
            await closer.run(release)  # to its end, also when nobody waits any more
        finally:
            closer.close(wait=False)

    # -- in threads ---------------------------------------------------------------------------------------------------

    def open(self, since: float = math.inf) -> None:
        """Make the tables, or see that they are the right ones."""
        self._opening.ensure(lambda: self._patiently(lambda: schema.open(self._engine, self.address)), since)

    def _attempt(self, work: Callable[[Tx], T], how: How, answer: Answer[T], since: float) -> None:
        if not self._opening.done:
            self.open(since)
        connection, tx, result = self._patiently(lambda: self._once(work, how))
        with connection:
            answer(result)
            tx.tell()
        if how.writes and not self.postgres and next(self._changed) % CHECKPOINT_CHANGES == 0:
            self._checkpoints.submit(self._checkpoint)

    def _once(self, work: Callable[[Tx], T], how: How) -> tuple[Connection, Tx, T]:
        """Do it, and commit; the connection is still open then."""
        connection = (self._writing if how.writes else self._reading).connect()
        try:
            tx = Tx(connection, self.postgres, how)
            result = work(tx)
            tx.commit()
        except BaseException as error:
            connection.close()
            if isinstance(error, DBAPIError) and error.connection_invalidated:
                raise CutOffError from error
            raise
        return connection, tx, result

    def _checkpoint(self, answer: Answer[None]) -> None:
        """Beside everything else: nobody waits for this."""
        connection = self._engine.raw_connection()
        try:
            connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")
        finally:
            connection.close()
        answer(None)

    def _patiently(self, work: Callable[[], T]) -> T:
        """Try again while others are in the way, or if the server has been restarted since it was asked the last time;
        what else goes wrong is told in our words.
        """
        deadline = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                return work()
            except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as error:
                self.version.suspect()
                if not is_transient(error) or time.monotonic() > deadline:
                    raise translate(error, self.address, CONNECTIONS) from None
            time.sleep(RETRY_PAUSE)

    def forget(self) -> None:
        """In a forked child the threads are gone, and the connections are the parent's: start over."""
        self._release.detach()
        self._engine.dispose(close=False)
        self._start()
        self._release = self._make_release()


def _release_soon(engine: Engine, lanes: list[Lane], hub: Hub) -> None:
    """The garbage collector calls this, on any thread, between any two steps of it: on a loop's, or under these very
    locks. So it waits for nobody, and takes no lock, not even those that it takes to start a thread.
    """
    closing = threading.Thread(target=_release, args=(engine, lanes, hub), name="andon-store-close", daemon=True)
    with contextlib.suppress(RuntimeError):  # the interpreter is about to exit, and all ends with it
        _thread.start_new_thread(closing.start, ())


def _release(engine: Engine, lanes: list[Lane], hub: Hub) -> None:
    hub.close()
    for lane in dict.fromkeys(lanes):
        lane.close()
    engine.dispose()


_open: weakref.WeakSet[Database] = weakref.WeakSet()


def _after_fork() -> None:
    for database in list(_open):
        database.forget()


def _at_exit() -> None:
    """Runs that the portal ends at exit are stored; only then is there nothing more to write."""
    portal.close()
    for database in list(_open):
        database.release()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
