# SPDX-License-Identifier: Apache-2.0
"""Procrastinate, as worker processes use it: it tells which run may be executed next, and limits how many at once.

A job has the id of a run, and nothing else. It is deleted when it has been handled, however the run ended: the run's
row says that. Jobs of a process that died stay behind as "doing". They mean nothing: `RunQueue.clean` deletes them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from andon.core.shared.run_queue import TASK
from andon.errors import AndonError, MissingExtraError, StoreError, describe
from andon.store.sql.address import parse
from andon.store.sql.engine import link_settings
from andon.store.sql.faults import translate

try:
    import procrastinate
    import psycopg
    import psycopg_pool
    from procrastinate.exceptions import ConnectorException
except ImportError as error:
    raise MissingExtraError(f'worker processes need procrastinate: pip install "andon[scale]" ({error})') from None

log = logging.getLogger(__name__)

POLL_SECONDS = 5.0
"""How often jobs are looked for without a notification: a safety net."""
STALLED_SECONDS = 60.0
"""A process that was silent for so long is forgotten by the engine."""
RESTART_SECONDS = 1.0
CONNECT_SECONDS = 5.0
FAILING_SECONDS = 5.0
OUTAGE_SECONDS = 60.0
"""Failures that follow each other within this time are one outage, which is logged once."""
CONNECTIONS = 4
"""The engine's own, at the most; one more listens."""
LOST = "the connection that listens for jobs was lost, or could not be made. Jobs are looked for again every second"

OUTAGE = (ConnectorException, psycopg.OperationalError)
"""What the engine raises while the database is away. It begins again by itself."""

Handle = Callable[[str], Awaitable[None]]


class OncePerOutage(logging.Filter):
    """For the log of a connection pool, which logs each of its tries: only the first of an outage is let through."""

    def __init__(self) -> None:
        super().__init__()
        self._last = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        before, self._last = self._last, time.monotonic()
        return self._last - before > OUTAGE_SECONDS


def expect_outages(loop: asyncio.AbstractEventLoop) -> None:
    """Log nothing of the engine's tasks that an outage of the database has ended. The engine begins again."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OUTAGE):
            log.debug("the engine lost the database: %s", describe(error))
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)


def _check_cancelled() -> None:
    """Raise if this task was cancelled. A cancel makes the engine sign off at the database; if that fails, the engine
    raises that error, and the cancel is forgotten.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _configure(connection: psycopg.AsyncConnection[Any]) -> None:
    """Each statement of the engine is a transaction, which does not wait for the disk. Jobs are hints: if the server
    crashes, the last changes of a job may be lost, and then it comes twice, or is deleted later.
    """
    await connection.set_autocommit(True)
    await connection.execute("SET synchronous_commit TO off")


async def _check(connection: psycopg.AsyncConnection[Any]) -> None:
    """Raise if the server has closed this connection. The server is not asked: that would be a round trip each time."""
    for _ in range(2):  # first what the server has said last, then the end
        connection.pgconn.consume_input()


def _make_pool(**options: Any) -> psycopg_pool.AsyncConnectionPool:
    return psycopg_pool.AsyncConnectionPool(**{**options, "check": _check})


class Engine:
    """Takes jobs, and calls `handle` with the id of each run, for at most `concurrency` runs at once.

    It gives a sign of life three times in `seconds`.
    """

    def __init__(self, url: str, channels: Sequence[str], concurrency: int, handle: Handle, seconds: float) -> None:
        self._channels, self._concurrency, self._handle = list(channels), concurrency, handle
        self._seconds = seconds
        self._address = parse(url)
        self.connector = procrastinate.PsycopgConnector(
            conninfo=url,
            min_size=1,
            max_size=CONNECTIONS,
            timeout=CONNECT_SECONDS,
            kwargs=link_settings(self._address, "andon-jobs"),  # so that a database that has vanished is noticed
            configure=_configure,
            pool_factory=_make_pool,
        )
        self._app = procrastinate.App(connector=self.connector)
        self._app.task(name=TASK)(self._take)
        self._is_open, self._failed_at, self._told = False, -math.inf, ""

    @property
    def is_failing(self) -> bool:
        """It is not connected yet, or could not take jobs a moment ago."""
        return not self._is_open or time.monotonic() - self._failed_at < FAILING_SECONDS

    async def _take(self, run_id: str) -> None:
        try:
            await self._handle(run_id)
        except Exception as error:
            expected = isinstance(error, AndonError)  # the database is away: the job is sent again
            log.error("the job of run %s was not handled: %s", run_id, describe(error), exc_info=not expected)

    async def serve(self) -> None:
        """Take jobs until cancelled. If the database goes away, begin again when it is back.

        In both cases the calls of `handle` are cancelled: what they have begun must be able to go on without them.
        """
        try:
            await self._open()
            while True:
                try:
                    await self._work()
                    self._complain(StoreError(LOST))
                except OUTAGE as error:
                    _check_cancelled()
                    self._complain(translate(error.__cause__ or error, self._address, CONNECTIONS))
                await asyncio.sleep(RESTART_SECONDS)
        finally:
            await self._app.close_async()

    async def _open(self) -> None:
        while not self._is_open:
            try:
                await self._app.open_async()
                self._is_open = True
            except OUTAGE as error:
                self._complain(translate(error, self._address, CONNECTIONS))
                await self._app.close_async()  # else the app would keep the pool that it could not open
                await asyncio.sleep(RESTART_SECONDS)

    def _complain(self, error: StoreError) -> None:
        """Log why jobs can't be taken, once for each outage and each reason."""
        why, now = str(error), time.monotonic()
        is_known = why == self._told and now - self._failed_at < OUTAGE_SECONDS
        log.log(logging.DEBUG if is_known else logging.WARNING, "no jobs are taken: %s", why)
        self._told, self._failed_at = why, now

    async def _work(self) -> None:
        await self._app.run_worker_async(
            queues=self._channels,
            concurrency=self._concurrency,
            install_signal_handlers=False,
            delete_jobs="always",
            fetch_job_polling_interval=POLL_SECONDS,
            update_heartbeat_interval=self._seconds / 3,
            stalled_worker_timeout=max(STALLED_SECONDS, 2 * self._seconds),
            shutdown_graceful_timeout=0,  # by default it would wait for all of its jobs, also when it begins again
        )
