# SPDX-License-Identifier: Apache-2.0
"""What the holder of a run's lease may do with the run. Each function checks first that the lease is valid: it has the
run's current epoch, and the run is pending or running. A run that is paused or has ended has no holder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Row, Select, and_, bindparam, func, or_, select, update

from andon.core.receipt import CancelRequest, describe_open
from andon.core.records import RequestKey, RunRecord, SessionKey
from andon.core.session import OnBusy, refusal
from andon.core.shared.store import Granted, Lease, Renewal, Taken
from andon.core.states import CancelCause, RunStatus
from andon.errors import LeaseLostError, RunIdTakenError, SessionBusyError
from andon.store.sql import cancels, clocks, keys, sessions
from andon.store.sql.codec import CHANGED, LOOK_AT, dump_names, read_block, read_messages, read_record, read_request
from andon.store.sql.encoded import EncodedEnd, EncodedProgress
from andon.store.sql.tables import HELD, LIVE, Id, blocks, events, records, runs
from andon.store.sql.transaction import Tx, chunks

# -- entering ---------------------------------------------------------------------------------------------------------


def enter(tx: Tx, record: RunRecord, text: str, owner: str, seconds: float, on_busy: OnBusy) -> Granted:
    """`text` is the record as JSON."""
    head, ahead = line_up(tx, record)
    for other in ahead:
        if other.run_id == record.run_id:
            if (other.owner, other.created) != (owner, record.created_at) or other.status not in HELD:
                raise taken_id(record)
            # The same call again: the answer to the first one was lost.
            has_turn = other.status == RunStatus.running.value
            return Granted.of(record.run_id, other.epoch, tx.began, has_turn=has_turn)
    check_admission(tx, record, ahead, on_busy)
    status = RunStatus.pending if ahead else RunStatus.running
    columns = {"status": status.value, "epoch": 1, "owner": owner, **clocks.lease(tx.postgres, seconds)}
    if not sessions.insert_run(tx, record, text, head.id, **columns):
        raise taken_id(record)
    return Granted.of(record.run_id, 1, tx.began, has_turn=not ahead, is_fresh=not ahead and not head.begun)


def line_up(tx: Tx, record: RunRecord) -> tuple[Row[Any], Sequence[Row[Any]]]:
    """The session of a run that is to be entered, and the runs in its queue. Both are locked."""
    tx.lock_blocks()
    if record.request_key is not None:  # first: a repeated request raises KeyUsedError, not SessionBusyError
        keys.take(tx, record.request_key, record.session, record.run_id)
    head = sessions.lock_or_create(tx, record.session, record.created_at)
    has_no_end, is_lost = clocks.unowned(tx.postgres), clocks.expired(tx.postgres)
    queue = select(runs, records.c.record, has_no_end.label("unowned"), is_lost.label("lost"))
    queue = queue.join(records, records.c.number == runs.c.number).where(runs.c.session == head.id, LIVE)
    return head, tx.execute(queue.order_by(runs.c.number).with_for_update(of=runs, key_share=True)).all()


def check_admission(tx: Tx, record: RunRecord, ahead: Sequence[Row[Any]], on_busy: OnBusy) -> bool:
    """Raise if the run may not enter behind these; or, if `on_busy` says so, cancel them. True if some of those have no
    worker that ends them.
    """
    _check_blocks(tx, record)
    if on_busy == "reject":
        _check_free(ahead)
    if on_busy != "cancel":
        return False
    request = CancelRequest.make(CancelCause.superseded, f"run {record.run_id} takes over")
    return cancels.apply(tx, ahead, request).has_orphans


class Busy(Exception):  # noqa: N818 - not an error yet: `refusal` makes one, after the transaction
    """Another run is in the session, or ahead in its queue. The argument is the row of that run."""

    def refusal(self, session: SessionKey) -> SessionBusyError:
        kept = sessions.record_of(self.args[0])
        return refusal(session, kept.run_id, kept.status, lambda: describe_open(kept.interrupts))


def _check_free(ahead: Sequence[Row[Any]]) -> None:
    """Raise if a run is ahead. A run that is being cancelled, or has lost its worker, does not count: it ends soon."""
    for other in ahead:
        if other.cancel is None and not other.lost:
            raise Busy(other)


def taken_id(record: RunRecord) -> RunIdTakenError:
    return RunIdTakenError.of(record.run_id)


def _check_blocks(tx: Tx, record: RunRecord) -> None:
    agent = and_(blocks.c.kind == "agent", blocks.c.id == record.session.agent_id)
    user = and_(blocks.c.kind == "user", blocks.c.id == (record.session.user_id or ""))
    wanted = select(blocks.c.data).where(or_(agent, user)).order_by(blocks.c.kind)
    if (data := tx.execute(wanted).scalar()) is not None:
        raise read_block(data).refusal()


# -- holding ----------------------------------------------------------------------------------------------------------


def take_turn(tx: Tx, lease: Lease) -> bool:
    row = sessions.lock_run(tx, lease.run_id)
    if row is None or row.epoch != lease.epoch or row.status not in HELD:
        raise lease_lost(lease)
    if row.status == RunStatus.running.value:
        return True
    if tx.execute(_AHEAD, {"session": row.session, "place": row.number}).first() is not None:
        return False
    tx.write(sessions.CHANGE, {"which": row.number, "status": RunStatus.running.value})
    return True


_AHEAD = select(runs.c.number).where(runs.c.session == bindparam("session"), LIVE, runs.c.number < bindparam("place"))
_AHEAD = _AHEAD.limit(1)


def lease_lost(lease: Lease) -> LeaseLostError:
    return LeaseLostError(f"run {lease.run_id!r} belongs to another worker now, or has ended")


def _find(tx: Tx, run_ids: Iterable[str], wanted: Select[Any]) -> dict[str, Row[Any]]:
    """These runs, in the order in which every transaction locks runs."""
    found: dict[str, Row[Any]] = {}
    for these in chunks(list(dict.fromkeys(run_ids))):
        found |= {row.run_id: row for row in tx.execute(wanted, {"run_ids": these})}
    return found


_LOOK = select(runs).where(runs.c.run_id.in_(bindparam("run_ids", expanding=True))).order_by(runs.c.number)
_LOCK = _LOOK.with_for_update(key_share=True)
_KEEP_HOLD = _LOOK.with_for_update(read=True, key_share=True)
"""Meanwhile these runs can be cancelled, but no other transaction ends them or takes them over."""


def renew(tx: Tx, leases: Sequence[Lease], seconds: float | None) -> Renewal:
    rows = _find(tx, (lease.run_id for lease in leases), _LOOK if seconds is None else _LOCK)
    answer, held = Renewal([], {}, tx.began, []), []
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
            tx.write(update(runs).where(runs.c.number.in_(these)).values(clocks.lease(tx.postgres, seconds)))
    return answer


def write(tx: Tx, batch: Sequence[EncodedProgress]) -> list[str]:
    there = sessions.lock_all(tx, [each.lease.run_id for each in batch if each.messages is not None])
    rows = _find(tx, (each.lease.run_id for each in batch), _KEEP_HOLD)
    refused: dict[str, None] = {}
    new: list[dict[str, Any]] = []
    touched: set[int] = set()
    for lease, messages, batches, continues in batch:
        row = rows.get(lease.run_id)
        if row is None or row.epoch != lease.epoch or row.status not in HELD:
            refused[lease.run_id] = None
            continue
        if messages is not None and row.session in there:
            tx.write(sessions.KEEP, {"which": row.number, "messages": messages})
            if continues != row.continues:
                tx.write(sessions.CHANGE, {"which": row.number, "continues": continues})
            touched.add(row.session)
        new += _rows(row, batches)
    if touched:
        sessions.touch(tx, touched)
    _append(tx, new)
    tx.notify(dump_names(CHANGED, (each.lease.run_id for each in batch if each.lease.run_id not in refused)))
    return list(refused)


def _rows(row: Row[Any], batches: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
    return [{"number": row.number, "seq": seq, "batch": batch} for seq, batch in batches]


def _append(tx: Tx, rows: list[dict[str, Any]]) -> None:
    """Add events. Some may be stored already, if the answer to an earlier call was lost. Then this row has the same
    last event, and is not added, or it has more events: readers skip the events that an earlier row had.
    """
    if rows:
        tx.write(tx.insert(events).on_conflict_do_nothing(), rows)


_LAST = select(func.coalesce(func.max(events.c.seq), 0)).where(events.c.number == bindparam("of"))


# -- the end ----------------------------------------------------------------------------------------------------------


def finish(tx: Tx, end: EncodedEnd) -> RunRecord | CancelRequest | None:
    lease, record = end.lease, end.record
    given_back = record.status is RunStatus.paused and not end.rows  # it was taken up, and did not go on
    if given_back:
        keys.lock_answers(tx, lease.run_id)
    row = sessions.lock_run_and_session(tx, lease.run_id)
    if row is None:
        raise lease_lost(lease)
    # A paused run has no holder. The worker that paused it may still end it as cancelled.
    may_end = (*HELD, RunStatus.paused.value) if record.status is RunStatus.cancelled else HELD
    if row.epoch != lease.epoch or row.status not in may_end:
        kept = tx.execute(select(records.c.record).where(records.c.number == row.number)).scalar_one()
        same = row.epoch == lease.epoch and kept == end.text  # the same call again: the answer was lost
        return None if same else sessions.with_status(kept, sessions.status_of(row))
    if row.cancel is not None and record.status is not RunStatus.cancelled:
        return read_request(row.cancel)
    last_seq = end.last_seq or tx.execute(_LAST, {"of": row.number}).scalar_one()
    state = {
        "status": record.status.value,
        "owner": None,
        "lease_until": None,
        "lease_seconds": None,
        "continues": record.continues,
        "last_seq": last_seq,
    }
    if given_back:
        keys.give_back(tx, row.run_id, last_seq)
    sessions.change_run(tx, row.number, record.status, state)
    sessions.keep(tx, row.number, end.text, None if row.there is None else end.messages)
    if row.there is not None:
        sessions.touch(tx, {row.there})
    _append(tx, _rows(row, end.rows))
    if row.cancel is None and end.request is not None:
        cancels.log_cancel(tx, row, end.request)
    if tx.postgres:
        tx.ended = Id.encode(row.run_id)  # found after the commit: the next run may be entering now
    else:
        ahead = tx.execute(_NEXT, {"session": row.session, "which": row.number}).scalar()
        tx.notify(dump_names(CHANGED, [row.run_id, ahead]))
    return None


_NEXT = select(runs.c.run_id).where(runs.c.session == bindparam("session"), LIVE, runs.c.number != bindparam("which"))
_NEXT = _NEXT.order_by(runs.c.number).limit(1)


class TakenRow(NamedTuple):
    """A run that was taken over, as rows. Its JSON is parsed after the transaction."""

    row: Row[Any]
    kept: Row[Any]
    epoch: int
    last_seq: int
    since: float

    def read(self) -> Taken:
        row, kept = self.row, self.kept
        messages = [] if kept.messages is None else read_messages(kept.messages)
        record = read_record(kept.record)
        # A paused run that was answered, and waits for a worker process, is still as it paused.
        if not (record.status is RunStatus.paused and row.status == RunStatus.pending.value):
            record = sessions.with_status(kept.record, RunStatus(row.status))
        record = msgspec.structs.replace(record, continues=row.continues)
        cancel = None if row.cancel is None else read_request(row.cancel)
        return Taken(Lease(row.run_id, self.epoch), record, messages, cancel, self.last_seq, self.since)


def take(tx: Tx, found: Sequence[Row[Any]], owner: str, seconds: float) -> list[TakenRow]:
    """Give these runs, whose rows are locked, to a new owner."""
    taken = []
    for row in found:
        status = RunStatus.pending if row.status == RunStatus.pending.value else RunStatus.running
        tx.write(
            update(runs)
            .where(runs.c.number == row.number)
            .values(epoch=row.epoch + 1, owner=owner, status=status.value, **clocks.lease(tx.postgres, seconds))
        )
        taken.append(taken_over(tx, row, row.epoch + 1))
    tx.notify(dump_names(LOOK_AT, [row.run_id for row in found]))
    return taken


def taken_over(tx: Tx, row: Row[Any], epoch: int) -> TakenRow:
    kept = tx.execute(select(records).where(records.c.number == row.number)).one()
    return TakenRow(row, kept, epoch, tx.execute(_LAST, {"of": row.number}).scalar_one(), tx.began)


def take_up(tx: Tx, run_id: str, owner: str, seconds: float, request_key: RequestKey | None = None) -> TakenRow | None:
    after: int | None = None
    fresh: tuple[RequestKey, SessionKey] | None = None
    if request_key is not None:
        if (found := sessions.find_run(tx, run_id)) is None:
            return None
        after = tx.execute(_LAST, {"of": found.number}).scalar_one()
        whose = sessions.key_of(found)
        if keys.take(tx, request_key, whose, run_id, after):
            fresh = request_key, whose
    row = sessions.lock_run(tx, run_id)
    if row is not None and row.status in HELD and row.owner == owner:  # the same call again: the answer was lost
        return taken_over(tx, row, row.epoch)
    waits = row is not None and row.status == RunStatus.paused.value and row.cancel is None
    # If the run was resumed since, and has paused again, the key belongs to the earlier pause.
    if row is not None and waits and after in (None, tx.execute(_LAST, {"of": row.number}).scalar_one()):
        return take(tx, [row], owner, seconds)[0]
    if fresh is not None:
        keys.drop(tx, *fresh)
    return None


def _orphans(tx: Tx, limit: int) -> Select[Any]:
    stopped = and_(runs.c.owner.is_(None), runs.c.cancel.is_not(None))  # paused, or waiting for a worker process
    return select(runs).where(LIVE, or_(clocks.expired(tx.postgres), stopped)).order_by(runs.c.number).limit(limit)


def has_orphans(tx: Tx) -> bool:
    return tx.execute(_orphans(tx, 1)).first() is not None


def take_orphans(tx: Tx, owner: str, seconds: float, limit: int) -> list[TakenRow]:
    found = tx.execute(_orphans(tx, limit).with_for_update(skip_locked=True)).all()
    return take(tx, found, owner, seconds)
