# SPDX-License-Identifier: Apache-2.0
"""Runs that wait for a worker process, as rows (Postgres only). See `core/shared/run_queue.py` for the rules.

The engine's jobs are sent in the transaction that makes them due, through the engine's own SQL function. So there is a
job exactly if the row says so; only a job that a worker has taken and lost must be sent again.

The limits are exact: who may exceed one of them counts under a lock that all such transactions take. Far below every
limit, nothing is locked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from sqlalchemy import Row, delete, func, insert, select, text, update

from andon.core.jsonable import dump
from andon.core.records import RequestKey, SessionKey
from andon.core.session import OnBusy
from andon.core.shared.run_queue import TASK, WINDOW, QueuedAnswers, QueueLimits, Route
from andon.core.shared.store import Lease
from andon.core.states import RunStatus
from andon.errors import FullError, NotContinuableError
from andon.store.sql import clocks, keys, leases, schema, sessions
from andon.store.sql.codec import CHANGED, LOOK_AT, dump_names
from andon.store.sql.encoded import EncodedStart
from andon.store.sql.leases import TakenRow
from andon.store.sql.queue_tables import HELD_BACK, SENT, TAKEN, limits, waiting
from andon.store.sql.tables import Id, events, records, runs
from andon.store.sql.transaction import Tx

SLACK = 200
"""So far below a limit, no lock is taken: there are never so many transactions at once that start a run."""

AT_ONCE = 200
"""How many jobs one transaction sends."""

_SERVER_NOW = clocks.wall(postgres=True)


class Asked(NamedTuple):
    """A claim that was successful."""

    taken: TakenRow
    request: str
    waited: float


# -- putting ----------------------------------------------------------------------------------------------------------


def put(tx: Tx, start: EncodedStart, route: Route, on_busy: OnBusy, *, waits: bool, is_new: bool = True) -> bool:
    """A run that is not new, because it continues another one, is never refused. True if it has cancelled runs that no
    worker ends.
    """
    record = start.record
    head, ahead = leases.line_up(tx, record)
    for other in ahead:
        if other.run_id == record.run_id:
            if other.created != record.created_at or _find(tx, other.number) is None:
                raise leases.taken_id(record)
            return False  # the same call again: the answer to the first one was lost
    if is_new and start.continues is not None:
        _check_continues(tx, start.continues, head.id)
    has_orphans = leases.check_admission(tx, record, ahead, on_busy)
    room = Room(tx)
    user_id, agent_id = Id.encode(record.session.user_id or ""), Id.encode(record.session.agent_id)
    counts = room.take(user_id, agent_id)
    if not counts and not waits:
        room.refuse(user_id, agent_id)
    elif not counts and is_new:
        room.check_waiting()
    if not sessions.insert_run(tx, record, start.text, head.id, status=record.status.value, epoch=1):
        raise leases.taken_id(record)
    number = tx.execute(select(runs.c.number).where(runs.c.run_id == record.run_id)).scalar_one()
    tx.write(sessions.KEEP, {"which": number, "messages": start.messages})
    tx.write(insert(events), [{"number": number, "seq": seq, "batch": batch} for seq, batch in start.rows])
    share = _share(record.session, head.id)
    until = None if start.timeout is None else tx.wall + start.timeout
    goes_on = start.goes_on
    known = start.rows[-1][0]
    _add(tx, number, record.run_id, share, start.request, route, goes_on, counts=counts, known=known, until=until)
    if counts and not ahead:
        _send_due(tx, "waiting.number = :which", {"which": number}, room)
    return has_orphans


def _check_continues(tx: Tx, run_id: str, session: int) -> None:
    """Raise if the run goes on as another one already, or is about to. A second one could only fail, when it begins."""
    values = {"session": session, "run_id": Id.encode(run_id), "said": f'"continues":{dump(run_id)}'}
    other = tx.execute(text(_GOES_ON_AS), values).scalar()
    if other is not None:
        raise NotContinuableError(f"run {run_id!r} goes on as run {Id.decode(other)!r} already: watch that one")
    cut_off = f"{CUT_OFF} AND lost.session = :session AND (lost.run_id = :run_id OR strpos(cut.request, :said) > 0)"
    if tx.execute(text(cut_off), values).first() is not None:
        raise NotContinuableError(
            f"run {run_id!r} was cut off with its worker, and will soon go on by itself: watch the run that continues "
            "it. If there is none after a few seconds, ask again"
        )


_GOES_ON_AS = """
SELECT runs.run_id FROM andon_runs AS runs JOIN andon_records AS records USING (number)
LEFT JOIN andon_waiting AS waiting USING (number)
WHERE runs.session = :session AND (
  (runs.ended IS NULL AND strpos(waiting.request, :said) > 0)
  OR (runs.continues = :run_id AND records.messages IS NOT NULL)
)
ORDER BY runs.number LIMIT 1
"""
"""Such a run has not ended, or has the messages of the one before in its own."""


def _share(session: SessionKey, number: int) -> str:
    return f"session {number}" if session.user_id is None else f"user {Id.encode(session.user_id)}"


def _add(
    tx: Tx,
    number: int,
    run_id: str,
    share: str,
    request: str,
    route: Route,
    goes_on: bool,
    *,
    counts: bool,
    known: int,
    until: Any = None,
) -> None:
    row: dict[str, Any] = {
        "number": number,
        "run_id": run_id,
        "share": share,
        "request": request,
        "known": known,
        "state": HELD_BACK,
    }
    row |= route._asdict()
    tx.execute(insert(waiting).values(**row, jobs=0, since=tx.wall, until=until, counts=counts, goes_on=goes_on))


def _find(tx: Tx, number: int, *, lock: bool = False) -> Row[Any] | None:
    wanted = select(waiting, (_SERVER_NOW - waiting.c.since).label("waited")).where(waiting.c.number == number)
    return tx.execute(wanted.with_for_update() if lock else wanted).first()


def put_answers(tx: Tx, answers: QueuedAnswers, request: str, key: RequestKey | None) -> bool:
    run_id, known, _, route, goes_on = answers
    if (found := sessions.find_run(tx, run_id)) is None:
        return False
    whose = sessions.key_of(found)
    fresh = key is not None and keys.take(tx, key, whose, run_id, known)
    row = sessions.lock_run(tx, run_id)
    before = None if row is None else _find(tx, row.number, lock=True)
    waits = row is not None and row.status == RunStatus.paused.value and row.cancel is None
    if before is not None and before.request == request and not waits:
        return True  # the same call again: the answer to the first one was lost
    if row is None or not waits or _last(tx, row.number) != known:
        if fresh and key is not None:
            keys.drop(tx, key, whose)
        return False
    tx.write(delete(waiting).where(waiting.c.number == row.number))
    # It waits for its turn again. The process that has paused it hears that it goes on elsewhere.
    changed = {"status": RunStatus.pending.value, "epoch": row.epoch + 1}
    tx.write(update(runs).where(runs.c.number == row.number).values(changed))
    tx.notify(dump_names(LOOK_AT, [run_id]))
    _add(tx, row.number, run_id, _share(whose, row.session), request, route, goes_on, counts=False, known=known)
    _send_due(tx, "waiting.number = :which", {"which": row.number}, Room(tx))
    return True


def _last(tx: Tx, number: int) -> int:
    last = select(func.coalesce(func.max(events.c.seq), 0)).where(events.c.number == number)
    return int(tx.execute(last).scalar_one())


# -- claiming ---------------------------------------------------------------------------------------------------------


def send_next(tx: Tx, run_id: str) -> None:
    """Send the next job of this run's share."""
    row = tx.execute(select(waiting.c.share).where(waiting.c.run_id == run_id)).first()
    if row is not None:
        _send_next(tx, "waiting.share = :share", {"share": row.share}, at_most=1)


