# SPDX-License-Identifier: Apache-2.0
"""Tables are made, migrated or refused; what is refused stays as it is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, text

from andon import RunRecord, RunStatus
from andon.errors import SchemaError, StoreError
from andon.store.sql import SQLStore, schema
from tests.store import first_version
from tests.store.making import KEY, LONG, PAST, opened, record
from tests.support import play

VERSION, OLD = schema.VERSION, schema.VERSION - 1


def make(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await store.enter(record("r1"), "me", LONG, "reject")

    asyncio.run(main())


def execute(url: str, *statements: str) -> list[tuple[object, ...]]:
    """By the driver itself; the last one's rows."""
    rows: list[tuple[object, ...]] = []
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            for statement in statements:
                rows = connection.execute(statement).fetchall()
            connection.commit()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    else:
        with psycopg.connect(url) as server:
            for statement in statements:
                cursor = server.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
    return rows


def refused(url: str) -> str:
    async def main() -> None:
        async with opened(url) as store:
            for _ in range(2):  # it stays refused
                with pytest.raises(SchemaError) as error:
                    await store.ping()
                said.append(str(error.value))

    said: list[str] = []
    play(main)
    return said[1]


def test_a_newer_database_is_refused(url: str) -> None:
    make(url)
    execute(url, "UPDATE andon_meta SET version = 7")
    said = refused(url)
    assert f"newer version of Andon (its tables are of version 7, this one knows {VERSION})" in said
    assert "left as it is" in said
    assert execute(url, "SELECT version FROM andon_meta") == [(7,)]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("DROP TABLE andon_meta", "does not say which version"),
        ("DELETE FROM andon_meta", "does not say which version"),
        ("DROP TABLE andon_records", "no table andon_records"),
        ("ALTER TABLE andon_runs RENAME COLUMN epoch TO age", "andon_runs has no epoch"),
        ("UPDATE andon_meta SET version = -1", f"there is no way to {VERSION}"),
    ],
)
def test_a_broken_database_is_refused(url: str, damage: str, says: str) -> None:
    make(url)
    execute(url, damage)
    said = refused(url)
    assert says in said
    assert "left as" in said


@pytest.mark.parametrize("version", [7, -1])
def test_a_refused_file_stays_as_it_is_byte_for_byte(tmp_path: Path, version: int) -> None:
    file = tmp_path / "andon.db"
    make(f"sqlite:///{file}")
    execute(f"sqlite:///{file}", f"UPDATE andon_meta SET version = {version}")
    before = file.read_bytes()
    refused(f"sqlite:///{file}")
    assert file.read_bytes() == before
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".bak")]


