# SPDX-License-Identifier: Apache-2.0
"""What older versions have written is read as before. `version_1` has dumps that the code of that version has left:
four runs, one of them with a sub-agent's events and odd characters, one paused, one cancelled, one without a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, inspect

from andon import Event, RunEvent, RunStatus
from andon.core.records import SessionKey
from andon.core.selection import Selection
from andon.store.sql import SQLStore, migrations
from tests.store.making import BACK_TO_2, KEY, LONG, events, opened, said
from tests.store.test_schema import execute
from tests.support import Flag, Worker, eventually, play, until

RUNS = ("r1", "r2", "r3", "r4")


@pytest.fixture
def old(url: str) -> str:
    """A database of version 1."""
    kind = "sqlite" if url.startswith("sqlite") else "postgres"
    dump = (Path(__file__).parent / "version_1" / f"{kind}.sql").read_text()
    if kind == "sqlite":
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(dump)
    else:
        with psycopg.connect(url) as server:
            server.execute(dump.encode())
    return url


def kept_in(url: str) -> dict[str, list[Event]]:
    """By run, the events of version 1, each of which was a row of its own."""
    rows = execute(url, "SELECT run_id, data FROM andon_events JOIN andon_runs USING (number) ORDER BY number, seq")
    kept: dict[str, list[Event]] = {run_id: [] for run_id in RUNS}
    for run_id, data in rows:
        kept[str(run_id)].append(msgspec.json.decode(str(data), type=Event))
    return kept


def timeless(found: list[Event]) -> list[Event]:
    return [msgspec.structs.replace(event, created_at=0.0) for event in found]


async def check(store: SQLStore, kept: dict[str, list[Event]]) -> None:
    for run_id, before in kept.items():
        found = await store.read_events(run_id, 0, 1_000)
        assert timeless(found) == timeless(before)
        for one, other in zip(found, before, strict=True):
            assert other.created_at - 0.001 < one.created_at <= other.created_at
        assert await store.last_event(run_id) == found[-1]


@pytest.mark.parametrize("at_once", [3, 5_000])
def test_events_of_version_1_are_read_as_before(old: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "EVENTS_AT_ONCE", at_once)
    kept = kept_in(old)
    assert [len(kept[run_id]) for run_id in RUNS] == [39, 3, 4, 3]

    async def main() -> None:
        async with opened(old) as store:
            await check(store, kept)

    play(main)
    ((rows,),) = execute(old, "SELECT count(*) FROM andon_events")
    assert rows == 4 if at_once > 39 else 15 < int(str(rows)) < 25
    if old.startswith("sqlite"):
        assert kept_in(f"{old}.v1.bak") == kept


def test_what_was_begun_with_version_1_goes_on(old: str) -> None:
    async def main() -> None:
        async with opened(old) as store:
            statuses = {run.run_id: run.status for run in await store.list_runs(Selection(), 9)}
            assert statuses["r2"] is RunStatus.paused
            paused = await store.take_up("r2", "me", LONG)
            assert paused is not None
            assert paused.last_seq == 3
            more = events("r2", (4, 5), paused.record.session)
            ended = msgspec.structs.replace(paused.record, status=RunStatus.completed)
            assert await store.finish(paused.lease, ended, said("Two"), more) is None
            found = await store.read_events("r2", 0, 9)
            assert found[2].event is RunEvent.run_paused
            assert found[3:] == more
            (orphan,) = await store.take_orphans("me", LONG, 9)
            assert (orphan.lease.run_id, orphan.last_seq) == ("r4", 3)
            gone = await store.prune(-LONG)
            assert gone == {"sessions": 4, "runs": 3, "events": 39 + 5 + 4}
            assert await store.read_events("r1", 0, 9) == []
            assert len(await store.read_events("r4", 0, 9)) == 3
            assert await store.load(KEY) == []

    play(main)


def test_states_are_as_before(old: str) -> None:
    state = '{"a":{"b":[1,"\u00e9"]}}'
    ((id, agent, user, session),) = execute(
        old, "SELECT id, agent_id, user_id, session_id FROM andon_sessions ORDER BY id LIMIT 1"
    )
    execute(old, f"UPDATE andon_sessions SET state = '{state}' WHERE id = {id}")
    key = SessionKey(str(agent), str(user) or None, str(session))

    async def main() -> None:
        async with opened(old) as store:
            found = await store.find_session(key)
            assert found is not None
            assert found.state == {"a": {"b": [1, "é"]}}
            changed = await store.update_session(key, {"c": 2})
            assert changed is not None
            assert changed.state == {**found.state, "c": 2}
            assert (await store.history(key)) != []

    play(main)


def test_migrated_tables_are_those_of_a_fresh_database(old: str, tmp_path: Path) -> None:
    def shape(url: str) -> dict[str, object]:
        engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        try:
            look = inspect(engine)
            return {
                name: (
                    sorted((each["name"], str(each["type"]), each["nullable"]) for each in look.get_columns(name)),
                    look.get_pk_constraint(name),
                    sorted(str(each["name"]) for each in look.get_indexes(name)),
                )
                for name in look.get_table_names()
            }
        finally:
            engine.dispose()

    async def ping(url: str) -> None:
        async with opened(url) as store:
            await store.ping()

    play(lambda: ping(old))
    migrated = shape(old)
    if old.startswith("sqlite"):
        fresh = f"sqlite:///{tmp_path}/fresh.db"
    else:
        fresh = old
        execute(old, *(f"DROP TABLE {name}" for name in migrated))
    play(lambda: ping(fresh))
    assert migrated == shape(fresh)


# -- while a server of version 2 is at work ---------------------------------------------------------------------------

PAID = """UPDATE andon_sessions SET state = '{"paid": true}'"""
"""As version 2 has changed a state."""


@pytest.fixture
def version_2(postgres_url: str) -> str:
    """A database of version 2, with a session that has a state. SQLite has one writer at a time."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            await store.create_session(KEY, {})

    play(main)
    execute(postgres_url, *BACK_TO_2, """UPDATE andon_sessions SET state = '{"paid": false}'""")
    return postgres_url