def claim(tx: Tx, run_id: str, owner: str, seconds: float) -> Asked | None:
    row = sessions.lock_run(tx, run_id)
    place = None if row is None else _find(tx, row.number, lock=True)
    if row is None or place is None:
        return None
    if row.owner == owner and place.state == TAKEN:  # the same call again: the answer was lost
        return Asked(leases.taken_over(tx, row, row.epoch), place.request, max(0.0, place.waited))
    if row.ended is not None or row.cancel is not None or row.owner is not None or place.state == TAKEN:
        return None
    if _last(tx, row.number) != place.known:  # it was answered elsewhere, and has paused again
        tx.write(delete(waiting).where(waiting.c.number == row.number))
        return None
    if _has_ahead(tx, row):
        tx.write(update(waiting).where(waiting.c.number == row.number).values(state=HELD_BACK))
        return None
    tx.write(update(waiting).where(waiting.c.number == row.number).values(state=TAKEN))
    changed = {"status": RunStatus.running.value, "epoch": row.epoch + 1, "owner": owner}
    tx.write(update(runs).where(runs.c.number == row.number).values(**changed, **clocks.lease(tx.postgres, seconds)))
    taken = leases.taken_over(tx, row, row.epoch + 1)
    _send_next(tx, "waiting.share = :share", {"share": place.share}, at_most=1)
    tx.notify(dump_names(CHANGED, [run_id]))
    return Asked(taken, place.request, max(0.0, place.waited))