@pytest.mark.parametrize("content", [b"Dear diary\n" * 1000, b"x", b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_file_that_is_no_database_is_refused_and_untouched(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "diary.txt"
    file.write_bytes(content)
    assert str(file) in refused(f"sqlite:///{file}")
    assert file.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["diary.txt"]


def test_others_tables_in_the_same_database_are_let_be(url: str) -> None:
    execute(url, "CREATE TABLE diary (day TEXT)", "INSERT INTO diary VALUES ('monday')")
    make(url)
    make_again = execute(url, "SELECT * FROM diary")
    assert make_again == [("monday",)]


OPEN = """
import asyncio, sys
from andon.store.sql import SQLStore

async def main():
    store = SQLStore(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    await store.ping()
    await store.close()

asyncio.run(main())
"""


def test_several_processes_may_open_a_fresh_database_together(url: str) -> None:
    programs = [
        subprocess.Popen([sys.executable, "-c", OPEN, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
    for program in programs:
        program.communicate()
    assert [program.returncode for program in programs] == [0] * 4
    assert execute(url, "SELECT version FROM andon_meta") == [(VERSION,)]


# -- migrating --------------------------------------------------------------------------------------------------------


def make_old(url: str) -> None:
    """A database as that version never was: its runs had no `continues`."""
    make(url)
    execute(url, "ALTER TABLE andon_runs DROP COLUMN continues", f"UPDATE andon_meta SET version = {OLD}")


def add_continues(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE andon_runs ADD COLUMN continues TEXT"))


def test_an_older_database_is_migrated_after_a_copy(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_old(url)
    monkeypatch.setattr(schema, "MIGRATIONS", {OLD: add_continues})

    async def main() -> None:
        async with opened(url) as store:
            assert await store.find("r1") == record("r1", RunStatus.running)

    with caplog.at_level(logging.WARNING, "andon"):
        play(main)
    assert f"from version {OLD} to {VERSION}; a copy is in" in caplog.text
    assert execute(url, "SELECT version FROM andon_meta") == [(VERSION,)]
    if url.startswith("sqlite"):
        assert execute(f"{url}.v{OLD}.bak", "SELECT version, run_id FROM andon_meta, andon_runs") == [(OLD, "r1")]
        with pytest.raises(sqlite3.OperationalError):
            execute(f"{url}.v{OLD}.bak", "SELECT continues FROM andon_runs")
    else:
        copied = f"SELECT version, run_id FROM andon_v{OLD}.andon_meta, andon_v{OLD}.andon_runs"
        assert execute(url, copied) == [(OLD, "r1")]


def test_a_migration_that_fails_changes_nothing_and_can_be_tried_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_old(url)

    def fail(connection: Connection) -> None:
        add_continues(connection)
        connection.execute(text("SELECT * FROM no_such_table"))

    monkeypatch.setattr(schema, "MIGRATIONS", {OLD: fail})

    async def main() -> None:
        async with opened(url) as store:
            with pytest.raises(StoreError, match="no_such_table"):
                await store.ping()
            monkeypatch.setattr(schema, "MIGRATIONS", {OLD: lambda connection: None})
            with pytest.raises(SchemaError, match="andon_runs has no continues"):
                await store.ping()
            monkeypatch.setattr(schema, "MIGRATIONS", {OLD: add_continues})
            await store.ping()

    play(main)
    assert execute(url, "SELECT continues FROM andon_runs") == [(None,)]
    if url.startswith("sqlite"):  # every attempt has left its copy, none has replaced another
        folder = Path(url.removeprefix("sqlite:///")).parent
        copies = sorted(path.name for path in folder.iterdir() if path.name != "andon.db")
        assert copies == [f"andon.db.v{OLD}{number}.bak" for number in (".2", ".3", "")]
    else:
        assert execute(url, f"SELECT run_id FROM andon_v{OLD}.andon_runs") == [("r1",)]


def test_leases_of_version_1_are_known_to_be_good_or_over(url: str) -> None:
    """Postgres' clock is the same as before. With SQLite they went by a clock that can be set, and so mean nothing."""

    def run(name: str, status: RunStatus = RunStatus.running) -> RunRecord:
        return record(name, status, KEY._replace(session_id=name))

    held, left, paused = (run("held"), LONG), (run("left"), PAST), (run("paused", RunStatus.paused), None)
    execute(url, *first_version.statements(url, held, left, paused, (run("done", RunStatus.completed), None)))

    async def main() -> None:
        async with opened(url) as store:
            taken = await store.take_orphans("you", LONG, 10)
            on_file = url.startswith("sqlite")
            assert [each.record.run_id for each in taken] == (["held", "left"] if on_file else ["left"])
            assert (await store.renew([taken[0].lease], LONG)).lost == []
            assert await store.take_orphans("him", LONG, 10) == []
            assert await store.take_up("paused", "you", LONG) is not None
            found = await store.find("done")
            assert found is not None
            assert found.status is RunStatus.completed
            # The age of what ended long ago is as it was.
            assert await store.prune(3600, dry_run=True) == {"sessions": 1, "runs": 1, "events": 0}

    play(main)


def test_what_the_tables_are_is_what_the_store_uses(url: str) -> None:
    async def main() -> None:
        store = SQLStore(url)
        assert await store.find_session(KEY) is None
        await store.close()

    play(main)
    names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'andon%' ORDER BY name"
    if not url.startswith("sqlite"):
        names = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
    tables = [str(name) for (name,) in execute(url, names)]
    whole = ["blocks", "cancels", "events", "histories", "keys", "meta", "news", "records", "runs", "secrets"]
    whole += ["sessions", "states"]
    assert tables == [f"andon_{name}" for name in whole]
