# SPDX-License-Identifier: Apache-2.0
"""The state of a session. It has a row of its own, so that an update of the session does not write it again.

JSON is parsed and made outside of transactions, because other transactions wait for those. So a change is based on a
state that was read before, and is refused if the state's version has changed since.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Row, Select, select, update

from andon.core.records import SessionKey
from andon.store.sql import sessions
from andon.store.sql.tables import sessions as heads
from andon.store.sql.tables import states
from andon.store.sql.transaction import Tx

EMPTY = "{}"


class SessionRow(NamedTuple):
    """A session, with its state as JSON."""

    id: int
    created: float
    updated: float
    state: str
    version: int


def _kept(row: Row[Any]) -> SessionRow:
    return SessionRow(row.id, row.created, row.updated, EMPTY if row.state is None else row.state, row.version or 0)


def _wanted(key: SessionKey) -> Select[Any]:
    wanted = select(heads.c.id, heads.c.created, heads.c.updated, states.c.state, states.c.version)
    joined = wanted.select_from(heads.outerjoin(states, states.c.session == heads.c.id))
    return joined.where(sessions.is_key(key), heads.c.begun)


def find(tx: Tx, key: SessionKey) -> SessionRow | None:
    row = tx.execute(_wanted(key)).first()
    return None if row is None else _kept(row)


def create(tx: Tx, key: SessionKey, state: str) -> SessionRow | None:
    now = sessions.read_clock(tx)
    row = sessions.lock_or_create(tx, key, now)
    if row.begun:
        return None
    tx.execute(update(heads).where(heads.c.id == row.id).values(begun=True, created=now, updated=now))
    if state != EMPTY:
        tx.execute(tx.insert(states).values(session=row.id, state=state, version=1))
    return SessionRow(row.id, now, now, state, 1)


def change(tx: Tx, before: SessionRow, state: str) -> float | None:
    """Replace that state, and return the time of the change. None if the state has changed since it was read."""
    if tx.execute(select(heads.c.id).where(heads.c.id == before.id).with_for_update()).first() is None:
        return None
    version = tx.execute(select(states.c.version).where(states.c.session == before.id)).scalar() or 0
    if version != before.version:
        return None
    now = sessions.read_clock(tx)
    row = {"state": state, "version": version + 1}
    adding = tx.insert(states).values({"session": before.id, **row})
    tx.execute(adding.on_conflict_do_update(index_elements=["session"], set_=row))
    tx.execute(update(heads).where(heads.c.id == before.id).values(updated=now))
    return now
