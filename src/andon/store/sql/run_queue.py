# SPDX-License-Identifier: Apache-2.0
"""The queue of runs in a Postgres: its tables, and the engine's. `waiting` has the statements."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from importlib import resources
from typing import Any, NoReturn

import msgspec
from sqlalchemy import Row, delete, func, insert, inspect, select, text, update

from andon.core.records import RequestKey
from andon.core.shared.run_queue import (
    LISTED_SECONDS,
    ClaimedRun,
    CutOff,
    QueuedAnswers,
    QueuedStart,
    QueueLimits,
    QueueState,
    Route,
    WorkerState,
)
from andon.core.shared.store import Lease, Taken
from andon.core.states import RunStatus
from andon.errors import ConfigurationError, MissingExtraError, SchemaError, StartError, StoreError, describe
from andon.store.sql import database, leases, queue_fast, schema, sessions, waiting
from andon.store.sql.batches import read_row
from andon.store.sql.codec import read_messages, read_record
from andon.store.sql.database import Database
from andon.store.sql.encoded import EncodedStart
from andon.store.sql.queue_tables import HELD_BACK, SENT, VERSION, meta, metadata, workers
from andon.store.sql.queue_tables import limits as limits_table
from andon.store.sql.tables import Id
from andon.store.sql.transaction import Tx

log = logging.getLogger(__name__)

FUNCTIONS = ("procrastinate_defer_jobs_v1", "procrastinate_fetch_job_v2", "procrastinate_finish_job_v1")
"""The functions of the engine's schema that this version needs."""

FORGOTTEN_SECONDS = 3600.0
"""The row of a worker process that did not leave in good order is deleted after so long."""

_read_worker = msgspec.json.Decoder(WorkerState).decode


