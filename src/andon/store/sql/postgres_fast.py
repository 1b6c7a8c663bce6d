# SPDX-License-Identifier: Apache-2.0
"""The most frequent operations on Postgres, each as one statement that is a whole transaction. The server holds a lock
only while it executes the statement, however busy this process is, and even if this process is stopped in the middle.

Each function does the same as the function of that name in `cancels` or `leases`, which explain the rules. It handles
the usual case. In every other case it changes nothing, and the caller uses the generic function. No statement locks
more than one session and its run. The events of many runs are one statement, which skips runs that are locked.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from andon.core.receipt import CancelRequest
from andon.core.records import RunRecord
from andon.core.selection import Outcomes, Selection
from andon.core.shared.store import Granted, Lease, Renewal
from andon.core.states import CancelOutcome, RunStatus
from andon.store.sql import queries
from andon.store.sql.clocks import SERVER_CLOCK, SERVER_UNOWNED
from andon.store.sql.codec import CHANGED, LOOK_AT, dump, dump_names, notice_around, read_request
from andon.store.sql.encoded import EncodedEnd, EncodedProgress
from andon.store.sql.notifications import CHANNEL
from andon.store.sql.schema import LOCK
from andon.store.sql.tables import HELD, Id
from andon.store.sql.transaction import Tx

EARLY = "set_config('synchronous_commit', 'off', TRUE)"
"""Commits without waiting for the disk. The caller waits for the disk afterwards."""
_NEWS = f"pg_notify('{CHANNEL}', %(news)s), {EARLY}"


# -- cancelling a run -------------------------------------------------------------------------------------------------


def request_cancel(tx: Tx, which: Selection, request: CancelRequest) -> Outcomes | None:
    """Store the first cancel of a run. None if the run has one already, has ended, is unknown, or is locked."""
    assert which.run_id is not None
    before, after = notice_around(which.run_id, request)
    values: dict[str, Any] = {name: Id.encode_or_none(getattr(which, name)) for name in queries.NAMES}
    values |= {"said": dump(request), "before": before, "after": after}
    values["look"] = dump_names(LOOK_AT, [which.run_id])[0]
    for unowned, *_ in tx.execute_autocommit(_ASK, values):
        tx.wait_for_disk()
        outcomes = Outcomes({which.run_id: CancelOutcome.requested})
        outcomes.has_orphans = unowned
        return outcomes
    return None


_ASK = f"""
WITH target AS (
  SELECT number FROM andon_runs
  WHERE run_id = %(run_id)s AND agent_id = coalesce(%(agent_id)s, agent_id) AND cancel IS NULL AND ended IS NULL
    AND user_id = coalesce(%(user_id)s, user_id) AND session_id = coalesce(%(session_id)s, session_id)
  FOR NO KEY UPDATE SKIP LOCKED
), asked AS (
  UPDATE andon_runs SET cancel = %(said)s FROM target WHERE andon_runs.number = target.number
  RETURNING andon_runs.*
), noted AS (
  INSERT INTO andon_cancels (run_id, agent_id, user_id, session_id, at, request)
  SELECT run_id, agent_id, user_id, session_id, {SERVER_CLOCK}, cancel FROM asked
)
SELECT {SERVER_UNOWNED}, {EARLY},
  pg_notify('{CHANNEL}', coalesce(%(before)s::text || owner || %(after)s::text, %(look)s::text))
