# SPDX-License-Identifier: Apache-2.0
"""Cancel requests for runs, by processes that need not hold them, and the log of these requests.

The first request of a run is the one that counts. It is committed before the holder of the run is notified. A later
request can only make it stronger: a stronger mode, a shorter grace, or force. Each request that changes something is in
the log, with the name of the user who made it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Row, Select, bindparam, insert, select, update

from andon.core.receipt import CancelRequest, Receipt
from andon.core.records import SessionKey
from andon.core.selection import CancelEntry, Outcomes, Selection
from andon.core.states import CancelMode, CancelOutcome
from andon.store.sql import call_cancels, clocks, queries
from andon.store.sql.codec import LOOK_AT, dump, dump_names, dump_notice, read_request
from andon.store.sql.tables import LIVE, cancels, runs
from andon.store.sql.transaction import Tx, chunks


def request_cancel(tx: Tx, which: Selection, request: CancelRequest) -> Outcomes:
    if which.run_id is None:
        wanted = (
            _wanted(tx.postgres)
            .where(*queries.fits(which, runs), *queries.has_status(which), LIVE)
            .order_by(runs.c.number)
        )
        return apply(tx, tx.execute(wanted.with_for_update(key_share=True)).all(), request)
    tx.limit_lock_wait()  # a cancel of many runs waits for each lock
    if which.statuses:
        wanted = _wanted(tx.postgres).where(*queries.fits(which, runs), *queries.has_status(which))
        row = tx.execute(wanted.with_for_update(key_share=True)).first()
    else:
        given = queries.given(which)
        row = tx.execute(_that(tx.postgres, *given), given).first()
    if row is not None and row.ended is None:
        return apply(tx, [row], request)
    tx.early = False
    return Outcomes({which.run_id: CancelOutcome.unknown if row is None else CancelOutcome.already_finished})


def apply(tx: Tx, rows: Sequence[Row[Any]], request: CancelRequest) -> Outcomes:
    """Cancel these runs, whose rows are locked and which have not ended. A row's `unowned`: see `clocks.unowned`."""
    outcomes, fresh, said, changed_again = Outcomes(), [], dump(request), []
    outcomes.has_orphans = any(row.unowned for row in rows)
    log = [_entry(row, said) for row in rows if row.cancel is None]
    for row in rows:
        if row.cancel is None:
            fresh.append(row.number)
            outcomes[row.run_id] = CancelOutcome.requested
            continue
        if row.cancel == said:  # the same call again: the answer was lost
            outcomes[row.run_id] = CancelOutcome.requested
            continue
        outcomes[row.run_id] = CancelOutcome.already_requested
        before = read_request(row.cancel)
        after = merge(before, request)
        if after != before:
            tx.write(_ASK, {"numbers": [row.number], "cancel": dump(after)})
            log.append(_entry(row, said))
            changed_again.append(row.run_id)
    for these in chunks(fresh):
        tx.write(_ASK, {"numbers": these, "cancel": said})
    if log:
        tx.write(_NOTE.values(at=tx.wall), log)
    # One new cancel is sent in the notification. Of several, or of a changed one, the holder reads the rows.
    changed = [*changed_again, *(row.run_id for row in rows if row.cancel is None)]
    notice = dump_notice(rows[0].run_id, rows[0].owner, request) if len(fresh) == len(rows) == 1 else ""
    tx.notify([notice] if notice else dump_names(LOOK_AT, changed))
    return outcomes


def _wanted(postgres: bool) -> Select[Any]:
    return select(runs, clocks.unowned(postgres).label("unowned"))


@functools.cache
def _that(postgres: bool, *names: str) -> Select[Any]:
    """One run, by its names. With `key_share`, this does not wait for a batch of events that is being written."""
    wanted = _wanted(postgres).where(*(runs.c[name] == bindparam(name) for name in names))
    return wanted.with_for_update(key_share=True)


_ASK = update(runs).where(runs.c.number.in_(bindparam("numbers", expanding=True)))
_NOTE = insert(cancels).inline()


def merge(before: CancelRequest, request: CancelRequest) -> CancelRequest:
    """The first request, with the stronger mode and the shorter grace of a later one.

    With `now`, the grace is how long calls are let finish: the request that brought `now` says that. A later `now`
    changes nothing more, and `force` ends it.
    """
    if before.force or (before.mode is CancelMode.now and not request.force):
        return before
    if request.rank >= CancelMode.now.rank:
        return msgspec.structs.replace(before, mode=CancelMode.now, grace=request.grace, force=request.force)
    mode = max(before.mode, request.mode, key=lambda mode: mode.rank)
    bounds = [each.grace for each in (before, request) if each.grace is not None]
    return msgspec.structs.replace(before, mode=mode, grace=min(bounds, default=None))


def _entry(row: Row[Any], request: str) -> dict[str, Any]:
    return {
        "run_id": row.run_id,
        "agent_id": row.agent_id,
        "user_id": row.user_id,
        "session_id": row.session_id,
        "request": request,
    }


def log_cancel(tx: Tx, row: Row[Any], request: str) -> None:
    """Log a cancel that the worker had before the store."""
    tx.write(_NOTE.values(at=tx.wall), _entry(row, request))


def request_of(receipt: Receipt) -> CancelRequest:
    return CancelRequest(receipt.cause, receipt.reason, receipt.by, receipt.mode, None, receipt.requested_at)


def cancel_log(tx: Tx, which: Selection, limit: int) -> list[CancelEntry]:
    wanted = select(cancels).where(*queries.fits(which, cancels), call_cancels.IS_RUN)
    if which.statuses:
        wanted = wanted.where(cancels.c.run_id.in_(select(runs.c.run_id).where(*queries.has_status(which))))
    found = tx.execute(wanted.order_by(cancels.c.id.desc()).limit(limit))
    return [
        CancelEntry(
            row.run_id, read_request(row.request), SessionKey(row.agent_id, row.user_id or None, row.session_id)
        )
        for row in found
    ]
