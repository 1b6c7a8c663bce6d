# SPDX-License-Identifier: Apache-2.0
"""Nobody waits for a database for ever; and what was told to have failed is not done afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sqlite3
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Connection

from andon.errors import StoreError
from andon.store.sql import database, schema
from tests.store.making import KEY, LONG, opened, record
from tests.store.test_cancelled_calls import Gate
from tests.store.test_schema import execute, make, make_old
from tests.support import Flag, Worker, play


@contextlib.contextmanager
def locked(url: str) -> Iterator[None]:
    """Somebody is in the way of whoever would begin a run in the session."""
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("COMMIT")
    else:
        with psycopg.connect(url) as server:
            server.execute("SELECT * FROM andon_sessions FOR UPDATE")
            yield


def test_who_is_told_that_it_failed_has_not_begun_a_run(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await store.create_session(KEY, {})
            monkeypatch.setattr(database, "ANSWER_SECONDS", 2.0)
            with locked(url):
                for _ in range(2):
                    with pytest.raises(StoreError, match=r"has not answered within 2 s\. Trying again may help"):
                        await store.enter(record("r1", at=1.0), "me", LONG, "reject")
            monkeypatch.undo()
            # It comes after the others, in the pool or behind their locks. Had one of them been done, it were refused.
            await store.enter(record("r1", at=2.0), "me", LONG, "reject")

    play(main)


def test_what_has_not_begun_by_then_is_taken_back(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with opened(sqlite_url) as store:
            await store.ping()
            gate, asked = Gate(), list[str]()
            going = store._db._changes.submit(gate)
            await gate.begun.arrived()
            monkeypatch.setattr(database, "ANSWER_SECONDS", 0.05)
            with pytest.raises(StoreError, match="has not answered within"):
                await store._db.change(lambda tx: asked.append("late"))
            monkeypatch.undo()
            gate.may_go_on.set()
            await asyncio.wrap_future(going)
            await store._db.change(lambda tx: asked.append("in time"))
            assert asked == ["in time"]

    play(main)


def test_a_migration_takes_as_long_as_it_takes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_old(url)
    monkeypatch.setattr(database, "ANSWER_SECONDS", 0.05)
    begun, go_on = Flag(), Flag()

    def migrate(connection: Connection) -> None:
        begun.set()
        go_on.wait()
        connection.exec_driver_sql("ALTER TABLE andon_runs ADD COLUMN continues TEXT")

    monkeypatch.setattr(schema, "MIGRATIONS", {schema.VERSION - 1: migrate})

    async def main() -> None:
        async with opened(url) as store:
            finding = asyncio.create_task(store.find("r1"))
            await begun.arrived()
            await asyncio.wait([finding], timeout=0.2)
            assert not finding.done()
            go_on.set()
            assert await finding is not None

    play(main)


def test_to_prune_takes_as_long_as_it_takes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(url)

    async def main() -> None:
        async with opened(url) as store:
            await store.ping()
            monkeypatch.setattr(database, "ANSWER_SECONDS", 0.0)
            assert await store._db.sweep(lambda tx: tx.read_value("SELECT version FROM andon_meta"), writes=False)
            with pytest.raises(StoreError, match="has not answered"):
                await store._db.read(lambda tx: tx.read_value("SELECT version FROM andon_meta"))
            monkeypatch.undo()

    play(main)


def test_those_who_wait_for_a_server_that_says_nothing_are_told_together() -> None:
    """One after the other, each would wait for as long again as the one before."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        came: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    came.append(listener.accept()[0])

        worker = Worker(accept)
        port = listener.getsockname()[1]
        url = f"postgresql://ada@127.0.0.1:{port}/x?connect_timeout=2&sslmode=disable&gssencmode=disable"

        async def main() -> None:
            async with opened(url) as store:
                calls = [store.find("r1"), store.ping(), *(store.load(KEY) for _ in range(8))]
                answers = await asyncio.gather(*calls, return_exceptions=True)
                assert {type(answer) for answer in answers} == {StoreError}
                assert len(came) == 1
                with pytest.raises(StoreError, match="could not be asked"):
                    await store.find("r1")  # who asks after that has it tried again
                assert len(came) == 2
                for each in came:
                    each.close()

        play(main)
        listener.shutdown(socket.SHUT_RDWR)
    worker.done()


# -- migrated meanwhile -----------------------------------------------------------------------------------------------


def test_a_process_finds_that_the_tables_were_migrated_under_it(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            execute(url, f"UPDATE andon_meta SET version = {schema.VERSION + 1}")
            said = rf"changed to version {schema.VERSION + 1} .*Restart it with the new version of Andon"
            calls = (
                store.ping,
                lambda: store.renew([lease], LONG),
                lambda: store.find("r1"),
                lambda: store.enter(record("r2"), "me", LONG, "queue"),
            )
            for call in calls:
                with pytest.raises(StoreError, match=said):
                    await call()
            execute(url, f"UPDATE andon_meta SET version = {schema.VERSION}")
            with pytest.raises(StoreError, match=said):  # nobody knows what else has changed
                await store.find("r1")
            assert execute(url, "SELECT run_id FROM andon_runs") == [("r1",)]

    play(main)
    assert [each.levelname for each in caplog.records if "Restart it" in each.getMessage()] == ["CRITICAL"]


def test_a_file_is_not_written_even_once_after_it_was_migrated(sqlite_url: str) -> None:
    async def main() -> None:
        async with opened(sqlite_url) as store:
            await store.ping()
            execute(sqlite_url, f"UPDATE andon_meta SET version = {schema.VERSION + 1}")
            with pytest.raises(StoreError, match="Restart it"):
                await store.enter(record("r1"), "me", LONG, "reject")
            assert execute(sqlite_url, "SELECT run_id FROM andon_runs") == []

    play(main)


def test_after_an_error_a_server_is_asked_which_version_it_has(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await store.find("r1")
            execute(
                postgres_url,
                f"UPDATE andon_meta SET version = {schema.VERSION + 1}",
                "ALTER TABLE andon_records RENAME COLUMN record TO other",
            )
            for said in ("does not exist", "Restart it"):
                with pytest.raises(StoreError, match=said):
                    await store.find("r1")

    play(main)
