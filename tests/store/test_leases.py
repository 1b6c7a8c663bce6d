# SPDX-License-Identifier: Apache-2.0
"""A run has one writer at a time, and one end."""

from __future__ import annotations

import asyncio

import msgspec
import psycopg
import pytest

from andon import CancelOutcome, Interrupt, Receipt, RunStatus, SessionKey
from andon.core.receipt import CancelRequest
from andon.core.selection import Selection
from andon.core.shared.store import Lease, Progress, Taken
from andon.core.states import CancelCause, CancelMode, Phase
from andon.errors import LeaseLostError
from andon.messages import Usage
from andon.store.sql import SQLStore, database
from tests.store.making import KEY, LONG, PAST, asking, events, opened, record, said
from tests.support import play, until

DONE, CANCELLED, PAUSED = RunStatus.completed, RunStatus.cancelled, RunStatus.paused


async def running(store: SQLStore, run_id: str = "r1", seconds: float = LONG) -> Lease:
    lease = await store.enter(record(run_id), "me", seconds, "queue")
    assert await store.take_turn(lease)
    return lease


def test_progress_is_kept_as_it_comes(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await running(store)
            assert await store.write([Progress(lease, said("One"), events("r1", (1, 2)))]) == []
            assert await store.write([Progress(lease, None, events("r1", (3,)))]) == []
            assert await store.write([Progress(lease, None, [])]) == []
            assert await store.load(KEY) == said("One")
            assert await store.added("r1") == said("One")
            assert await store.read_events("r1", 0, 100) == events("r1", (1, 2, 3))
            assert await store.read_events("r1", 1, 1) == events("r1", (2,))
            assert await store.read_events("r1", 3, 100) == []
            assert await store.read_events("r0", 0, 100) == []

    play(main)


def test_messages_come_with_the_run_that_they_go_on_with(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            first = await running(store)
            await store.finish(first, record("r1", CANCELLED), said("Cut"), [])
            second = await running(store, "r2", PAST)
            assert await store.load(KEY) == said("Cut")
            await store.write([Progress(second, said("Cut, and more"), [], "r1")])
            assert await store.load(KEY) == said("Cut, and more")
            assert await store.added("r1") is None
            [taken] = await store.take_orphans("you", LONG, 10)
            assert taken.record.continues == "r1"

    play(main)


def test_what_is_written_twice_is_there_once(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await running(store)
            for _ in range(2):
                await store.write([Progress(lease, said("One"), events("r1", (1, 2)))])
            await store.write([Progress(lease, None, events("r1", (2, 3)))])
            end = record("r1", DONE)
            assert await store.finish(lease, end, said("One"), events("r1", (3, 4))) is None
            assert await store.finish(lease, end, said("One"), events("r1", (3, 4))) is None
            assert await store.read_events("r1", 0, 100) == events("r1", (1, 2, 3, 4))

    play(main)


def test_events_may_have_gaps_and_half_characters(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await running(store)
            odd = msgspec.structs.replace(events("r1", (9,))[0], content="half \ud800\n\x00 \u2028")
            await store.write([Progress(lease, None, [*events("r1", (1, 2, 5)), odd])])
            await store.write([Progress(lease, None, [*events("r1", (10, 11)), msgspec.structs.replace(odd, seq=12)])])
            found = await store.read_events("r1", 0, 100)
            assert [each.seq for each in found] == [1, 2, 5, 9, 10, 11, 12]
            assert found[3].content == found[6].content == "half ?\n\x00 \u2028"

    play(main)


def test_a_batch_is_for_many_runs_and_names_those_that_were_lost(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            names = [f"r{number}" for number in range(1, 6)]
            keys = [KEY._replace(session_id=name) for name in names]
            leases = [
                await store.enter(record(name, session=key), "me", LONG, "reject")
                for name, key in zip(names, keys, strict=True)
            ]
            await store.finish(leases[1], record("r2", DONE, keys[1]), said("End"), [])
            old, gone = Lease("r3", 0), Lease("r9", 1)
            batch = [leases[0], leases[1], old, gone, leases[4]]
            progress = [Progress(lease, said(lease.run_id), events(lease.run_id, (1,))) for lease in batch]
            assert await store.write(progress) == ["r2", "r3", "r9"]
            assert await store.load(keys[0]) == said("r1")
            assert await store.load(keys[1]) == said("End")
            assert await store.load(keys[2]) == []
            assert await store.read_events("r5", 0, 9) == events("r5", (1,), keys[4])
            assert await store.read_events("r2", 0, 9) == []

    play(main)


def test_a_lease_that_has_run_out_can_be_taken_and_the_old_one_is_fenced(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await running(store, seconds=PAST)
            await store.write([Progress(lease, said("One"), events("r1", (1,)))])
            [taken] = await store.take_orphans("you", LONG, 10)
            assert taken.lease == Lease("r1", 2)
            assert taken.record == record("r1", RunStatus.running)
            assert taken.messages == said("One")
            assert (taken.cancel, taken.last_seq) == (None, 1)
            assert await store.take_orphans("him", LONG, 10) == []
            assert await store.write([Progress(lease, said("Late"), events("r1", (2,)))]) == ["r1"]
            assert (await store.renew([lease], LONG)).lost == ["r1"]
            assert (await store.renew([taken.lease], LONG)).lost == []
            left = await store.finish(lease, record("r1", DONE), said("Late"), [])
            assert left == record("r1", RunStatus.running)
            assert await store.finish(taken.lease, record("r1", CANCELLED), said("Lost"), events("r1", (2,))) is None
            assert await store.finish(lease, record("r1", DONE), said("Late"), []) == record("r1", CANCELLED)
            assert await store.load(KEY) == said("Lost")
            assert await store.read_events("r1", 0, 9) == events("r1", (1, 2))

    play(main)


def test_a_run_whose_lease_is_renewed_is_no_orphan(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await running(store, seconds=PAST)
            assert (await store.renew([lease], None))[:2] == ([], {})
            assert (await store.renew([lease], LONG))[:2] == ([], {})
            assert await store.take_orphans("you", LONG, 10) == []
            assert (await store.renew([lease], PAST))[:2] == ([], {})
            assert [taken.lease for taken in await store.take_orphans("you", LONG, 10)] == [Lease("r1", 2)]

    play(main)


def test_a_renewal_carries_the_cancels_and_many_leases(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            leases = [
                await store.enter(record(f"r{n}", session=KEY._replace(session_id=f"{n}")), "me", LONG, "reject")
                for n in range(40)
            ]
            request = asking(reason="enough", by="ada", mode="after_turn", grace=2.5)
            await store.request_cancel(Selection(session_id="7"), request)
            await store.finish(leases[8], record("r8", DONE), [], [])
            answer = await store.renew([*leases, Lease("r99", 1)], LONG)
            assert answer.lost == ["r8", "r99"]
            assert answer.cancels == {"r7": request}
            assert (await store.renew([], LONG))[:2] == ([], {})

    play(main)


def test_orphans_are_taken_oldest_first_and_a_few_at_a_time(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            for number in range(5):
                key = SessionKey("helper", None, f"s{number}")
                await store.enter(record(f"r{number}", session=key), "me", PAST, "reject")
            first = await store.take_orphans("you", PAST, 3)
            assert [taken.lease.run_id for taken in first] == ["r0", "r1", "r2"]
            assert [taken.record.status for taken in first] == [RunStatus.running] * 3
            rest = await store.take_orphans("you", LONG, 10)
            assert [taken.lease for taken in rest] == [*(Lease(f"r{n}", 2 if n > 2 else 3) for n in range(5))]

    play(main)


def test_a_run_that_was_asked_to_stop_ends_as_cancelled_and_as_nothing_else(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await running(store)
            request = asking(by="ada")
            await store.request_cancel(Selection(run_id="r1"), request)
            for status in (DONE, RunStatus.error, PAUSED):
                assert await store.finish(lease, record("r1", status), said("One"), events("r1", (1,))) == request
            assert await store.load(KEY) == []
            assert await store.read_events("r1", 0, 9) == []
            assert await store.finish(lease, record("r1", CANCELLED), said("Cut"), []) is None
            assert await store.load(KEY) == said("Cut")
            assert await store.request_cancel(Selection(run_id="r1"), asking()) == {
                "r1": CancelOutcome.already_finished
            }

    play(main)


def test_an_end_is_an_end(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await running(store)
            assert await store.finish(lease, record("r1", DONE), said("One"), []) is None
            for status in (CANCELLED, PAUSED, RunStatus.error):
                assert await store.finish(lease, record("r1", status), said("Two"), []) == record("r1", DONE)
            assert await store.write([Progress(lease, said("Two"), [])]) == ["r1"]
            assert (await store.renew([lease], LONG)).lost == ["r1"]
            assert await store.load(KEY) == said("One")
            assert await store.take_orphans("you", LONG, 10) == []
            with pytest.raises(LeaseLostError):
                await store.finish(Lease("r0", 1), record("r0", DONE), [], [])

    play(main)


def test_a_paused_run_has_no_holder_until_it_is_claimed(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await running(store)
            waiting = record("r1", PAUSED, interrupts=[Interrupt("i1", "delete", {"name": "x"})])
            assert await store.finish(lease, waiting, said("Asked"), events("r1", (1,))) is None
            assert await store.find("r1") == waiting
            assert (await store.renew([lease], LONG))[:2] == ([], {})
            assert await store.write([Progress(lease, said("Late"), [])]) == ["r1"]
            assert await store.finish(lease, record("r1", DONE), said("Late"), []) == waiting
            assert await store.take_orphans("you", LONG, 10) == []
            taken = await store.take_up("r1", "you", LONG)
            assert taken is not None
            assert taken == Taken(Lease("r1", 2), waiting, said("Asked"), None, 1, taken.since)
            assert await store.finish(lease, record("r1", DONE), said("Late"), []) == record(
                "r1", RunStatus.running, interrupts=waiting.interrupts
            )
            assert await store.take_up("r1", "him", LONG) is None
            assert (await store.renew([lease], LONG)).lost == ["r1"]
            assert await store.take_turn(taken.lease)
            assert await store.finish(taken.lease, record("r1", DONE), said("Answered"), []) is None
            assert await store.load(KEY) == said("Answered")
            assert await store.take_up("r1", "you", LONG) is None
            assert await store.take_up("r0", "you", LONG) is None

    play(main)


def test_the_process_that_paused_a_run_may_say_that_it_was_cancelled(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await running(store)
            assert await store.finish(lease, record("r1", PAUSED), said("Asked"), events("r1", (1,))) is None
            await store.request_cancel(Selection(run_id="r1"), asking())
            refused = await store.finish(lease, record("r1", DONE), said("Done"), [])
            assert refused == record("r1", RunStatus.cancelling)
            assert await store.finish(lease, record("r1", CANCELLED), said("Cut"), events("r1", (1, 2))) is None
            assert await store.load(KEY) == said("Cut")
            assert await store.take_orphans("you", LONG, 10) == []

    play(main)


def test_a_paused_run_that_was_asked_to_stop_can_only_be_ended(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await running(store)
            await store.finish(lease, record("r1", PAUSED), said("Asked"), [])
            request = asking()
            await store.request_cancel(Selection(run_id="r1"), request)
            assert await store.take_up("r1", "you", LONG) is None
            assert (await store.renew([lease], None))[:2] == ([], {"r1": request})
            [taken] = await store.take_orphans("you", LONG, 10)
            assert (taken.record, taken.cancel, taken.last_seq) == (record("r1", PAUSED), request, 0)
            assert await store.take_orphans("him", LONG, 10) == []
            found = await store.find("r1")
            assert found is not None
            assert found.status is RunStatus.cancelling
            assert (await store.renew([taken.lease], LONG)).cancels == {"r1": request}
            assert await store.finish(taken.lease, record("r1", CANCELLED), said("Asked"), []) is None

    play(main)


def test_a_deleted_session_is_not_revived_by_a_run_that_was_in_it(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await running(store)
            await store.write([Progress(lease, said("One"), [])])
            assert await store.delete_session(KEY)
            assert await store.write([Progress(lease, said("One and a half"), events("r1", (1,)))]) == []
            # The same name is another session now, and free.
            other = await store.enter(record("r2"), "me", LONG, "reject")
            assert await store.take_turn(other)
            assert await store.finish(lease, record("r1", DONE), said("Two"), events("r1", (2,))) is None
            assert await store.find("r1") == record("r1", DONE)
            assert await store.added("r1") is None
            assert await store.read_events("r1", 0, 9) == events("r1", (1, 2))
            assert await store.find_session(KEY) is None
            assert await store.load(KEY) == []

    play(main)


def test_a_cancel_that_the_worker_knew_first_is_on_record_too(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await running(store)
            receipt = Receipt(
                CancelCause.deadline, "late", None, CancelMode.now, 5.5, 6.5, 1.0, Phase.tools, [], Usage(), []
            )
            end = msgspec.structs.replace(record("r1", CANCELLED), receipt=receipt)
            assert await store.finish(lease, end, said("Cut"), []) is None
            [entry] = await store.cancel_log(Selection(), 10)
            assert entry.run_id == "r1"
            assert entry.request == CancelRequest(CancelCause.deadline, "late", None, CancelMode.now, None, 5.5)
            found = await store.find("r1")
            assert found == end

    play(main)


def test_a_run_that_somebody_has_locked_costs_no_other_one_its_lease(postgres_url: str) -> None:
    """Also while as many ends as there are threads for them wait for locks."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            names = ["locked", "free", *(f"ending {number}" for number in range(database.ENDERS))]
            leases = [
                await store.enter(record(name, session=KEY._replace(session_id=name)), "me", PAST, "queue")
                for name in names
            ]
            with psycopg.connect(postgres_url) as other:
                other.execute("SELECT FROM andon_runs WHERE run_id = 'locked' FOR UPDATE")
                other.execute("SELECT FROM andon_sessions WHERE session_id LIKE 'ending%' FOR UPDATE")
                ends = [
                    asyncio.create_task(
                        store.finish(
                            lease,
                            record(lease.run_id, DONE, KEY._replace(session_id=lease.run_id)),
                            [],
                            events(lease.run_id, (1,)),
                        )
                    )
                    for lease in leases[2:]
                ]
                await until(lambda: _waiting(postgres_url) == database.ENDERS)
                renewal = await store.renew(leases[:2], LONG)
                assert (renewal.lost, renewal.locked) == ([], ["locked"])
            assert await asyncio.gather(*ends) == [None] * len(ends)
            assert (await store.renew(leases[:2], LONG)).locked == []

    play(main)


def _waiting(url: str) -> int:
    """How many wait for a lock."""
    with psycopg.connect(url, autocommit=True) as admin:
        found = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        row = admin.execute(found).fetchone()
        assert row is not None
        return int(row[0])
