# SPDX-License-Identifier: Apache-2.0
"""Where transactions run. The work is a function that one of our threads calls with an open transaction. It is
committed when the function returns, and rolled back when it raises: all or nothing, even if the caller is cancelled. On
Postgres, work that only reads, or that has `autocommit`, has no transaction around it: each of its statements is one.

SQLite allows one writer at a time, so there is one thread for all changes. With Postgres, progress of runs has one
thread of its own: the writes of two calls about one run must stay in order. Cancels have threads too, so that they
don't wait behind runs that end, each of which waits for the disk. On both, renewals, cancels and ends don't wait behind
new runs, and renewals come first. Locks are taken in one order everywhere: sessions by id, then runs by number. If two
transactions still conflict, the one that was rolled back is tried again.

Callers wait for most transactions, so they are short, with few round trips. Statements without an answer are sent with
the commit. Statements are built once (building one takes longer than its execution). The caller is answered right after
the commit; listeners are notified, and the connection is returned, after that.

When a call returns, its changes are on the disk. Some changes may be visible to others a moment earlier (`early`):
Postgres commits them without waiting for the disk, which frees locks and notifies listeners, and then the call waits. A
later commit is never on the disk before an earlier one.
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
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from andon.core.portal import portal
from andon.store.sql import schema
from andon.store.sql.address import parse
from andon.store.sql.deadline import Deadline
from andon.store.sql.engine import make_engine
from andon.store.sql.faults import CutOffError, is_transient, translate
from andon.store.sql.fork_gate import gate
from andon.store.sql.notifications import Hub, watch_file, watch_server
from andon.store.sql.opening import Opening
from andon.store.sql.threads import Answer, ThreadPool
from andon.store.sql.transaction import AUTOCOMMIT, Tx, TxMode
from andon.store.sql.version import Version

T = TypeVar("T")

READERS = 3
CHANGERS = 3
ENDERS = 3
CANCELLERS = 2
CONNECTIONS = READERS + CHANGERS + ENDERS + CANCELLERS + 1 + 1 + 1
"""The most that a process has at once: one for each thread of the pools below (progress and renewals have one thread
each), and one that listens. docs/storage.md has the number.
"""
FIRST, SOON, LATER = range(3)
"""The priorities: renewals first, then cancels and ends, then all else."""
RETRY_SECONDS = 10.0
"""For how long a transaction is tried again after conflicts."""
RETRY_PAUSE = 0.002
ANSWER_SECONDS = 15.0
"""For how long a caller waits."""
SERVER_SHARE = 0.9
"""The part of that time in which Postgres may still begin what is committed by the statement itself. Its clock begins
when the statement arrives, so the rest is for the way there: what it begins after its caller has given up was told to
have failed.
"""
CHECKPOINT_CHANGES = 100
"""After how many changes SQLite's log is copied into the file, which waits for the disk."""


def server_deadline() -> float:
    """Until when, by `time.monotonic()`, Postgres may begin what a caller asks for now."""
    return time.monotonic() + SERVER_SHARE * ANSWER_SECONDS


def _mode(autocommit: bool, *, early: bool) -> TxMode:
    return AUTOCOMMIT if autocommit else TxMode(writes=True, early=early)