class SQLRunQueue:
    """The queue of one database. It has no state of its own."""

    def __init__(self, database: Database, *, fast_path: bool = True) -> None:
        self._db, self._fast_path = database, fast_path

    @property
    def url(self) -> str:
        return self._db.address.url.set(drivername="postgresql").render_as_string(hide_password=False)

    async def prepare(self, limits: QueueLimits | None = None) -> None:
        engine_schema = _read_engine_schema()
        await self._db.sweep(lambda tx: _prepare(tx, engine_schema, limits, self._db.address.shown), writes=True)

    async def put(self, start: QueuedStart) -> bool:
        encoded, route, session = EncodedStart.of(start), start.route, start.record.session
        is_fast = self._fast_path and start.record.request_key is None and start.continues is None
        if is_fast:
            deadline = database.server_deadline()
            if await self._db.change(lambda tx: queue_fast.put(tx, encoded, route, deadline), autocommit=True):
                return False
        try:
            return await self._db.change(lambda tx: waiting.put(tx, encoded, route, start.on_busy, waits=start.waits))
        except leases.Busy as busy:
            raise busy.refusal(session) from None
        except StartError:
            if is_fast:  # it may have committed the session's row, and no run is in it
                with contextlib.suppress(StoreError):
                    await self._db.change(lambda tx: sessions.drop_if_unused(tx, session))
            raise

    async def put_answers(self, answers: QueuedAnswers, request_key: RequestKey | None = None) -> bool:
        said = answers.request.decode()
        return await self._db.change(lambda tx: waiting.put_answers(tx, answers, said, request_key))

    async def claim(self, run_id: str, owner: str, seconds: float) -> ClaimedRun | None:
        if self._fast_path:
            quick = await self._db.change(lambda tx: queue_fast.claim(tx, run_id, owner, seconds), autocommit=True)
            if quick is not None:
                if quick.has_next:
                    await self._db.change(lambda tx: waiting.send_next(tx, run_id))
                return _read_quick(run_id, owner, quick)
        found = await self._db.change(lambda tx: waiting.claim(tx, run_id, owner, seconds))
        return None if found is None else ClaimedRun(found.taken.read(), owner, found.request.encode(), found.waited)

    async def put_back(self, run_id: str) -> None:
        await self._db.change(lambda tx: waiting.put_back(tx, run_id))

    async def hand_back(self, lease: Lease) -> None:
        await self._db.change(lambda tx: waiting.hand_back(tx, lease))

    async def ended(self, run_id: str) -> None:
        if await self._db.read(lambda tx: waiting.has_next(tx, run_id)):  # rarely
            await self._db.change(lambda tx: waiting.ended(tx, run_id))

    async def begin_sweep(self, every: float) -> bool:
        return await self._db.change(lambda tx: queue_fast.begin_sweep(tx, every), autocommit=True)

    async def sweep(self, stale_seconds: float) -> list[str]:
        return await self._db.change(lambda tx: waiting.sweep(tx, stale_seconds))

    async def clean(self, stale_seconds: float) -> None:
        await self._db.change(lambda tx: waiting.clean(tx, stale_seconds))

    async def cut_off(self) -> list[CutOff]:
        rows = await self._db.read(waiting.list_cut_off)
        return [
            CutOff(
                read_record(row.record),
                row.request.encode(),
                Route(row.channel, row.priority, row.queue),
                row.left_nothing,
            )
            for row in rows
        ]

    async def decide(self, run_id: str, start: QueuedStart | None) -> bool:
        encoded, route = (None, None) if start is None else (EncodedStart.of(start), start.route)
        return await self._db.change(lambda tx: waiting.decide(tx, run_id, encoded, route))

    async def report(self, worker: WorkerState) -> bool:
        said = msgspec.json.encode(worker).decode()
        return await self._db.change(lambda tx: _report(tx, worker.name, said))

    async def leave(self, name: str) -> None:
        await self._db.change(lambda tx: tx.write(delete(workers).where(workers.c.name == name)))

    async def drain(self, name: str) -> bool:
        return await self._db.change(lambda tx: _drain(tx, name))

    async def workers(self, alive_seconds: float) -> list[WorkerState]:
        return await self._db.read(lambda tx: _list_workers(tx, alive_seconds))

    async def is_there(self) -> bool:
        return await self._db.read(_is_there)

    async def queues(self) -> list[QueueState]:
        return await self._db.read(_list_queues)

    async def count_open(self, user_id: str | None = None) -> int:
        return await self._db.read(lambda tx: _count_open(tx, user_id))

    async def limits(self) -> Mapping[str, int]:
        return await self._db.read(waiting.read_limits)


def _read_quick(run_id: str, owner: str, quick: queue_fast.QuickClaim) -> ClaimedRun:
    record = read_record(quick.record)
    messages = [] if quick.messages is None else read_messages(quick.messages)
    taken = Taken(Lease(run_id, quick.epoch), record, messages, None, quick.known, quick.since)
    key = record.session
    events = None if quick.first is None else read_row(1, quick.first, run_id, key.session_id, key.agent_id)
    return ClaimedRun(taken, owner, quick.request.encode(), quick.waited, events, quick.is_fresh)


def _read_engine_schema() -> str:
    try:
        return (resources.files("procrastinate.sql") / "schema.sql").read_text(encoding="utf-8")
    except ImportError as error:
        raise MissingExtraError(f'worker processes need procrastinate: pip install "andon[scale]" ({error})') from None


def _prepare(tx: Tx, engine_schema: str, most: QueueLimits | None, shown: str) -> None:
    tx.execute(select(func.pg_advisory_xact_lock(schema.LOCK, 1)))  # the lock that also orders migrations
    names = inspect(tx.connection).get_table_names()
    if meta.name not in names:
        metadata.create_all(tx.connection, checkfirst=True)
        tx.execute(insert(meta).values(version=VERSION, swept=0.0))
    elif (found := tx.execute(select(meta.c.version)).scalar()) != VERSION:
        raise SchemaError(
            f"{shown} has a queue of version {found}, and this version of Andon knows {VERSION}; it was left as it "
            f"is. Use the version of Andon that made it."
        )
    if "procrastinate_jobs" not in names:
        tx.execute_script(engine_schema)
    missing = [name for name in FUNCTIONS if tx.execute(select(func.to_regproc(name))).scalar() is None]
    if missing:
        _refuse_engine(shown, missing)
    if most is not None:
        for name, value in msgspec.structs.asdict(most).items():
            change = tx.insert(limits_table).values(name=name, most=value)
            tx.write(change.on_conflict_do_update(index_elements=["name"], set_={"most": value}))


