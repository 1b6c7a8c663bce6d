# SPDX-License-Identifier: Apache-2.0
"""What whoever holds a run may do with it. Each of these looks first whether the lease is still good: the epoch is the
fence, and a run that is paused or has ended is nobody's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Row, and_, or_, select, update

from andon.core.events import Event
from andon.core.receipt import CancelRequest, describe_open
from andon.core.session import OnBusy, refusal
from andon.core.shared import Lease, Progress, Renewal, Taken
from andon.core.states import CancelCause, RunStatus
from andon.core.store import RunRecord
from andon.errors import LeaseLostError, RunIdTakenError
from andon.messages import Message
from andon.store.sql import asking, sessions
from andon.store.sql.codec import dump, read_block, read_messages, read_record, read_request
from andon.store.sql.database import Tx, chunks
from andon.store.sql.tables import HELD, LIVE, blocks, events, records, runs


def _expired(tx: Tx) -> Any:
    return and_(runs.c.status.in_(HELD), runs.c.lease_until < tx.now)


# -- entering ---------------------------------------------------------------------------------------------------------


def enter(tx: Tx, record: RunRecord, owner: str, seconds: float, on_busy: OnBusy) -> Lease:
    tx.pass_gate()
    head = sessions.head_of_line(tx, record.session, record.created_at)
    if (lease := _entered(tx, record, owner)) is not None:
        return lease
    _check_blocks(tx, record)
    line = select(runs, records.c.record, _expired(tx).label("expired"))
    line = line.join(records, records.c.number == runs.c.number).where(runs.c.session == head.id, LIVE)
    ahead = tx.execute(line.order_by(runs.c.number).with_for_update(of=runs)).all()
    if on_busy == "reject":
        for other in ahead:
            if other.cancel is None and not other.expired:
                questions = read_record(other.record).interrupts
                status = RunStatus(other.status)
                raise refusal(record.session, other.run_id, status, lambda: describe_open(questions))  # noqa: B023
    elif on_busy == "cancel":
        asking.ask(tx, ahead, CancelRequest.make(CancelCause.superseded, f"run {record.run_id} takes over"))
    if not sessions.insert_run(tx, record, head.id, epoch=1, owner=owner, lease_until=tx.now + seconds):
        raise _taken(record)
    return Lease(record.run_id, 1)


def _entered(tx: Tx, record: RunRecord, owner: str) -> Lease | None:
    """The lease that this owner has already: it was asked for before, and only the answer was lost."""
    row = tx.execute(select(runs).where(runs.c.run_id == record.run_id)).first()
    if row is None:
        return None
    key = sessions.key_of(row)
    if (row.owner, row.created, key) != (owner, record.created_at, record.session) or row.status not in HELD:
        raise _taken(record)
    return Lease(record.run_id, row.epoch)


def _taken(record: RunRecord) -> RunIdTakenError:
    return RunIdTakenError(f"run id {record.run_id!r} belongs to another run")


def _check_blocks(tx: Tx, record: RunRecord) -> None:
    agent = and_(blocks.c.kind == "agent", blocks.c.id == record.session.agent_id)
    user = and_(blocks.c.kind == "user", blocks.c.id == (record.session.user_id or ""))
    if (data := tx.execute(select(blocks.c.data).where(or_(agent, user))).scalar()) is not None:
        raise read_block(data).refusal()


# -- holding ----------------------------------------------------------------------------------------------------------


def take_turn(tx: Tx, lease: Lease) -> bool:
    row = tx.execute(select(runs).where(runs.c.run_id == lease.run_id).with_for_update()).first()
    if row is None or row.epoch != lease.epoch or row.status not in HELD:
        raise lost(lease)
    if row.status == RunStatus.running.value:
        return True
    ahead = select(runs.c.number).where(runs.c.session == row.session, LIVE, runs.c.number < row.number)
    if tx.execute(ahead.limit(1)).first() is not None:
        return False
    tx.execute(update(runs).where(runs.c.number == row.number).values(status=RunStatus.running.value))
    return True


def lost(lease: Lease) -> LeaseLostError:
    return LeaseLostError(f"run {lease.run_id!r} belongs to another worker now, or has ended")


def _locked(tx: Tx, run_ids: Iterable[str], *, lock: bool = True) -> dict[str, Row[Any]]:
    """These runs, locked in the order that everybody locks them in."""
    found: dict[str, Row[Any]] = {}
    for some in chunks(sorted(set(run_ids))):
        wanted = select(runs).where(runs.c.run_id.in_(some))
        found |= {row.run_id: row for row in tx.execute(wanted)}
    if lock:
        numbers = sorted(row.number for row in found.values())
        found = {}
        for these in chunks(numbers):
            wanted = select(runs).where(runs.c.number.in_(these)).order_by(runs.c.number).with_for_update()
            found |= {row.run_id: row for row in tx.execute(wanted)}
    return found


def renew(tx: Tx, leases: Sequence[Lease], seconds: float | None) -> Renewal:
    rows = _locked(tx, (lease.run_id for lease in leases), lock=seconds is not None)
    answer, held = Renewal([], {}), []
    for lease in leases:
        row = rows.get(lease.run_id)
        if row is None or row.epoch != lease.epoch or row.ended is not None:
            answer.lost.append(lease.run_id)
            continue
        if row.cancel is not None:
            answer.cancels[lease.run_id] = read_request(row.cancel)
        if row.status in HELD:
            held.append(row.number)
    if seconds is not None:
        for these in chunks(held):
            tx.execute(update(runs).where(runs.c.number.in_(these)).values(lease_until=tx.now + seconds))
    return answer


def write(tx: Tx, batch: Sequence[Progress]) -> list[str]:
    rows = _locked(tx, (each.lease.run_id for each in batch), lock=False)
    talking = {
        rows[each.lease.run_id].session for each in batch if each.messages is not None and each.lease.run_id in rows
    }
    there = {id for id in sorted(talking) if sessions.lock_session(tx, id)}
    rows = _locked(tx, (each.lease.run_id for each in batch))
    refused: dict[str, None] = {}
    new: list[tuple[int, Sequence[Event]]] = []
    for lease, messages, what, continues in batch:
        row = rows.get(lease.run_id)
        if row is None or row.epoch != lease.epoch or row.status not in HELD:
            refused[lease.run_id] = None
            continue
        if messages is not None and row.session in there:
            tx.execute(update(records).where(records.c.number == row.number).values(messages=dump(messages)))
            if continues != row.continues:
                tx.execute(update(runs).where(runs.c.number == row.number).values(continues=continues))
        new.append((row.number, what))
    if there:
        sessions.touch(tx, sorted(there))
    append(tx, new)
    return list(refused)


def append(tx: Tx, new: Iterable[tuple[int, Sequence[Event]]]) -> None:
    """Add events. Some may be there already, if the answer to an earlier call was lost."""
    rows = []
    for number, what in new:
        if what:
            rows += [{"number": number, "seq": each.seq, "data": dump(each)} for each in what]
            last = what[-1].seq
            tx.execute(update(runs).where(runs.c.number == number, runs.c.last_seq < last).values(last_seq=last))
    if rows:
        tx.execute(tx.insert(events).on_conflict_do_nothing(), rows)


# -- the end ----------------------------------------------------------------------------------------------------------


def finish(
    tx: Tx, lease: Lease, record: RunRecord, messages: Sequence[Message], what: Sequence[Event]
) -> RunRecord | CancelRequest | None:
    session = tx.execute(select(runs.c.session).where(runs.c.run_id == lease.run_id)).scalar()
    if session is None:
        raise lost(lease)
    there = sessions.lock_session(tx, session)
    row = _locked(tx, [lease.run_id])[lease.run_id]
    # A paused run is nobody's, but it may be cancelled, and whoever paused it may still say so.
    may_end = (*HELD, RunStatus.paused.value) if record.status is RunStatus.cancelled else HELD
    if row.epoch != lease.epoch or row.status not in may_end:
        kept = tx.execute(
            select(runs, records.c.record)
            .join(records, records.c.number == runs.c.number)
            .where(runs.c.number == row.number)
        ).one()
        same = row.epoch == lease.epoch and kept.record == dump(record)  # asked before, and the answer was lost
        return None if same else sessions.record_of(kept)
    if row.cancel is not None and record.status is not RunStatus.cancelled:
        return read_request(row.cancel)
    end = {
        "status": record.status.value,
        "owner": None,
        "lease_until": None,
        "continues": record.continues,
        "ended": time.time() if record.status.final else None,
    }
    tx.execute(update(runs).where(runs.c.number == row.number).values(end))
    sessions.keep(tx, row.number, record, messages if there else None)
    if there:
        sessions.touch(tx, [session])
    append(tx, [(row.number, what)])
    if row.cancel is None and record.receipt is not None and record.status is RunStatus.cancelled:
        asking.note(tx, row, asking.request_of(record.receipt))
    return None


def take(tx: Tx, found: Sequence[Row[Any]], owner: str, seconds: float) -> list[Taken]:
    """Give these runs, which are locked, to a new owner."""
    taken = []
    for row in found:
        status = RunStatus.pending if row.status == RunStatus.pending.value else RunStatus.running
        tx.execute(
            update(runs)
            .where(runs.c.number == row.number)
            .values(epoch=row.epoch + 1, owner=owner, lease_until=tx.now + seconds, status=status.value)
        )
        taken.append(_taken_over(tx, row, row.epoch + 1))
    return taken


def _taken_over(tx: Tx, row: Row[Any], epoch: int) -> Taken:
    kept = tx.execute(select(records).where(records.c.number == row.number)).one()
    messages = [] if kept.messages is None else read_messages(kept.messages)
    record = sessions.with_status(kept.record, RunStatus(row.status))
    record = msgspec.structs.replace(record, continues=row.continues)
    cancel = None if row.cancel is None else read_request(row.cancel)
    return Taken(Lease(row.run_id, epoch), record, messages, cancel, row.last_seq)


def take_up(tx: Tx, run_id: str, owner: str, seconds: float) -> Taken | None:
    row = tx.execute(select(runs).where(runs.c.run_id == run_id).with_for_update()).first()
    if row is not None and row.status == RunStatus.paused.value and row.cancel is None:
        return take(tx, [row], owner, seconds)[0]
    if row is not None and row.status in HELD and row.owner == owner:  # asked before, and the answer was lost
        return _taken_over(tx, row, row.epoch)
    return None


def take_orphans(tx: Tx, owner: str, seconds: float, limit: int) -> list[Taken]:
    stopped = and_(runs.c.status == RunStatus.paused.value, runs.c.cancel.is_not(None))
    wanted = select(runs).where(LIVE, or_(_expired(tx), stopped)).order_by(runs.c.number).limit(limit)
    return take(tx, tx.execute(wanted.with_for_update(skip_locked=True)).all(), owner, seconds)
