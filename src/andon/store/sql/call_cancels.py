# SPDX-License-Identifier: Apache-2.0
"""Requests to cancel one tool call, by processes that do not hold its run.

A request is a row beside the cancels of runs. It is committed before the holder of the run is notified. The holder
decides what becomes of it, because only the holder knows whether the call has ended, and answers in the row. A request
is for the holder that the run had then: if another one has the run, it is void, and the caller asks again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import Row, insert, select, update

from andon.core.shared.store import CallAnswer, CallRequest, Lease
from andon.core.states import CancelCause, CancelMode, CancelOutcome
from andon.store.sql import sessions
from andon.store.sql.codec import CHANGED, LOOK_AT, dump, dump_names
from andon.store.sql.tables import HELD, cancels, runs
from andon.store.sql.transaction import Tx

OPEN_SECONDS = 60.0
"""A request that was not answered within this time is not looked at any more. Its caller has not waited for so long."""


class _Call(Struct, frozen=True, omit_defaults=True):
    name: str
    call_id: str
    epoch: int
    """That of the run's lease, when it was asked."""
    outcome: CancelOutcome | None = None


class _Said(Struct, frozen=True):
    """The text of a row. The fields before `call` are those of a `CancelRequest`, as which older versions read it."""

    cause: CancelCause
    reason: str | None
    by: str | None
    mode: CancelMode
    grace: float | None
    requested_at: float
    force: bool
    call: _Call

    def request(self) -> CallRequest:
        return CallRequest(self.call.name, self.call.call_id, self.reason, self.force)


_read = msgspec.json.Decoder(_Said).decode

# In a JSON string a quote is escaped, so no reason has one of these in it.
_IS_CALL = cancels.c.request.like('%"call":{"name":"%')
_IS_OPEN = cancels.c.request.not_like('%"outcome":"%')
IS_RUN = cancels.c.request.not_like('%"call":{"name":"%')
"""The row is the cancel of a run."""


def ask(tx: Tx, run_id: str, request: CallRequest) -> CallAnswer | None:
    row = tx.execute(select(runs).where(runs.c.run_id == run_id)).first()
    if row is None or not _is_held(row):
        return None if row is None else _answer(row, None)
    if (said := _find(tx, run_id, request.name)) is None:
        call = _Call(request.name, request.call_id, row.epoch)
        said = _Said(CancelCause.user, request.reason, None, CancelMode.now, None, time.time(), request.force, call)
        named = {"run_id": row.run_id, "agent_id": row.agent_id, "user_id": row.user_id, "session_id": row.session_id}
        tx.write(insert(cancels).inline().values(at=tx.wall), {**named, "request": dump(said)})
    tx.notify(dump_names(LOOK_AT, [run_id]))
    return _answer(row, said)


def find_answer(tx: Tx, run_id: str, name: str) -> CallAnswer | None:
    row = tx.execute(select(runs).where(runs.c.run_id == run_id)).first()
    # The run's state first: an answer is stored before the run's end, or its pause.
    return None if row is None else _answer(row, _find(tx, run_id, name))


def list_open(tx: Tx) -> dict[Lease, list[CallRequest]]:
    wanted = select(cancels.c.run_id, cancels.c.request).where(cancels.c.at > tx.wall - OPEN_SECONDS)
    found: dict[Lease, list[CallRequest]] = {}
    for row in tx.execute(wanted.where(_IS_CALL, _IS_OPEN).order_by(cancels.c.id)):
        said = _read(row.request)
        found.setdefault(Lease(row.run_id, said.call.epoch), []).append(said.request())
    return found


def answer(tx: Tx, run_id: str, outcomes: Mapping[str, CancelOutcome]) -> None:
    for row, said in _of(tx, run_id):
        if said.call.name in outcomes and said.call.outcome is None:
            call = msgspec.structs.replace(said.call, outcome=outcomes[said.call.name])
            text = dump(msgspec.structs.replace(said, call=call))
            tx.write(update(cancels).where(cancels.c.id == row.id, _IS_OPEN).values(request=text))
    tx.notify(dump_names(CHANGED, [run_id]))


def list_cancelled(tx: Tx, run_id: str) -> set[str]:
    return {said.call.call_id for _, said in _of(tx, run_id) if said.call.outcome in (None, *_CANCELLED)}


_CANCELLED = (CancelOutcome.requested, CancelOutcome.already_requested)


def _of(tx: Tx, run_id: str) -> list[tuple[Row[Any], _Said]]:
    wanted = select(cancels.c.id, cancels.c.request).where(cancels.c.run_id == run_id, _IS_CALL)
    return [(row, _read(row.request)) for row in tx.execute(wanted)]


def _find(tx: Tx, run_id: str, name: str) -> _Said | None:
    return next((said for _, said in _of(tx, run_id) if said.call.name == name), None)


def _is_held(row: Row[Any]) -> bool:
    return row.owner is not None and row.ended is None and row.status in HELD


def _answer(row: Row[Any], said: _Said | None) -> CallAnswer:
    outcome = None if said is None else said.call.outcome
    waits = said is not None and outcome is None and _is_held(row) and row.epoch == said.call.epoch
    return CallAnswer(sessions.status_of(row), waits, outcome)
