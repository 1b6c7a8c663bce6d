# SPDX-License-Identifier: Apache-2.0
"""The fast path of the queue and its generic path do the same.

Hypothesis makes up a sequence of calls. Each call goes to two databases, one of which is used without its fast path.
After each call the answers are equal, or the errors are. At the end of the sequence the rows of all tables are equal,
those of the engine too. `tests/store/test_same_paths` does this for the rest of the store, and has what both need.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from andon import Event, RunEvent, RunStatus, SessionKey
from andon.core.records import RequestKey
from andon.core.selection import Block, Selection
from andon.core.shared.run_queue import WINDOW, ClaimedRun, QueuedAnswers, QueuedStart, QueueLimits, Route, RunQueue
from andon.core.shared.store import Lease
from andon.errors import BlockedError, FullError, StoreError
from andon.messages import user
from andon.store.sql import SQLStore, database, transaction
from andon.store.sql.codec import dump
from tests.store.making import KEY, LONG, asking, events, opened, record, said
from tests.store.test_postgres_fast import overtaken
from tests.store.test_same_paths import RUNS, SESSIONS, TABLES, Compared, _without_times, answer_of, opened_all
from tests.support import play

PLENTY = QueueLimits(max_user_runs=3)
LIMITS = [PLENTY, PLENTY, PLENTY, QueueLimits(max_runs=4, max_waiting_runs=1), QueueLimits(max_agent_runs=2)]
CHANNEL = "andon:default:helper"

numbers = st.integers(0, len(RUNS))


def started(run_id: str, session: SessionKey = KEY, **facts: Any) -> QueuedStart:
    at, key, messages = facts.pop("at", 1.5), facts.pop("key", None), facts.pop("messages", [user("go")])
    first = Event(RunEvent.run_started, run_id, session.session_id, session.agent_id, 1, 1.0)
    entering = record(run_id, session=session, at=at, request_key=key)
    start = QueuedStart(entering, messages, first, b"{}", Route(CHANNEL, 0), "queue", True, None, False)
    return start._replace(**facts)


async def asked(call: Awaitable[Any]) -> Any:
    """The answer of a queue, as something that can be compared."""

    async def made() -> Any:
        answer = await call
        if isinstance(answer, ClaimedRun):
            answer = answer._replace(waited=0.0, taken=answer.taken._replace(since=0.0), events=None, is_fresh=False)
        return answer

    return await answer_of(made())


def rows_of(store: Compared, compared: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The rows of the queue. Runs and sessions are named by their order, like in `compared`."""
    read = store._admin.execute
    ids = [number for (number,) in read("SELECT number FROM andon_runs ORDER BY number")]
    sessions = [id for (id,) in read("SELECT session FROM andon_runs GROUP BY session ORDER BY session")]
    found = read("SELECT * FROM andon_waiting ORDER BY number")
    names = [column.name for column in found.description]
    waiting = [dict(zip(names, row, strict=True)) for row in found]
    for row in waiting:
        row["number"] = ids.index(row["number"]) if row["number"] in ids else "a run that is gone"
        kind, _, whose = row["share"].partition(" ")
        row["share"] = f"session {sessions.index(int(whose))}" if kind == "session" else row["share"]
    jobs = "SELECT queue_name, task_name, priority, lock, queueing_lock, args, status, scheduled_at FROM {} ORDER BY id"
    return compared | {
        "waiting": [_without_times(row) for row in waiting],
        "jobs": read(jobs.format("procrastinate_jobs")).fetchall(),
    }


known = precondition(lambda machine: bool(machine.known))
"""Most calls are about runs that were put there before."""


