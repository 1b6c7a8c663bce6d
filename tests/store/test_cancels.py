# SPDX-License-Identifier: Apache-2.0
"""What others may ask of runs: to stop, and how it stands."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import psycopg
import pytest

from andon import CancelOutcome, RunStatus, SessionKey
from andon.core.receipt import CancelRequest
from andon.core.selection import Selection
from andon.core.states import CancelMode
from andon.store.sql import SQLStore, database, sessions
from tests.store.making import KEY, LONG, PAST, asking, events, opened, record, said
from tests.support import play

REQUESTED, ALREADY = CancelOutcome.requested, CancelOutcome.already_requested
FINISHED, UNKNOWN = CancelOutcome.already_finished, CancelOutcome.unknown


async def crowd(store: SQLStore) -> None:
    """Runs of two users and two agents; r5 has ended, r6 is paused."""
    keys = [
        SessionKey("a", "ada", "s1"),
        SessionKey("a", "ada", "s2"),
        SessionKey("a", "bob", "s1"),
        SessionKey("b", "ada", "s1"),
        SessionKey("b", None, "s9"),
        SessionKey("b", "bob", "s6"),
    ]
    leases = [
        await store.enter(record(f"r{number}", session=key), "me", LONG, "reject") for number, key in enumerate(keys, 1)
    ]
    await store.enter(record("r7", session=keys[4]), "me", LONG, "queue")
    await store.finish(leases[4], record("r5", RunStatus.completed, keys[4]), said("x"), events("r5", (1,)))
    await store.finish(leases[5], record("r6", RunStatus.paused, keys[5]), said("x"), [])


@pytest.mark.parametrize(
    ("which", "asked"),
    [
        (Selection(run_id="r1"), {"r1": REQUESTED}),
        (Selection(run_id="r5"), {"r5": FINISHED}),
        (Selection(run_id="r0"), {"r0": UNKNOWN}),
        (Selection(run_id="r1", user_id="bob"), {"r1": UNKNOWN}),
        (Selection(session_id="s1"), dict.fromkeys(("r1", "r3", "r4"), REQUESTED)),
        (Selection(session_id="s1", user_id="ada", agent_id="a"), {"r1": REQUESTED}),
        (Selection(user_id="bob"), dict.fromkeys(("r3", "r6"), REQUESTED)),
        (Selection(agent_id="b"), dict.fromkeys(("r4", "r6", "r7"), REQUESTED)),
        (Selection(session_id="s9"), {"r7": REQUESTED}),
        (Selection(statuses=[RunStatus.paused]), {"r6": REQUESTED}),
        (Selection(user_id="nobody"), {}),
        (Selection(), dict.fromkeys(("r1", "r2", "r3", "r4", "r6", "r7"), REQUESTED)),
    ],
)
def test_exactly_those_are_asked_that_were_meant(url: str, which: Selection, asked: dict[str, CancelOutcome]) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await crowd(store)
            assert await store.request_cancel(which, asking()) == asked
            cancelling = await store.list_runs(Selection(statuses=[RunStatus.cancelling]), 100)
            assert sorted(each.run_id for each in cancelling) == [name for name in asked if asked[name] is REQUESTED]

    play(main)


def test_the_same_on_any_database(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await crowd(store)
            first = dict.fromkeys(("r1", "r3", "r4"), REQUESTED)
            assert await store.request_cancel(Selection(session_id="s1"), asking()) == first
            rest = dict.fromkeys(("r1", "r2", "r3", "r4"), ALREADY) | {"r2": REQUESTED}
            rest |= dict.fromkeys(("r6", "r7"), REQUESTED)
            assert await store.request_cancel(Selection(), asking()) == rest
            assert await store.request_cancel(Selection(run_id="r5"), asking()) == {"r5": FINISHED}
            assert await store.request_cancel(Selection(run_id="r0"), asking()) == {"r0": UNKNOWN}

    play(main)


def test_the_outcomes_say_whether_there_may_be_orphans(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            for name, seconds in (("held", LONG), ("left", PAST), ("paused", LONG)):
                lease = await store.enter(record(name, session=KEY._replace(session_id=name)), "me", seconds, "queue")
            await store.finish(lease, record("paused", RunStatus.paused, KEY._replace(session_id="paused")), [], [])
            for name in ("held", "left", "paused", "unknown"):
                outcomes = await store.request_cancel(Selection(name), asking())
                assert outcomes.has_orphans is (name in ("left", "paused"))
            assert (await store.request_cancel(Selection(), asking())).has_orphans

    play(main)


def test_many_runs_can_be_asked_at_once(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            for number in range(30):
                await store.enter(
                    record(f"r{number}", session=KEY._replace(session_id=f"{number}")), "me", LONG, "queue"
                )
            outcomes = await store.request_cancel(Selection(), asking())
            assert list(outcomes.values()) == [REQUESTED] * 30
            assert len(await store.cancel_log(Selection(), 100)) == 30

    play(main)


@pytest.mark.parametrize(
    ("first", "later", "result"),
    [
        (("after_turn", None), ("now", None), ("now", None)),
        (("after_turn", 5.0), ("after_tools", None), ("after_tools", 5.0)),
        (("after_turn", None), ("after_turn", 2.0), ("after_turn", 2.0)),
        (("after_tools", 5.0), ("after_turn", 2.0), ("after_tools", 2.0)),
        (("after_tools", 2.0), ("after_turn", 5.0), ("after_tools", 2.0)),
        (("now", None), ("after_turn", 1.0), ("now", None)),
        (("after_turn", 5.0), ("now", 3.0), ("now", 3.0)),  # that is how long calls are let finish
    ],
)
def test_a_later_request_can_only_ask_for_more(
    url: str,
    first: tuple[str, float | None],
    later: tuple[str, float | None],
    result: tuple[str, float | None],
) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            one = asking(reason="why", by="ada", mode=first[0], grace=first[1])
            two = asking(reason="also", by="bob", mode=later[0], grace=later[1])
            await store.request_cancel(Selection(run_id="r1"), one)
            assert await store.request_cancel(Selection(run_id="r1"), two) == {"r1": ALREADY}
            kept = (await store.renew([lease], None)).cancels["r1"]
            mode, grace = result
            assert kept == CancelRequest(one.cause, "why", "ada", CancelMode(mode), grace, one.requested_at)
            log = [entry.request for entry in await store.cancel_log(Selection(run_id="r1"), 10)]
            assert log == ([two, one] if kept != one else [one])

    play(main)


def test_who_asks_again_because_the_answer_was_lost_is_answered_as_before(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await store.enter(record("r1"), "me", LONG, "reject")
            request = asking(reason="why", mode="after_turn", grace=2.5)
            for which in (Selection("r1"), Selection("r1", agent_id="helper"), Selection(session_id="s1")):
                assert await store.request_cancel(which, request) == {"r1": REQUESTED}
            assert await store.request_cancel(Selection("r1"), asking()) == {"r1": ALREADY}
            log = await store.cancel_log(Selection(), 10)
            assert [entry.request.reason for entry in log] == [None, "why"]

    play(main)


@pytest.mark.parametrize("name", ["r\x00", "r\ud800", "\x01", "«r»", 'r"1', "r\\", "r" * 2_000])
def test_a_run_of_any_name_is_asked_and_on_record(url: str, name: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            request = asking(reason='"half" \ud800')
            lease = await store.enter(record(name), "me", LONG, "reject")
            assert await store.request_cancel(Selection(name), request) == {name: REQUESTED}
            (entry,) = await store.cancel_log(Selection(name), 10)
            assert (entry.run_id, entry.session) == (name, KEY)
            assert (await store.renew([lease], None)).cancels == {name: entry.request}
            assert entry.request.requested_at == request.requested_at

    play(main)


def test_who_cancelled_what_is_on_record(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await crowd(store)
            by_ada, by_bob = asking(by="ada", reason="secret plans"), asking(by="bob")
            await store.request_cancel(Selection(agent_id="a"), by_ada)
            await store.request_cancel(Selection(), by_bob)
            log = await store.cancel_log(Selection(), 100)
            assert [entry.run_id for entry in log] == ["r7", "r6", "r4", "r3", "r2", "r1"]
            assert [entry.request for entry in log] == [by_bob] * 3 + [by_ada] * 3
            assert [entry.run_id for entry in await store.cancel_log(Selection(user_id="bob"), 100)] == ["r6", "r3"]
            assert [entry.run_id for entry in await store.cancel_log(Selection(), 1)] == ["r7"]
            cancelling = Selection(agent_id="b", statuses=[RunStatus.cancelling])
            assert [entry.run_id for entry in await store.cancel_log(cancelling, 100)] == ["r7", "r6", "r4"]
            assert await store.cancel_log(Selection(statuses=[RunStatus.completed]), 100) == []

    play(main)


def test_a_list_does_not_read_what_only_the_records_have(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record may be megabytes: a page of those would hold up the loop, and everything on it."""

    async def main() -> None:
        async with opened(url) as store:
            large = msgspec.structs.replace(record("r1", continues="r0"), metadata={"note": "x" * 1_000_000})
            await store.enter(large, "me", LONG, "reject")
            await store.enter(record("r2", session=SessionKey("a", None, "s")), "me", LONG, "reject")
            with monkeypatch.context() as patched:
                patched.setattr(sessions, "read_record", None)
                listed = await store.list_runs(Selection(), 100)
            whole = [await store.find(each.run_id) for each in listed]
            assert [each.run_id for each in listed] == ["r2", "r1"]
            assert listed == [msgspec.structs.replace(each, metadata={}) for each in whole if each is not None]

    play(main)