def _has_ahead(tx: Tx, row: Row[Any]) -> bool:
    ahead = select(runs.c.number).where(runs.c.session == row.session, runs.c.ended.is_(None))
    return tx.execute(ahead.where(runs.c.number < row.number).limit(1)).first() is not None


def put_back(tx: Tx, run_id: str) -> None:
    mine = (waiting.c.run_id == run_id, waiting.c.state == SENT)
    tx.write(update(waiting).where(*mine).values(state=HELD_BACK))


def hand_back(tx: Tx, lease: Lease) -> None:
    row = sessions.lock_run(tx, lease.run_id)
    if row is None or row.epoch != lease.epoch or row.owner is None or row.ended is not None:
        return  # the same call again, or another process has taken it over
    # If it was cancelled meanwhile, it ends like each cancelled run that nobody holds.
    free = {"status": RunStatus.pending.value, "owner": None, "lease_until": None, "lease_seconds": None}
    tx.write(update(runs).where(runs.c.number == row.number).values(epoch=row.epoch + 1, **free))
    tx.write(update(waiting).where(waiting.c.number == row.number).values(state=HELD_BACK))
    _send_due(tx, "waiting.number = :which", {"which": row.number}, Room(tx))
    tx.notify(dump_names(LOOK_AT, [lease.run_id]))


_HAS_NEXT = f"""
SELECT FROM andon_runs AS runs WHERE run_id = :run_id AND (
  EXISTS (
    SELECT FROM andon_waiting AS waiting JOIN andon_runs AS other USING (number)
    WHERE other.session = runs.session AND other.ended IS NULL AND waiting.state = '{HELD_BACK}'
  ) OR EXISTS (
    SELECT FROM andon_waiting AS mine JOIN andon_waiting AS next USING (share)
    WHERE mine.number = runs.number AND next.state = '{HELD_BACK}'
  ) OR EXISTS (SELECT FROM andon_waiting WHERE state = '{HELD_BACK}' AND NOT counts)
)
"""


def has_next(tx: Tx, run_id: str) -> bool:
    """Has a run of the same session, or of the same share, no job yet? Or does any run wait for room?"""
    return tx.execute(text(_HAS_NEXT), {"run_id": Id.encode(run_id)}).first() is not None


def ended(tx: Tx, run_id: str) -> None:
    """Send the next job of this run's session or share, and of the run that waits for room and whose turn it is."""
    row = tx.execute(select(runs).where(runs.c.run_id == run_id)).first()
    if row is None:
        return
    values = {"session": row.session, "share": _share(sessions.key_of(row), row.session)}
    _send_next(tx, "(runs.session = :session OR waiting.share = :share)", values, at_most=2)


# -- sending jobs -----------------------------------------------------------------------------------------------------

