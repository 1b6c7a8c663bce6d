# SPDX-License-Identifier: Apache-2.0
"""Reads runs and their events. Also: the conditions by which a `Selection` matches rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, and_, bindparam, exists, func, or_, select

from andon.core.events import Event
from andon.core.records import RunRecord
from andon.core.selection import Selection
from andon.core.shared.store import Glance
from andon.core.states import RunStatus
from andon.store.sql import sessions
from andon.store.sql.batches import read_row
from andon.store.sql.tables import LIVE, events, runs
from andon.store.sql.transaction import Tx, chunks

NAMES = ("run_id", "session_id", "user_id", "agent_id")


def given(which: Selection) -> dict[str, str]:
    return {name: value for name in NAMES if (value := getattr(which, name)) is not None}


def fits(which: Selection, table: Any) -> list[Any]:
    return [table.c[name] == value for name, value in given(which).items()]


def has_status(which: Selection) -> list[Any]:
    """A run that has a cancel request, and has not ended, has the status `cancelling` and no other."""
    if not which.statuses:
        return []
    asked = and_(runs.c.cancel.is_not(None), LIVE)
    plain = [status.value for status in which.statuses if status is not RunStatus.cancelling]
    fits = and_(runs.c.status.in_(plain), or_(runs.c.cancel.is_(None), ~LIVE))
    return [or_(fits, asked) if RunStatus.cancelling in which.statuses else fits]


def list_runs(tx: Tx, which: Selection, limit: int, before: tuple[float, str] | None) -> list[RunRecord]:
    """With the columns of `andon_runs` alone: records may be large, and a list needs nothing from them."""
    wanted = select(runs).where(*fits(which, runs), *has_status(which))
    if before is not None:
        created, run_id = before
        number = select(_other.c.number).where(_other.c.run_id == run_id).scalar_subquery()
        wanted = wanted.where(or_(runs.c.created < created, and_(runs.c.created == created, runs.c.number < number)))
    found = tx.execute(wanted.order_by(runs.c.created.desc(), runs.c.number.desc()).limit(limit))
    return [
        RunRecord(
            row.run_id,
            sessions.key_of(row),
            sessions.status_of(row),
            row.created,
            {},
            continues=row.continues,
            parent_run_id=row.parent,
        )
        for row in found
    ]


def glance(tx: Tx, run_ids: Sequence[str]) -> dict[str, Glance]:
    found: dict[str, Glance] = {}
    for these in chunks(run_ids):
        for row in tx.execute(_GLANCE, {"run_ids": these}):
            found[row.run_id] = Glance(sessions.status_of(row), row.is_first)
    return found


_other = runs.alias()
_ahead = exists().where(_other.c.session == runs.c.session, _other.c.ended.is_(None), _other.c.number < runs.c.number)
_GLANCE = select(runs.c.run_id, runs.c.status, runs.c.cancel, runs.c.ended, (~_ahead).label("is_first"))
_GLANCE = _GLANCE.where(runs.c.run_id.in_(bindparam("run_ids", expanding=True)))


def list_events(tx: Tx, run_id: str, after: int, limit: int) -> Sequence[Row[Any]]:
    return tx.execute(_EVENTS, {"run": run_id, "after": after, "until": after + limit}).all()


def read_events(rows: Sequence[Any], run_id: str, after: int, limit: int) -> list[Event]:
    """The events of these rows after a number, at most `limit`."""
    found: list[Event] = []
    for seq, batch, session_id, agent_id in rows:
        told = read_row(seq, batch, run_id, session_id, agent_id)
        # The first row may begin before `after`. Any row may begin with events that the row before it had.
        last = found[-1].seq if found else after
        found += told if told[0].seq > last else [event for event in told if event.seq > last]
    return found[:limit]


def last_event(tx: Tx, run_id: str) -> Event | None:
    row = tx.execute(_LAST_EVENT, {"run": run_id}).first()
    return None if row is None else read_row(row.seq, row.batch, run_id, row.session_id, row.agent_id)[-1]


_NUMBER = select(runs.c.number).where(runs.c.run_id == bindparam("run")).correlate(None).scalar_subquery()
_ROWS = select(events.c.seq, events.c.batch, runs.c.session_id, runs.c.agent_id)
_ROWS = _ROWS.join(runs, runs.c.number == events.c.number).where(events.c.number == _NUMBER)
_LAST_EVENT = _ROWS.order_by(events.c.seq.desc()).limit(1)
# Up to the row that has the last event that is wanted, or to the end. Later rows are not read.
_END = select(func.min(events.c.seq)).where(events.c.number == _NUMBER, events.c.seq >= bindparam("until"))
_EVENTS = _ROWS.where(events.c.seq > bindparam("after"))
_EVENTS = _EVENTS.where(events.c.seq <= func.coalesce(_END.correlate(None).scalar_subquery(), bindparam("until")))
_EVENTS = _EVENTS.order_by(events.c.seq)
