# SPDX-License-Identifier: Apache-2.0
"""Postgres goes away, and comes back: nothing that was answered is lost, and the same store goes on."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from sqlalchemy import func, select, text

from andon import RunStatus
from andon.core.selection import Selection
from andon.core.shared.store import Progress
from andon.core.states import CancelOutcome
from andon.errors import StoreError
from andon.store.sql import engine, sessions, states, transaction
from tests.store.making import KEY, LONG, PAST, asking, events, opened, record, said
from tests.store.server import Server
from tests.store.test_processes import Bell
from tests.support import Flag, play


def test_after_a_kill_of_the_server_everything_that_was_answered_is_there(own_server: Server) -> None:
    async def main() -> None:
        async with opened(own_server.url("postgres")) as store:
            bell = Bell()
            store.listen(bell)
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            await store.write([Progress(lease, said("One"), events("r1", (1, 2)))])
            request = asking()
            await store.request_cancel(Selection(run_id="r1"), request)
            await asyncio.to_thread(own_server.kill)
            for call in (store.ping, lambda: store.renew([lease], LONG), lambda: store.load(KEY)):
                with pytest.raises(StoreError, match="could not be asked"):
                    await call()
            woken = asyncio.ensure_future(bell.next())
            await asyncio.to_thread(own_server.start)
            await woken  # whoever listens looks again after an outage
            assert (await store.renew([lease], LONG))[:2] == ([], {"r1": request})
            assert await store.read_events("r1", 0, 10) == events("r1", (1, 2))
            end = record("r1", RunStatus.cancelled)
            assert await store.finish(lease, end, said("One"), events("r1", (2, 3))) is None
            assert await store.load(KEY) == said("One")
            woken = asyncio.ensure_future(bell.next())
            await asyncio.sleep(0)
            await store.save(record("r2", RunStatus.completed), said("Two"))
            await woken

    play(main)


def test_what_others_may_see_early_is_on_the_disk_when_it_is_answered(own_server: Server) -> None:
    """Postgres writes to the disk at its leisure what was committed without waiting for that. A kill comes sooner."""

    async def main() -> None:
        async with opened(own_server.url("postgres")) as store:

            async def killed() -> None:
                await asyncio.to_thread(own_server.kill)
                await asyncio.to_thread(own_server.start)

            leases = [await store.enter(record(name), "me", PAST, "queue") for name in ("r1", "r2", "r3")]
            await store.renew(leases, LONG)
            await killed()
            assert await store.take_orphans("you", LONG, 10) == []
            await store.write([Progress(leases[0], said("One"), events("r1", (1, 2)))])
            await killed()
            assert await store.read_events("r1", 0, 10) == events("r1", (1, 2))
            assert await store.added("r1") == said("One")
            first, second = asking(by="ada"), asking(by="bob")
            await store.request_cancel(Selection("r1"), first)
            await killed()
            assert (await store.renew(leases, None)).cancels == {"r1": first}
            await store.request_cancel(Selection(session_id="s1"), second)
            await killed()
            assert (await store.renew(leases, None)).cancels == {"r1": first, "r2": second, "r3": second}
            assert [(entry.run_id, entry.request.by) for entry in await store.cancel_log(Selection(), 9)] == [
                ("r3", "bob"),
                ("r2", "bob"),
                ("r1", "ada"),
            ]

    play(main)


def test_who_stops_in_the_middle_of_a_transaction_does_not_stop_the_others(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker that gets SIGSTOP there: the server lets go of what it holds, and what it did not commit is done
    again.
    """

    async def main() -> None:
        async with opened(postgres_url) as stopped, opened(postgres_url) as store:
            await store.ping()
            inside, go_on, tries = Flag(), Flag(), []
            monkeypatch.setitem(engine.SERVER_SETTINGS, "idle_in_transaction_session_timeout", 1_000)

            def stop(tx: transaction.Tx) -> None:
                tries.append(tx)
                sessions.lock_or_create(tx, KEY, 1.5)
                inside.set()
                go_on.wait()
                tx.execute(select(1))

            stuck = asyncio.create_task(stopped._db.change(stop))
            await inside.arrived()
            await store.enter(record("r1"), "me", LONG, "reject")
            go_on.set()
            await stuck
            assert len(tries) == 2
            assert await stopped.find("r1") == record("r1", RunStatus.running)

    play(main)


def test_a_connection_that_the_server_has_closed_is_not_noticed(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await store.ping()
            await store.save(record("r1", RunStatus.completed), said("One"))
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND pid <> pg_backend_pid()"
                )
            await store.save(record("r2", RunStatus.completed), said("Two"))
            assert len(await store.load(KEY)) == 4

    play(main)


def test_a_server_that_was_restarted_between_two_requests_is_not_noticed(own_server: Server) -> None:
    """The first one to ask finds a connection that is gone, in a change and in a read, and gets another one."""

    async def main() -> None:
        async with opened(own_server.url("postgres")) as store:
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            await asyncio.gather(*(store.find("r1") for _ in range(3)))  # several connections, that nobody uses now
            for asked in (False, True):
                await asyncio.to_thread(own_server.kill)
                await asyncio.to_thread(own_server.start)
                if asked:
                    assert await store.find("r1") is not None
                outcome = CancelOutcome.already_requested if asked else CancelOutcome.requested
                assert await store.request_cancel(Selection("r1"), asking()) == {"r1": outcome}
            assert await store.finish(lease, record("r1", RunStatus.cancelled), said("One"), []) is None

    play(main)


def test_a_commit_whose_answer_was_lost_is_not_done_again(postgres_url: str) -> None:
    """Nobody knows then whether it was done: whoever has asked is told, and may ask again."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            await store.ping()
            tries = []

            def leave(tx: transaction.Tx) -> None:
                tries.append(tx)
                pid = tx.execute(select(func.pg_backend_pid())).scalar_one()
                tx.write(select(func.pg_terminate_backend(pid)))  # it goes with the commit

            with pytest.raises(StoreError, match="could not be asked"):
                await store._db.change(leave)
            assert len(tries) == 1
            await store.ping()

    play(main)


def test_a_cancel_whose_connection_is_lost_before_it_is_on_the_disk_is_asked_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            wait, lost = transaction.Tx.wait_for_disk, list[int]()

            def lose(tx: transaction.Tx) -> None:
                if not lost:
                    lost.append(tx.execute(select(func.pg_backend_pid())).scalar_one())
                    with psycopg.connect(postgres_url, autocommit=True) as admin:
                        admin.execute("SELECT pg_terminate_backend(%s, 60000)", (lost[0],))
                wait(tx)

            monkeypatch.setattr(transaction.Tx, "wait_for_disk", lose)
            request = asking()
            assert await store.request_cancel(Selection("r1"), request) == {"r1": CancelOutcome.requested}
            assert lost
            assert [entry.request for entry in await store.cancel_log(Selection(), 9)] == [request]
            assert (await store.renew([lease], None)).cancels == {"r1": request}

    play(main)


def test_what_fails_on_its_way_with_the_commit_undoes_all_of_it(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await store.ping()

            def write(tx: transaction.Tx) -> None:
                states.create(tx, KEY, "{}")
                tx.write(text("INSERT INTO andon_meta (version) VALUES (NULL)"))

            with pytest.raises(StoreError, match=r"could not be asked.*null"):
                await store._db.change(write)
            assert await store.find_session(KEY) is None
            assert await store.create_session(KEY, {}) is not None  # and its connection is good for the next one

    play(main)
