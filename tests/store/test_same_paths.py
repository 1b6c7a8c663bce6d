# SPDX-License-Identifier: Apache-2.0
"""The fast path and the generic path do the same, on Postgres and on SQLite.

Hypothesis makes up a sequence of calls. Each call goes to four databases: Postgres and SQLite, each with and without
its fast path. After each call the four answers are equal, or the four errors are. At the end of the sequence the rows
of all tables are equal. Ids that a database counts are compared by their order, and times that it reads off a clock are
all the same here. Calls that meet at one moment are tested elsewhere (`test_postgres_fast`, `test_races`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from andon import Receipt, RunStatus, SessionKey, Usage
from andon.core.receipt import CancelRequest
from andon.core.records import RequestKey
from andon.core.selection import Block, Outcomes, Selection
from andon.core.shared.store import Granted, Lease, Progress, Renewal, Taken
from andon.core.states import CancelCause, CancelMode, Phase
from andon.errors import AndonError
from andon.store.sql import SQLStore
from tests.store.making import LONG, PAST, events, record, said

pytestmark = pytest.mark.no_cover  # other tests cover what it reaches, and the tracer would take half of its time

SESSIONS = [SessionKey("helper", "ada", "s1"), SessionKey("helper", None, "s1"), SessionKey("a\x00", "ada", "it's 5%")]
RUNS = ["r0", "r1", "r\x00 5%", "it's", "r4", "r5", "r6", "r7"]
SESSION_IDS = {"sessions": "id", "states": "session", "runs": "session", "histories": "session"}
RUN_NUMBERS = {"runs": "number", "records": "number", "events": "number"}
"""By table, the columns of which only the order is compared."""
TABLES = [*SESSION_IDS, "records", "events", "cancels", "keys", "blocks"]

run_numbers = st.integers(0, len(RUNS))
behind = st.sampled_from([0, 0, 0, 0, 0, 1, -1])
"""By how much the epoch of a lease is too low."""
owners = st.sampled_from(["me", "you"])
lease_seconds = st.sampled_from([LONG, LONG, PAST])
used_keys = st.builds(RequestKey, st.sampled_from(["k1", "k\x00"]), st.sampled_from(["one", "two"]))
request_keys = st.one_of(st.none(), st.none(), used_keys)
requests = st.builds(
    CancelRequest,
    st.just(CancelCause.user),
    st.sampled_from([None, "enough"]),
    st.sampled_from([None, "ada"]),
    st.sampled_from(list(CancelMode)),
    st.sampled_from([None, 1.0, 2.0]),
    st.just(7.5),
)
new_events = st.tuples(st.integers(0, 2), st.booleans())
"""How many, and whether the last one that was written comes again before them."""


class Compared:
    """One of the stores, and its tables."""

    def __init__(self, url: str, *, fast: bool) -> None:
        self.store = SQLStore(url)
        self.store._fast_path = fast
        self.postgres = url.startswith("postgresql")
        self._admin: Any = None
        self._url = url

    async def open(self) -> None:
        await self.store.ping()
        if self.postgres:
            self._admin = psycopg.connect(self._url, autocommit=True)
        else:
            self._admin = sqlite3.connect(self._url.removeprefix("sqlite:///"), isolation_level=None)

    async def close(self) -> None:
        self._admin.close()
        await self.store.close()

    def clear(self) -> None:
        for table in (*TABLES, "news"):
            self._admin.execute(f"DELETE FROM andon_{table}")

    def news(self) -> list[str]:
        """What listeners are told, of a file."""
        return [_without_times(said) for (said,) in self._admin.execute("SELECT said FROM andon_news ORDER BY id")]

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        found = {table: self._read(table) for table in TABLES}
        sessions = {row[column] for table, column in SESSION_IDS.items() for row in found[table]}
        runs = {row[column] for table, column in RUN_NUMBERS.items() for row in found[table]}
        for columns, ids in ((SESSION_IDS, sorted(sessions)), (RUN_NUMBERS, sorted(runs))):
            for table, column in columns.items():
                for row in found[table]:
                    row[column] = ids.index(row[column])
        clock = time.time() if self.postgres else time.monotonic()
        for row in found["runs"]:
            if row["lease_until"] is not None:
                row["lease_until"] = abs(row["lease_until"] - row["lease_seconds"] - clock) < LONG
        return {table: [_without_times(row) for row in rows] for table, rows in found.items()}

    def _read(self, table: str) -> list[dict[str, Any]]:
        found = self._admin.execute(f"SELECT * FROM andon_{table} ORDER BY 1, 2, 3")
        names = [column[0] for column in found.description]
        rows = [dict(zip(names, row, strict=True)) for row in found]
        if table == "cancels":
            for row in rows:
                del row["id"]
        return rows


def _without_times(value: Any) -> Any:
    """The same, without the times of a real clock. Those that this test makes up are before 1970 was over."""
    if isinstance(value, float):
        return "now" if value > 1e9 else value
    if isinstance(value, str):
        return re.sub(r"\b1\d{9}\.\d+", "now", value)
    if isinstance(value, dict):
        return {_without_times(key): _without_times(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_times(each) for each in value]
    return value


async def answer_of(call: Awaitable[Any]) -> Any:
    """What a call answers, or the error that it raises, as something that can be compared."""
    try:
        answer = await call
    except AndonError as error:
        return type(error).__name__, str(error), _without_times(vars(error))
    if isinstance(answer, Granted):
        answer = [*answer, answer.has_turn, answer.is_fresh]
    if isinstance(answer, Outcomes):
        answer = [dict(answer), answer.has_orphans]
    if isinstance(answer, Renewal | Taken):
        answer = answer._replace(since=0.0)
    if isinstance(answer, list):
        answer = [each._replace(since=0.0) if isinstance(each, Taken) else each for each in answer]
    return _without_times(msgspec.to_builtins(answer))


known = precondition(lambda machine: bool(machine.known))
"""Most calls are about runs that were entered before."""


class Machine(RuleBasedStateMachine):
    def __init__(self, runner: asyncio.Runner, stores: list[Compared]) -> None:
        super().__init__()
        self.runner, self.stores = runner, stores
        self.known: dict[str, SessionKey] = {}
        self.epochs: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.over: set[str] = set()
        for each in stores:
            each.clear()

    def same(self, call: Callable[[SQLStore], Awaitable[Any]]) -> Any:
        """What all of them answer to this."""

        async def ask_all() -> list[Any]:
            return await asyncio.gather(*(answer_of(call(each.store)) for each in self.stores))

        first, *others = self.runner.run(ask_all())
        for answer in others:
            assert answer == first
        return first

    def teardown(self) -> None:
        first, *others = [each.rows() for each in self.stores]
        for rows in others:
            for table in TABLES:
                assert rows[table] == first[table], table
        fast, generic = [each.news() for each in self.stores if not each.postgres]
        assert fast == generic

    # -- what the calls are about -------------------------------------------------------------------------------------

    def _run(self, number: int) -> str:
        """Mostly a run that goes on, sometimes one that may have ended, rarely one that was never entered."""
        known = list(self.known)
        if not known or number == len(RUNS):
            return "unknown"
        live = [run_id for run_id in known if run_id not in self.over]
        return live[number % len(live)] if live and number < 6 else known[number % len(known)]

    def _lease(self, number: int, behind: int) -> Lease:
        run_id = self._run(number)
        return Lease(run_id, self.epochs.get(run_id, 1) - behind)

    def _events(self, run_id: str, new: tuple[int, bool]) -> Any:
        count, again = new
        last = self.last.get(run_id, 0)
        self.last[run_id] = last + count
        return events(run_id, range(max(1, last) if again and last else last + 1, last + count + 1), self._of(run_id))

    def _of(self, run_id: str) -> SessionKey:
        return self.known.get(run_id, SESSIONS[0])

    # -- the calls ----------------------------------------------------------------------------------------------------

    @rule(
        number=run_numbers,
        fresh=st.sampled_from([True, True, True, False]),
        session=st.sampled_from(SESSIONS),
        at=st.sampled_from([1.5, 1.5, 2.5]),
        owner=owners,
        seconds=lease_seconds,
        on_busy=st.sampled_from(["queue", "reject", "cancel"]),
        key=request_keys,
        others=st.sampled_from([(None, None), (None, None), ("r0", None), ("r\x00 5%", "it's")]),
    )
    def enter(
        self,
        number: int,
        fresh: bool,
        session: SessionKey,
        at: float,
        owner: str,
        seconds: float,
        on_busy: Any,
        key: RequestKey | None,
        others: tuple[str | None, str | None],
    ) -> None:
        run_id = RUNS[len(self.known)] if fresh and len(self.known) < len(RUNS) else self._run(number)
        continues, parent = others
        facts: dict[str, Any] = {"continues": continues, "parent_run_id": parent, "request_key": key}
        entering = record(run_id, session=session, at=at, **facts)
        answer = self.same(lambda store: store.enter(entering, owner, seconds, on_busy))
        if isinstance(answer, list):
            self.known[run_id], self.epochs[run_id] = session, answer[1]

    @known
    @rule(call=st.sampled_from(["take_turn", "take_turn", "bring", "roll_back"]), number=run_numbers, behind=behind)
    def have_a_turn(self, call: str, number: int, behind: int) -> None:
        lease = self._lease(number, behind)
        if call == "take_turn":
            self.same(lambda store: store.take_turn(lease))
        elif call == "bring":
            self.same(lambda store: store.bring(lease, said("Before")))
        else:
            self.same(lambda store: store.rollback(lease.run_id))

    @known
    @rule(which=st.lists(st.tuples(run_numbers, behind), max_size=4), seconds=st.sampled_from([LONG, PAST, PAST, None]))
    def renew(self, which: list[tuple[int, int]], seconds: float | None) -> None:
        leases = [self._lease(*each) for each in which]
        self.same(lambda store: store.renew(leases, seconds))

    @known
    @rule(
        which=st.lists(
            st.tuples(run_numbers, behind, new_events, st.booleans(), st.sampled_from([None, None, "r0", "r\x00 5%"])),
            max_size=4,
            unique_by=lambda each: each[0],
        )
    )
    def write(self, which: list[tuple[int, int, tuple[int, bool], bool, str | None]]) -> None:
        batch = {}
        for number, behind, new, speaks, continues in which:
            lease = self._lease(number, behind)
            words = said(f"{lease.run_id} {self.last.get(lease.run_id)}") if speaks else None
            batch[lease.run_id] = Progress(lease, words, self._events(lease.run_id, new), continues)
        self.same(lambda store: store.write(list(batch.values())))

    @known
    @rule(
        number=run_numbers,
        behind=behind,
        status=st.sampled_from([RunStatus.completed, RunStatus.cancelled, RunStatus.cancelled, RunStatus.paused]),
        new=new_events,
        continues=st.sampled_from([None, "r0"]),
        request=requests,
        twice=st.booleans(),
    )
    def finish(
        self,
        number: int,
        behind: int,
        status: RunStatus,
        new: tuple[int, bool],
        continues: str | None,
        request: CancelRequest,
        twice: bool,
    ) -> None:
        lease = self._lease(number, behind)
        stopped = status is RunStatus.cancelled and request.by is not None
        receipt = Receipt.of(request, request.mode, Phase.streaming, [], Usage(), []) if stopped else None
        facts: dict[str, Any] = {"continues": continues, "receipt": receipt, "content": f"{lease.epoch}"}
        end, told = record(lease.run_id, status, self._of(lease.run_id), **facts), self._events(lease.run_id, new)
        for _ in range(1 + twice):
            answer = self.same(lambda store: store.finish(lease, end, said(f"The end of {lease.run_id}"), told))
            if answer is None and status.final:
                self.over.add(lease.run_id)

    @known
    @rule(
        number=run_numbers,
        late=st.sampled_from([False, False, True]),
        by_run=st.sampled_from([True, True, True, True, True, False]),
        names=st.sets(st.sampled_from(["session_id", "user_id", "agent_id"])),
        wrong=st.sampled_from([None, None, "session_id", "user_id", "agent_id"]),
        statuses=st.sampled_from([(), (), (), (), (), (RunStatus.running,), (RunStatus.cancelling, RunStatus.paused)]),
        request=requests,
    )
    def request_cancel(
        self,
        number: int,
        late: bool,
        by_run: bool,
        names: set[str],
        wrong: str | None,
        statuses: tuple[RunStatus, ...],
        request: CancelRequest,
    ) -> None:
        over = sorted(self.over) if late else []
        run_id = over[number % len(over)] if over else self._run(number)
        session = self._of(run_id)
        given = {name: getattr(session, name) for name in names} | ({} if wrong is None else {wrong: "other"})
        which = Selection(run_id if by_run else None, statuses=statuses, **given)
        self.same(lambda store: store.request_cancel(which, request))

    @known
    @rule(number=run_numbers, owner=owners, seconds=lease_seconds, key=request_keys)
    def take_up(self, number: int, owner: str, seconds: float, key: RequestKey | None) -> None:
        run_id = self._run(number)
        answer = self.same(lambda store: store.take_up(run_id, owner, seconds, key))
        if isinstance(answer, list):
            self._took(answer)

    @known
    @rule(owner=owners, seconds=lease_seconds, limit=st.sampled_from([1, 9]))
    def take_orphans(self, owner: str, seconds: float, limit: int) -> None:
        for taken in self.same(lambda store: store.take_orphans(owner, seconds, limit)):
            self._took(taken)

    def _took(self, taken: list[Any]) -> None:
        run_id, epoch = taken[0]
        self.epochs[run_id] = epoch

    @rule(kind=st.sampled_from(["user", "agent"]), session=st.sampled_from(SESSIONS), on=st.booleans())
    def block(self, kind: Literal["user", "agent"], session: SessionKey, on: bool) -> None:
        name = (session.user_id if kind == "user" else session.agent_id) or "ada"
        if on:
            self.same(lambda store: store.block(Block(kind, name, "root", at=6.5)))
        else:
            self.same(lambda store: store.unblock(kind, name))

    @known
    @rule(number=run_numbers, idle=st.sampled_from([False, False, True]))
    def delete_session(self, number: int, idle: bool) -> None:
        session = self._of(self._run(number))
        self.same(lambda store: store.delete_session(session, idle=idle))


@contextlib.contextmanager
def opened_all(runner: asyncio.Runner, stores: list[Compared]) -> Iterator[None]:
    def close(each: Compared) -> None:
        runner.run(each.close())

    with contextlib.ExitStack() as stack:
        for each in stores:
            runner.run(each.open())
            stack.callback(close, each)
        yield


def test_the_fast_paths_and_the_generic_ones_do_the_same(
    postgres_url: str, second_postgres_url: str, sqlite_url: str
) -> None:
    stores = [
        Compared(postgres_url, fast=True),
        Compared(second_postgres_url, fast=False),
        Compared(sqlite_url, fast=True),
        Compared(sqlite_url.replace("andon.db", "generic.db"), fast=False),
    ]
    with asyncio.Runner() as runner, opened_all(runner, stores):
        make: Any = functools.partial(Machine, runner, stores)
        run_state_machine_as_test(
            make,
            settings=settings(
                max_examples=90,
                stateful_step_count=40,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
                phases=[Stage.generate],  # to shrink a failure takes minutes: add `Stage.shrink` for that
            ),
        )
