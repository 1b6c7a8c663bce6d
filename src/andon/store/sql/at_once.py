# SPDX-License-Identifier: Apache-2.0
"""What is done all the time, as only Postgres can do it: in statements that need no answer in between, so that all go
there together. No lock is held meanwhile for longer than the server itself takes, however busy this process is.

These do the same as their namesakes in `asking` and `holding`, which say why. What they find to be otherwise than it
usually is, they leave to those.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from andon.core.events import Event
from andon.core.receipt import CancelRequest
from andon.core.selection import Outcomes, Selection
from andon.core.shared import Lease, Progress
from andon.core.states import CancelOutcome, RunStatus
from andon.core.store import RunRecord
from andon.messages import Message
from andon.store.sql import asking, sessions
from andon.store.sql.codec import dump, dump_lines, notice_around
from andon.store.sql.database import Tx
from andon.store.sql.push import PROGRESS
from andon.store.sql.tables import HELD, Id


def _written(name: str | None) -> str | None:
    return None if name is None else Id.written(name)


# -- asking a run -----------------------------------------------------------------------------------------------------


def request_cancel(tx: Tx, which: Selection, request: CancelRequest) -> Outcomes | None:
    """Ask a run that nobody has asked before. None if there was none."""
    assert which.run_id is not None
    before, after = notice_around(which.run_id, request)
    values: dict[str, Any] = {name: _written(getattr(which, name)) for name in asking.NAMES}
    values |= {"said": dump(request), "asked_at": request.requested_at, "before": before, "after": after}
    (row,) = tx.at_once([(_ASK, values)])
    if row is None:
        return None
    tx.wait_for_disk()
    outcomes = Outcomes({which.run_id: CancelOutcome.requested})
    outcomes.nobodys = asking.is_nobodys(*row[:2])
    return outcomes


_ASK = """
WITH asked AS (
  UPDATE andon_runs SET cancel = %(said)s
  WHERE run_id = %(run_id)s AND agent_id = coalesce(%(agent_id)s, agent_id) AND cancel IS NULL AND ended IS NULL
    AND user_id = coalesce(%(user_id)s, user_id) AND session_id = coalesce(%(session_id)s, session_id)
  RETURNING *
), noted AS (
  INSERT INTO andon_cancels (run_id, agent_id, user_id, session_id, at, request)
  SELECT run_id, agent_id, user_id, session_id, %(asked_at)s::double precision, cancel FROM asked
)
SELECT status, lease_until, set_config('synchronous_commit', 'off', TRUE),
  pg_notify('andon', coalesce(%(before)s::text || owner || %(after)s::text, ''))
