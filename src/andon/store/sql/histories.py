# SPDX-License-Identifier: Apache-2.0
"""The history of a session: messages that a caller has put there, before those of the runs.

Storing a history deletes, in the same transaction, the messages of the runs that came before it. A history has a
version: on Postgres a conversation is read with two statements, whose results fit only if both saw the same version.
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
    """The history, and the messages of the runs, both as of one moment."""
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
    """Also compares the session's id: a session that was deleted and created again starts with version 1."""
    return bool((found.session, found.version) == (row.session, row.version))


# -- changing it ------------------------------------------------------------------------------------------------------


def create(tx: Tx, key: SessionKey, state: str, messages: str | None) -> SessionRow | None:
    if messages is None:
        return states.create(tx, key, state)
    head = sessions.lock_or_create(tx, key, sessions.read_clock(tx))
    if _holder(tx, head.id) is not None:  # its first run is live, and has read an empty conversation
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
    """On behalf of a run that has its turn. The runs behind it in the queue are not affected."""
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
    """Raise if a run is in the session. The session's row is locked, so no run can enter now."""
    if (holder := _holder(tx, session)) is not None:
        raise still_busy(key_of(holder), holder.run_id, status_of(holder))


def _holder(tx: Tx, session: int) -> Row[Any] | None:
    return tx.execute(select(runs).where(runs.c.session == session, LIVE).order_by(runs.c.number)).first()


def _put(tx: Tx, session: int, messages: str, before: int | None = None) -> None:
    theirs = runs.c.session == session if before is None else and_(runs.c.session == session, runs.c.number < before)
    sessions.delete_messages(tx, theirs)
    adding = tx.insert(histories).values(session=session, version=1, messages=messages)
    changed = {"version": histories.c.version + 1, "messages": adding.excluded.messages}
    tx.execute(adding.on_conflict_do_update(index_elements=["session"], set_=changed))
