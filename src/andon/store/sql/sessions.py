# SPDX-License-Identifier: Apache-2.0
"""Sessions and their conversations, as rows.

A conversation is the messages of its runs, in the order of the runs' numbers, up to the first run that has not ended.
A run behind that one in the queue has not had its turn, even if it was cancelled there and has stored its end.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Row, and_, bindparam, collate, delete, func, or_, select, update

from andon.core.records import RunRecord, SessionKey, SessionRecord
from andon.core.session import still_busy
from andon.core.states import RunStatus, StopReason
from andon.errors import NotContinuableError, RunIdTakenError, UnknownRunError
from andon.messages import Message
from andon.store.sql.codec import CHANGED, dump_names, read_messages, read_record
from andon.store.sql.tables import LIVE, Id, histories, records, runs, sessions, states
from andon.store.sql.transaction import Tx

NOTHING = "[]"
"""No messages, as JSON."""


class Part(NamedTuple):
    """The messages of one run. Its JSON is parsed on access, which is after the transaction."""

    run_id: str
    row: Row[Any]

    @property
    def messages(self) -> list[Message]:
        return read_messages(self.row.messages)

    @property
    def record(self) -> RunRecord:
        return record_of(self.row)


def key_of(row: Row[Any]) -> SessionKey:
    return SessionKey(row.agent_id, row.user_id or None, row.session_id)


def status_of(row: Row[Any]) -> RunStatus:
    """A run that has a cancel request, and has not ended, is `cancelling`, whichever status its column has."""
    return RunStatus.cancelling if row.cancel is not None and row.ended is None else RunStatus(row.status)


def record_of(row: Row[Any]) -> RunRecord:
    """The record as it was stored, with the current status. If the run has gone on after a pause, it has no open
    questions.
    """
    record = with_status(row.record, status_of(row))
    if record.stop_reason is StopReason.interrupt and row.status != RunStatus.paused.value:
        return msgspec.structs.replace(record, interrupts=[], stop_reason=None)
    return record


def with_status(kept: str, status: RunStatus) -> RunRecord:
    record = read_record(kept)
    return record if record.status is status else msgspec.structs.replace(record, status=status)


# -- the session as such --------------------------------------------------------------------------------------------


def is_key(key: SessionKey) -> Any:
    return and_(
        sessions.c.agent_id == key.agent_id,
        sessions.c.user_id == (key.user_id or ""),
        sessions.c.session_id == key.session_id,
    )


def lock_or_create(tx: Tx, key: SessionKey, created: float) -> Row[Any]:
    """The session's row, created if it is missing, and locked. The lock orders all changes of the session's queue."""
    Id.check(*key)
    names = {"agent_id": key.agent_id, "user_id": key.user_id or "", "session_id": key.session_id}
    fresh = {**names, "begun": False, "created": created, "updated": tx.wall}
    while (row := tx.execute(_HEAD, names).first()) is None:  # again, if it was deleted in between
        tx.write(tx.insert(sessions).values(fresh).on_conflict_do_nothing())
    return row


_HEAD = select(sessions).where(*(sessions.c[name] == bindparam(name) for name in ("agent_id", "user_id", "session_id")))
_HEAD = _HEAD.with_for_update()


def lock_all(tx: Tx, run_ids: Sequence[str]) -> set[int]:
    """Lock the sessions of these runs, in the order in which every transaction locks sessions. Skips deleted ones."""
    return set(tx.execute(_THEIRS, {"run_ids": run_ids}).scalars()) if run_ids else set()


def touch(tx: Tx, ids: Set[int]) -> None:
    """A run has stored something in these sessions."""
    tx.write(_TOUCH.values(begun=True, updated=tx.wall), {"ids": list(ids)})


_their_sessions = select(runs.c.session).where(runs.c.run_id.in_(bindparam("run_ids", expanding=True)))
_THEIRS = select(sessions.c.id).where(sessions.c.id.in_(_their_sessions)).order_by(sessions.c.id).with_for_update()
_TOUCH = update(sessions).where(sessions.c.id.in_(bindparam("ids", expanding=True)))


def read_clock(tx: Tx) -> float:
    """The clock for ages: see `clocks.wall`."""
    return float(tx.execute(select(tx.wall)).scalar_one())


def list_all(
    tx: Tx, agent_id: str, user_id: str | None, limit: int | None, after: tuple[float, str] | None
) -> list[SessionRecord]:
    """Without their states."""
    wanted = select(sessions).where(_theirs(agent_id, user_id), sessions.c.begun)
    name = collate(sessions.c.session_id, "C") if tx.postgres else sessions.c.session_id
    if after is not None:
        created, session_id = after
        later = and_(sessions.c.created == created, name > session_id)
        wanted = wanted.where(or_(sessions.c.created > created, later))
    found = tx.execute(wanted.order_by(sessions.c.created, name).limit(limit))
    return [SessionRecord(key_of(row), {}, row.created, row.updated) for row in found]


def count(tx: Tx, agent_id: str, user_id: str | None) -> int:
    """Sessions whose first run has not ended are counted too."""
    live = select(runs.c.number).where(runs.c.session == sessions.c.id, LIVE).exists()
    wanted = select(func.count()).select_from(sessions).where(_theirs(agent_id, user_id), or_(sessions.c.begun, live))
    return int(tx.execute(wanted).scalar_one())


def drop_if_unused(tx: Tx, key: SessionKey) -> None:
    """Delete a session that was created for a run that was refused. Two statements: the first may wait for a lock."""
    head = tx.execute(select(sessions.c.id).where(is_key(key), ~sessions.c.begun).with_for_update()).scalar()
    if head is not None:
        runs_of = select(runs.c.number).where(runs.c.session == head).exists()
        tx.execute(delete(sessions).where(sessions.c.id == head, ~sessions.c.begun, ~runs_of))


def _theirs(agent_id: str, user_id: str | None) -> Any:
    return and_(sessions.c.agent_id == agent_id, sessions.c.user_id == (user_id or ""))


def remove(tx: Tx, key: SessionKey) -> bool:
    """Delete the session and the messages of its runs. A live run goes on; at its end only its record is stored."""
    row = tx.execute(select(sessions.c.id).where(is_key(key), sessions.c.begun).with_for_update()).first()
    if row is None:
        return False
    delete_messages(tx, runs.c.session == row.id)
    tx.execute(delete(states).where(states.c.session == row.id))
    tx.execute(delete(sessions).where(sessions.c.id == row.id))
    return True


def delete_messages(tx: Tx, which: Any) -> None:
    """Delete the messages of these runs. Rows without messages are not written again."""
    theirs = records.c.number.in_(select(runs.c.number).where(which))
    tx.execute(update(records).where(theirs, records.c.messages.is_not(None)).values(messages=None))


# -- the conversation -------------------------------------------------------------------------------------------------


def rows_of(tx: Tx, session: Any) -> Sequence[Row[Any]]:
    """The runs of a session that are live or have messages, and the version of its history, if any (`histories`)."""
    wanted = (
        select(runs, records.c.record, records.c.messages, histories.c.version)
        .join(sessions, sessions.c.id == runs.c.session)
        .join(records, records.c.number == runs.c.number)
        .outerjoin(histories, histories.c.session == sessions.c.id)
        .where(session, or_(LIVE, records.c.messages.is_not(None)))
        .order_by(runs.c.number)
    )
    return tx.execute(wanted).all()


def parts(tx: Tx, session: Any) -> list[Part]:
    """The messages of the runs of a session. `session` is the condition that selects it."""
    return parts_of(rows_of(tx, session))


def parts_of(rows: Sequence[Row[Any]]) -> list[Part]:
    """A conversation by its runs, without runs that a later one continues."""
    found: list[Part] = []
    for row in rows:
        if row.messages is not None:
            found.append(Part(row.run_id, row))
        if row.ended is None:
            break
    taken_up = {part.row.continues for part in found}
    return [part for part in found if part.run_id not in taken_up]


def find_run(tx: Tx, run_id: str) -> Row[Any] | None:
    return tx.execute(_RUN, {"run_id": run_id}).first()


def lock_run(tx: Tx, run_id: str) -> Row[Any] | None:
    return tx.execute(_LOCKED, {"run_id": run_id}).first()


def lock_run_and_session(tx: Tx, run_id: str) -> Row[Any] | None:
    """The run, and, as `there`, its session's id: None if that was deleted. Both are locked, the session first."""
    return tx.execute(_BOTH, {"run_id": run_id}).first()


