# SPDX-License-Identifier: Apache-2.0
"""Several stores on one database, on threads and loops of their own, at the same moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import psycopg
import pytest
from sqlalchemy import select

from andon import CancelOutcome, RunStatus, SessionBusyError
from andon.core.receipt import CancelRequest
from andon.core.selection import Block, Selection
from andon.core.shared.store import Lease, Progress
from andon.errors import BlockedError
from andon.store.sql import SQLStore, leases
from andon.store.sql.codec import dump
from andon.store.sql.encoded import encode_progress
from andon.store.sql.transaction import Tx
from tests.store.making import KEY, LONG, PAST, asking, events, opened, record, said
from tests.support import Flag, Worker, play, until

T = TypeVar("T")


def together(url: str, *works: Callable[[SQLStore], Coroutine[Any, Any, T]]) -> list[T]:
    """Each in a thread with a loop and a store of its own, all let go at once; what they gave, in their order."""
    barrier, results = threading.Barrier(len(works)), dict[int, T]()

    def one(number: int) -> None:
        async def main() -> None:
            async with opened(url) as store:
                await store.ping()
                barrier.wait()
                results[number] = await works[number](store)

        asyncio.run(main())

    workers = [Worker(partial(one, number)) for number in range(len(works))]
    for worker in workers:
        worker.done()
    return [results[number] for number in range(len(works))]


def test_of_many_that_enter_at_once_one_is_the_first_in_line(url: str) -> None:
    def entering(number: int) -> Callable[[SQLStore], Coroutine[Any, Any, bool]]:
        async def work(store: SQLStore) -> bool:
            return await store.take_turn(await store.enter(record(f"r{number}"), "me", LONG, "queue"))

        return work

    assert sum(together(url, *map(entering, range(8)))) <= 1

    async def main() -> None:
        async with opened(url) as store:
            line = list(reversed(await store.list_runs(Selection(), 100)))
            assert len(line) == 8
            for each in line:
                lease = Lease(each.run_id, 1)
                assert await store.take_turn(lease)
                await store.finish(lease, record(each.run_id, RunStatus.completed), said(each.run_id), [])
            assert await store.load(KEY) == [message for each in line for message in said(each.run_id)]

    play(main)


def test_of_many_that_must_not_wait_one_enters(url: str) -> None:
    def entering(number: int) -> Callable[[SQLStore], Coroutine[Any, Any, bool]]:
        async def work(store: SQLStore) -> bool:
            try:
                await store.enter(record(f"r{number}"), "me", LONG, "reject")
            except SessionBusyError:
                return False
            return True

        return work

    assert sum(together(url, *map(entering, range(6)))) == 1


def test_a_run_is_never_both_asked_to_stop_and_completed(url: str) -> None:
    names = [f"r{number}" for number in range(25)]

    async def prepare() -> None:
        async with opened(url) as store:
            for name in names:
                await store.enter(record(name, session=KEY._replace(session_id=name)), "me", LONG, "reject")

    play(prepare)

    async def finish(store: SQLStore) -> dict[str, bool]:
        ended = {}
        for name in names:
            end = record(name, RunStatus.completed, KEY._replace(session_id=name))
            answer = await store.finish(Lease(name, 1), end, said(name), events(name, (1,)))
            assert answer is None or isinstance(answer, CancelRequest)
            ended[name] = answer is None
        return ended

    async def cancel(store: SQLStore) -> dict[str, bool]:
        asked: dict[str, CancelOutcome] = {}
        for name in reversed(names):
            asked |= await store.request_cancel(Selection(run_id=name), asking())
        return {name: outcome is CancelOutcome.requested for name, outcome in asked.items()}

    completed, first, second = together(url, finish, cancel, cancel)
    for name in names:
        assert [completed[name], first[name], second[name]].count(True) == 1, name


def test_of_many_that_want_an_orphan_one_gets_it(url: str) -> None:
    async def prepare() -> None:
        async with opened(url) as store:
            for number in range(12):
                key = KEY._replace(session_id=f"s{number}")
                await store.enter(record(f"r{number}", session=key), "me", PAST, "reject")

    play(prepare)

    async def take(store: SQLStore) -> list[Lease]:
        found: list[Lease] = []
        while taken := await store.take_orphans("me", LONG, 2):
            found += [each.lease for each in taken]
        return found

    everything = [lease for leases in together(url, take, take, take) for lease in leases]
    assert sorted(everything) == sorted(Lease(f"r{number}", 2) for number in range(12))


def test_writers_entrants_and_cancels_get_out_of_each_others_way(url: str) -> None:
    """Superseding takes a session and then its runs, as ending does: nobody waits for somebody who waits for them."""

    async def churn(store: SQLStore) -> int:
        name, ended = threading.current_thread().name + str(id(store)), 0
        for number in range(12):
            run_id = f"{name}-{number}"
            lease = await store.enter(record(run_id), "me", LONG, "cancel")
            await store.write([Progress(lease, said(run_id), events(run_id, (1, 2)))])
            await store.renew([lease], LONG)
            ended += await store.finish(lease, record(run_id, RunStatus.cancelled), said(run_id), []) is None
        return ended

    async def sweep(store: SQLStore) -> int:
        for _ in range(12):
            await store.request_cancel(Selection(), asking())
        return 0

    assert together(url, churn, churn, churn, sweep) == [12, 12, 12, 0]


def test_no_run_slips_past_a_block_and_the_cancel_that_follows_it(postgres_url: str) -> None:
    """A run that was let in before the block is in the line when the block is known, so the cancel finds it.

    SQLite has one writer at a time, and nothing to prove here.
    """

    async def main() -> None:
        inside, go_on = Flag(), Flag()

        def enter_slowly(tx: Tx) -> Lease:
            lease = leases.enter(tx, record("r1"), dump(record("r1")), "me", LONG, "reject")
            inside.set()
            go_on.wait()
            return lease

        async def switch_off() -> dict[str, CancelOutcome]:
            await store.block(Block("user", "ada"))
            return await store.request_cancel(Selection(user_id="ada"), asking())

        async with opened(postgres_url) as slow, opened(postgres_url) as store:
            await store.ping()
            entering = asyncio.create_task(slow._db.change(enter_slowly))
            await inside.arrived()
            switching = asyncio.create_task(switch_off())
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                await until(lambda: switching.done() or admin.execute(waiting).fetchone() is not None)
            go_on.set()
            assert await entering == Lease("r1", 1)
            assert await switching == {"r1": CancelOutcome.requested}
            with pytest.raises(BlockedError):
                await store.enter(record("r2"), "me", LONG, "queue")

    play(main)


def test_an_end_locks_its_session_first_and_knows_of_what_came_while_it_waited(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            end = record("r1", RunStatus.completed)
            with psycopg.connect(postgres_url) as other, psycopg.connect(postgres_url, autocommit=True) as admin:
                other.execute("SELECT 1 FROM andon_sessions FOR UPDATE")
                ending = asyncio.create_task(store.finish(lease, end, said("One"), events("r1", (1,))))
                waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
                await until(lambda: ending.done() or admin.execute(waiting).fetchone() is not None)
                request = asking(by="ada")
                assert await store.request_cancel(Selection("r1"), request) == {"r1": CancelOutcome.requested}
                other.commit()
            assert await ending == request
            cancelled = record("r1", RunStatus.cancelled)
            assert await store.finish(lease, cancelled, said("One"), events("r1", (1,))) is None
            assert await store.load(KEY) == said("One")

    play(main)


@pytest.mark.parametrize("table", ["andon_sessions", "andon_runs"])
def test_an_end_knows_its_session_also_if_the_run_has_changed_while_it_waited(postgres_url: str, table: str) -> None:
    """The server then works the row out once more."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            with psycopg.connect(postgres_url) as other, psycopg.connect(postgres_url, autocommit=True) as admin:
                other.execute(f"SELECT 1 FROM {table} FOR UPDATE")
                end = record("r1", RunStatus.completed)
                ending = asyncio.create_task(store.finish(lease, end, said("One"), events("r1", (1,))))
                waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
                await until(lambda: ending.done() or admin.execute(waiting).fetchone() is not None)
                other.execute("UPDATE andon_runs SET lease_until = lease_until + 1")  # as a renewal does
                other.commit()
            assert await ending is None
            assert await store.load(KEY) == said("One")

    play(main)