CUT_OFF = f"""
SELECT FROM andon_waiting AS cut JOIN andon_runs AS lost USING (number)
WHERE cut.goes_on AND cut.state = '{TAKEN}' AND lost.ended IS NOT NULL AND lost.status = '{RunStatus.cancelled.value}'
  AND (lost.cancel IS NULL OR strpos(lost.cancel, '"cause":"shutdown"') > 0)
"""
"""Runs that were lost and may go on. They have their turn before the runs behind them (`decide`)."""
_IS_READY = f"""
waiting.state = '{HELD_BACK}' AND runs.ended IS NULL AND runs.owner IS NULL AND runs.cancel IS NULL AND NOT EXISTS (
  SELECT FROM andon_runs AS other
  WHERE other.session = runs.session AND other.ended IS NULL AND other.number < runs.number
) AND NOT EXISTS ({CUT_OFF} AND lost.session = runs.session AND lost.number < runs.number)
"""
"""No run is ahead in its session, and none was lost there that may go on."""
_FIELDS = (
    "waiting.number, waiting.run_id, waiting.channel, waiting.priority, waiting.share, waiting.jobs, waiting.counts"
)
_FIELDS += ", waiting.known, runs.agent_id, runs.user_id"
_DUE = f"""
SELECT {_FIELDS} FROM andon_waiting AS waiting JOIN andon_runs AS runs USING (number)
WHERE {{which}} AND {_IS_READY}
ORDER BY waiting.priority DESC, waiting.number LIMIT :limit
FOR UPDATE OF waiting SKIP LOCKED
"""
_SENT = (
    f"SELECT share, count(*) AS runs FROM andon_waiting WHERE state = '{SENT}' AND share = ANY(:shares) GROUP BY share"
)


_FAIRLY = f"""
WITH active AS (
  SELECT share, count(*) AS runs FROM andon_waiting JOIN andon_runs USING (number)
  WHERE state <> '{HELD_BACK}' AND ended IS NULL AND status <> '{RunStatus.paused.value}' GROUP BY share
), ready AS (
  SELECT waiting.number, waiting.priority, waiting.share, row_number() OVER (
    PARTITION BY waiting.share ORDER BY waiting.priority DESC, waiting.number
  ) AS place
  FROM andon_waiting AS waiting JOIN andon_runs AS runs USING (number)
  WHERE {_IS_READY} AND runs.agent_id <> ALL(:agents) AND runs.user_id <> ALL(:users)
)
SELECT number FROM ready LEFT JOIN active USING (share) WHERE place <= {WINDOW}
ORDER BY priority DESC, place + coalesce(active.runs, 0), number LIMIT {AT_ONCE}
"""
"""Those that are ready, in turn: the next is the one whose share has the fewest runs at work and before it."""
_FOR_ROOM = f"SELECT EXISTS (SELECT FROM andon_waiting WHERE state = '{HELD_BACK}' AND NOT counts)"


def _send_next(tx: Tx, which: str, values: Mapping[str, Any], at_most: int) -> None:
    """Send the next jobs of these, and, if runs of any share wait for room, of the one whose turn it is."""
    room = Room(tx)
    _send_due(tx, f"{which} AND waiting.counts", values, room, at_most)
    if tx.execute(text(_FOR_ROOM)).scalar_one():
        _send_fairly(tx, room, at_most=1)


def _send_fairly(tx: Tx, room: Room, at_most: int = AT_ONCE) -> None:
    """Send all that are ready, as far as the limits allow it, in turn."""
    while True:
        full = len(room.full_agents) + len(room.full_users)
        values = {"agents": list(room.full_agents), "users": list(room.full_users)}
        numbers = list(tx.execute(text(_FAIRLY), values).scalars())
        if not numbers:
            return
        which = text(_DUE.format(which="waiting.number = ANY(:numbers)"))
        due = {row.number: row for row in tx.execute(which, {"numbers": numbers, "limit": AT_ONCE})}
        sent = _send_allowed(tx, [due[number] for number in numbers if number in due], room, at_most)
        at_most -= sent
        # Those of an agent or a user that has no room must not hide the others behind them.
        if at_most == 0 or room.is_full or len(room.full_agents) + len(room.full_users) == full:
            return