_its_session = select(runs.c.session).where(runs.c.run_id == bindparam("run_id")).scalar_subquery()
_head = select(sessions.c.id).where(sessions.c.id == _its_session).with_for_update().cte("head")
# A database computes the columns of a row before it locks that row.
_BOTH = select(runs, select(_head.c.id).scalar_subquery().label("there"))
_BOTH = _BOTH.where(runs.c.run_id == bindparam("run_id")).with_for_update(of=runs)
_LOCKED = select(runs).where(runs.c.run_id == bindparam("run_id")).with_for_update()
_RUN = select(runs, records.c.record).join(records, records.c.number == runs.c.number)
_RUN = _RUN.where(runs.c.run_id == bindparam("run_id"))


def added(tx: Tx, run_id: str) -> Part | None:
    row = find_run(tx, run_id)
    mine = [] if row is None else [each for each in parts(tx, sessions.c.id == row.session) if each.run_id == run_id]
    return mine[0] if mine else None


def save(tx: Tx, record: RunRecord, text: str, messages: str) -> None:
    """Store a run without a lease, which only one process writes. `text` is its record."""
    head = lock_or_create(tx, record.session, record.created_at)
    row = lock_run(tx, record.run_id)
    if row is not None and row.created != record.created_at:
        raise RunIdTakenError.of(record.run_id)
    if row is None:
        insert_run(tx, record, text, head.id, epoch=0)
        row = tx.execute(select(runs).where(runs.c.run_id == record.run_id)).one()
    change_run(tx, row.number, record.status, {"status": record.status.value, "continues": record.continues})
    keep(tx, row.number, text, messages if row.session == head.id else None)
    touch(tx, {head.id})
    tx.notify(dump_names(CHANGED, [record.run_id]))