def test_a_cancel_does_not_wait_for_events_to_be_written_but_an_end_and_a_takeover_do(postgres_url: str) -> None:
    """SQLite has one writer at a time."""

    async def main() -> None:
        inside, go_on = Flag(), Flag()

        def write_slowly(tx: Tx) -> list[str]:
            refused = leases.write(tx, list(encode_progress([Progress(lease, said("One"), events("r1", (1, 2)))])))
            tx.execute(select(1))  # what is to be written is sent
            inside.set()
            go_on.wait()
            return refused

        async with opened(postgres_url) as slow, opened(postgres_url) as store:
            lease = await store.enter(record("r1"), "me", PAST, "reject")
            writing = asyncio.create_task(slow._db.progress(write_slowly))
            await inside.arrived()
            assert await store.request_cancel(Selection("r1"), asking()) == {"r1": CancelOutcome.requested}
            assert await store.request_cancel(Selection(), asking()) == {"r1": CancelOutcome.already_requested}
            assert await store.take_orphans("you", LONG, 10) == []
            end = record("r1", RunStatus.cancelled)
            ending = asyncio.create_task(store.finish(lease, end, said("One"), events("r1", (3,))))
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
                await until(lambda: ending.done() or admin.execute(waiting).fetchone() is not None)
            assert not ending.done()
            go_on.set()
            assert await writing == []
            assert await ending is None
            assert await store.read_events("r1", 0, 9) == events("r1", (1, 2, 3))

    play(main)


def test_one_store_serves_many_loops(url: str) -> None:
    store = SQLStore(url)

    def work(number: int) -> None:
        async def main() -> None:
            for turn in range(3):
                key = KEY._replace(session_id=f"s{number}")
                await store.save(record(f"r{number}-{turn}", RunStatus.completed, key), said(f"{turn}"))
                assert len(await store.load(key)) == 2 * (turn + 1)

        asyncio.run(main())

    workers = [Worker(partial(work, number)) for number in range(6)]
    for worker in workers:
        worker.done()
    asyncio.run(store.close())
