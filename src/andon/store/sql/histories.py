# SPDX-License-Identifier: Apache-2.0
"""What somebody has put into a session, and the conversation that begins with it.

A history stands before the first run of its session that has anything to say. Whoever puts one there makes the runs
before it forget what they have added, in the same transaction. Each has a version: on a server a conversation is read
in two statements, and they belong together only if both saw the same one.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, and_, delete, select, update

from andon.core.records import SessionKey
from andon.core.session import still_busy
from andon.core.shared.store import Lease
from andon.store.sql import sessions, states
from andon.store.sql.leases import lease_lost
from andon.store.sql.sessions import Part, is_key, key_of, lock_run_and_session, status_of
from andon.store.sql.states import SessionRow
from andon.store.sql.tables import HELD, LIVE, histories, runs
from andon.store.sql.tables import sessions as table
from andon.store.sql.transaction import Tx


def read(tx: Tx, key: SessionKey) -> tuple[Row[Any] | None, list[Part]]:
    """What was brought, and what the runs have added, as both were at one moment."""
    wanted = select(histories, table.c.created).join(table, table.c.id == histories.c.session).where(is_key(key))
    while True:
        rows = sessions.rows_of(tx, is_key(key))
        if rows and rows[0].version is None:  # by far the most frequent case, and one statement
            return None, sessions.parts_of(rows)
        found = tx.execute(wanted).first()
        if found is None and not rows:
            return None, []
        if found is not None and (not rows or _same(found, rows[0])):
            return found, sessions.parts_of(rows)


def _same(found: Row[Any], row: Row[Any]) -> bool:
    """Versions begin anew with a session that was deleted and made again: that one has another number."""
    return bool((found.session, found.version) == (row.session, row.version))


# -- changing it ------------------------------------------------------------------------------------------------------


def create(tx: Tx, key: SessionKey, state: str, messages: str | None) -> SessionRow | None:
    if messages is None:
        return states.create(tx, key, state)
    head = sessions.lock_or_create(tx, key, sessions.read_clock(tx))
    if _holder(tx, head.id) is not None:  # its first run is at work, and has read that nothing was said
        return None
    kept = states.create(tx, key, state)
    if kept is not None:
        _put(tx, head.id, messages)
    return kept


def replace(tx: Tx, key: SessionKey, messages: str) -> SessionRow:
    now = sessions.read_clock(tx)
    head = sessions.lock_or_create(tx, key, now)
    _check_idle(tx, head.id)
    _put(tx, head.id, messages)
    tx.execute(update(table).where(table.c.id == head.id).values(begun=True, updated=now))
    kept = states.find(tx, key)
    assert kept is not None  # its row is locked
    return kept


def bring(tx: Tx, lease: Lease, messages: str) -> None:
    """In the name of a run that has its turn. The runs behind it in the line are not concerned."""
    row = lock_run_and_session(tx, lease.run_id)
    if row is None or row.epoch != lease.epoch or row.status not in HELD:
        raise lease_lost(lease)
    if row.there is not None:  # else the session was deleted
        _put(tx, row.session, messages, before=row.number)
        sessions.touch(tx, {row.session})


def remove(tx: Tx, key: SessionKey, *, idle: bool) -> bool:
    session = tx.execute(select(table.c.id).where(is_key(key)).with_for_update()).scalar()
    if session is not None and idle:
        _check_idle(tx, session)
    gone = sessions.remove(tx, key)
    if gone:
        tx.execute(delete(histories).where(histories.c.session == session))
    return gone


def _check_idle(tx: Tx, session: int) -> None:
    """Raise if a run is in the session, whose row is locked: so none comes into it now."""
    if (holder := _holder(tx, session)) is not None:
        raise still_busy(key_of(holder), holder.run_id, status_of(holder))


def _holder(tx: Tx, session: int) -> Row[Any] | None:
    return tx.execute(select(runs).where(runs.c.session == session, LIVE).order_by(runs.c.number)).first()


def _put(tx: Tx, session: int, messages: str, before: int | None = None) -> None:
    theirs = runs.c.session == session if before is None else and_(runs.c.session == session, runs.c.number < before)
    sessions.forget(tx, theirs)
    adding = tx.insert(histories).values(session=session, version=1, messages=messages)
    changed = {"version": histories.c.version + 1, "messages": adding.excluded.messages}
    tx.execute(adding.on_conflict_do_update(index_elements=["session"], set_=changed))
