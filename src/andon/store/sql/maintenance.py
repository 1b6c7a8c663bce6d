# SPDX-License-Identifier: Apache-2.0
"""What the service needs besides runs: blocks, secrets that its processes share, pruning, and a ping.

Pruning uses small transactions, so that no writer waits for long. A session with a live or paused run is not deleted.
"""

from __future__ import annotations

from secrets import token_hex
from typing import Any, Literal

from sqlalchemy import delete, exists, func, select, update

from andon.core.selection import Block
from andon.errors import StoreError
from andon.store.sql.codec import dump, read_block
from andon.store.sql.tables import (
    LIVE,
    Id,
    blocks,
    cancels,
    events,
    histories,
    keys,
    meta,
    records,
    runs,
    secrets,
    sessions,
    states,
)
from andon.store.sql.transaction import Tx

SESSIONS_AT_ONCE = 50
RUNS_AT_ONCE = 200
EVENTS_AT_ONCE = 5_000
LATE_SECONDS = 60.0
"""A run's end may be committed so long after the time that it bears."""
SECRET_BYTES = 32


def block(tx: Tx, wanted: Block) -> None:
    Id.check(wanted.id)
    tx.lock_blocks(exclusive=True)  # a run that is entering now is in the queue first, and can be cancelled
    data = dump(wanted)
    row = {"kind": wanted.kind, "id": wanted.id, "data": data}
    tx.execute(tx.insert(blocks).values(row).on_conflict_do_update(index_elements=["kind", "id"], set_={"data": data}))


def unblock(tx: Tx, kind: Literal["user", "agent"], id: str) -> bool:
    return bool(tx.execute(delete(blocks).where(blocks.c.kind == kind, blocks.c.id == id)).rowcount)


def list_blocks(tx: Tx) -> list[Block]:
    found = tx.execute(select(blocks.c.data).order_by(blocks.c.kind, blocks.c.id)).scalars()
    return sorted(map(read_block, found), key=lambda each: each.at)


def find_secret(tx: Tx, name: str) -> str | None:
    found: str | None = tx.execute(select(secrets.c.value).where(secrets.c.name == name)).scalar()
    return found


def make_secret(tx: Tx, name: str) -> str:
    """If another process has made the secret first, that one is returned."""
    row = {"name": name, "value": token_hex(SECRET_BYTES)}
    tx.execute(tx.insert(secrets).values(row).on_conflict_do_nothing(index_elements=["name"]))
    made = find_secret(tx, name)
    assert made is not None
    return made


# -- pruning: each step deletes a few rows, and says how many; an empty answer means that nothing is left ------------


def prune_sessions(tx: Tx, before: float) -> dict[str, int]:
    live = exists().where(runs.c.session == sessions.c.id, LIVE)
    old = select(sessions.c.id).where(sessions.c.updated < before, ~live).order_by(sessions.c.id)
    ids = tx.execute(old.limit(SESSIONS_AT_ONCE).with_for_update(skip_locked=True)).scalars().all()
    if not ids:
        return {}
    # A run may have entered one of these sessions after it was found and before it was locked.
    held = tx.execute(select(runs.c.session).where(runs.c.session.in_(ids), LIVE)).scalars().all()
    gone = sorted(set(ids) - set(held))
    if not gone:
        return {}
    counts = _delete_runs(tx, tx.execute(select(runs.c.number).where(runs.c.session.in_(gone))).scalars().all())
    for column in (histories.c.session, states.c.session, sessions.c.id):
        tx.execute(delete(column.table).where(column.in_(gone)))
    return {"sessions": len(gone), **counts}


def prune_strays(tx: Tx, before: float) -> dict[str, int]:
    """Runs whose sessions were deleted."""
    there = exists().where(sessions.c.id == runs.c.session)
    old = select(runs.c.number).where(runs.c.ended < before, ~there).order_by(runs.c.number).limit(RUNS_AT_ONCE)
    return _delete_runs(tx, tx.execute(old.with_for_update(skip_locked=True)).scalars().all())


def _delete_runs(tx: Tx, numbers: Any) -> dict[str, int]:
    if not numbers:
        return {}
    counted = tx.execute(_COUNT.where(runs.c.number.in_(numbers))).scalar_one()
    theirs = select(runs.c.run_id).where(runs.c.number.in_(numbers))
    tx.execute(delete(keys).where(keys.c.run_id.in_(theirs)))
    for table in (events, records, runs):
        tx.execute(delete(table).where(table.c.number.in_(numbers)))
    return {"runs": len(numbers), "events": counted}


_COUNT = select(func.coalesce(func.sum(runs.c.last_seq), 0))
"""How many events these runs have, which have ended. Events are numbered from 1, and a row has many of them."""


def prune_events(tx: Tx, before: float, since: float = 0.0) -> dict[str, int]:
    """Events of runs that ended long ago, whose sessions are still in use. Runs that ended before `since` have none."""
    old = select(runs.c.number, runs.c.last_seq).where(runs.c.ended < before, runs.c.last_seq > 0)
    old = old.where(runs.c.ended >= since).order_by(runs.c.ended).limit(RUNS_AT_ONCE)
    numbers, weight = [], 0
    for row in tx.execute(old.with_for_update(skip_locked=True)):  # other processes prune too
        numbers.append(row.number)
        weight += row.last_seq
        if weight >= EVENTS_AT_ONCE:
            break
    if not numbers:
        return {}
    tx.execute(delete(events).where(events.c.number.in_(numbers)))
    tx.execute(update(runs).where(runs.c.number.in_(numbers)).values(last_seq=0))
    return {"events": weight}


def prune_cancels(tx: Tx, before: float) -> dict[str, int]:
    old = select(cancels.c.id).where(cancels.c.at < before).limit(EVENTS_AT_ONCE)
    counted = tx.execute(delete(cancels).where(cancels.c.id.in_(old))).rowcount
    return {"cancels": counted} if counted else {}


PRUNING_STEPS = (prune_sessions, prune_strays, prune_events, prune_cancels)


def count_old(tx: Tx, before: float) -> dict[str, int]:
    """How many sessions, runs and events would be deleted."""
    live = exists().where(runs.c.session == sessions.c.id, LIVE)
    old = select(sessions.c.id).where(sessions.c.updated < before, ~live)
    there = exists().where(sessions.c.id == runs.c.session)
    gone = runs.c.session.in_(old) | ((runs.c.ended < before) & ~there)
    counts = {
        "sessions": select(func.count()).select_from(old.subquery()),
        "runs": select(func.count()).select_from(runs).where(gone),
        "events": _COUNT.where(gone | (runs.c.ended < before)),
    }
    return {name: tx.execute(count).scalar_one() for name, count in counts.items()}


def ping(tx: Tx) -> int | None:
    """Write a little, as a run does: the disk may be full, or the database read-only. Returns the tables' version."""
    if tx.postgres:
        for version, read_only, _ in tx.execute_autocommit(_PING):
            if read_only == "on":
                raise StoreError(_READ_ONLY)
            return int(version)
        return None
    for _ in range(2):  # twice: SQLite does not write a value that stays the same
        tx.execute(update(meta).values(version=-meta.c.version))
    return tx.execute(select(meta.c.version)).scalar()


# This writes to the log as a changed row does, but changes no row, so pings don't wait for each other.
_PING = """
SELECT version, current_setting('transaction_read_only'), pg_logical_emit_message(true, 'andon', '') FROM andon_meta
"""
_READ_ONLY = (
    "the database is read-only: it is a standby, or default_transaction_read_only is on. Use the URL of the primary."
)