class Database:
    """One database, for any thread and loop."""

    def __init__(self, url: str) -> None:
        self.address = parse(url)
        self.postgres = self.address.path is None
        self._fork_gate = contextlib.nullcontext() if self.postgres else gate
        self.version = Version(self.address)
        self._engine = make_engine(self.address, CONNECTIONS)
        # On Postgres one statement sees one state, so a query needs no transaction around it.
        reading = {"isolation_level": "AUTOCOMMIT"} if self.postgres else {}
        self._reading = self._engine.execution_options(**reading)
        self._writing = self._engine.execution_options(andon_writes=True)
        self._start()
        _open.add(self)
        # A store that is garbage-collected without a `close` leaves no thread and no connection behind.
        self._release = self._make_release()

    def _make_release(self) -> weakref.finalize[[Engine, list[ThreadPool], Hub], Database]:
        release = weakref.finalize(self, _release_soon, self._engine, self._pools, self._hub)
        release.atexit = False  # see `_at_exit`
        return release

    def release(self) -> None:
        if (held := self._release.detach()) is not None:
            _release(*held[2])

    def _start(self) -> None:
        self._opening = Opening(self.address.shown)
        changes = ThreadPool("andon-store", CHANGERS if self.postgres else 1)
        self._reads, self._changes = ThreadPool("andon-store-reads", READERS), changes
        self._progress = ThreadPool("andon-store-progress", 1) if self.postgres else changes
        self._cancels = ThreadPool("andon-store-cancels", CANCELLERS) if self.postgres else changes
        self._ends = ThreadPool("andon-store-ends", ENDERS) if self.postgres else changes
        self._renewals = ThreadPool("andon-store-renewals", 1) if self.postgres else changes
        self._checkpoints, self._changed = ThreadPool("andon-store-checkpoints", 1), itertools.count(1)
        self._pools = [
            self._reads,
            changes,
            self._progress,
            self._cancels,
            self._ends,
            self._renewals,
            self._checkpoints,
        ]
        watch = watch_server if self.postgres else watch_file
        self._hub = Hub(watch, self._engine, weakref.WeakMethod(self.open))

    # -- from loops ---------------------------------------------------------------------------------------------------

    async def read(self, work: Callable[[Tx], T]) -> T:
        return await self._run(self._reads, work, AUTOCOMMIT)

    async def look(self, work: Callable[[Tx], T]) -> T:
        """Read whether runs may go on: before all other reads."""
        return await self._run(self._reads, work, AUTOCOMMIT, FIRST)

    async def change(self, work: Callable[[Tx], T], *, autocommit: bool = False) -> T:
        """Write."""
        return await self._run(self._changes, work, _mode(autocommit, early=False))

    async def renew(self, work: Callable[[Tx], T], *, autocommit: bool = False) -> T:
        """Renew leases."""
        return await self._run(self._renewals, work, _mode(autocommit, early=True), FIRST)

    async def end(self, work: Callable[[Tx], T], *, autocommit: bool = False) -> T:
        """Write the end of a run."""
        return await self._run(self._ends, work, _mode(autocommit, early=False), SOON)

    async def sweep(self, work: Callable[[Tx], T], *, writes: bool) -> T:
        """Work without a deadline, such as pruning."""
        pool = self._changes if writes else self._reads
        return await self._run(pool, work, TxMode(writes=writes, early=False), bounded=False)

    async def cancel(self, work: Callable[[Tx], T], *, autocommit: bool = False) -> T:
        """Store cancel requests."""
        return await self._run(self._cancels, work, _mode(autocommit, early=True), SOON)

    async def check(self, work: Callable[[Tx], T], *, autocommit: bool) -> T:
        """Check that the database can be written, in a thread where no transaction waits for locks."""
        return await self._run(self._renewals, work, _mode(autocommit, early=True), SOON)

    async def progress(self, work: Callable[[Tx], T], *, autocommit: bool = False) -> T:
        """Store the progress of runs."""
        return await self._run(self._progress, work, _mode(autocommit, early=True))

    async def _run(
        self, pool: ThreadPool, work: Callable[[Tx], T], how: TxMode, priority: int = LATER, *, bounded: bool = True
    ) -> T:
        deadline = Deadline(self.address.shown)

        def do(tx: Tx) -> T:
            deadline.check()
            self.version.check(tx.read_value)
            result = work(tx)
            if how.writes:  # else its statements are committed already
                deadline.check()
            return result

        def attempt(answer: Answer[T]) -> None:
            self._attempt(do, how, answer, deadline.began)

        # No deadline while the database is being opened: a migration may take long.
        seconds = ANSWER_SECONDS if bounded and self._opening.done else None
        return await deadline.wait_for(pool.run(attempt, priority), seconds)

    @property
    def lag(self) -> float:
        """How many seconds a new run would wait before it is written."""
        return self._changes.lag

    @property
    def hub(self) -> Hub:
        return self._hub

    async def close(self) -> None:
        def release(answer: Answer[None]) -> None:
            self.release()
            answer(None)

        closer = ThreadPool("andon-store-close", 1)
        try:
            await closer.run(release)  # finished even if the caller is cancelled
        finally:
            closer.close(wait=False)

    # -- in threads ---------------------------------------------------------------------------------------------------

    def open(self, since: float = math.inf) -> None:
        """Create the tables, or check them."""
        self._opening.ensure(lambda: self._retrying(self._open_schema), since)

    def _open_schema(self) -> None:
        with self._fork_gate:
            schema.open(self._engine, self.address)

    def _attempt(self, work: Callable[[Tx], T], how: TxMode, answer: Answer[T], since: float) -> None:
        if not self._opening.done:
            self.open(since)
        once = self._write_once if how.writes else self._once
        connection, tx, result = self._retrying(lambda: once(work, how))
        with connection:
            answer(result)
            tx.send_notifications()
        if how.writes and not self.postgres and next(self._changed) % CHECKPOINT_CHANGES == 0:
            self._checkpoints.submit(self._checkpoint)

    def _write_once(self, work: Callable[[Tx], T], how: TxMode) -> tuple[Connection, Tx, T]:
        with self._fork_gate:
            return self._once(work, how)

    def _once(self, work: Callable[[Tx], T], how: TxMode) -> tuple[Connection, Tx, T]:
        """Do it, and commit. The connection stays open."""
        connection = (self._writing if how.writes else self._reading).connect()
        try:
            tx = Tx(connection, self.postgres, how)
            committing = False
            result = work(tx)
            committing = True
            tx.commit()
        except BaseException as error:
            connection.close()
            # If the connection was lost during the commit, it is unknown whether that was done.
            if isinstance(error, DBAPIError) and error.connection_invalidated and not committing:
                raise CutOffError from error
            raise
        return connection, tx, result

    def _checkpoint(self, answer: Answer[None]) -> None:
        """Runs in a thread of its own: no call waits for it."""
        connection = self._engine.raw_connection()
        try:
            with self._fork_gate:
                connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")
        finally:
            connection.close()
        answer(None)

    def _retrying(self, work: Callable[[], T]) -> T:
        """Try again after a conflict, or if the server was restarted since the last call. Other errors are translated
        (`faults`).
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

    def start_over(self) -> None:
        """In a forked child the threads are gone, and the connections are the parent's: start over."""
        self._release.detach()
        self._engine.dispose(close=False)
        self._start()
        self._release = self._make_release()


def _release_soon(engine: Engine, pools: list[ThreadPool], hub: Hub) -> None:
    """The garbage collector calls this on any thread, between any two instructions: maybe on a loop's thread, or while
    these locks are held. So it does not wait, and takes no lock, not even those of `Thread.start`.
    """
    closing = threading.Thread(target=_release, args=(engine, pools, hub), name="andon-store-close", daemon=True)
    with contextlib.suppress(RuntimeError):  # the interpreter exits, and the threads end with it
        _thread.start_new_thread(closing.start, ())


def _release(engine: Engine, pools: list[ThreadPool], hub: Hub) -> None:
    hub.close()
    for pool in dict.fromkeys(pools):
        pool.close()
    engine.dispose()


_open: weakref.WeakSet[Database] = weakref.WeakSet()


def _after_fork() -> None:
    for database in list(_open):
        database.start_over()


def _at_exit() -> None:
    """Close the portal first: it ends its runs, and they are still to be stored."""
    portal.close()
    for database in list(_open):
        database.release()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
