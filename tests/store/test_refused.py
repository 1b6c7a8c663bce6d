# SPDX-License-Identifier: Apache-2.0
"""A start that is refused leaves nothing behind: no session that counts, and none is lost to those that are let in."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from andon import Interrupt, RunIdTakenError, RunStatus, SessionPausedError
from andon.core.selection import Block
from andon.core.shared.store import Granted, Lease
from andon.errors import BlockedError
from andon.store.sql import SQLStore, leases, sessions
from andon.store.sql.codec import dump
from andon.store.sql.transaction import Tx
from tests.store.making import KEY, LONG, events, opened, record, said
from tests.store.test_schema import execute
from tests.support import Flag, play, until


def sessions_in(url: str) -> int:
    ((count,),) = execute(url, "SELECT count(*) FROM andon_sessions")
    return int(str(count))


def test_the_starts_of_a_blocked_user_leave_no_session(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await store.block(Block("user", "ada"))
            for number in range(3):
                key = KEY._replace(session_id=f"s{number}")
                with pytest.raises(BlockedError):
                    await store.enter(record(f"r{number}", session=key), "me", LONG, "reject")
            assert await store.count_sessions("helper", "ada") == 0

    play(main)
    assert sessions_in(url) == 0


def test_starts_with_a_run_id_that_is_taken_leave_no_session(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await store.enter(record("r1"), "me", LONG, "reject")
            assert await store.count_sessions("helper", "ada") == 1  # its first run is at work
            for number in range(3):
                key = KEY._replace(user_id="bob", session_id=f"s{number}")
                with pytest.raises(RunIdTakenError):
                    await store.enter(record("r1", session=key), "me", LONG, "reject")
            assert await store.count_sessions("helper", "bob") == 0
            assert await store.count_sessions("helper", "ada") == 1

    play(main)
    assert sessions_in(url) == 1


def test_a_session_in_which_no_run_has_ever_begun_does_not_count(url: str) -> None:
    """A process may have died between the refusal and what it leaves."""

    async def main() -> None:
        async with opened(url) as store:
            await store.create_session(KEY, {})
            other = "INSERT INTO andon_sessions (agent_id, user_id, session_id, begun, created, updated)"
            execute(url, f"{other} VALUES ('helper', 'ada', 's2', FALSE, 1, 1)")
            assert await store.count_sessions("helper", "ada") == 1

    play(main)


def test_a_refused_start_leaves_the_session_that_is_there(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await store.save(record("r1", RunStatus.completed), said("One"))
            with pytest.raises(RunIdTakenError):
                await store.enter(record("r1", at=9.5), "me", LONG, "reject")
            assert await store.count_sessions("helper", "ada") == 1
            assert await store.load(KEY) == said("One")

    play(main)


# -- at the same moment. SQLite has one writer at a time, and nothing to prove here. ----------------------------------


async def waits(url: str, task: asyncio.Task[Any]) -> None:
    """Until this waits for a lock, or is done without one."""
    with psycopg.connect(url, autocommit=True) as admin:
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        await until(lambda: task.done() or admin.execute(waiting).fetchone() is not None)


async def refused(store: SQLStore) -> None:
    """A start with a run id that is taken, in the session that the other start enters."""
    with pytest.raises(RunIdTakenError):
        await store.enter(record("r1"), "me", LONG, "reject")


async def check_in(store: SQLStore, lease: Granted | Lease) -> None:
    """What this run leaves is in its session."""
    assert await store.count_sessions("helper", "ada") == 1
    assert await store.finish(lease, record("r2", RunStatus.completed), said("Two"), events("r2", (1,))) is None
    assert await store.load(KEY) == said("Two")


async def take_the_id(store: SQLStore) -> None:
    await store.enter(record("r1", session=KEY._replace(user_id="bob")), "me", LONG, "reject")


def test_a_start_that_comes_while_the_session_is_dropped_makes_it_anew(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        inside, go_on, drop_if_unused = Flag(), Flag(), sessions.drop_if_unused

        def slowly(tx: Tx, *arguments: Any) -> None:
            drop_if_unused(tx, *arguments)
            inside.set()
            go_on.wait()

        monkeypatch.setattr(sessions, "drop_if_unused", slowly)
        async with opened(postgres_url) as slow, opened(postgres_url) as store:
            await take_the_id(store)
            refusing = asyncio.create_task(refused(slow))
            await inside.arrived()
            entering = asyncio.create_task(store.enter(record("r2"), "me", LONG, "reject"))
            await waits(postgres_url, entering)
            assert not entering.done()
            go_on.set()
            await refusing
            await check_in(store, await entering)

    play(main)


def test_a_session_that_is_entered_just_before_it_is_dropped_stays(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who drops it waits for the session's lock, and then looks once more whether a run is there."""

    async def main() -> None:
        inside, go_on, entered = Flag(), Flag(), Flag()
        drop_if_unused = sessions.drop_if_unused

        def later(tx: Tx, *arguments: Any) -> None:
            entered.wait()
            drop_if_unused(tx, *arguments)

        def enter_slowly(tx: Tx) -> Granted:
            lease = leases.enter(tx, record("r2"), dump(record("r2")), "me", LONG, "reject")
            inside.set()
            go_on.wait()
            return lease

        monkeypatch.setattr(sessions, "drop_if_unused", later)
        async with opened(postgres_url) as slow, opened(postgres_url) as store:
            await take_the_id(store)
            refusing = asyncio.create_task(refused(store))
            await until(lambda: sessions_in(postgres_url) == 2)  # it has made the session
            entering = asyncio.create_task(slow._db.change(enter_slowly))
            await inside.arrived()
            entered.set()
            await waits(postgres_url, refusing)
            assert not refusing.done()
            go_on.set()
            await refusing
            await check_in(store, await entering)

    play(main)


# -- a busy session ---------------------------------------------------------------------------------------------------


def test_who_has_the_session_is_told_without_holding_up_the_database(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record may be large, and others wait for the threads of the store: it is read where the refusal is made."""
    seen: list[str] = []
    record_of = sessions.record_of

    def noting(row: Any) -> Any:
        seen.append(threading.current_thread().name)
        return record_of(row)

    async def main() -> None:
        async with opened(url) as store:
            question = Interrupt("i1", "pay?", {"amount": 5}, "c1")
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            paused = record("r1", RunStatus.paused, interrupts=[question])
            assert await store.finish(lease, paused, said("One"), events("r1", (1,))) is None
            monkeypatch.setattr(sessions, "record_of", noting)
            with pytest.raises(SessionPausedError, match=r"'r1'.*pay\?") as caught:
                await store.enter(record("r2"), "me", LONG, "reject")
            assert caught.value.run_id == "r1"

    play(main)
    assert seen == [threading.current_thread().name]