def _send_due(tx: Tx, which: str, values: Mapping[str, Any], room: Room, at_most: int = 1) -> None:
    """Send the jobs of those that are ready, of these, as far as their shares' windows and the limits allow it."""
    due = tx.execute(text(_DUE.format(which=which)), {**values, "limit": at_most}).all()
    _send_allowed(tx, due, room)


def _send_allowed(tx: Tx, due: Sequence[Row[Any]], room: Room, at_most: int = AT_ONCE) -> int:
    """How many were sent."""
    if not due:
        return 0
    counted = tx.execute(text(_SENT), {"shares": list({row.share for row in due})})
    sent = Counter({row.share: row.runs for row in counted})
    allowed = list[Row[Any]]()
    for row in due:
        if len(allowed) == at_most:
            break
        if sent[row.share] < WINDOW and (row.counts or room.take(row.user_id, row.agent_id)):
            sent[row.share] += 1
            allowed.append(row)
    _send(tx, allowed)
    return len(allowed)


DEFER = f"""
procrastinate_defer_jobs_v1(ARRAY[
  ROW(CAST(:channel AS text), '{TASK}', CAST(:priority AS integer), NULL, CAST(:lock AS text),
    jsonb_build_object('run_id', CAST(:run_id AS text)), NULL)
]::procrastinate_job_to_defer_v1[])
"""
"""Sends a job. No two jobs of a run have the same `lock`, so none can be refused."""
_DEFER = text(f"SELECT {DEFER}")


def lock_of(run_id: str, known: int, jobs: int) -> str:
    """`run_id` as it is stored; `jobs`: the number of this job among those of the run."""
    return f"{run_id}:{known}:{jobs}"


def _send(tx: Tx, rows: Sequence[Row[Any]]) -> None:
    """Send a job for each of these."""
    if not rows:
        return
    now = {"sent": tx.wall, "state": SENT, "jobs": waiting.c.jobs + 1}
    numbers = [row.number for row in rows]
    tx.write(update(waiting).where(waiting.c.number.in_(numbers)).values(now))
    for row in rows:
        values = {"channel": row.channel, "priority": row.priority, "run_id": row.run_id}
        tx.write(_DEFER, {**values, "lock": lock_of(row.run_id, row.known, row.jobs + 1)})


# -- limits -----------------------------------------------------------------------------------------------------------

_COUNTS = f"""
SELECT runs.user_id, runs.agent_id, count(*) AS runs
FROM andon_runs AS runs LEFT JOIN andon_waiting AS waiting USING (number)
WHERE runs.ended IS NULL AND runs.parent IS NULL AND (
  runs.owner IS NOT NULL OR waiting.state = '{SENT}' OR (waiting.state = '{HELD_BACK}' AND waiting.counts)
)
GROUP BY runs.user_id, runs.agent_id
"""
USERS_COUNT = f"SELECT coalesce(sum(runs), 0) FROM ({_COUNTS}) AS counts WHERE user_id = :user_id"
LOCK_USER = f"SELECT pg_advisory_xact_lock({schema.LOCK} + 1, hashtext(:user_id))"
LIVE_COUNT = "SELECT count(*) FROM andon_runs WHERE ended IS NULL"
_WITHOUT_ROOM = f"SELECT count(*) FROM andon_waiting WHERE state = '{HELD_BACK}' AND NOT counts"


