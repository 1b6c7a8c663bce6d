# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys in a store: each sets one run going, whoever uses it at once, and none is kept for nothing."""

from __future__ import annotations

import asyncio

import pytest

from andon import KeyUsedError, RunStatus, SessionBusyError
from andon.core.shared import KeyUse
from andon.core.store import RequestKey, SessionKey
from andon.store.sql import SQLStore
from tests.store.making import KEY, LONG, events, opened, record, said
from tests.support import play

PAY, DIFFERENT = RequestKey("k1", "pay 5"), RequestKey("k1", "pay 6")


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
