# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys in a store: each sets one run going, whoever uses it at once, and none is kept for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
import pytest
from sqlalchemy import Engine, Row, event

from andon import KeyUsedError, RunStatus, SessionBusyError
from andon.core.records import RequestKey, SessionKey
from andon.core.shared.store import KeyUse, Lease, Taken
from andon.store.sql import SQLStore, leases, sessions
from andon.store.sql.encoded import EncodedEnd
from andon.store.sql.transaction import Tx
from tests.store.making import KEY, LONG, events, opened, record, said
from tests.store.test_schema import execute
from tests.support import Flag, play, until

T = TypeVar("T")

PAY, DIFFERENT = RequestKey("k1", "pay 5"), RequestKey("k1", "pay 6")
OTHER = RequestKey("k2", "pay 5")
PAUSED = record("r1", RunStatus.paused)


def elsewhere(session: str, user: str | None = "ada") -> SessionKey:
    return SessionKey("helper", user, session)


async def find(store: SQLStore, user: str | None = "ada") -> KeyUse | None:
    return await store.find_key("helper", user, "k1")


def test_a_key_is_taken_with_its_run(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store, opened(url) as other:
            assert await find(store) is None
            await store.enter(record("r1", request_key=PAY), "me", LONG, "reject")
            assert await find(other) == KeyUse("r1", "pay 5", 0)
            for wanted in (PAY, DIFFERENT):  # not that the session is busy: that is told to nobody who has the key
                for session in (KEY, elsewhere("s2")):
                    with pytest.raises(KeyUsedError, match="used before, for run 'r1'") as refused:
                        await other.enter(record("r2", session=session, request_key=wanted), "you", LONG, "reject")
                    assert refused.value.run_id == "r1"
            assert await other.find("r2") is None
            again = await store.enter(record("r1", request_key=PAY), "me", LONG, "reject")  # the answer was lost
            assert again.epoch == 1
            bobs = record("r3", session=elsewhere("s1", "bob"), request_key=PAY)
            await other.enter(bobs, "you", LONG, "reject")
            assert await find(store, "bob") == KeyUse("r3", "pay 5", 0)
            assert await find(store, None) is None
            kept = await other.find("r1")
            assert kept is not None
            assert kept.request_key == PAY

    play(main)


def test_a_refused_run_keeps_no_key(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await store.enter(record("r1"), "me", LONG, "reject")
            with pytest.raises(SessionBusyError):
                await store.enter(record("r2", request_key=PAY), "me", LONG, "reject")
            assert await find(store) is None
            await store.enter(record("r2", session=elsewhere("s2"), request_key=PAY), "me", LONG, "reject")
            assert await find(store) == KeyUse("r2", "pay 5", 0)

    play(main)


def test_of_many_at_once_one_is_taken(url: str) -> None:
    """Each in a session of its own, and half of them in another process, as far as the database can tell."""

    async def main() -> None:
        async with opened(url) as store, opened(url) as other:
            await asyncio.gather(store.ping(), other.ping())
            tries = [
                (store, other)[number % 2].enter(
                    record(f"r{number}", session=elsewhere(f"s{number}"), request_key=PAY), "me", LONG, "reject"
                )
                for number in range(20)
            ]
            answers = await asyncio.gather(*tries, return_exceptions=True)
            (granted,) = [each for each in answers if not isinstance(each, BaseException)]
            refused = [each.run_id for each in answers if isinstance(each, KeyUsedError)]
            assert refused == [granted.run_id] * 19

    play(main)


def test_a_key_answers_a_paused_run_once(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store, opened(url) as other:
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            paused = record("r1", RunStatus.paused)
            assert await store.finish(lease, paused, said("One"), events("r1", (1, 2))) is None
            taken = await store.take_up("r1", "me", LONG, PAY)
            assert taken is not None
            assert await find(other) == KeyUse("r1", "pay 5", 2)
            assert await other.take_up("r1", "you", LONG, PAY) is None
            # Whoever took it up could not go on with it: it waits as before, and the key is as good as new.
            assert await store.finish(taken.lease, paused, said("One"), []) is None
            assert await find(other) is None
            taken = await other.take_up("r1", "you", LONG, PAY)
            assert taken is not None
            assert await other.finish(taken.lease, paused, said("One"), events("r1", (3, 4))) is None
            assert await find(store) == KeyUse("r1", "pay 5", 2)
            with pytest.raises(KeyUsedError):  # it asks something else by now
                await store.take_up("r1", "me", LONG, PAY)
            found = await store.find("r1")
            assert found is not None
            assert found.status is RunStatus.paused

    play(main)


def test_a_key_is_forgotten_with_its_run(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await store.enter(record("r1", request_key=PAY), "me", LONG, "reject")
            ended = record("r1", RunStatus.completed, request_key=PAY)
            assert await store.finish(lease, ended, said("One"), events("r1", (1,))) is None
            assert await store.delete_session(KEY)
            assert await find(store) == KeyUse("r1", "pay 5", 0)  # the run is still on record
            assert (await store.prune(-LONG))["runs"] == 1
            assert await find(store) is None

    play(main)


# -- a paused run that is taken up, and given back --------------------------------------------------------------------


async def pause(store: SQLStore, key: RequestKey | None = None) -> None:
    """Leave run r1 paused after its second event."""
    lease = await store.enter(record("r1", request_key=key), "me", LONG, "reject")
    assert await store.finish(lease, PAUSED, said("One"), events("r1", (1, 2))) is None


async def take_up(store: SQLStore, key: RequestKey) -> Taken:
    taken = await store.take_up("r1", "me", LONG, key)
    assert taken is not None
    return taken


async def give_back(store: SQLStore, taken: Taken) -> None:
    assert await store.finish(taken.lease, PAUSED, said("One"), []) is None


def test_a_key_that_gave_no_answer_is_free_also_after_anothers_answer(url: str) -> None:
    """Else who said no is told, on a second try, how the run went on after somebody else's yes."""

    async def main() -> None:
        async with opened(url) as store:
            await pause(store)
            await give_back(store, await take_up(store, PAY))
            taken = await take_up(store, OTHER)
            ended = record("r1", RunStatus.completed)
            assert await store.finish(taken.lease, ended, said("One"), events("r1", (3,))) is None
            assert await find(store) is None
            assert await store.find_key("helper", "ada", "k2") == KeyUse("r1", "pay 5", 2)

    play(main)


def test_a_run_that_is_given_back_keeps_the_key_that_started_it(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await pause(store, PAY)
            await give_back(store, await take_up(store, OTHER))
            assert await find(store) == KeyUse("r1", "pay 5", 0)
            assert await store.find_key("helper", "ada", "k2") is None

    play(main)


def test_a_start_that_pauses_without_a_word_keeps_its_key(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await store.enter(record("r1", request_key=PAY), "me", LONG, "reject")
            assert await store.finish(lease, PAUSED, [], []) is None
            assert await find(store) == KeyUse("r1", "pay 5", 0)

    play(main)


def test_an_answer_that_comes_second_takes_nothing_from_the_first(url: str) -> None:
    """The first one has the run, and has not written anything yet: both would go on after the same event."""

    async def main() -> None:
        async with opened(url) as store, opened(url) as other:
            await pause(store)
            await take_up(store, PAY)
            assert await other.take_up("r1", "you", LONG, OTHER) is None
            assert await find(store) == KeyUse("r1", "pay 5", 2)
            assert await store.find_key("helper", "ada", "k2") is None

    play(main)


async def waits(url: str, task: asyncio.Task[T]) -> None:
    """Until this waits for a lock, or is done without one."""
    with psycopg.connect(url, autocommit=True) as admin:
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        await until(lambda: task.done() or admin.execute(waiting).fetchone() is not None)


def held_up(work: Callable[[Tx], T], inside: Flag, go_on: Flag) -> Callable[[Tx], T]:
    """The same, but before its commit it waits for the test."""

    def do(tx: Tx) -> T:
        result = work(tx)
        inside.set()
        go_on.wait()
        return result

    return do


@pytest.mark.parametrize("key", [PAY, OTHER], ids=["the same request", "another one"])
def test_an_answer_that_comes_while_the_run_is_given_back_keeps_its_key(postgres_url: str, key: RequestKey) -> None:
    """It may be the same request, which was sent again: its key is still there, and is about to go.

    SQLite has one writer at a time.
    """

    async def main() -> None:
        inside, go_on = Flag(), Flag()
        async with opened(postgres_url) as slow, opened(postgres_url) as store:
            await pause(store)
            end = EncodedEnd.of((await take_up(slow, PAY)).lease, PAUSED, said("One"), [])
            giving = asyncio.create_task(slow._db.end(held_up(lambda tx: leases.finish(tx, end), inside, go_on)))
            await inside.arrived()
            taking = asyncio.create_task(store.take_up("r1", "you", LONG, key))
            await waits(postgres_url, taking)
            assert not taking.done()
            go_on.set()
            assert await giving is None
            assert await taking is not None
            assert await store.find_key("helper", "ada", key.key) == KeyUse("r1", "pay 5", 2)
            assert execute(postgres_url, "SELECT key FROM andon_keys") == [(key.key,)]

    play(main)


def test_a_run_is_not_given_to_an_answer_whose_key_goes(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same request comes again, finds its key, and then waits for the run, which is given back meanwhile."""

    async def main() -> None:
        inside, go_on, lock_run = Flag(), Flag(), sessions.lock_run

        def slowly(tx: Tx, run_id: str) -> Row[Any] | None:
            inside.set()
            go_on.wait()
            return lock_run(tx, run_id)

        async with opened(postgres_url) as slow, opened(postgres_url) as store:
            await pause(store)
            taken = await take_up(store, PAY)
            monkeypatch.setattr(sessions, "lock_run", slowly)
            taking = asyncio.create_task(slow.take_up("r1", "you", LONG, PAY))
            await inside.arrived()
            giving = asyncio.create_task(give_back(store, taken))
            await waits(postgres_url, giving)
            go_on.set()
            got = await taking
            await giving
            assert (got is None) == (await find(store) is None)

    play(main)
    assert deadlocks(postgres_url) == 0


def test_a_key_that_goes_while_it_is_looked_at_is_taken(postgres_url: str) -> None:
    """Between the two statements, one of which has found it, and the other one reads what it was used for."""
    gone: list[bool] = []

    def after(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "INSERT INTO andon_keys" in statement and not gone:
            gone.append(True)
            execute(postgres_url, "DELETE FROM andon_keys")

    async def main() -> None:
        async with opened(postgres_url) as store:
            await pause(store)
            await take_up(store, PAY)
            event.listen(Engine, "after_cursor_execute", after)
            try:
                await store.enter(record("r2", session=elsewhere("s2"), request_key=PAY), "me", LONG, "reject")
            finally:
                event.remove(Engine, "after_cursor_execute", after)
            assert gone
            assert await find(store) == KeyUse("r2", "pay 5", 0)

    play(main)


def test_an_answer_and_a_start_with_one_key_do_not_wait_for_each_other(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two servers, in one session. The start has the key, and wants to lock the session and the run that is paused
    there; the answer is for that run, and wants the key.
    """

    async def main() -> None:
        inside, go_on, lock_or_create = Flag(), Flag(), sessions.lock_or_create

        def slowly(*arguments: Any) -> Row[Any]:
            inside.set()  # it has its key, and nothing else
            go_on.wait()
            return lock_or_create(*arguments)

        async with opened(postgres_url) as store, opened(postgres_url) as other:
            await pause(store)
            monkeypatch.setattr(sessions, "lock_or_create", slowly)
            start = other.enter(record("r2", request_key=OTHER), "you", LONG, "queue")
            entering = asyncio.create_task(start)
            await inside.arrived()
            taking = asyncio.create_task(store.take_up("r1", "me", LONG, OTHER))
            await waits(postgres_url, taking)
            go_on.set()
            assert await entering == Lease("r2", 1)
            with pytest.raises(KeyUsedError, match="for run 'r2'"):
                await taking

    play(main)
    assert deadlocks(postgres_url) == 0


def deadlocks(url: str) -> int:
    """What the server has counted. It is told by each connection when that is closed."""
    with psycopg.connect(url, autocommit=True) as admin:
        counted = admin.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        (number,) = counted.fetchone() or (0,)
    return int(number)