def test_runs_are_listed_newest_first(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await crowd(store)
            everything = await store.list_runs(Selection(), 100)
            assert [each.run_id for each in everything] == ["r7", "r6", "r5", "r4", "r3", "r2", "r1"]
            assert [each.run_id for each in await store.list_runs(Selection(), 2)] == ["r7", "r6"]
            assert [each.run_id for each in await store.list_runs(Selection(user_id="ada"), 100)] == ["r4", "r2", "r1"]
            await store.request_cancel(Selection(run_id="r4"), asking())
            statuses = {each.run_id: each.status for each in await store.list_runs(Selection(agent_id="b"), 100)}
            assert statuses == {
                "r4": RunStatus.cancelling,
                "r5": RunStatus.completed,
                "r6": RunStatus.paused,
                "r7": RunStatus.pending,
            }
            pending = await store.list_runs(Selection(statuses=[RunStatus.pending]), 100)
            assert [each.run_id for each in pending] == ["r7"]
            running = await store.list_runs(Selection(statuses=[RunStatus.running]), 100)
            assert [each.run_id for each in running] == ["r3", "r2", "r1"]
            some = await store.list_runs(Selection(statuses=[RunStatus.cancelling, RunStatus.completed]), 100)
            assert [each.run_id for each in some] == ["r5", "r4"]

    play(main)


def test_cancels_of_a_locked_run_do_not_delay_others(postgres_url: str) -> None:
    """More of them than there are threads for cancels; they are done when the lock is gone."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            for name in ("locked", "free"):
                await store.enter(record(name, session=KEY._replace(session_id=name)), "me", LONG, "queue")
            with psycopg.connect(postgres_url) as other:
                other.execute("SELECT FROM andon_runs WHERE run_id = 'locked' FOR UPDATE")
                stuck = [
                    asyncio.create_task(store.request_cancel(Selection("locked"), asking()))
                    for _ in range(database.CANCELLERS + 1)
                ]
                await asyncio.sleep(0)
                assert await store.request_cancel(Selection("free"), asking()) == {"free": CancelOutcome.requested}
                await store.ping()
                assert not any(task.done() for task in stuck)
            outcomes = Counter([answer["locked"] for answer in await asyncio.gather(*stuck)])
            assert outcomes == {CancelOutcome.requested: 1, CancelOutcome.already_requested: database.CANCELLERS}

    play(main)