class Room:
    """How many more runs there may be, over all processes. It counts when it is first asked."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._most: dict[str, int] | None = None
        self._all = 0
        self._users: dict[str, int] = {}
        self._agents: Counter[str] = Counter()
        self._has_plenty = False
        self.is_full = False
        """There was no place for the last one, of whichever user and agent."""
        self.full_agents: set[str] = set()
        self.full_users: set[str] = set()

    def _count(self) -> dict[str, int]:
        if self._most is not None:
            return self._most
        tx = self._tx
        most = self._most = read_limits(tx)
        live = tx.execute(text(LIVE_COUNT)).scalar_one()
        self._has_plenty = live + SLACK < min(most["max_runs"], most["max_agent_runs"])
        if not self._has_plenty:
            tx.execute(select(func.pg_advisory_xact_lock(schema.LOCK, 3)))
            for row in tx.execute(text(_COUNTS)):
                self._all += row.runs
                self._agents[row.agent_id] += row.runs
        return most

    def _count_of(self, user_id: str) -> int:
        """How many runs this user has, counted under a lock of this user's own."""
        if user_id not in self._users:
            self._tx.execute(text(LOCK_USER), {"user_id": user_id})
            self._users[user_id] = self._tx.execute(text(USERS_COUNT), {"user_id": user_id}).scalar_one()
        return self._users[user_id]

    def take(self, user_id: str, agent_id: str) -> bool:
        """Take a place for a run of this user and this agent, both as columns have them. False if there is none."""
        full = self._full(self._count(), user_id, agent_id)
        if full == "max_agent_runs":
            self.full_agents.add(agent_id)
        elif full == "max_user_runs":
            self.full_users.add(user_id)
        elif full is None:
            self._all += 1
            self._agents[agent_id] += 1
            if user_id:
                self._users[user_id] += 1
        self.is_full = full == "max_runs"
        return full is None

    def _full(self, most: Mapping[str, int], user_id: str, agent_id: str) -> str | None:
        if not self._has_plenty and self._all >= most["max_runs"]:
            return "max_runs"
        if not self._has_plenty and self._agents[agent_id] >= most["max_agent_runs"]:
            return "max_agent_runs"
        return "max_user_runs" if user_id and self._count_of(user_id) >= most["max_user_runs"] else None

    def refuse(self, user_id: str, agent_id: str) -> NoReturn:
        """There is no place for such a run: say so."""
        most = self._count()
        limit = self._full(most, user_id, agent_id) or "max_runs"
        whose = {"max_runs": "runs", "max_user_runs": "runs of this user", "max_agent_runs": "runs of this agent"}
        raise FullError(
            f"{most[limit]} {whose[limit]} are working or about to, which is the limit of all servers together: try "
            'again later, or wait for room with on_full="queue"'
        )

    def check_waiting(self) -> None:
        """Raise if too many runs wait already."""
        most = self._count()["max_waiting_runs"]
        if self._tx.execute(text(_WITHOUT_ROOM)).scalar_one() >= most:
            raise FullError(f"{most} runs wait for room, which is the limit: try again later")


def read_limits(tx: Tx) -> dict[str, int]:
    kept = {row.name: row.most for row in tx.execute(select(limits.c.name, limits.c.most))}
    return {
        name: kept.get(name, default) for name, default in zip(QueueLimits.__struct_fields__, _DEFAULTS, strict=True)
    }


_DEFAULTS = QueueLimits.__struct_defaults__

# -- going on after a lost worker -------------------------------------------------------------------------------------

_CUT_OFF = f"""
SELECT waiting.channel, waiting.queue, waiting.priority, waiting.request, records.record,
  coalesce(records.messages, '{sessions.NOTHING}') = '{sessions.NOTHING}' AS left_nothing
FROM andon_waiting AS waiting JOIN andon_runs AS runs USING (number) JOIN andon_records AS records USING (number)
WHERE waiting.goes_on AND waiting.state = '{TAKEN}' AND runs.ended IS NOT NULL
  AND runs.status = '{RunStatus.cancelled.value}'
LIMIT 50
"""


def list_cut_off(tx: Tx) -> Sequence[Row[Any]]:
    return tx.execute(text(_CUT_OFF)).all()


def decide(tx: Tx, run_id: str, start: EncodedStart | None, route: Route | None) -> bool:
    row = sessions.lock_run_and_session(tx, run_id)
    if row is None or _find(tx, row.number, lock=True) is None:
        return True  # another process has decided it
    tx.write(delete(waiting).where(waiting.c.number == row.number))
    if start is None or route is None:
        ended(tx, run_id)  # the next one had to wait for this
        return True
    later = select(runs).where(runs.c.session == row.session, runs.c.number > row.number).order_by(runs.c.number)
    behind = tx.execute(later.with_for_update()).all()
    if any(each.owner is not None or each.status != RunStatus.pending.value for each in behind):
        ended(tx, run_id)
        return False
    put(tx, start, route, "queue", waits=True, is_new=False)
    if behind:  # none of them has begun: this one has its turn first
        for each in behind:
            _move_to_end(tx, each.number)
        _send_due(tx, "waiting.run_id = :which", {"which": Id.encode(start.record.run_id)}, Room(tx))
    return True


