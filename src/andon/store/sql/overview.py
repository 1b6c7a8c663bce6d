# SPDX-License-Identifier: Apache-2.0
"""Reads many runs at once, for a board (`core/shared/overview.py`).

A transaction returns rows. Their JSON is parsed after it, by `read`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from sqlalchemy import Row, bindparam, select

from andon.core.events import Event
from andon.core.receipt import Interrupt, Receipt
from andon.core.records import RunRecord
from andon.core.shared.overview import StoredRun
from andon.core.states import RunStatus
from andon.errors import describe
from andon.messages import Usage
from andon.store.sql import queries, sessions
from andon.store.sql.tables import LIVE, records, runs
from andon.store.sql.transaction import Tx

log = logging.getLogger(__name__)

MOST_LEVELS = 50
"""How many levels below a run are read."""

LATEST = 1e15
"""Stands for infinity, which not every database accepts."""

CLOCK_SLACK = 60.0
"""A run's beginning has the time of its process, and its end the time of the store. The two may differ by this."""


class RunRow(NamedTuple):
    """A run, and its record as JSON. Of a live run the record is read only if it is paused, for its questions."""

    row: Row[Any]
    record: str | None


class Facts(Struct):
    """The parts of a record that are read. A record may be large; its other parts are skipped."""

    usage: Usage | None = None
    receipt: Receipt | None = None
    error: str | None = None
    interrupts: list[Interrupt] = []


_FACTS = msgspec.json.Decoder(Facts)


def read(found: Sequence[RunRow]) -> list[StoredRun]:
    """A run that was written by another version, and can't be read by this one, is left out."""
    return [stored for each in found if (stored := _read_or_none(each)) is not None]


def _read_or_none(found: RunRow) -> StoredRun | None:
    try:
        return _read(found)
    except (ValueError, msgspec.MsgspecError) as error:
        log.debug("run %r can't be read: %s", found.row.run_id, describe(error))
        return None


def _read(found: RunRow) -> StoredRun:
    row, kept = found
    facts = Facts() if kept is None else _FACTS.decode(kept)
    status = sessions.status_of(row)
    record = RunRecord(
        row.run_id,
        sessions.key_of(row),
        status,
        row.created,
        {},
        usage=facts.usage,
        receipt=facts.receipt,
        error=facts.error,
        interrupts=facts.interrupts if status is RunStatus.paused else [],
        continues=row.continues,
        parent_run_id=row.parent,
    )
    return StoredRun(record, row.owner, row.ended)


def live_runs(tx: Tx, limit: int) -> list[RunRow]:
    found = tx.execute(_LIVE, {"most": limit}).all()
    paused = [row.number for row in found if row.status == RunStatus.paused.value]
    kept = {row.number: row.record for row in tx.execute(_RECORDS, {"numbers": paused})} if paused else {}
    return [RunRow(row, kept.get(row.number)) for row in found]


def ended_runs(tx: Tx, since: float, until: float, limit: int) -> list[RunRow]:
    span = {"since": since, "until": min(until, LATEST), "most": limit}
    return [RunRow(row, row.record) for row in tx.execute(_ENDED, span)]


def run_tree(tx: Tx, run_id: str, limit: int) -> list[RunRow]:
    """There is no index on a run's parent. But a run begins while its parent is at work, and times have an index."""
    found: list[RunRow] = []
    level = list(tx.execute(_WHOLE.where(runs.c.run_id == run_id)).all())
    for _ in range(MOST_LEVELS):
        found += [RunRow(each, each.record) for each in level]
        if not level or len(found) >= limit:
            break
        begun = min(each.created for each in level) - CLOCK_SLACK
        wanted = _BELOW.where(runs.c.parent.in_([each.run_id for each in level]), runs.c.created >= begun)
        if all(each.ended is not None for each in level):
            wanted = wanted.where(runs.c.created <= max(each.ended for each in level) + CLOCK_SLACK)
        level = list(tx.execute(wanted.limit(limit - len(found))).all())
    return found


def owners(tx: Tx, run_ids: Sequence[str]) -> dict[str, str]:
    return {row.run_id: row.owner for row in tx.execute(_OWNERS, {"ids": list(run_ids)})}


def new_rows(tx: Tx, after: Mapping[str, int], limit: int) -> dict[str, Sequence[Row[Any]]]:
    return {run_id: queries.list_events(tx, run_id, seen, limit) for run_id, seen in after.items()}


def read_new(found: Mapping[str, Sequence[Row[Any]]], after: Mapping[str, int], limit: int) -> dict[str, list[Event]]:
    return {run_id: queries.read_events(rows, run_id, after[run_id], limit) for run_id, rows in found.items()}


_OWNERS = select(runs.c.run_id, runs.c.owner)
_OWNERS = _OWNERS.where(runs.c.run_id.in_(bindparam("ids", expanding=True)), runs.c.owner.is_not(None), LIVE)
_LIVE = select(runs).where(LIVE).order_by(runs.c.number.desc()).limit(bindparam("most"))
_RECORDS = select(records.c.number, records.c.record)
_RECORDS = _RECORDS.where(records.c.number.in_(bindparam("numbers", expanding=True)))
_WHOLE = select(runs, records.c.record).join(records, records.c.number == runs.c.number)
_ENDED = _WHOLE.where(runs.c.ended >= bindparam("since"), runs.c.ended <= bindparam("until"))
_ENDED = _ENDED.order_by(runs.c.ended.desc(), runs.c.number.desc())
_ENDED = _ENDED.limit(bindparam("most"))
_BELOW = _WHOLE.order_by(runs.c.created, runs.c.number)
