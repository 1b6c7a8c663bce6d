# SPDX-License-Identifier: Apache-2.0
"""What Postgres does in one go: the same as SQLite does in several steps, whatever has changed while it waited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import psycopg
import pytest

from andon import Receipt, RunStatus, SessionKey, Usage
from andon.core.receipt import CancelRequest
from andon.core.selection import Selection
from andon.core.shared.store import Lease, Progress
from andon.core.states import CancelCause, CancelOutcome, Phase
from andon.errors import LeaseLostError, StoreError
from andon.store.sql import SQLStore, cancels, database, leases, notifications, transaction
from andon.store.sql.faults import is_transient
from tests.store.making import KEY, LONG, asking, events, opened, record, said
from tests.store.test_processes import Bell
from tests.store.test_races import together
from tests.support import Flag, play, until

TAKE_OVER = "UPDATE andon_runs SET epoch = 2, owner = 'you'"
DELETE_SESSION = "DELETE FROM andon_sessions"
END = "UPDATE andon_runs SET status = 'completed', ended = 3.5, owner = NULL, lease_until = NULL"


@contextlib.asynccontextmanager
async def begun(url: str) -> AsyncIterator[tuple[SQLStore, Lease]]:
    async with opened(url) as store:
        lease = await store.enter(record("r1"), "me", LONG, "reject")
        assert await store.take_turn(lease)
        yield store, lease


async def overtaken(url: str, call: Awaitable[Any], *changes: str) -> Any:
    """What a call gives that began before these changes, and had to wait for them."""
    with psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as admin:
        for change in changes:
            other.execute(change.encode())
        calling = asyncio.ensure_future(call)
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        await until(lambda: calling.done() or admin.execute(waiting).fetchone() is not None)
        assert not calling.done()
        other.commit()
    return await calling


def test_an_end_that_was_overtaken_by_a_deletion_leaves_nothing_in_the_session(postgres_url: str) -> None:
    async def main() -> None:
        async with begun(postgres_url) as (store, lease):
            end = store.finish(lease, record("r1", RunStatus.completed), said("One"), events("r1", (1,)))
            assert await overtaken(postgres_url, end, DELETE_SESSION) is None
            assert await store.load(KEY) == []
            assert await store.find_session(KEY) is None
            assert await store.find("r1") == record("r1", RunStatus.completed)
            assert await store.read_events("r1", 0, 9) == events("r1", (1,))
            with psycopg.connect(postgres_url) as admin:
                assert admin.execute("SELECT messages FROM andon_records").fetchall() == [(None,)]

    play(main)


def test_an_end_that_was_overtaken_by_another_worker_is_not_written(postgres_url: str) -> None:
    async def main() -> None:
        async with begun(postgres_url) as (store, lease):
            end = store.finish(lease, record("r1", RunStatus.completed), said("One"), events("r1", (1,)))
            assert await overtaken(postgres_url, end, TAKE_OVER) == record("r1", RunStatus.running)
            assert await store.read_events("r1", 0, 9) == []
            assert await store.load(KEY) == []

    play(main)


def test_an_end_has_the_last_word_on_what_was_said(postgres_url: str) -> None:
    async def main() -> None:
        async with begun(postgres_url) as (store, lease):
            end = store.finish(lease, record("r1", RunStatus.cancelled), said("All"), events("r1", (2, 3)))
            writing = (
                "SELECT 1 FROM andon_runs FOR KEY SHARE",
                "UPDATE andon_records SET messages = '[]'",
                "INSERT INTO andon_events SELECT number, 2, '[[2.5,[\"is there\"],[]]]' FROM andon_runs",
            )
            assert await overtaken(postgres_url, end, *writing) is None
            assert await store.load(KEY) == said("All")
            found = await store.read_events("r1", 0, 9)
            assert [(event.seq, event.content) for event in found] == [(2, "is there"), (3, "word 3")]

    play(main)


def test_an_end_waits_for_progress_and_who_enters_or_renews_does_not(postgres_url: str) -> None:
    async def main() -> None:
        async with begun(postgres_url) as (store, lease):
            writing = "SELECT 1 FROM andon_runs FOR KEY SHARE"
            with psycopg.connect(postgres_url) as other:
                other.execute(writing)
                await store.enter(record("r2"), "me", LONG, "cancel")
                assert set((await store.renew([lease], LONG)).cancels) == {"r1"}
            end = store.finish(lease, record("r1", RunStatus.cancelled), said("One"), events("r1", (1,)))
            assert await overtaken(postgres_url, end, writing) is None

    play(main)


def test_progress_locks_sessions_before_runs(postgres_url: str) -> None:
    """Or it would wait for an end that waits for it."""

    async def main() -> None:
        async with begun(postgres_url) as (store, lease):
            second = await store.enter(record("r2"), "me", LONG, "queue")
            news = [Progress(lease, None, events("r1", (1,))), Progress(second, [], events("r2", (1,)))]
            with psycopg.connect(postgres_url) as other, psycopg.connect(postgres_url, autocommit=True) as admin:
                other.execute("SELECT 1 FROM andon_sessions FOR UPDATE")
                writing = asyncio.ensure_future(store.write(news))
                waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
                await until(lambda: writing.done() or admin.execute(waiting).fetchone() is not None)
                other.execute("SELECT 1 FROM andon_runs FOR UPDATE NOWAIT")  # as the end does
                other.commit()
            assert await writing == []

    play(main)


@pytest.mark.parametrize("change", [END, TAKE_OVER])
def test_progress_that_was_overtaken_by_an_end_is_refused(postgres_url: str, change: str) -> None:
    async def main() -> None:
        async with begun(postgres_url) as (store, lease):
            news = [Progress(lease, said("One"), events("r1", (1,)))]
            lock = "SELECT 1 FROM andon_runs FOR UPDATE"
            assert await overtaken(postgres_url, store.write(news), lock, change) == ["r1"]
            assert await store.read_events("r1", 0, 9) == []
            assert await store.added("r1") is None

    play(main)


def test_events_do_not_wait_for_the_end_of_the_run(postgres_url: str) -> None:
    """An end may wait for the disk, and all others behind it: it brings the run's events along."""

    async def main() -> None:
        async with begun(postgres_url) as (store, lease):
            key = KEY._replace(session_id="s2")
            other = await store.enter(record("r2", session=key), "me", LONG, "queue")
            news = [Progress(lease, None, events("r1", (1,))), Progress(other, None, events("r2", (1, 2), key))]
            with psycopg.connect(postgres_url) as ending:
                ending.execute("SELECT 1 FROM andon_runs WHERE run_id = 'r1' FOR UPDATE")
                assert await store.write(news) == ["r1"]
            assert await store.read_events("r2", 0, 9) == events("r2", (1, 2), key)
            assert await store.write(news) == []
            assert await store.read_events("r1", 0, 9) == events("r1", (1,))

    play(main)