FROM asked
"""


# -- holding it -------------------------------------------------------------------------------------------------------

_RUN = """run AS (
  SELECT *, {there} AS there FROM andon_runs
  WHERE run_id = %(run_id)s AND epoch = %(epoch)s::integer AND {fits} FOR {lock}
), added AS (
  INSERT INTO andon_events (number, seq, data) SELECT run.number, %(first)s::integer + line.place - 1, line.data
  FROM run, unnest(string_to_array(%(lines)s::text, E'\\n')) WITH ORDINALITY AS line (data, place)
  ON CONFLICT DO NOTHING
)"""
"""A run, and what has happened to it: as one text, which takes a tenth of the time of as many rows."""

_BOTH = """
WITH head AS (
  SELECT id FROM andon_sessions WHERE id = (SELECT session FROM andon_runs WHERE run_id = %(run_id)s) FOR UPDATE
), {run}, touched AS (
  UPDATE andon_sessions SET begun = TRUE, updated = %(now)s::double precision FROM run WHERE id = run.there
), """
"""And, as `there`, its session, None if that was deleted: it is locked first, because what a row is made of is worked
out before that row is locked.
"""


def _both(fits: str, lock: str) -> str:
    return _BOTH.format(run=_RUN.format(there="(SELECT id FROM head)", fits=fits, lock=lock))


def _values(lease: Lease, what: Sequence[Event], messages: Sequence[Message] | None, now: float) -> dict[str, Any]:
    return {
        "run_id": Id.written(lease.run_id),
        "epoch": lease.epoch,
        "now": now,
        "first": what[0].seq if what else None,
        "lines": dump_lines(what) if what else None,
        "messages": None if messages is None else dump(messages),
    }


def _has_gaps(what: Sequence[Event]) -> bool:
    return bool(what) and what[-1].seq - what[0].seq != len(what) - 1


def write(tx: Tx, batch: Sequence[Progress]) -> list[str] | None:
    if any(_has_gaps(each.events) for each in batch):
        return None
    tx.wakes, tx.says, now = True, PROGRESS, time.time()
    batch = sorted(batch, key=lambda each: each.messages is None)  # first those that lock a session
    if len(talking := [each.lease.run_id for each in batch if each.messages is not None]) > 1:
        tx.write(sessions.THEIRS, {"run_ids": talking})
    values = [_values(each.lease, each.events, each.messages, now) for each in batch]
    for each, news in zip(batch, values, strict=True):
        news["continues"] = _written(each.continues)
    rows = tx.at_once([(_ADD if news["messages"] is None else _WRITE, news) for news in values], early=True)
    return [each.lease.run_id for each, row in zip(batch, rows, strict=True) if row is None]


_ADD = "WITH " + _RUN.format(there="NULL", fits=f"status IN {HELD}", lock="KEY SHARE") + "SELECT number FROM run"
_WRITE = _both(f"status IN {HELD}", "KEY SHARE")
_WRITE += """kept AS (
  UPDATE andon_records SET messages = %(messages)s FROM run
  WHERE andon_records.number = run.number AND run.there IS NOT NULL
), changed AS (
  UPDATE andon_runs SET continues = %(continues)s FROM run
  WHERE andon_runs.number = run.number AND run.there IS NOT NULL AND run.continues IS DISTINCT FROM %(continues)s::text
)
SELECT number FROM run
"""


def finish(tx: Tx, lease: Lease, record: RunRecord, messages: Sequence[Message], what: Sequence[Event]) -> bool:
    """False if it could not be ended so: nothing is written then."""
    if not what or _has_gaps(what):
        return False
    now = time.time()
    stopped = record.receipt if record.status is RunStatus.cancelled else None
    values = _values(lease, what, messages, now) | {
        "cancelled": record.status is RunStatus.cancelled,
        "status": record.status.value,
        "continues": _written(record.continues),
        "last_seq": what[-1].seq,
        "ended": now if record.status.final else None,
        "record": dump(record),
        "request": None if stopped is None else dump(asking.request_of(stopped)),
        "asked_at": None if stopped is None else stopped.requested_at,
    }
    (row,) = tx.at_once([(_FINISH, values)])
    tx.wakes = row is not None
    return tx.wakes


_FINISH = _both(f"status IN {HELD} AND (cancel IS NULL OR %(cancelled)s::boolean)", "UPDATE")
_FINISH += """changed AS (
  UPDATE andon_runs SET status = %(status)s, owner = NULL, lease_until = NULL, continues = %(continues)s,
    last_seq = %(last_seq)s::integer, ended = %(ended)s::double precision
  FROM run WHERE andon_runs.number = run.number
), kept AS (
  UPDATE andon_records SET record = %(record)s, messages = CASE WHEN run.there IS NULL THEN NULL ELSE %(messages)s END
  FROM run WHERE andon_records.number = run.number
), noted AS (
  INSERT INTO andon_cancels (run_id, agent_id, user_id, session_id, at, request)
  SELECT run_id, agent_id, user_id, session_id, %(asked_at)s::double precision, %(request)s::text FROM run
  WHERE cancel IS NULL AND %(request)s::text IS NOT NULL
)
SELECT number FROM run
"""