class Machine(RuleBasedStateMachine):
    def __init__(self, runner: asyncio.Runner, stores: list[Compared]) -> None:
        super().__init__()
        self.runner, self.stores = runner, stores
        self.known: dict[str, SessionKey] = {}
        self.epochs: dict[str, int] = {}
        self.last: dict[str, int] = {}
        for each in stores:
            each.clear()
            each._admin.execute("DELETE FROM procrastinate_jobs")
            each._admin.execute("DELETE FROM andon_waiting")
            each._admin.execute("DELETE FROM andon_limits")

    def same(self, call: Callable[[SQLStore], Awaitable[Any]]) -> Any:
        async def ask_all() -> list[Any]:
            return await asyncio.gather(*(asked(call(each.store)) for each in self.stores))

        fast, generic = self.runner.run(ask_all())
        assert fast == generic
        return fast

    def queue(self, call: Callable[[RunQueue], Awaitable[Any]]) -> Any:
        return self.same(lambda store: call(store.run_queue()))

    def teardown(self) -> None:
        fast, generic = [rows_of(each, each.rows()) for each in self.stores]
        for table in (*TABLES, "waiting", "jobs"):
            assert fast[table] == generic[table], table

    def _run(self, number: int) -> str:
        names = list(self.known)
        return names[number % len(names)] if names and number < len(RUNS) else "unknown"

    # -- the calls ----------------------------------------------------------------------------------------------------

    @rule(limits=st.sampled_from(LIMITS))
    def limit(self, limits: QueueLimits) -> None:
        self.queue(lambda queue: queue.prepare(limits))

    @rule(
        number=numbers,
        fresh=st.sampled_from([True, True, True, False]),
        session=st.sampled_from([*SESSIONS, *(SessionKey("helper", "bob", name) for name in "abcdefg")]),
        at=st.sampled_from([1.5, 1.5, 2.5]),
        on_busy=st.sampled_from(["queue", "reject", "cancel"]),
        waits=st.booleans(),
        key=st.sampled_from([None, None, None, RequestKey("k1", "one"), RequestKey("k1", "two")]),
        others=st.sampled_from([(None, None), (None, None), ("r0", None), ("r\x00 5%", "it's")]),
        route=st.sampled_from([Route(CHANNEL, 0), Route("andon:it's 5%", -7, "fast")]),
        timeout=st.sampled_from([None, None, LONG]),
        goes_on=st.booleans(),
        messages=st.sampled_from([[user("go")], []]),
    )
    def put(self, number: int, fresh: bool, session: SessionKey, at: float, others: Any, **facts: Any) -> None:
        run_id = RUNS[len(self.known)] if fresh and len(self.known) < len(RUNS) else self._run(number)
        start = started(run_id, session, at=at, **facts)
        continues, parent = others
        before: dict[str, Any] = {"continues": continues, "parent_run_id": parent}
        entering = msgspec.structs.replace(start.record, **before)
        answer = self.queue(lambda queue: queue.put(start._replace(record=entering)))
        if isinstance(answer, bool):
            self.known.setdefault(run_id, session)
            self.last.setdefault(run_id, 1)

    @known
    @rule(number=numbers, owner=st.sampled_from(["me", "you"]), twice=st.booleans())
    def claim(self, number: int, owner: str, twice: bool) -> None:
        run_id = self._run(number)
        for _ in range(1 + twice):
            answer = self.queue(lambda queue: queue.claim(run_id, owner, LONG))
            if answer is not None:
                self.epochs[run_id] = answer[0][0][1]

    @known
    @rule(
        number=numbers,
        status=st.sampled_from([RunStatus.completed, RunStatus.cancelled, RunStatus.paused]),
        up=st.just(1),
    )
    def finish(self, number: int, status: RunStatus, up: int) -> None:
        run_id = self._run(number)
        if run_id not in self.epochs:
            return
        session, seq = self.known[run_id], self.last[run_id] + 1
        end, last = record(run_id, status, session), events(run_id, (seq,), session)
        lease = Lease(run_id, self.epochs[run_id])
        if self.same(lambda store: store.finish(lease, end, said("The end"), last)) is None:
            self.last[run_id] = seq

    @known
    @rule(number=numbers, wrong=st.sampled_from([0, 0, 0, 1]), twice=st.booleans())
    def put_answers(self, number: int, wrong: int, twice: bool) -> None:
        run_id = self._run(number)
        answers = QueuedAnswers(run_id, self.last.get(run_id, 1) + wrong, b'{"call": "one"}', Route(CHANNEL, 1), False)
        for _ in range(1 + twice):
            self.queue(lambda queue: queue.put_answers(answers))

    @known
    @rule(number=numbers, call=st.sampled_from(["put_back", "ended", "cancel", "delete"]))
    def tell(self, number: int, call: str) -> None:
        run_id = self._run(number)
        if call == "put_back":
            self.queue(lambda queue: queue.put_back(run_id))
        elif call == "ended":
            self.queue(lambda queue: queue.ended(run_id))
        elif call == "cancel":
            request = asking()
            self.same(lambda store: store.request_cancel(Selection(run_id), request))
        else:
            self.same(lambda store: store.delete_session(self.known.get(run_id, KEY)))

    @rule(kind=st.sampled_from(["user", "agent"]), session=st.sampled_from(SESSIONS), on=st.booleans())
    def block(self, kind: Any, session: SessionKey, on: bool) -> None:
        name = (session.user_id if kind == "user" else session.agent_id) or "ada"
        if on:
            self.same(lambda store: store.block(Block(kind, name, "root", at=6.5)))
        else:
            self.same(lambda store: store.unblock(kind, name))

    @rule(loses=st.booleans())
    def sweep(self, loses: bool) -> None:
        if loses:
            for each in self.stores:
                each._admin.execute("DELETE FROM procrastinate_jobs")
        self.queue(lambda queue: queue.sweep(0.0 if loses else LONG))


