# SPDX-License-Identifier: Apache-2.0
"""What others may ask of a run that they do not hold: to stop, and how it stands.

The first request is the one that counts, and it is committed before anybody is woken. A later one can only ask for
more: a stronger mode, or a bound. Whatever changes something is on record, with who asked.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Row, Select, and_, bindparam, exists, func, insert, or_, select, update

from andon.core.events import Event
from andon.core.receipt import CancelRequest, Receipt
from andon.core.records import RunRecord, SessionKey
from andon.core.selection import CancelEntry, Outcomes, Selection
from andon.core.shared.store import Glance
from andon.core.states import CancelMode, CancelOutcome, RunStatus
from andon.store.sql import clocks, sessions
from andon.store.sql.batches import read_row
from andon.store.sql.codec import LOOK_AT, dump, dump_names, dump_notice, read_request
from andon.store.sql.tables import LIVE, cancels, events, runs
from andon.store.sql.transaction import Tx, chunks

NAMES = ("run_id", "session_id", "user_id", "agent_id")


def _given(which: Selection) -> dict[str, str]:
    return {name: value for name in NAMES if (value := getattr(which, name)) is not None}


def _fits(which: Selection, table: Any) -> list[Any]:
    return [table.c[name] == value for name, value in _given(which).items()]


def _has_status(which: Selection) -> list[Any]:
    """A run that was asked to stop, and has not ended, is `cancelling` and nothing else."""
    if not which.statuses:
        return []
    asked = and_(runs.c.cancel.is_not(None), LIVE)
    plain = [status.value for status in which.statuses if status is not RunStatus.cancelling]
    fits = and_(runs.c.status.in_(plain), or_(runs.c.cancel.is_(None), ~LIVE))
    return [or_(fits, asked) if RunStatus.cancelling in which.statuses else fits]


def request_cancel(tx: Tx, which: Selection, request: CancelRequest) -> Outcomes:
    if which.run_id is None:
        wanted = _wanted(tx.postgres).where(*_fits(which, runs), *_has_status(which), LIVE).order_by(runs.c.number)
        return ask(tx, tx.execute(wanted.with_for_update(key_share=True)).all(), request)
    tx.hurry()  # of many runs, those that are locked are waited for
    if which.statuses:
        wanted = _wanted(tx.postgres).where(*_fits(which, runs), *_has_status(which))
        row = tx.execute(wanted.with_for_update(key_share=True)).first()
    else:
        given = _given(which)
        row = tx.execute(_that(tx.postgres, *given), given).first()
    if row is not None and row.ended is None:
        return ask(tx, [row], request)
    tx.early = False
    return Outcomes({which.run_id: CancelOutcome.unknown if row is None else CancelOutcome.already_finished})


def ask(tx: Tx, rows: Sequence[Row[Any]], request: CancelRequest) -> Outcomes:
    """Ask these runs, which are locked and have not ended; `nobodys` says of each whether nobody else will end it."""
    outcomes, fresh, said, more_asked = Outcomes(), [], dump(request), []
    outcomes.nobodys = any(row.nobodys for row in rows)
    log = [_entry(row, said) for row in rows if row.cancel is None]
    for row in rows:
        if row.cancel is None:
            fresh.append(row.number)
            outcomes[row.run_id] = CancelOutcome.requested
            continue
        if row.cancel == said:  # asked before, and only the answer was lost
            outcomes[row.run_id] = CancelOutcome.requested
            continue
        outcomes[row.run_id] = CancelOutcome.already_requested
        before = read_request(row.cancel)
        after = more(before, request)
        if after != before:
            tx.write(_ASK, {"numbers": [row.number], "cancel": dump(after)})
            log.append(_entry(row, said))
            more_asked.append(row.run_id)
    for these in chunks(fresh):
        tx.write(_ASK, {"numbers": these, "cancel": said})
    if log:
        tx.write(_NOTE.values(at=tx.wall), log)
    # Of many, or of what has changed once more, who holds them looks.
    changed = [*more_asked, *(row.run_id for row in rows if row.cancel is None)]
    notice = dump_notice(rows[0].run_id, rows[0].owner, request) if len(fresh) == len(rows) == 1 else ""
    tx.say([notice] if notice else dump_names(LOOK_AT, changed))
    return outcomes


def _wanted(postgres: bool) -> Select[Any]:
    return select(runs, clocks.nobodys(postgres).label("nobodys"))


@functools.cache
def _that(postgres: bool, *names: str) -> Select[Any]:
    """One run, by its names. By `key_share`, nobody waits here for a batch of events to be written."""
    wanted = _wanted(postgres).where(*(runs.c[name] == bindparam(name) for name in names))
    return wanted.with_for_update(key_share=True)


_ASK = update(runs).where(runs.c.number.in_(bindparam("numbers", expanding=True)))
_NOTE = insert(cancels).inline()


def more(before: CancelRequest, request: CancelRequest) -> CancelRequest:
    """The first request, with what a later one adds to it: it may stop more, or sooner."""
    if before.mode is CancelMode.now:
        return before
    mode = max(before.mode, request.mode, key=lambda mode: mode.rank)
    bounds = [each.grace for each in (before, request) if each.grace is not None]
    return msgspec.structs.replace(
        before, mode=mode, grace=None if mode is CancelMode.now else min(bounds, default=None)
    )


def _entry(row: Row[Any], request: str) -> dict[str, Any]:
    return {
        "run_id": row.run_id,
        "agent_id": row.agent_id,
        "user_id": row.user_id,
        "session_id": row.session_id,
        "request": request,
    }


def note(tx: Tx, row: Row[Any], request: str) -> None:
    """Put on record a cancel that the worker knew of before the store did."""
    tx.write(_NOTE.values(at=tx.wall), _entry(row, request))


def request_of(receipt: Receipt) -> CancelRequest:
    return CancelRequest(receipt.cause, receipt.reason, receipt.by, receipt.mode, None, receipt.requested_at)


def cancel_log(tx: Tx, which: Selection, limit: int) -> list[CancelEntry]:
    wanted = select(cancels).where(*_fits(which, cancels))
    if which.statuses:
        wanted = wanted.where(cancels.c.run_id.in_(select(runs.c.run_id).where(*_has_status(which))))
    found = tx.execute(wanted.order_by(cancels.c.id.desc()).limit(limit))
    return [
        CancelEntry(
            row.run_id, read_request(row.request), SessionKey(row.agent_id, row.user_id or None, row.session_id)
        )
        for row in found
    ]


def list_runs(tx: Tx, which: Selection, limit: int, before: tuple[float, str] | None) -> list[RunRecord]:
    """With what `andon_runs` has of them: their records may be large, and a list shows nothing that is only there."""
    wanted = select(runs).where(*_fits(which, runs), *_has_status(which))
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
    """The events of these rows, so many from a number on."""
    found: list[Event] = []
    for seq, batch, session_id, agent_id in rows:
        told = read_row(seq, batch, run_id, session_id, agent_id)
        # The first row may begin before what is wanted, and any with what the one before it has told.
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
# Up to the row that has the last event that is wanted, or the end: what lies beyond is not read.
_END = select(func.min(events.c.seq)).where(events.c.number == _NUMBER, events.c.seq >= bindparam("until"))
_EVENTS = _ROWS.where(events.c.seq > bindparam("after"))
_EVENTS = _EVENTS.where(events.c.seq <= func.coalesce(_END.correlate(None).scalar_subquery(), bindparam("until")))
_EVENTS = _EVENTS.order_by(events.c.seq)
