# SPDX-License-Identifier: Apache-2.0
"""A session's line in a store that several processes share: who may enter, and whose turn it is."""

from __future__ import annotations

import pytest

from andon import (
    CancelOutcome,
    Interrupt,
    RunIdTakenError,
    RunStatus,
    SessionBusyError,
    SessionKey,
    SessionPausedError,
)
from andon.core.records import RunRecord
from andon.core.selection import Block, Selection
from andon.core.shared.store import Lease, Progress, SharedStore
from andon.core.states import CancelCause
from andon.errors import BlockedError, LeaseLostError
from tests.store.making import KEY, LONG, PAST, asking, opened, record, said
from tests.support import play


def test_it_is_a_store_for_many_processes(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            assert isinstance(store, SharedStore)
            await store.ping()

    play(main)


def test_runs_take_their_turns_in_the_order_in_which_they_entered(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            first = await store.enter(record("r1"), "me", LONG, "reject")
            second = await store.enter(record("r2"), "you", LONG, "queue")
            third = await store.enter(record("r3"), "me", LONG, "queue")
            assert (first, second) == (Lease("r1", 1), Lease("r2", 1))
            assert not await store.take_turn(second)
            assert await store.take_turn(first)
            assert await store.take_turn(first)
            found = await store.find("r1")
            assert found is not None
            assert found.status is RunStatus.running
            assert await store.finish(first, record("r1", RunStatus.completed), said("One"), []) is None
            assert not await store.take_turn(third)
            assert await store.take_turn(second)
            elsewhere = await store.enter(record("r4", session=SessionKey("helper", None, "s1")), "me", LONG, "reject")
            assert await store.take_turn(elsewhere)

    play(main)


def test_a_session_is_not_there_until_a_run_has_left_something_in_it(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await store.enter(record("r1", at=7.5), "me", LONG, "reject")
            assert await store.find_session(KEY) is None
            assert await store.list_sessions("helper", "ada") == []
            assert await store.update_session(KEY, {"a": 1}) is None
            assert not await store.delete_session(KEY)
            await store.write([Progress(lease, said("One"), [])])
            session = await store.find_session(KEY)
            assert session is not None
            assert session.created_at == 7.5 < session.updated_at
            assert await store.create_session(KEY, {}) is None

    play(main)


def test_a_session_can_be_created_while_its_first_run_waits(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            made = await store.create_session(KEY, {"a": 1})
            assert made is not None
            assert await store.find_session(KEY) == made
            await store.write([Progress(lease, said("One"), [])])
            assert await store.load(KEY) == said("One")

    play(main)


def test_a_busy_session_refuses_and_says_who_holds_it(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            with pytest.raises(SessionBusyError, match="run 'r1' is running in it") as refused:
                await store.enter(record("r2"), "you", LONG, "reject")
            assert refused.value.run_id == "r1"
            assert await store.find("r2") is None
            await store.take_turn(lease)
            await store.finish(lease, record("r1", RunStatus.completed), [], [])
            await store.enter(record("r2"), "you", LONG, "reject")

    play(main)


def test_a_paused_session_refuses_and_names_the_questions(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            await store.take_turn(lease)
            waiting = record("r1", RunStatus.paused, interrupts=[Interrupt("i1", "delete")])
            assert await store.finish(lease, waiting, said("One"), []) is None
            with pytest.raises(SessionPausedError, match=r"waits for answers to 'i1' \(delete\)"):
                await store.enter(record("r2"), "you", LONG, "reject")
            queued = await store.enter(record("r2"), "you", LONG, "queue")
            assert not await store.take_turn(queued)

    play(main)


def test_a_run_that_is_being_cancelled_or_was_lost_is_not_busy_but_has_its_turn(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            first = await store.enter(record("r1"), "me", LONG, "reject")
            await store.request_cancel(Selection(run_id="r1"), asking())
            await store.enter(record("r2"), "lost", PAST, "reject")
            third = await store.enter(record("r3"), "you", LONG, "reject")
            assert not await store.take_turn(third)
            await store.finish(first, record("r1", RunStatus.cancelled), [], [])
            assert not await store.take_turn(third)
            [taken] = await store.take_orphans("you", LONG, 10)
            await store.finish(taken.lease, record("r2", RunStatus.cancelled), [], [])
            assert await store.take_turn(third)

    play(main)


def test_a_newer_run_can_supersede_those_that_are_ahead(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            leases = [await store.enter(record(name), "me", LONG, "queue") for name in ("r1", "r2")]
            await store.request_cancel(Selection(run_id="r2"), asking(by="ada"))
            other = await store.enter(record("r9", session=KEY._replace(session_id="s2")), "me", LONG, "reject")
            await store.enter(record("r3"), "you", LONG, "cancel")
            cancels = (await store.renew([*leases, other, Lease("r3", 1)], None)).cancels
            assert list(cancels) == ["r1", "r2"]
            assert (cancels["r1"].cause, cancels["r1"].reason) == (CancelCause.superseded, "run r3 takes over")
            assert cancels["r2"].by == "ada"
            assert [entry.run_id for entry in await store.cancel_log(Selection(), 10)] == ["r1", "r2"]

    play(main)


def test_a_run_id_is_taken_for_good(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            for session, owner, at in ((KEY, "you", 1.5), (KEY, "me", 2.5), (KEY._replace(user_id=None), "me", 1.5)):
                with pytest.raises(RunIdTakenError, match="'r1' is taken by another run"):
                    await store.enter(record("r1", session=session, at=at), owner, LONG, "queue")
            await store.finish(lease, record("r1", RunStatus.completed), [], [])
            with pytest.raises(RunIdTakenError):
                await store.enter(record("r1"), "me", LONG, "reject")
            with pytest.raises(RunIdTakenError):
                await store.save(record("r1", RunStatus.completed, at=9.5), said("Other"))

    play(main)


def test_who_asks_again_because_the_answer_was_lost_is_in_the_line_once(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            assert await store.enter(record("r1"), "me", LONG, "reject") == lease
            assert [each.run_id for each in await store.list_runs(Selection(), 10)] == ["r1"]

    play(main)


def test_blocked_users_and_agents_can_not_enter(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            blocked = Block("user", "ada", "root", "too eager", 1.5)
            await store.block(blocked)
            with pytest.raises(BlockedError, match=r"user 'ada' are blocked \(too eager\)"):
                await store.enter(record("r1"), "me", LONG, "reject")
            await store.enter(record("r2", session=KEY._replace(user_id=None)), "me", LONG, "reject")
            await store.block(Block("agent", "helper", at=2.5))
            with pytest.raises(BlockedError, match="agent 'helper'"):
                await store.enter(record("r3", session=KEY._replace(user_id=None)), "me", LONG, "queue")
            await store.block(Block("user", "ada", "other", at=3.5))
            assert [(each.id, each.by) for each in await store.blocks()] == [("helper", None), ("ada", "other")]
            assert await store.unblock("user", "ada")
            assert not await store.unblock("user", "ada")
            assert await store.unblock("agent", "helper")
            await store.enter(record("r1"), "me", LONG, "reject")
            assert await store.blocks() == []

    play(main)


def test_who_has_not_had_its_turn_is_not_part_of_the_conversation_yet(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            first, second, third = [await store.enter(record(f"r{n}"), "me", LONG, "queue") for n in (1, 2, 3)]
            assert await store.request_cancel(Selection(run_id="r2"), asking()) == {"r2": CancelOutcome.requested}
            assert await store.finish(second, record("r2", RunStatus.cancelled), said("Two"), []) is None
            assert await store.take_turn(first)
            assert await store.load(KEY) == []
            await store.write([Progress(first, said("On"), [])])
            assert await store.load(KEY) == said("On")
            await store.finish(first, record("r1", RunStatus.completed), said("One"), [])
            assert await store.take_turn(third)
            assert await store.load(KEY) == [*said("One"), *said("Two")]

    play(main)


def test_nothing_is_taken_back_while_a_run_is_in_the_line(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            await store.finish(lease, record("r1", RunStatus.completed), said("One"), [])
            await store.enter(record("r2"), "me", LONG, "reject")
            with pytest.raises(SessionBusyError, match="run 'r2' is running in it"):
                await store.rollback("r1")

    play(main)


def test_without_a_lease_there_is_no_turn(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await store.enter(record("r1"), "me", PAST, "reject")
            with pytest.raises(LeaseLostError, match="run 'r0'"):
                await store.take_turn(Lease("r0", 1))
            [taken] = await store.take_orphans("you", LONG, 10)
            assert taken.lease == Lease("r1", 2)
            with pytest.raises(LeaseLostError):
                await store.take_turn(lease)
            assert await store.take_turn(taken.lease)
            ended: RunRecord = record("r1", RunStatus.cancelled)
            await store.finish(taken.lease, ended, [], [])
            with pytest.raises(LeaseLostError):
                await store.take_turn(taken.lease)

    play(main)