@pytest.mark.no_cover
def test_the_fast_path_of_the_queue_and_the_generic_one_do_the_same(
    postgres_url: str, second_postgres_url: str
) -> None:
    stores = [Compared(postgres_url, fast=True), Compared(second_postgres_url, fast=False)]
    with asyncio.Runner() as runner, opened_all(runner, stores):
        for each in stores:
            runner.run(each.store.run_queue().prepare(PLENTY))
        make: Any = functools.partial(Machine, runner, stores)
        run_state_machine_as_test(
            make,
            settings=settings(
                max_examples=60,
                stateful_step_count=30,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate],
            ),
        )


# -- what is usual, and what overtakes it -----------------------------------------------------------------------------


def in_steps(*_: object, **__: object) -> None:
    raise AssertionError("this is for what is not usual")


def test_a_claim_brings_the_first_event_and_says_whether_the_session_is_new(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            queue = store.run_queue()
            await queue.prepare(QueueLimits())
            for run_id, is_fresh in (("one", True), ("two", False)):
                await queue.put(started(run_id))
                claimed = await queue.claim(run_id, "me", LONG)
                assert claimed is not None
                assert claimed.is_fresh is is_fresh
                assert claimed.events == [started(run_id).first] == await store.read_events(run_id, 0, 9)
                status = RunStatus.completed if is_fresh else RunStatus.paused
                end = record(run_id, status)
                assert await store.finish(claimed.taken.lease, end, said("One"), events(run_id, (2,))) is None
            assert await queue.put_answers(QueuedAnswers("two", 2, b"{}", Route(CHANNEL, 0), False))
            claimed = await queue.claim("two", "me", LONG)
            assert claimed is not None
            assert (claimed.events, claimed.is_fresh) == (None, False)

    play(main)


def jobs(url: str) -> list[str]:
    with psycopg.connect(url) as admin:
        return [run_id for (run_id,) in admin.execute("SELECT args->>'run_id' FROM procrastinate_jobs ORDER BY id")]


@pytest.mark.parametrize(("user_id", "sent"), [(None, WINDOW + 2), ("ada", WINDOW)])
def test_a_run_is_entered_with_one_round_trip(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, user_id: str | None, sent: int
) -> None:
    pipelines = list[str]()
    pipeline = transaction.Tx.execute_pipeline

    def counted(tx: Any, *steps: Any, **how: Any) -> Any:
        pipelines.append(steps[-1][1]["run_id"])
        return pipeline(tx, *steps, **how)

    async def main() -> None:
        async with opened(postgres_url) as store:
            queue = store.run_queue()
            await queue.prepare(QueueLimits())
            for name in ("execute", "execute_autocommit"):
                monkeypatch.setattr(transaction.Tx, name, in_steps)
            monkeypatch.setattr(transaction.Tx, "execute_pipeline", counted)
            for number in range(WINDOW + 2):
                start = started(f"r{number}", SessionKey("helper", user_id, f"s{number}"))
                assert await queue.put(start) is False

    play(main)
    assert pipelines == [f"r{number}" for number in range(WINDOW + 2)]
    assert jobs(postgres_url) == pipelines[:sent]


ENTER = """
INSERT INTO andon_runs (run_id, session, agent_id, user_id, session_id, status, epoch, last_seq, created)
SELECT 'first', id, agent_id, user_id, session_id, 'PENDING', 1, 0, 1.0 FROM andon_sessions
"""

KEPT = f"""
INSERT INTO andon_records (number, record) SELECT number, '{dump(record("first"))}' FROM andon_runs
"""


def test_a_run_that_was_overtaken_by_another_one_of_its_session_waits_behind_it(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            queue = store.run_queue()
            await queue.prepare(QueueLimits())
            await store.create_session(KEY, {})
            put = queue.put(started("second"))
            assert await overtaken(postgres_url, put, "SELECT FROM andon_sessions FOR UPDATE", ENTER, KEPT) is False
            with psycopg.connect(postgres_url) as admin:
                found = admin.execute("SELECT run_id, state FROM andon_waiting").fetchall()
            assert found == [("second", "held")]

    play(main)
    assert jobs(postgres_url) == []


def test_a_run_waits_for_one_that_was_lost_in_its_session_and_may_go_on(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            queue = store.run_queue()
            await queue.prepare(QueueLimits())
            await queue.put(started("lost", goes_on=True))
            claimed = await queue.claim("lost", "me", LONG)
            assert claimed is not None
            end = record("lost", RunStatus.cancelled)
            assert await store.finish(claimed.taken.lease, end, said("One"), events("lost", (2,))) is None
            await queue.put(started("next"))
            assert jobs(postgres_url) == ["lost"]
            assert await queue.decide("lost", None)
            assert jobs(postgres_url) == ["lost", "next"]

    play(main)


def test_a_caller_that_has_stopped_waiting_enters_nothing(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            queue = store.run_queue()
            await queue.prepare(QueueLimits())
            await store.create_session(KEY, {})
            monkeypatch.setattr(database, "ANSWER_SECONDS", 0.2)
            with psycopg.connect(postgres_url) as other:
                other.execute("SELECT FROM andon_sessions FOR UPDATE")
                with pytest.raises(StoreError):
                    await queue.put(started("late"))
                other.commit()
            monkeypatch.setattr(database, "ANSWER_SECONDS", 15.0)
            assert await queue.put(started("next")) is False  # on the same threads: what was late is over
            assert await store.find("late") is None

    play(main)


@pytest.mark.parametrize("sessions", [0, 1])
def test_a_refused_run_leaves_no_session_behind(postgres_url: str, sessions: int) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            queue = store.run_queue()
            if sessions:
                await store.create_session(KEY, {})
            for limits, full in ((QueueLimits(max_runs=0), "0 runs"), (QueueLimits(max_user_runs=0), "of this user")):
                await queue.prepare(limits)
                with pytest.raises(FullError, match=full):
                    await queue.put(started("one", waits=False))
            await queue.prepare(QueueLimits())
            await store.block(Block("user", "ada", "root", at=6.5))
            with pytest.raises(BlockedError):
                await queue.put(started("one"))
            with psycopg.connect(postgres_url) as admin:
                assert admin.execute("SELECT count(*) FROM andon_sessions").fetchall() == [(sessions,)]

    play(main)
