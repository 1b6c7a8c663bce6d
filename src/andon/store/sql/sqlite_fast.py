# SPDX-License-Identifier: Apache-2.0
"""The most frequent operations on SQLite, through the driver without SQLAlchemy: that takes a tenth of the time.

Each function does the same as the function of that name in `leases`, which explains the rules. It handles the usual
case. In every other case it changes nothing, and the caller uses the generic function.
"""

from __future__ import annotations

import time

from andon.core.records import RunRecord
from andon.core.shared.store import Granted
from andon.core.states import RunStatus
from andon.store.sql import clocks
from andon.store.sql.codec import CHANGED, dump_names
from andon.store.sql.encoded import EncodedEnd
from andon.store.sql.tables import HELD, Id
from andon.store.sql.transaction import Tx


def enter(tx: Tx, record: RunRecord, text: str, owner: str, seconds: float) -> Granted | None:
    """Enter a run in a session that has no other live run. None if it has one, or the run may have to be refused."""
    key = record.session
    Id.check(*key)
    Id.check(record.run_id)
    names = (Id.encode(key.agent_id), Id.encode(key.user_id or ""), Id.encode(key.session_id))
    run_id = Id.encode(record.run_id)
    head = tx.execute_sqlite(_HEAD, names).fetchone()
    if tx.execute_sqlite(_IS_TAKEN, (run_id,)).fetchone() or tx.execute_sqlite(_BLOCK, names[:2]).fetchone():
        return None
    if head is None:
        session, begun = tx.execute_sqlite(_BEGIN, (*names, record.created_at, time.time())).lastrowid, False
    else:
        session, begun = head
        if tx.execute_sqlite(_LINE, (session,)).fetchone():
            return None
    held = (RunStatus.running.value, owner, clocks.monotonic() + seconds, seconds)
    others = (Id.encode_or_none(record.continues), Id.encode_or_none(record.parent_run_id))
    row = (run_id, session, *names, *held, *others, record.created_at)
    number = tx.execute_sqlite(_ENTER, row).lastrowid
    tx.execute_sqlite(_KEEP, (number, text))
    return Granted.of(record.run_id, 1, tx.began, has_turn=True, is_fresh=not begun)


_HEAD = "SELECT id, begun FROM andon_sessions WHERE agent_id = ? AND user_id = ? AND session_id = ?"
_IS_TAKEN = "SELECT 1 FROM andon_runs WHERE run_id = ?"
_BLOCK = "SELECT 1 FROM andon_blocks WHERE (kind = 'agent' AND id = ?) OR (kind = 'user' AND id = ?)"
_LINE = "SELECT 1 FROM andon_runs WHERE session = ? AND ended IS NULL LIMIT 1"
_BEGIN = """
INSERT INTO andon_sessions (agent_id, user_id, session_id, begun, created, updated) VALUES (?, ?, ?, 0, ?, ?)
"""
_ENTER = """
INSERT INTO andon_runs (run_id, session, agent_id, user_id, session_id, status, owner, lease_until, lease_seconds,
  continues, parent, created, epoch, last_seq)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 0)
"""
_KEEP = "INSERT INTO andon_records (number, record) VALUES (?, ?)"


def finish(tx: Tx, end: EncodedEnd) -> bool:
    """False if this is not the usual case."""
    lease, record, asked = end.lease, end.record, end.record.status is RunStatus.cancelled
    run = tx.execute_sqlite(_FIND, (Id.encode(lease.run_id), lease.epoch, asked)).fetchone()
    if run is None or not end.rows:
        return False
    number, session, there, cancel, *names = run
    now = time.time()
    ended = now if record.status.final else None
    tx.execute_sqlite(_END, (record.status.value, Id.encode_or_none(record.continues), end.last_seq, ended, number))
    tx.execute_sqlite(_RECORD, (end.text, None if there is None else end.messages, number))
    if there is not None:
        tx.execute_sqlite(_TOUCH, (now, there))
    for seq, batch in end.rows:
        tx.execute_sqlite(_ADD, (number, seq, batch))
    if cancel is None and end.request is not None:
        tx.execute_sqlite(_NOTE, (*names, now, end.request))
    ahead = tx.execute_sqlite(_NEXT, (session, number)).fetchone()
    tx.notify(dump_names(CHANGED, [lease.run_id, ahead and Id.decode(ahead[0])]))
    return True


_FIND = f"""
SELECT number, session, andon_sessions.id, cancel, run_id, andon_runs.agent_id, andon_runs.user_id,
  andon_runs.session_id
FROM andon_runs LEFT JOIN andon_sessions ON andon_sessions.id = session
WHERE run_id = ? AND epoch = ? AND status IN {HELD} AND (cancel IS NULL OR ?)
"""
_END = """
UPDATE andon_runs SET status = ?, owner = NULL, lease_until = NULL, lease_seconds = NULL, continues = ?, last_seq = ?,
  ended = ?
WHERE number = ?
"""
_RECORD = "UPDATE andon_records SET record = ?, messages = ? WHERE number = ?"
_TOUCH = "UPDATE andon_sessions SET begun = 1, updated = ? WHERE id = ?"
_ADD = "INSERT INTO andon_events (number, seq, batch) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_NOTE = "INSERT INTO andon_cancels (run_id, agent_id, user_id, session_id, at, request) VALUES (?, ?, ?, ?, ?, ?)"
_NEXT = """
SELECT run_id FROM andon_runs WHERE session = ? AND ended IS NULL AND number <> ? ORDER BY number LIMIT 1
"""