def insert_run(tx: Tx, record: RunRecord, text: str, session: int, **columns: Any) -> bool:
    """False if the id is taken."""
    Id.check(record.run_id)
    row = {
        "run_id": record.run_id,
        "session": session,
        "agent_id": record.session.agent_id,
        "user_id": record.session.user_id or "",
        "session_id": record.session.session_id,
        "status": record.status.value,
        "continues": record.continues,
        "parent": record.parent_run_id,
        "last_seq": 0,
        "created": record.created_at,
        **columns,
    }
    # SQLAlchemy counts the rows of an INSERT only with this option.
    adding = tx.insert(runs).values(row).on_conflict_do_nothing()
    if not tx.execute(adding, execution_options={"preserve_rowcount": True}).rowcount:
        return False
    number = select(runs.c.number).where(runs.c.run_id == record.run_id).scalar_subquery()
    tx.write(tx.insert(records).values(number=number, record=text, messages=None))
    return True


def keep(tx: Tx, number: int, record: str, messages: str | None) -> None:
    tx.write(KEEP, {"which": number, "record": record, "messages": messages})


KEEP = update(records).where(records.c.number == bindparam("which"))
CHANGE = update(runs).where(runs.c.number == bindparam("which"))
"""Updates one run; the values are given with each call."""


def change_run(tx: Tx, number: int, status: RunStatus, state: dict[str, Any]) -> None:
    """Update a run that has that new status; if the status is final, also set the time of its end."""
    tx.write(CHANGE.values(ended=tx.wall if status.final else None), {"which": number, **state})


def roll_back_run(tx: Tx, run_id: str) -> None:
    row = find_run(tx, run_id)
    if row is None:
        raise UnknownRunError(f"there is no run {run_id!r}")
    lock_all(tx, [run_id])
    wanted = select(runs).where(runs.c.session == row.session, LIVE).order_by(runs.c.number)
    if (holder := tx.execute(wanted).first()) is not None:
        raise still_busy(key_of(holder), holder.run_id, status_of(holder))
    mine = [part for part in parts(tx, sessions.c.id == row.session) if part.row.messages != NOTHING]
    if run_id not in [part.run_id for part in mine]:
        raise NotContinuableError(f"run {run_id!r} is not part of its session: it was rolled back or continued")
    if run_id != mine[-1].run_id:
        raise NotContinuableError(f"run {run_id!r} can't be rolled back: later runs build on it")
    tx.execute(update(records).where(records.c.number == row.number).values(messages=None))
