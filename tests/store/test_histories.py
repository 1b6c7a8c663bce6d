# SPDX-License-Identifier: Apache-2.0
"""What somebody puts into a session: every store keeps it before the first run, and while no run is there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event

from andon import RunStatus, SessionBusyError, SessionKey
from andon.core.selection import Selection
from andon.core.shared.store import Granted
from andon.errors import LeaseLostError
from andon.messages import user
from andon.store import MemoryStore
from andon.store.sql import SQLStore, sessions
from tests.store.making import BACK_TO_2, KEY, LONG, events, opened, opened_any, record, said
from tests.store.test_schema import execute
from tests.support import HANG, play

OTHER = SessionKey("helper", "ada", "s2")


def test_a_session_may_begin_with_a_history(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            made = await store.create_session(KEY, {"a": 1}, said("before"))
            assert made is not None
            assert await store.find_session(KEY) == made
            assert await store.load(KEY) == said("before")
            ((who, messages),) = await store.history(KEY)
            assert (who.run_id, who.session, who.status.final, messages) == ("", KEY, True, said("before"))
            await store.save(record("r1", RunStatus.completed), said("now"))
            assert await store.load(KEY) == [*said("before"), *said("now")]
            assert [who.run_id for who, _ in await store.history(KEY)] == ["", "r1"]
            assert await store.create_session(KEY, {}, said("again")) is None
            assert await store.load(OTHER) == []

    play(main)


def test_what_is_put_there_takes_the_place_of_what_was_said(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            await store.save(record("r1", RunStatus.completed), said("one"))
            await store.save(record("r2", RunStatus.completed, OTHER), said("other"))
            for messages in (said("two"), said("three"), []):
                changed = await store.replace_session(KEY, messages)
                assert changed == await store.find_session(KEY)
                assert await store.load(KEY) == messages
            assert await store.added("r1") is None
            assert await store.find("r1") is not None
            assert await store.load(OTHER) == said("other")

    play(main)


def test_a_session_is_made_by_putting_something_there(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            made = await store.replace_session(KEY, said("one"))
            assert (made.key, made.state) == (KEY, {})
            assert [each.key for each in await store.list_sessions("helper", "ada")] == [KEY]
            await store.update_session(KEY, {"a": 1})
            assert (await store.replace_session(KEY, said("two"))).state == {"a": 1}

    play(main)


def test_a_deleted_session_has_no_history_when_it_comes_back(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            await store.replace_session(KEY, said("one"))
            assert await store.delete_session(KEY, idle=True)
            assert await store.load(KEY) == []
            await store.create_session(KEY, {})
            assert await store.load(KEY) == []
            await store.save(record("r1", RunStatus.completed), said("two"))
            assert await store.load(KEY) == said("two")

    play(main)
    if not any_url.startswith("memory"):
        assert execute(any_url, "SELECT count(*) FROM andon_histories") == [(0,)]


def test_a_run_can_be_taken_back_and_what_came_before_it_stays(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            await store.replace_session(KEY, said("one"))
            await store.save(record("r1", RunStatus.cancelled), said("two"))
            await store.rollback("r1")
            assert await store.load(KEY) == said("one")

    play(main)


def test_many_write_nothing_into_what_was_given(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            given = said("one")
            await store.replace_session(KEY, given)
            given.append(user("more"))
            (await store.load(KEY)).append(user("more"))
            ((_, kept),) = await store.history(KEY)
            kept.append(user("more"))
            assert await store.load(KEY) == said("one")

    play(main)


# -- on a store that several processes share --------------------------------------------------------------------------


async def enter(store: SQLStore, run_id: str) -> Granted:
    return await store.enter(record(run_id), "me", LONG, "queue")


async def check_busy(store: SQLStore) -> None:
    with pytest.raises(SessionBusyError, match="run 'r1' is") as caught:
        await store.replace_session(KEY, said("one"))
    assert caught.value.run_id == "r1"
    with pytest.raises(SessionBusyError):
        await store.delete_session(KEY, idle=True)


def test_while_a_run_is_there_nothing_is_put_there_and_nothing_deleted(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await enter(store, "r1")
            await check_busy(store)
            assert await store.create_session(KEY, {}, said("one")) is None
            await store.finish(lease, record("r1", RunStatus.paused), [user("hi")], [])
            await check_busy(store)
            assert await store.delete_session(KEY)

    play(main)


def test_a_run_that_has_its_turn_brings_a_history(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await store.save(record("r0", RunStatus.completed), said("zero"))
            lease = await enter(store, "r1")
            behind = await enter(store, "r2")
            for _ in range(2):  # an answer may get lost
                await store.bring(lease, said("before"))
            await store.finish(lease, record("r1", RunStatus.completed), said("one"), [])
            assert await store.load(KEY) == [*said("before"), *said("one")]
            assert await store.take_turn(behind)
            await store.finish(behind, record("r2", RunStatus.completed), said("two"), [])
            assert await store.load(KEY) == [*said("before"), *said("one"), *said("two")]
            with pytest.raises(LeaseLostError):
                await store.bring(lease, said("late"))
            assert await store.load(KEY) == [*said("before"), *said("one"), *said("two")]

    play(main)


def test_a_run_that_was_cancelled_behind_the_one_that_brings_it_keeps_its_words(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await enter(store, "r1")
            behind = await enter(store, "r2")
            await store.finish(behind, record("r2", RunStatus.cancelled), said("two"), [])
            await store.bring(lease, said("before"))
            await store.finish(lease, record("r1", RunStatus.completed), said("one"), [])
            assert await store.load(KEY) == [*said("before"), *said("one"), *said("two")]

    play(main)


def test_a_history_whose_session_was_deleted_meanwhile_is_put_nowhere(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await enter(store, "r1")
            await store.save(record("r2", RunStatus.completed), [])
            await store.delete_session(KEY)
            await store.bring(lease, said("before"))
            assert await store.load(KEY) == []

    play(main)
    assert execute(url, "SELECT count(*) FROM andon_histories") == [(0,)]


def test_pruning_forgets_a_history_with_its_session(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await store.replace_session(KEY, said("one"))
            await store.prune(-10.0)
            assert await store.find_session(KEY) is None

    play(main)
    assert execute(url, "SELECT count(*) FROM andon_histories") == [(0,)]


def test_a_database_of_version_2_has_none_and_takes_some(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await store.save(record("r1", RunStatus.completed), said("one"))
            await store.enter(record("r1.c", session=OTHER, at=2.5, parent_run_id="r1"), "me", LONG, "reject")
        execute(url, *BACK_TO_2)
        async with opened(url) as store:
            assert await store.load(KEY) == said("one")
            assert [each.parent_run_id for each in await store.list_runs(Selection(), 9)] == ["r1", None]
            await store.replace_session(KEY, said("two"))
            assert await store.load(KEY) == said("two")

    play(main)


def test_a_conversation_is_read_as_it_was_at_one_moment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that takes two statements, and another one replaces it in between."""

    async def main() -> None:
        async with opened(url) as store:
            await store.replace_session(KEY, said("zero"))
            await store.save(record("r1", RunStatus.completed), said("one"))
            rows_of = sessions.rows_of
            replaced: list[bool] = []

            def slowly(*arguments: object) -> object:
                rows = rows_of(*arguments)  # type: ignore[arg-type]
                if not replaced and not url.startswith("sqlite"):  # there a reader sees one moment anyway
                    replaced.append(True)
                    dumped = '[{"role":"user","content":[{"type":"text","text":"new"}]}]'
                    execute(
                        url,
                        "UPDATE andon_records SET messages = NULL",
                        f"UPDATE andon_histories SET version = version + 1, messages = '{dumped}'",
                    )
                return rows

            monkeypatch.setattr(sessions, "rows_of", slowly)
            expected = [*said("zero"), *said("one")] if url.startswith("sqlite") else [user("new")]
            assert await store.load(KEY) == expected

    play(main)


