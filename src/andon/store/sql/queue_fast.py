# SPDX-License-Identifier: Apache-2.0
"""The most frequent operations of the queue of runs, each sent to the server at once, as those of `postgres_fast` are.

Each function does the same as the function of that name in `waiting`, which explains the rules. It handles the usual
case. In every other case no run is entered and none is claimed, and the caller uses the function in `waiting`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from andon.core.shared.run_queue import WINDOW, QueueLimits, Route
from andon.core.states import RunStatus
from andon.store.sql.clocks import SERVER_CLOCK
from andon.store.sql.codec import CHANGED, dump_names
from andon.store.sql.encoded import EncodedStart
from andon.store.sql.postgres_fast import EARLY, IS_FREE, LOCK_HEAD, entering_values
from andon.store.sql.queue_tables import HELD_BACK, SENT, TAKEN
from andon.store.sql.schema import LOCK
from andon.store.sql.tables import Id
from andon.store.sql.transaction import Tx
from andon.store.sql.waiting import CUT_OFF, DEFER, LIVE_COUNT, LOCK_USER, SLACK, USERS_COUNT, lock_of

# -- putting ----------------------------------------------------------------------------------------------------------


def put(tx: Tx, start: EncodedStart, route: Route, deadline: float) -> bool:
    """Enter a run in a session that has no other live run, and none that may go on, far below the limits of all runs.
    Send its job if its share's window has room. False, and nothing is entered, in any other case, or after the deadline
    (in `time.monotonic()`).

    The steps are one transaction, and are sent together. Each step sees what was committed while the one before it
    waited for a lock.
    """
    ((seq, batch),) = start.rows
    record = start.record
    values = entering_values(record, start.text, deadline)
    values |= {
        "messages": start.messages,
        "seq": seq,
        "batch": batch,
        "request": start.request,
        "goes_on": start.goes_on,
        "timeout": start.timeout,
        "status": record.status.value,
        "lock": lock_of(values["run_id"], seq, 1),
        **route._asdict(),
    }
    steps = [_BEGIN, _MAKE_HEAD, LOCK_HEAD, *([_LOCK_USER] if record.session.user_id else []), _PUT]
    return bool(tx.execute_pipeline(*((step, values) for step in steps), early=True))


def _for_driver(statement: str) -> str:
    """The same, with the values named as the driver has it, and not as SQLAlchemy has it."""
    return re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", statement)


def _most(name: str) -> str:
    """A limit, as SQL."""
    default = dict(zip(QueueLimits.__struct_fields__, QueueLimits.__struct_defaults__, strict=True))[name]
    return f"coalesce((SELECT most FROM andon_limits WHERE name = '{name}'), {default})"


# A session is not made for a run that will be refused.
_BEGIN = f"""
SELECT pg_advisory_xact_lock_shared({LOCK}, 2),
  set_config('andon.has_room', CAST(
    ({LIVE_COUNT}) + {SLACK} < least({_most("max_runs")}, {_most("max_agent_runs")}) AS text
  ), TRUE)
