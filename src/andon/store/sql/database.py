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
"""All that a process ever has at once: one for each thread of the pools below (progress and renewals have one thread
each), and one that listens. docs/storage.md says the number.
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


def _mode(autocommit: bool, *, early: bool) -> TxMode:
    return AUTOCOMMIT if autocommit else TxMode(writes=True, early=early)


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
        """Read what tells whether runs go on: that waits for no other reader's turn."""
        return await self._run(self._reads, work, AUTOCOMMIT, FIRST)

    async def change(self, work: Callable[[Tx], T], *, autocommit: bool = False) -> T:
        """Write."""
        return await self._run(self._changes, work, _mode(autocommit, early=False))

    async def renew(self, work: Callable[[Tx], T], *, autocommit: bool = False) -> T:
        """Write what keeps runs alive."""
        return await self._run(self._renewals, work, _mode(autocommit, early=True), FIRST)

    async def end(self, work: Callable[[Tx], T], *, autocommit: bool = False) -> T:
        """Write the end of a run."""
        return await self._run(self._ends, work, _mode(autocommit, early=False), SOON)

    async def sweep(self, work: Callable[[Tx], T], *, writes: bool) -> T:
        """What may take its time, and is nothing to others."""
        pool = self._changes if writes else self._reads
        return await self._run(pool, work, TxMode(writes=writes, early=False), bounded=False)

    async def cancel(self, work: Callable[[Tx], T], *, autocommit: bool = False) -> T:
        """Write what others are asked to do."""
        return await self._run(self._cancels, work, _mode(autocommit, early=True), SOON)

    async def check(self, work: Callable[[Tx], T], *, autocommit: bool) -> T:
        """See whether it can be written. That waits for nobody who waits for a lock."""
        return await self._run(self._renewals, work, _mode(autocommit, early=True), SOON)

    async def progress(self, work: Callable[[Tx], T], *, autocommit: bool = False) -> T:
        """Write what runs have done."""
        return await self._run(self._progress, work, _mode(autocommit, early=True))

    async def _run(
        self, pool: ThreadPool, work: Callable[[Tx], T], how: TxMode, priority: int = LATER, *, bounded: bool = True
    ) -> T:
        deadline = Deadline(self.address.shown)

        def do(tx: Tx) -> T:
            deadline.check()
            self.version.check(tx.read_value)
            result = work(tx)
            if how.writes:  # else it is done by now, whatever it was
                deadline.check()
            return result

        def attempt(answer: Answer[T]) -> None:
            self._attempt(do, how, answer, deadline.began)

        # A migration takes as long as it takes.
        seconds = ANSWER_SECONDS if bounded and self._opening.done else None
        return await deadline.wait_for(pool.run(attempt, priority), seconds)

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

        closer = ThreadPool("andon-store-close", 1)
        try:
            await closer.run(release)  # to its end, also when nobody waits any more
        finally:
            closer.close(wait=False)

    # -- in threads ---------------------------------------------------------------------------------------------------

    def open(self, since: float = math.inf) -> None:
        """Make the tables, or see that they are the right ones."""
        self._opening.ensure(lambda: self._retrying(lambda: schema.open(self._engine, self.address)), since)

    def _attempt(self, work: Callable[[Tx], T], how: TxMode, answer: Answer[T], since: float) -> None:
        if not self._opening.done:
            self.open(since)
        connection, tx, result = self._retrying(lambda: self._once(work, how))
        with connection:
            answer(result)
            tx.send_notifications()
        if how.writes and not self.postgres and next(self._changed) % CHECKPOINT_CHANGES == 0:
            self._checkpoints.submit(self._checkpoint)

    def _once(self, work: Callable[[Tx], T], how: TxMode) -> tuple[Connection, Tx, T]:
        """Do it, and commit; the connection is still open then."""
        connection = (self._writing if how.writes else self._reading).connect()
        try:
            tx = Tx(connection, self.postgres, how)
            committing = False
            result = work(tx)
            committing = True
            tx.commit()
        except BaseException as error:
            connection.close()
            # If it was lost while it was committed, nobody knows whether that was done.
            if isinstance(error, DBAPIError) and error.connection_invalidated and not committing:
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

    def _retrying(self, work: Callable[[], T]) -> T:
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


def _release_soon(engine: Engine, pools: list[ThreadPool], hub: Hub) -> None:
    """The garbage collector calls this, on any thread, between any two steps of it: on a loop's, or under these very
    locks. So it waits for nobody, and takes no lock, not even those that it takes to start a thread.
    """
    closing = threading.Thread(target=_release, args=(engine, pools, hub), name="andon-store-close", daemon=True)
    with contextlib.suppress(RuntimeError):  # the interpreter is about to exit, and all ends with it
        _thread.start_new_thread(closing.start, ())


def _release(engine: Engine, pools: list[ThreadPool], hub: Hub) -> None:
    hub.close()
    for pool in dict.fromkeys(pools):
        pool.close()
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