def test_a_conversation_is_not_half_that_of_a_session_that_was_deleted_and_made_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both histories are of version 1. With SQLite a reader sees one moment anyway."""

    async def main() -> None:
        async with opened(postgres_url) as store, opened(postgres_url) as other:
            await store.create_session(KEY, {}, said("old"))
            await store.save(record("r1", RunStatus.completed), said("one"))
            rows_of, loop, calls = sessions.rows_of, asyncio.get_running_loop(), itertools.count(1)

            async def make_again() -> None:
                assert await other.delete_session(KEY)
                assert await other.create_session(KEY, {}, said("new")) is not None

            def slowly(*arguments: Any) -> Any:
                rows = rows_of(*arguments)
                if next(calls) == 1:
                    asyncio.run_coroutine_threadsafe(make_again(), loop).result(HANG)
                return rows

            monkeypatch.setattr(sessions, "rows_of", slowly)
            assert await store.load(KEY) == said("new")

    play(main)


@contextlib.contextmanager
def changed_records() -> Iterator[list[int]]:
    """How many rows each statement has changed in the table that has what runs have said."""
    counts: list[int] = []

    def after(_connection: object, cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE andon_records"):
            counts.append(cursor.rowcount)

    event.listen(Engine, "after_cursor_execute", after)
    try:
        yield counts
    finally:
        event.remove(Engine, "after_cursor_execute", after)


@pytest.mark.parametrize("way", ["bring", "replace", "delete"])
def test_what_was_forgotten_before_is_not_written_again(url: str, way: str) -> None:
    """Else each message of a client that brings the whole conversation costs as much as all of its runs."""

    async def main() -> None:
        async with opened(url) as store:
            for number in range(5):
                await store.save(record(f"r{number}", RunStatus.completed), said(f"{number}"))
            await store.replace_session(KEY, said("before"))
            await store.save(record("r5", RunStatus.completed), said("five"))
            lease = await enter(store, "r6")
            with changed_records() as counts:
                if way == "bring":
                    await store.bring(lease, said("anew"))
                else:
                    await store.finish(lease, record("r6", RunStatus.cancelled), [], events("r6", (1,)))
                    counts.clear()  # r6 has said nothing, and that is not nothing
                    await (store.replace_session(KEY, said("anew")) if way == "replace" else store.delete_session(KEY))
            assert counts == ([1] if way == "bring" else [2])
            assert await store.load(KEY) == ([] if way == "delete" else said("anew"))

    play(main)


def test_runs_that_were_forgotten_are_not_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on is, also before it has said anything: what is behind it is not part of the conversation."""
    read: list[list[str]] = []
    rows_of = sessions.rows_of

    def noting(*arguments: Any) -> Any:
        rows = rows_of(*arguments)
        read.append([row.run_id for row in rows])
        return rows

    async def main() -> None:
        async with opened(url) as store:
            for number in range(5):
                await store.save(record(f"r{number}", RunStatus.completed), said(f"{number}"))
            await store.replace_session(KEY, said("before"))
            await store.save(record("r5", RunStatus.completed), said("five"))
            await enter(store, "r6")
            behind = await enter(store, "r7")
            await store.finish(behind, record("r7", RunStatus.cancelled), said("seven"), [])
            monkeypatch.setattr(sessions, "rows_of", noting)
            assert await store.load(KEY) == [*said("before"), *said("five")]
            assert await store.added("r0") is None
            assert await store.added("r5") == said("five")

    play(main)
    assert read == [["r5", "r6", "r7"]] * 3


def test_every_store_is_one_of_sessions() -> None:
    from andon import SessionStore

    assert isinstance(MemoryStore(), SessionStore)
    assert isinstance(SQLStore("sqlite:///nowhere.db"), SessionStore)