def _move_to_end(tx: Tx, number: int) -> None:
    """Move a run that has not begun to the end of its session's queue. Its rows are named by its place there."""
    place = tx.execute(select(text("nextval(pg_get_serial_sequence('andon_runs', 'number'))"))).scalar_one()
    for table in (waiting, runs, records, events):
        tx.write(update(table).where(table.c.number == number).values(number=place))


# -- sweeping ---------------------------------------------------------------------------------------------------------

_LOST = f"""
SELECT {_FIELDS} FROM andon_waiting AS waiting JOIN andon_runs AS runs USING (number)
WHERE waiting.state = '{SENT}' AND waiting.sent < {clocks.SERVER_CLOCK} - :stale
  AND runs.ended IS NULL AND runs.owner IS NULL AND runs.cancel IS NULL
  AND NOT EXISTS (
    SELECT FROM procrastinate_jobs AS job
    WHERE job.status = 'todo' AND job.queueing_lock = waiting.run_id || ':' || waiting.known || ':' || waiting.jobs
  )
ORDER BY waiting.number LIMIT {AT_ONCE}
FOR UPDATE OF waiting SKIP LOCKED
"""
_FORGET = f"""
DELETE FROM andon_waiting AS waiting USING (
  SELECT number FROM andon_waiting LEFT JOIN andon_runs AS runs USING (number)
  WHERE runs.number IS NULL OR (state = '{TAKEN}' AND runs.status = '{RunStatus.paused.value}') OR (
    runs.ended IS NOT NULL AND NOT (goes_on AND state = '{TAKEN}' AND runs.status = '{RunStatus.cancelled.value}')
  )
  LIMIT {AT_ONCE}
) AS gone WHERE waiting.number = gone.number AND (
  waiting.state <> '{HELD_BACK}' OR NOT EXISTS (SELECT FROM andon_runs WHERE number = gone.number AND ended IS NULL)
)
"""


_OVERDUE = f"""
SELECT waiting.run_id FROM andon_waiting AS waiting JOIN andon_runs AS runs USING (number)
WHERE waiting.until < {clocks.SERVER_CLOCK} AND runs.ended IS NULL AND runs.owner IS NULL AND runs.cancel IS NULL
  AND runs.status = '{RunStatus.pending.value}'
LIMIT {AT_ONCE}
"""


def sweep(tx: Tx, stale: float) -> list[str]:
    """One process does it at a time. The others need not wait for it."""
    if not tx.execute(select(func.pg_try_advisory_xact_lock(schema.LOCK, 4))).scalar_one():
        return []
    tx.write(text(_FORGET))
    _send(tx, tx.execute(text(_LOST), {"stale": stale}).all())
    _send_fairly(tx, Room(tx))
    return [Id.decode(run_id) for run_id in tx.execute(text(_OVERDUE)).scalars()]


_LEFT_BEHIND = text(f"""
DELETE FROM procrastinate_jobs AS job WHERE job.task_name = '{TASK}' AND job.status = 'doing' AND (
  job.worker_id IS NULL
  OR job.worker_id IN (
    SELECT id FROM procrastinate_workers WHERE last_heartbeat < clock_timestamp() - :stale * interval '1 second'
  )
  OR EXISTS (
    SELECT FROM andon_runs AS runs
    WHERE runs.run_id = job.args->>'run_id' AND runs.ended < {clocks.SERVER_CLOCK} - :stale
  )
)
""")


def clean(tx: Tx, stale: float) -> None:
    """A job of a run that has ended may be there again after a crash of the server (`scale/engine`)."""
    tx.write(_LEFT_BEHIND, {"stale": stale})
