# SPDX-License-Identifier: Apache-2.0
"""The queue's statements in any order, against a small model: put, claim, cancel, end, pause, answer, lost jobs.

Whatever happened before, the rest can be played to its end, and then no row is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import Struct
from psycopg.rows import namedtuple_row

from andon import Event, RunEvent, RunStatus, SessionKey
from andon.core.receipt import CancelRequest
from andon.core.selection import Selection
from andon.core.shared.run_queue import WINDOW, ClaimedRun, QueuedAnswers, QueuedStart, QueueLimits, Route
from andon.core.shared.store import Lease
from andon.core.states import CancelCause
from andon.errors import FullError, SessionBusyError
from andon.messages import user
from andon.store.sql import SQLStore
from tests.store.making import record

LIMITS = QueueLimits(max_runs=9, max_user_runs=7, max_agent_runs=100, max_waiting_runs=3)
USERS = ["ada", "bob", None]
SESSIONS = ["s1", "s2", "s3"]
OWNERS = ["w1", "w2"]
CHANNEL = "andon:default:helper"
QUEUED, WORKING, PAUSED, STOPPING, ENDED = "queued", "working", "paused", "stopping", "ended"


class Known(Struct):
    """What the model knows of a run."""

    run_id: str
    key: SessionKey
    number: int
    state: str = QUEUED
    epoch: int = 1
    seq: int = 1
    owner: str | None = None


def started(run_id: str, key: SessionKey, user_waits: bool, on_busy: Any) -> QueuedStart:
    first = Event(RunEvent.run_started, run_id, key.session_id, key.agent_id, 1, 1.0)
    whole = record(run_id, session=key, at=float(len(run_id)))
    return QueuedStart(whole, [user("go")], first, b"{}", Route(CHANNEL, 0), on_busy, user_waits, None, False)


class Machine(RuleBasedStateMachine):
    """One database for all examples; each cleans up behind itself, which is its last check."""

    loop: asyncio.AbstractEventLoop
    store: SQLStore
    sql: psycopg.Connection[Any]
    numbers = iter(range(1, 10**9))

    def __init__(self) -> None:
        super().__init__()
        self.queue = self.store.run_queue()
        self.runs: dict[str, Known] = {}

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    # -- the model ----------------------------------------------------------------------------------------------------

    def live(self, *states: str) -> list[Known]:
        return [run for run in self.runs.values() if run.state in (states or (QUEUED, WORKING, PAUSED, STOPPING))]

    def has_ahead(self, run: Known) -> bool:
        return any(other.key == run.key and other.number < run.number for other in self.live())

    def pick(self, data: st.DataObject, *states: str) -> Known:
        return data.draw(st.sampled_from(self.live(*states)))

    # -- what happens -------------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.do(self.queue.prepare(LIMITS))

    @rule(
        whose=st.sampled_from(USERS),
        session=st.sampled_from(SESSIONS),
        waits=st.booleans(),
        on_busy=st.sampled_from(["queue", "queue", "queue", "reject"]),
        twice=st.booleans(),
    )
    def put(self, whose: str | None, session: str, waits: bool, on_busy: str, twice: bool) -> None:
        self.enter(whose, session, waits=waits, on_busy=on_busy, twice=twice)

    def enter(
        self, whose: str | None, session: str, *, waits: bool, on_busy: str = "queue", twice: bool = False
    ) -> None:
        number = next(self.numbers)
        run = Known(f"r{number}", SessionKey("helper", whose, session), number)
        start = started(run.run_id, run.key, waits, on_busy)
        try:
            self.do(self.queue.put(start))
        except SessionBusyError:
            assert on_busy == "reject"
            assert any(other.key == run.key and other.state != STOPPING for other in self.live())
            return
        except FullError:
            held = [row for row in self.rows() if row.state == "held" and not row.counts]
            assert (len(held) >= LIMITS.max_waiting_runs) or not waits
            return
        self.runs[run.run_id] = run
        if twice:  # the answer to the first call was lost
            self.do(self.queue.put(start))

    @rule(whose=st.sampled_from(["ada", "bob"]))
    def put_many(self, whose: str) -> None:
        for number in range(WINDOW + 1):
            self.enter(whose, f"of {number}", waits=True)

    @precondition(lambda self: self.jobs())
    @rule(data=st.data(), owner=st.sampled_from(OWNERS), twice=st.booleans(), loses=st.booleans())
    def take(self, data: st.DataObject, owner: str, twice: bool, loses: bool) -> None:
        """A worker takes a job; and dies at once, or claims the run."""
        job, run_id = data.draw(st.sampled_from(self.jobs()))
        self.sql.execute("DELETE FROM procrastinate_jobs WHERE id = %s", [job])
        if not loses:
            self.claim(run_id, owner, twice=twice)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), owner=st.sampled_from(OWNERS))
    def claim_any(self, data: st.DataObject, owner: str) -> None:
        """A job that is late, or was sent twice."""
        self.claim(data.draw(st.sampled_from(sorted(self.runs))), owner)

    def claim(self, run_id: str, owner: str, *, twice: bool = False) -> None:
        run = self.runs[run_id]
        name = f"{owner}:{next(self.numbers)}"
        may = run.state == QUEUED and not self.has_ahead(run)
        claimed: ClaimedRun | None = self.do(self.queue.claim(run_id, name, 1000.0))
        assert (claimed is not None) == may, (run, claimed)
        if claimed is None:
            return
        run.state, run.owner, run.epoch = WORKING, name, run.epoch + 1
        assert claimed.taken.lease == Lease(run_id, run.epoch)
        if twice:
            again = self.do(self.queue.claim(run_id, name, 1000.0))
            assert again is not None
            assert again.taken.lease == claimed.taken.lease
        assert self.do(self.queue.claim(run_id, "other", 1000.0)) is None

    @precondition(lambda self: self.live(QUEUED, PAUSED, WORKING))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        run = self.pick(data, QUEUED, PAUSED, WORKING)
        self.do(self.store.request_cancel(Selection(run.run_id), CancelRequest.make(CancelCause.user)))
        run.state = STOPPING if run.owner is None else WORKING

    @precondition(lambda self: self.live(STOPPING))
    @rule()
    def end_cancelled(self) -> None:
        """Any process ends those that no process holds."""
        for taken in self.do(self.store.take_orphans("sweeper", 1000.0, 50)):
            run = self.runs[taken.record.run_id]
            assert run.state == STOPPING
            assert taken.lease.epoch > run.epoch
            run.epoch = taken.lease.epoch
            self.finish(run, RunStatus.cancelled)

    @precondition(lambda self: self.live(WORKING))
    @rule(data=st.data(), tells=st.booleans())
    def end(self, data: st.DataObject, tells: bool) -> None:
        run = self.pick(data, WORKING)
        self.finish(run, RunStatus.cancelled)
        if tells:  # else its worker died right then
            self.do(self.queue.ended(run.run_id))

    def finish(self, run: Known, status: RunStatus) -> None:
        run.seq += 1
        last = Event(RunEvent.run_cancelled, run.run_id, run.key.session_id, "helper", run.seq, 2.0, status=status)
        lease, ended = Lease(run.run_id, run.epoch), record(run.run_id, status, run.key)
        assert self.do(self.store.finish(lease, ended, [user("go")], [last])) is None
        run.state, run.owner = ENDED, None

    @precondition(lambda self: self.live(WORKING))
    @rule(data=st.data(), tells=st.booleans())
    def pause(self, data: st.DataObject, tells: bool) -> None:
        run = self.pick(data, WORKING)
        said = record(run.run_id, RunStatus.paused, run.key)
        last = Event(RunEvent.run_paused, run.run_id, run.key.session_id, "helper", run.seq + 1, 2.0)
        answer = self.do(self.store.finish(Lease(run.run_id, run.epoch), said, [user("go")], [last]))
        if isinstance(answer, CancelRequest):  # it was cancelled, and goes on to its end
            return
        assert answer is None
        run.state, run.owner, run.seq = PAUSED, None, run.seq + 1
        if tells:
            self.do(self.queue.ended(run.run_id))

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def answer_any(self, data: st.DataObject) -> None:
        self.give(self.pick(data), 0, twice=False)

    @precondition(lambda self: self.live(PAUSED))
    @rule(data=st.data(), known=st.sampled_from([0, 0, -1, 1]), twice=st.booleans())
    def answer(self, data: st.DataObject, known: int, twice: bool) -> None:
        self.give(self.pick(data, PAUSED), known, twice=twice)

    def give(self, run: Known, known: int, *, twice: bool) -> None:
        said = f'{{"call": "{next(self.numbers)}"}}'.encode()
        answers = QueuedAnswers(run.run_id, run.seq + known, said, Route(CHANNEL, 0), False)
        may = run.state == PAUSED and known == 0
        assert self.do(self.queue.put_answers(answers)) is may
        if may:
            run.state, run.epoch = QUEUED, run.epoch + 1
            if twice:
                assert self.do(self.queue.put_answers(answers))
            other = answers._replace(request=b'{"call": "other"}')
            assert not self.do(self.queue.put_answers(other))

    @precondition(lambda self: any(row.state == "sent" for row in self.rows()))
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        sent = sorted(row.run_id for row in self.rows() if row.state == "sent")
        self.do(self.queue.put_back(data.draw(st.sampled_from(sent))))

    @precondition(lambda self: self.live(WORKING))
    @rule(data=st.data(), twice=st.booleans())
    def hand_back(self, data: st.DataObject, twice: bool) -> None:
        run = self.pick(data, WORKING)
        for _ in range(1 + twice):
            self.do(self.queue.hand_back(Lease(run.run_id, run.epoch)))
        asked = "SELECT cancel IS NOT NULL AS was_cancelled FROM andon_runs WHERE run_id = %s"
        found = self.sql.execute(asked, [run.run_id]).fetchone()
        assert found is not None
        run.state, run.owner, run.epoch = STOPPING if found.was_cancelled else QUEUED, None, run.epoch + 1

    @rule(stale=st.sampled_from([0.0, 1000.0]))
    def sweep(self, stale: float) -> None:
        assert self.do(self.queue.sweep(stale)) == []

    # -- what is true at any time -------------------------------------------------------------------------------------

    def rows(self) -> list[Any]:
        question = "SELECT w.*, r.owner, r.status, r.ended, r.user_id FROM andon_waiting AS w JOIN andon_runs AS r"
        return self.sql.execute(f"{question} USING (number)").fetchall()

    def jobs(self) -> list[tuple[int, str]]:
        found = self.sql.execute("SELECT id, args->>'run_id' AS run_id FROM procrastinate_jobs ORDER BY id").fetchall()
        return [(row.id, row.run_id) for row in found]

    @invariant()
    def limits_and_windows_hold(self) -> None:
        rows = self.rows()
        active = [
            row
            for row in rows
            if row.ended is None and (row.owner or row.state == "sent" or (row.state == "held" and row.counts))
        ]
        assert len(active) <= LIMITS.max_runs
        for whose in {row.user_id for row in active if row.user_id}:
            assert sum(row.user_id == whose for row in active) <= LIMITS.max_user_runs
        fresh = [row for row in rows if row.ended is None and row.state == "held" and row.jobs == 0 and row.known == 1]
        assert sum(not row.counts for row in fresh) <= LIMITS.max_waiting_runs
        for share in {row.share for row in rows}:
            assert sum(row.share == share and row.state == "sent" for row in rows) <= WINDOW

    @invariant()
    def each_run_is_where_the_model_has_it(self) -> None:
        rows = {row.run_id: row for row in self.rows()}
        found = {row.run_id: row for row in self.sql.execute("SELECT * FROM andon_runs").fetchall()}
        for run in self.runs.values():
            stored = found[run.run_id]
            assert (stored.owner, stored.epoch) == (run.owner, run.epoch) or run.state == ENDED, run
            assert (stored.ended is not None) == (run.state == ENDED)
            if run.state == QUEUED:
                assert rows[run.run_id].state in ("held", "sent")
            if run.state == WORKING:
                assert rows[run.run_id].state == "taken"

    def teardown(self) -> None:
        """Every run has a way to its end, by sweeps and workers alone."""
        for _ in range(200):
            self.end_cancelled()
            for run in self.live(PAUSED):
                self.do(self.store.request_cancel(Selection(run.run_id), CancelRequest.make(CancelCause.user)))
                run.state = STOPPING
            for run in self.live(WORKING):
                self.finish(run, RunStatus.cancelled)
            if not self.live():
                break
            self.do(self.queue.sweep(0.0))
            for job, run_id in self.jobs():
                self.sql.execute("DELETE FROM procrastinate_jobs WHERE id = %s", [job])
                self.claim(run_id, "last")
        assert not self.live()
        self.do(self.queue.sweep(0.0))
        assert self.rows() == []
        self.sql.execute("DELETE FROM procrastinate_jobs")


@pytest.fixture
def machine(postgres_url: str) -> Iterator[type[Machine]]:
    loop = asyncio.new_event_loop()
    store = SQLStore(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True, row_factory=namedtuple_row) as sql:
        yield type("Machine", (Machine,), {"loop": loop, "store": store, "sql": sql})
    loop.run_until_complete(store.close())
    loop.close()


@pytest.mark.timeout(600)  # on a machine that does much else
def test_nothing_that_happens_leaves_a_run_without_a_way_on(machine: type[Machine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=50,
            stateful_step_count=30,
            deadline=None,
            phases=(Phase.generate,),
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