"""
_HAS_ROOM = "current_setting('andon.has_room') = 'true'"
_MAKE_HEAD = f"""
INSERT INTO andon_sessions (agent_id, user_id, session_id, begun, created, updated)
SELECT %(agent_id)s, %(user_id)s, %(session_id)s, FALSE, %(created)s::float8, {SERVER_CLOCK} WHERE {_HAS_ROOM}
ON CONFLICT DO NOTHING
"""
_LOCK_USER = _for_driver(LOCK_USER)
_HAS_USERS_ROOM = f"(%(user_id)s = '' OR ({_for_driver(USERS_COUNT)}) < {_most('max_user_runs')})"
_PUT = f"""
WITH head AS (
  SELECT id, CASE %(user_id)s::text WHEN '' THEN 'session ' || id ELSE 'user ' || %(user_id)s::text END AS share
  FROM andon_sessions WHERE {IS_FREE}
    AND {_HAS_ROOM} AND {_HAS_USERS_ROOM} AND NOT EXISTS ({CUT_OFF} AND lost.session = andon_sessions.id)
), place AS (
  SELECT *, (
    SELECT count(*) FROM andon_waiting AS waiting WHERE waiting.share = head.share AND waiting.state = '{SENT}'
  ) < {WINDOW} AS is_due FROM head
), run AS (
  INSERT INTO andon_runs (run_id, session, agent_id, user_id, session_id, status, epoch, continues, parent, last_seq,
    created)
  SELECT %(run_id)s, place.id, %(agent_id)s, %(user_id)s, %(session_id)s, %(status)s, 1, %(continues)s, %(parent)s, 0,
    %(created)s::float8
  FROM place ON CONFLICT DO NOTHING
  RETURNING number
), kept AS (
  INSERT INTO andon_records (number, record, messages) SELECT number, %(record)s, %(messages)s FROM run
), begun AS (
  INSERT INTO andon_events (number, seq, batch) SELECT number, %(seq)s::integer, %(batch)s FROM run
), waits AS (
  INSERT INTO andon_waiting (number, run_id, channel, queue, priority, share, request, state, known, jobs, since,
    counts, goes_on, until, sent)
  SELECT run.number, %(run_id)s, %(channel)s, %(queue)s, %(priority)s::integer, place.share, %(request)s,
    CASE WHEN is_due THEN '{SENT}' ELSE '{HELD_BACK}' END, %(seq)s::integer, is_due::integer, {SERVER_CLOCK},
    TRUE, %(goes_on)s::boolean, {SERVER_CLOCK} + %(timeout)s::float8, CASE WHEN is_due THEN {SERVER_CLOCK} END
  FROM run, place
)
SELECT CASE WHEN is_due THEN {_for_driver(DEFER)} END FROM run, place
"""


# -- claiming ---------------------------------------------------------------------------------------------------------

_CLAIM = f"""
WITH place AS (
  SELECT waiting.*, {SERVER_CLOCK} - waiting.since AS waited
  FROM andon_waiting AS waiting WHERE waiting.run_id = %(run_id)s AND waiting.state <> '{TAKEN}' FOR UPDATE SKIP LOCKED
), run AS (
  UPDATE andon_runs SET status = '{RunStatus.running.value}', owner = %(owner)s, epoch = andon_runs.epoch + 1,
    lease_until = {SERVER_CLOCK} + %(seconds)s::float8, lease_seconds = %(seconds)s::float8
  FROM place
  WHERE andon_runs.number = place.number AND status = '{RunStatus.pending.value}' AND owner IS NULL AND cancel IS NULL
    AND NOT EXISTS (
      SELECT FROM andon_runs AS other
      WHERE other.session = andon_runs.session AND other.ended IS NULL AND other.number < andon_runs.number
    )
    AND place.known = (SELECT max(seq) FROM andon_events WHERE andon_events.number = place.number)
  RETURNING andon_runs.number, andon_runs.epoch, andon_runs.session
), taken AS (
  UPDATE andon_waiting SET state = '{TAKEN}' FROM run WHERE andon_waiting.number = run.number
)
SELECT run.epoch, place.request, place.waited, place.known, records.record, records.messages,
  EXISTS (SELECT FROM andon_waiting AS next WHERE next.share = place.share AND next.state = '{HELD_BACK}'),
  CASE place.known WHEN 1 THEN (SELECT batch FROM andon_events WHERE number = run.number AND seq = 1) END,
  EXISTS (SELECT FROM andon_sessions WHERE id = run.session AND NOT begun)
FROM run, place JOIN andon_records AS records USING (number)
"""


class QuickClaim(NamedTuple):
    """The answer of `claim`."""

    since: float
    epoch: int
    request: str
    waited: float
    known: int
    record: str
    messages: str | None
    has_next: bool
    """A run of the same share has no job yet."""
    first: str | None
    """The run's only event, if it has no other ones yet."""
    is_fresh: bool
    """Its session has no messages yet."""


def claim(tx: Tx, run_id: str, owner: str, seconds: float) -> QuickClaim | None:
    """Claim a run as one statement, which is a whole transaction.

    None, and nothing has changed, if that is not possible: then `waiting.claim` decides.
    """
    name = Id.encode(run_id)
    values = {"run_id": name, "owner": owner, "seconds": seconds}
    for epoch, request, waited, *rest in tx.execute_autocommit(_CLAIM, values):
        tx.notify(dump_names(CHANGED, [run_id]))  # after the answer: no other commit waits for this one's disk
        return QuickClaim(tx.began, epoch, request, max(0.0, waited), *rest)
    return None


# -- sweeping ---------------------------------------------------------------------------------------------------------


def begin_sweep(tx: Tx, every: float) -> bool:
    """A clock that was set back is no reason to wait."""
    return bool(tx.execute_autocommit(_BEGIN_SWEEP, {"every": every}))


_BEGIN_SWEEP = f"""
UPDATE andon_queue_meta SET swept = {SERVER_CLOCK}
WHERE swept <= {SERVER_CLOCK} - %(every)s::float8 OR swept > {SERVER_CLOCK}
RETURNING {EARLY}
"""