FROM asked
"""


# -- entering a run ---------------------------------------------------------------------------------------------------


def enter(tx: Tx, record: RunRecord, text: str, owner: str, seconds: float, deadline: float) -> Granted | None:
    """Enter a run in a session that has no other live run. None, and nothing is entered, if the session has one, if the
    run may have to be refused, or after the deadline (in `time.monotonic()`): its caller has stopped waiting then.

    Four statements, because each must see what was committed while the one before it waited for a lock.
    """
    values = entering_values(record, text, deadline) | {"owner": owner, "seconds": seconds}
    steps = [(statement, values) for statement in (_LOCK_BLOCKS, _MAKE_HEAD, LOCK_HEAD, _ENTER)]
    for (begun,) in tx.execute_pipeline(*steps):
        return Granted.of(record.run_id, 1, tx.began, has_turn=True, is_fresh=not begun)
    return None


def entering_values(record: RunRecord, text: str, deadline: float) -> dict[str, Any]:
    """What the statements need that enter a run. `text` is the record."""
    key = record.session
    Id.check(*key)
    Id.check(record.run_id)
    return {
        "agent_id": Id.encode(key.agent_id),
        "user_id": Id.encode(key.user_id or ""),
        "session_id": Id.encode(key.session_id),
        "run_id": Id.encode(record.run_id),
        "continues": Id.encode_or_none(record.continues),
        "parent": Id.encode_or_none(record.parent_run_id),
        "created": record.created_at,
        "record": text,
        "left": deadline - time.monotonic(),
    }


_IS_HEAD = "agent_id = %(agent_id)s AND user_id = %(user_id)s AND session_id = %(session_id)s"
_LOCK_BLOCKS = f"SELECT pg_advisory_xact_lock_shared({LOCK}, 2)"
_MAKE_HEAD = f"""
INSERT INTO andon_sessions (agent_id, user_id, session_id, begun, created, updated)
VALUES (%(agent_id)s, %(user_id)s, %(session_id)s, FALSE, %(created)s::float8, {SERVER_CLOCK})
ON CONFLICT DO NOTHING
"""
LOCK_HEAD = f"SELECT FROM andon_sessions WHERE {_IS_HEAD} FOR UPDATE"
IS_FREE = f"""
{_IS_HEAD}
    AND clock_timestamp() < now() + %(left)s::float8 * interval '1 second'
    AND NOT EXISTS (SELECT FROM andon_runs WHERE session = andon_sessions.id AND ended IS NULL)
    AND NOT EXISTS (
      SELECT FROM andon_blocks
      WHERE (kind = 'agent' AND id = %(agent_id)s) OR (kind = 'user' AND id = %(user_id)s)
    )