def _refuse_engine(shown: str, missing: list[str]) -> NoReturn:
    raise ConfigurationError(
        f"the tables of procrastinate in {shown} are of another version: there is no {', '.join(missing)}. Apply the "
        "migrations of the procrastinate that is installed here (its documentation lists them), or install the "
        "version that made the tables"
    )


def _report(tx: Tx, name: str, said: str) -> bool:
    tx.write(delete(workers).where(workers.c.seen < tx.wall - FORGOTTEN_SECONDS))
    new = tx.insert(workers).values(name=name, state=said, seen=tx.wall, draining=False)
    new = new.on_conflict_do_update(index_elements=["name"], set_={"state": said, "seen": tx.wall})
    return bool(tx.execute(new.returning(workers.c.draining)).scalar_one())


def _drain(tx: Tx, name: str) -> bool:
    if not _is_there(tx):
        return False
    which = (workers.c.name == name, workers.c.seen > tx.wall - LISTED_SECONDS)
    found = tx.execute(update(workers).where(*which).values(draining=True).returning(workers.c.name))
    return found.first() is not None


def _is_there(tx: Tx) -> bool:
    return tx.execute(select(func.to_regclass(meta.name))).scalar() is not None


def _list_workers(tx: Tx, alive_seconds: float) -> list[WorkerState]:
    if not _is_there(tx):
        return []
    silence = (tx.wall - workers.c.seen).label("silence")
    wanted = select(workers, silence).where(workers.c.seen > tx.wall - alive_seconds).order_by(workers.c.name)
    return [found for row in tx.execute(wanted) if (found := _worker_or_none(row)) is not None]


def _worker_or_none(row: Row[Any]) -> WorkerState | None:
    """A worker of another version may report something that this version can't read. It is left out."""
    try:
        said = _read_worker(row.state)
    except msgspec.MsgspecError as error:
        log.debug("what the worker %r reports can't be read: %s", row.name, describe(error))
        return None
    changed = {"seen_at": row.seen, "draining": row.draining or said.draining, "silence": max(0.0, row.silence)}
    return msgspec.structs.replace(said, **changed)


_OPEN = f"""
SELECT count(*) FROM andon_runs AS runs LEFT JOIN andon_waiting AS waiting USING (number)
WHERE runs.ended IS NULL AND runs.parent IS NULL
  AND user_id = coalesce(CAST(:user_id AS text), user_id)
  AND NOT (runs.status = '{RunStatus.pending.value}' AND coalesce(waiting.state = '{HELD_BACK}' AND NOT counts, FALSE))
"""


def _count_open(tx: Tx, user_id: str | None) -> int:
    return int(tx.execute(text(_OPEN), {"user_id": Id.encode_or_none(user_id)}).scalar_one())


_QUEUES = f"""
SELECT channel, queue, runs.agent_id AS agent_id,
  count(*) FILTER (WHERE state = '{SENT}') AS ready, count(*) FILTER (WHERE state = '{HELD_BACK}') AS held_back,
  coalesce(extract(epoch FROM clock_timestamp()) - min(sent) FILTER (WHERE state = '{SENT}'), 0) AS lag
FROM andon_waiting AS waiting JOIN andon_runs AS runs USING (number)
WHERE runs.ended IS NULL AND runs.owner IS NULL GROUP BY channel, queue, runs.agent_id ORDER BY queue, runs.agent_id
"""


def _list_queues(tx: Tx) -> list[QueueState]:
    if not _is_there(tx):
        return []
    return [
        QueueState(
            row.channel,
            row.ready,
            row.held_back,
            max(0.0, float(row.lag)),
            row.queue,
            Id.decode(row.agent_id),
        )
        for row in tx.execute(text(_QUEUES))
    ]