async def state_in(store: SQLStore) -> dict[str, Any]:
    found = await store.find_session(KEY)
    assert found is not None
    return found.state


def test_a_migration_waits_for_a_state_that_is_being_written(version_2: str) -> None:
    async def main() -> None:
        async with opened(version_2) as store:
            with psycopg.connect(version_2) as old, psycopg.connect(version_2, autocommit=True) as admin:
                old.execute(PAID)
                migrating = asyncio.create_task(store.ping())
                waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
                await until(lambda: migrating.done() or admin.execute(waiting).fetchone() is not None)
                assert not migrating.done()
                old.commit()
            await migrating
            assert await state_in(store) == {"paid": True}

    play(main)


def test_a_state_that_comes_during_a_migration_is_refused_or_kept(version_2: str) -> None:
    """States have been copied, and their column is about to go: what was acknowledged then would be lost."""
    workers: list[Worker] = []
    acknowledged = Flag()

    def write() -> None:
        with psycopg.connect(version_2, autocommit=True) as old:
            try:
                old.execute(PAID)
            except psycopg.errors.UndefinedColumn:
                return
        acknowledged.set()

    def before(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "DROP COLUMN state" not in statement:
            return
        workers.append(writer := Worker(write))
        with psycopg.connect(version_2, autocommit=True) as admin:
            waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
            eventually(lambda: not writer.is_alive() or admin.execute(waiting).fetchone() is not None)

    async def main() -> None:
        event.listen(Engine, "before_cursor_execute", before)
        try:
            async with opened(version_2) as store:
                await store.ping()
                (writer,) = workers
                writer.done()
                assert await state_in(store) == {"paid": acknowledged.is_set()}
        finally:
            event.remove(Engine, "before_cursor_execute", before)

    play(main)