"""
"""A session in which a run may begin: no other run is live there, and neither its agent nor its user is blocked."""
_ENTER = f"""
WITH head AS (
  SELECT id, begun FROM andon_sessions WHERE {IS_FREE}
), run AS (
  INSERT INTO andon_runs (run_id, session, agent_id, user_id, session_id, status, owner, epoch, lease_until,
    lease_seconds, continues, parent, last_seq, created)
  SELECT %(run_id)s, head.id, %(agent_id)s, %(user_id)s, %(session_id)s, '{RunStatus.running.value}', %(owner)s, 1,
    {SERVER_CLOCK} + %(seconds)s::float8, %(seconds)s::float8, %(continues)s, %(parent)s, 0, %(created)s::float8
  FROM head ON CONFLICT DO NOTHING
  RETURNING number
), kept AS (
  INSERT INTO andon_records (number, record) SELECT number, %(record)s FROM run
)
SELECT head.begun FROM run, head
"""


# -- holding a run ----------------------------------------------------------------------------------------------------

_BOTH = """
WITH head AS (
  SELECT id FROM andon_sessions WHERE id = (SELECT session FROM andon_runs WHERE run_id = %(run_id)s) FOR UPDATE
), run AS (
  SELECT *, (SELECT id FROM head) AS there FROM andon_runs
  WHERE run_id = %(run_id)s AND epoch = %(epoch)s::integer AND {fits} FOR {lock}
), touched AS (
  UPDATE andon_sessions SET begun = TRUE, updated = {clock} FROM run WHERE id = run.there
), added AS (
  INSERT INTO andon_events (number, seq, batch) SELECT run.number, line.seq, line.batch
  FROM run, unnest(string_to_array(%(lines)s::text, E'\\n'), %(seqs)s::integer[]) AS line (batch, seq)
  ON CONFLICT DO NOTHING
), """
"""A run, and, as `there`, its session: None if that was deleted. The session is locked first, because Postgres computes
the columns of a row before it locks that row. Events are sent as one text, one line per row: JSON has no line ends.
"""


def _values(new: EncodedProgress | EncodedEnd) -> dict[str, Any]:
    return {
        "run_id": Id.encode(new.lease.run_id),
        "epoch": new.lease.epoch,
        "messages": new.messages,
        "lines": _lines(batch for _, batch in new.rows),
        "seqs": _numbers(seq for seq, _ in new.rows),
    }


def _numbers(values: Iterable[int]) -> str:
    """An array as the server parses it. (The driver is slow with lists.)"""
    return f"{{{','.join(map(str, values))}}}"


def _lines(texts: Iterable[str]) -> str | None:
    return "\n".join(texts) or None


def renew(tx: Tx, leases: Sequence[Lease], seconds: float) -> Renewal:
    """Skip runs that are locked: one transaction that is stuck must not cost the other runs their leases."""
    run_ids = [Id.encode(lease.run_id) for lease in leases]
    values = {"run_ids": run_ids, "epochs": _numbers(lease.epoch for lease in leases), "seconds": seconds}
    renewed = {(run_id, epoch) for run_id, epoch, _ in tx.execute_autocommit(_RENEW, values)}
    found = {(run_id, epoch): state for run_id, epoch, *state in tx.execute_autocommit(_STATES, values)}
    tx.wait_for_disk()
    answer = Renewal([], {}, tx.began, [])
    for lease, run_id in zip(leases, run_ids, strict=True):
        this = (run_id, lease.epoch)
        if this not in found:
            answer.lost.append(lease.run_id)
            continue
        held, cancel = found[this]
        if cancel is not None:
            answer.cancels[lease.run_id] = read_request(cancel)
        if held and this not in renewed:
            answer.locked.append(lease.run_id)
    return answer


_LEASES = "unnest(%(run_ids)s::text[], %(epochs)s::integer[]) AS lease (run_id, epoch)"
_RENEW = f"""
WITH mine AS (
  SELECT number FROM andon_runs JOIN {_LEASES} USING (run_id, epoch) WHERE status IN {HELD}
  FOR NO KEY UPDATE OF andon_runs SKIP LOCKED
)
UPDATE andon_runs SET lease_until = {SERVER_CLOCK} + %(seconds)s::float8, lease_seconds = %(seconds)s::float8
FROM mine WHERE andon_runs.number = mine.number
RETURNING run_id, epoch, {EARLY}
"""
_STATES = f"""
SELECT run_id, epoch, status IN {HELD}, cancel FROM andon_runs JOIN {_LEASES} USING (run_id, epoch) WHERE ended IS NULL
"""


def write(tx: Tx, batch: Sequence[EncodedProgress]) -> list[str]:
    """Runs with new messages one by one; the events of all other runs together."""
    refused = set()
    for each in batch:
        if each.messages is not None:
            values = _values(each) | {"continues": Id.encode_or_none(each.continues)}
            values["news"] = dump_names(CHANGED, [each.lease.run_id])[0]
            if not tx.execute_autocommit(_WRITE, values):
                refused.add(each.lease.run_id)
    refused |= _add(tx, [each for each in batch if each.messages is None])
    if batch:
        tx.wait_for_disk()
    return [run_id for run_id in dict.fromkeys(each.lease.run_id for each in batch) if run_id in refused]


def _add(tx: Tx, batch: Sequence[EncodedProgress]) -> set[str]:
    if not batch:
        return set()
    rows = [(place, *row) for place, each in enumerate(batch, 1) for row in each.rows]
    values = {
        "run_ids": [Id.encode(each.lease.run_id) for each in batch],
        "epochs": _numbers(each.lease.epoch for each in batch),
        "places": _numbers(place for place, _, _ in rows),
        "seqs": _numbers(seq for _, seq, _ in rows),
        "lines": _lines(text for _, _, text in rows),
        "news": dump_names(CHANGED, [each.lease.run_id for each in batch]),
    }
    held = {row[0] for row in tx.execute_autocommit(_ADD, values)}
    return {each.lease.run_id for place, each in enumerate(batch, 1) if place not in held}


_ADD = f"""
WITH run AS (
  SELECT place, number
  FROM unnest(%(run_ids)s::text[], %(epochs)s::integer[]) WITH ORDINALITY AS news (run_id, epoch, place),
  LATERAL (
    SELECT number FROM andon_runs WHERE run_id = news.run_id AND epoch = news.epoch AND status IN {HELD}
    FOR KEY SHARE SKIP LOCKED
  ) AS held
), added AS (
  INSERT INTO andon_events (number, seq, batch) SELECT run.number, line.seq, line.batch
  FROM unnest(string_to_array(%(lines)s::text, E'\\n'), %(seqs)s::integer[], %(places)s::integer[])
    AS line (batch, seq, place) JOIN run USING (place)
  ON CONFLICT DO NOTHING
), told AS MATERIALIZED (
  SELECT pg_notify('{CHANNEL}', said) FROM unnest(%(news)s::text[]) AS said
)
SELECT place, {EARLY}, (SELECT count(*) FROM told) FROM run
"""
"""A run that is locked is skipped: the worker that ends it writes its events together with its end."""

_WRITE = _BOTH.format(fits=f"status IN {HELD}", lock="KEY SHARE", clock=SERVER_CLOCK)
_WRITE += """kept AS (
  UPDATE andon_records SET messages = %(messages)s FROM run
  WHERE andon_records.number = run.number AND run.there IS NOT NULL
), changed AS (
  UPDATE andon_runs SET continues = %(continues)s FROM run
  WHERE andon_runs.number = run.number AND run.there IS NOT NULL AND run.continues IS DISTINCT FROM %(continues)s::text
)
"""
_WRITE += f"SELECT number, {_NEWS} FROM run"


def finish(tx: Tx, end: EncodedEnd) -> bool:
    """False if this is not the usual case. Nothing is written then."""
    if not end.rows:
        return False
    record = end.record
    values = _values(end) | {
        "cancelled": record.status is RunStatus.cancelled,
        "status": record.status.value,
        "continues": Id.encode_or_none(record.continues),
        "last_seq": end.last_seq,
        "final": record.status.final,
        "record": end.text,
        "request": end.request,
    }
    if not tx.execute_autocommit(_FINISH, values):
        return False
    tx.ended = values["run_id"]
    return True


_MAY_END = f"status IN {HELD} AND (cancel IS NULL OR %(cancelled)s::boolean)"
_FINISH = _BOTH.format(fits=_MAY_END, lock="UPDATE", clock=SERVER_CLOCK)
_FINISH += f"""changed AS (
  UPDATE andon_runs SET status = %(status)s, owner = NULL, lease_until = NULL, lease_seconds = NULL,
    continues = %(continues)s, last_seq = %(last_seq)s::integer,
    ended = CASE WHEN %(final)s::boolean THEN {SERVER_CLOCK} END
  FROM run WHERE andon_runs.number = run.number
), kept AS (
  UPDATE andon_records SET record = %(record)s, messages = CASE WHEN run.there IS NULL THEN NULL ELSE %(messages)s END
  FROM run WHERE andon_records.number = run.number
), noted AS (
  INSERT INTO andon_cancels (run_id, agent_id, user_id, session_id, at, request)
  SELECT run_id, agent_id, user_id, session_id, {SERVER_CLOCK}, %(request)s::text FROM run
  WHERE cancel IS NULL AND %(request)s::text IS NOT NULL
)
SELECT number FROM run
"""