def test_progress_that_was_overtaken_by_a_deletion_says_nothing_in_the_session(postgres_url: str) -> None:
    async def main() -> None:
        async with begun(postgres_url) as (store, lease):
            news = [Progress(lease, said("One"), events("r1", (1,)), "r0")]
            assert await overtaken(postgres_url, store.write(news), DELETE_SESSION) == []
            assert await store.read_events("r1", 0, 9) == events("r1", (1,))
            assert await store.find_session(KEY) is None
            with psycopg.connect(postgres_url) as admin:
                assert admin.execute("SELECT messages FROM andon_records").fetchall() == [(None,)]
                assert admin.execute("SELECT continues FROM andon_runs").fetchall() == [(None,)]

    play(main)


def test_of_a_batch_the_good_ones_are_written(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            leases = []
            for name in ("one", "two", "three"):
                session = KEY._replace(session_id=name)
                leases.append(await store.enter(record(name, session=session), "me", LONG, "queue"))
            one, two, three = leases
            batch = [
                Progress(one, None, events("one", (1, 2))),
                Progress(two._replace(epoch=7), said("No"), events("two", (1,))),
                Progress(Lease("four", 1), None, []),
                Progress(three, said("Three"), [], "two"),
                Progress(one, said("One"), events("one", (3,))),
            ]
            assert sorted(await store.write(batch)) == ["four", "two"]
            assert await store.read_events("one", 0, 9) == events("one", (1, 2, 3), KEY._replace(session_id="one"))
            assert await store.read_events("two", 0, 9) == []
            assert [await store.added(name) for name in ("one", "two", "three")] == [said("One"), None, said("Three")]
            assert await store.write([]) == []

    play(main)


def test_events_with_gaps_are_kept_with_them(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await store.enter(record("r1"), "me", LONG, "queue")
            assert await store.write([Progress(lease, None, events("r1", (1, 3)))]) == []
            assert (
                await store.finish(lease, record("r1", RunStatus.completed), said("One"), events("r1", (4, 7))) is None
            )
            assert await store.read_events("r1", 0, 9) == events("r1", (1, 3, 4, 7))
            assert await store.read_events("r1", 2, 9) == events("r1", (3, 4, 7))

    play(main)


def test_any_names_will_do(url: str) -> None:
    odd = SessionKey("a\x00b", "half \ud800", "it's 100% \u00e4\n")

    async def main() -> None:
        async with opened(url) as store:
            for run_id in ("\x00", "%s", "\x01x"):
                lease = await store.enter(record(run_id, session=odd), "me", LONG, "queue")
                assert await store.write([Progress(lease, said("One"), events("r", (1,)), run_id)]) == []
                wrong, right = Selection(run_id, session_id="it's"), Selection(run_id, odd.session_id, odd.user_id)
                assert await store.request_cancel(wrong, asking()) == {run_id: CancelOutcome.unknown}
                assert await store.request_cancel(right, asking()) == {run_id: CancelOutcome.requested}
                end = record(run_id, RunStatus.cancelled, odd, continues=run_id)
                assert await store.finish(lease, end, said("One"), events("r", (2,))) is None
                found = await store.find(run_id)
                assert found is not None
                assert (found.run_id, found.status, found.continues) == (run_id, RunStatus.cancelled, run_id)
                assert [entry.session for entry in await store.cancel_log(Selection(run_id), 9)] == [odd]

    play(main)


def test_the_usual_is_done_in_one_go(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or others would wait, behind a lock, for this process to think."""

    def in_steps(*_: object) -> None:
        raise AssertionError("this is for what is not usual")

    async def main() -> None:
        async with begun(postgres_url) as (store, lease):
            monkeypatch.setattr(transaction.Tx, "execute", in_steps)
            monkeypatch.setattr(psycopg.Connection, "pipeline", in_steps)  # its locks are held before its end is sent
            assert await store.write([Progress(lease, said("One"), events("r1", (1,)))]) == []
            assert await store.request_cancel(Selection("r1"), asking()) == {"r1": CancelOutcome.requested}
            end = record("r1", RunStatus.cancelled)
            assert await store.finish(lease, end, said("One"), events("r1", (2,))) is None

    play(main)


def test_what_is_not_usual_is_done_in_steps(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def watch(module: Any, name: str) -> None:
        work: Callable[..., object] = getattr(module, name)

        def watched(*args: object) -> object:
            asked.append(name)
            return work(*args)

        monkeypatch.setattr(module, name, watched)

    watch(leases, "finish")
    watch(cancels, "request_cancel")

    async def main() -> None:
        async with begun(postgres_url) as (store, lease):
            request = asking()
            for _ in range(2):
                assert await store.request_cancel(Selection("r1"), request) == {"r1": CancelOutcome.requested}
            completed, cancelled = (record("r1", status) for status in (RunStatus.completed, RunStatus.cancelled))
            assert await store.finish(lease, completed, said("One"), events("r1", (1,))) == request
            assert asked == ["request_cancel", "finish"]
            for _ in range(2):
                assert await store.finish(lease, cancelled, said("One"), events("r1", (1,))) is None
            assert asked == ["request_cancel", "finish", "finish"]
            with pytest.raises(LeaseLostError):
                await store.finish(Lease("r2", 1), record("r2", RunStatus.completed), [], events("r2", (1,)))

    play(main)


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Why transactions were undone, each time."""
    errors = list[BaseException]()

    def watch(error: BaseException) -> bool:
        errors.append(error)
        return is_transient(error)

    monkeypatch.setattr(database, "is_transient", watch)
    return errors


def test_progress_of_many_locks_their_sessions_in_one_order(postgres_url: str, undone: list[BaseException]) -> None:
    """Also while others enter there, renew, and end: nobody waits for somebody who waits for them."""
    names = [f"s{number}" for number in range(6)]

    def writing(who: str, order: list[str]) -> Callable[[SQLStore], Coroutine[Any, Any, None]]:
        async def work(store: SQLStore) -> None:
            leases = {}
            for name in order:
                entering = record(f"{who} {name}", session=KEY._replace(session_id=name))
                leases[name] = await store.enter(entering, who, LONG, "queue")
            for turn in range(1, 25):
                batch = [
                    Progress(lease, said(f"{turn}") if number % 2 else None, events(lease.run_id, (turn,)))
                    for number, lease in enumerate(leases.values(), turn)
                ]
                written, renewal = await asyncio.gather(store.write(batch), store.renew(list(leases.values()), LONG))
                assert (written, *renewal[:2]) == ([], [], {})
            for name, lease in leases.items():
                end = record(lease.run_id, RunStatus.cancelled, KEY._replace(session_id=name))
                assert await store.finish(lease, end, said(name), events(lease.run_id, (25,))) is None

        return work

    async def entering(store: SQLStore) -> None:
        for number in range(25):
            name = names[number % len(names)]
            fresh = record(f"fresh {number}", session=KEY._replace(session_id=name))
            lease = await store.enter(fresh, "fresh", LONG, "queue")
            end = record(lease.run_id, RunStatus.cancelled, fresh.session)
            assert await store.finish(lease, end, [], events(lease.run_id, (1,))) is None

    together(postgres_url, writing("one", names), writing("two", names[::-1]), entering)
    assert not undone


def test_an_end_is_answered_before_the_others_are_told_and_also_if_they_cannot_be(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If its connection is lost in between, they look by themselves before long, and the next one is told again."""

    async def main() -> None:
        async with begun(postgres_url) as (store, lease):
            caplog.clear()  # of what was said of the tests' hasty server
            tell, answered, lost = transaction.Tx.send_notifications, Flag(), list[int]()

            def lose(tx: transaction.Tx) -> None:
                if tx.ended is None:  # of what came before
                    return
                answered.wait()
                pid = tx._driver.info.backend_pid
                with psycopg.connect(postgres_url, autocommit=True) as admin:
                    admin.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))
                tell(tx)
                lost.append(pid)

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(transaction.Tx, "send_notifications", lose)
                assert await store.finish(lease, record("r1", RunStatus.completed), [], events("r1", (1,))) is None
                answered.set()
                await until(lambda: bool(lost))
            changed = Bell()
            store.listen(changed)
            await changed.next()  # connected
            second, told = await store.enter(record("r2"), "me", LONG, "queue"), changed.next()
            assert await store.finish(second, record("r2", RunStatus.completed), [], events("r2", (1,))) is None
            await told

    play(main)
    assert not caplog.records  # it is nothing to worry about


def test_an_end_puts_on_record_only_the_cancel_that_is_not(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            for run_id, request in (("told", asking()), ("heard", asking())):
                lease = await store.enter(record(run_id, session=KEY._replace(session_id=run_id)), "me", LONG, "queue")
                if run_id == "told":
                    await store.request_cancel(Selection(run_id), request)
                receipt = Receipt.of(request, request.mode, Phase.streaming, [], Usage(), [])
                end = record(run_id, RunStatus.cancelled, KEY._replace(session_id=run_id), receipt=receipt)
                assert await store.finish(lease, end, said("One"), events(run_id, (1,))) is None
            assert [entry.run_id for entry in await store.cancel_log(Selection(), 9)] == ["heard", "told"]

    play(main)


def test_what_can_never_be_written_is_tried_once(postgres_url: str, undone: list[BaseException]) -> None:
    async def main() -> None:
        async with begun(postgres_url) as (store, lease):
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                admin.execute("ALTER TABLE andon_events ADD CHECK (seq < 9)")
            with pytest.raises(StoreError, match="violates check constraint"):
                await store.write([Progress(lease, said("One"), events("r1", (9,)))])
            with pytest.raises(StoreError, match="violates check constraint"):
                await store.finish(lease, record("r1", RunStatus.completed), [], events("r1", (9,)))
            assert len(undone) == 2
            assert await store.finish(lease, record("r1", RunStatus.completed), [], events("r1", (1,))) is None

    play(main)


def test_who_supersedes_a_run_says_so_itself(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "PING_SECONDS", LONG)

    async def main() -> None:
        async with begun(postgres_url) as (store, _):
            connected, heard = Bell(), list[tuple[str, str, CancelRequest]]()
            store.listen(connected, None, lambda *notice: heard.append(notice))
            await connected.next()
            await store.enter(record("r2"), "me", LONG, "cancel")
            await until(lambda: bool(heard))
            ((run_id, owner, request),) = heard
            assert (run_id, owner, request.cause) == ("r1", "me", CancelCause.superseded)

    play(main)
