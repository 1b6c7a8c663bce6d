# SPDX-License-Identifier: Apache-2.0
"""The connections to Postgres: how many a process has, and what becomes of them when their other end is gone."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import select

from andon.errors import StoreError
from andon.store.sql import database, engine, transaction
from andon.store.sql.address import parse
from tests.store.admin import ask, plain_role, tell
from tests.store.making import LONG, opened, record
from tests.store.server import Server
from tests.support import Flag, eventually, play, until

OURS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'andon'"


@pytest.fixture
def tcp_server(server: Server) -> Iterator[Server]:
    """One that is reached by TCP, as servers are that can be cut off."""
    folder = Path(tempfile.mkdtemp(prefix="andon-pg-"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = Server(folder, folder, port=port)
    yield own
    own.stop()
    shutil.rmtree(folder)


# -- both ends look whether the other one is there ---------------------------------------------------------------------


def test_the_server_looks_whether_its_clients_are_still_there(tcp_server: Server) -> None:
    """What it says here is what the kernel says of this very connection."""
    made = engine.make_engine(parse(tcp_server.url("postgres")), 1)
    try:
        with made.connect() as connection:
            for name, value in {"idle": "5", "interval": "2", "count": "3"}.items():
                assert connection.exec_driver_sql(f"SHOW tcp_keepalives_{name}").scalar_one() == value
            assert connection.exec_driver_sql("SHOW tcp_user_timeout").scalar_one() == "10000"
            assert connection.exec_driver_sql("SHOW client_connection_check_interval").scalar_one() == "3s"
            assert connection.exec_driver_sql("SHOW statement_timeout").scalar_one() == "30s"
            assert connection.exec_driver_sql("SHOW default_transaction_isolation").scalar_one() == "read committed"
    finally:
        made.dispose()


def test_a_client_that_is_gone_does_not_stay_in_line_for_a_lock(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill -9: without a look at its client, the server would leave it waiting, and then let it have it."""
    monkeypatch.setitem(engine.SERVER_SETTINGS, "statement_timeout", "0")
    made = engine.make_engine(parse(postgres_url), 1)
    with contextlib.closing(psycopg.connect(postgres_url, autocommit=True)) as holder:
        holder.execute("SELECT pg_advisory_lock(1)")
        borrowed = made.raw_connection()
        driver = borrowed.driver_connection
        assert driver is not None
        driver.pgconn.send_query(b"SELECT pg_advisory_lock(1)")
        driver.pgconn.flush()
        eventually(lambda: ask(postgres_url, f"SELECT count(*) {OURS} AND wait_event = 'advisory'") == "1")
        with socket.socket(fileno=driver.pgconn.socket) as link:
            link.shutdown(socket.SHUT_RDWR)
            link.detach()
        eventually(lambda: ask(postgres_url, f"SELECT count(*) {OURS}") == "0")
        borrowed.invalidate()
        made.dispose()


@pytest.mark.parametrize(
    "setting",
    [("no_such_setting", "1"), ("tcp_keepalives_count", "never")],
    ids=["one that it does not know", "one that it can't do"],
)
def test_a_server_that_lacks_a_setting_is_used_without_it(
    postgres_url: str, setting: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine.SERVER_SETTINGS, *setting)

    async def main() -> None:
        async with opened(postgres_url) as store:
            await store.ping()
            with store._db._engine.connect() as connection:
                assert connection.exec_driver_sql("SHOW statement_timeout").scalar_one() == "30s"

    play(main)


# -- how many there are ------------------------------------------------------------------------------------------------


def test_a_process_has_a_connection_for_each_of_its_threads_and_no_more(postgres_url: str) -> None:
    """All threads of all pools are in the middle of a transaction, and twice as many want to be, while it listens."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            db, listening, lock, inside, go_on = store._db, Flag(), threading.Lock(), list[object](), Flag()
            store.listen(lambda *_: listening.set())
            await listening.arrived()

            def work(tx: transaction.Tx) -> None:
                tx.execute(select(1))
                with lock:
                    inside.append(tx)
                go_on.wait()

            sizes = {pool: pool._size for pool in db._pools if pool is not db._checkpoints}
            how = transaction.TxMode(writes=True, early=False)
            jobs = [
                asyncio.create_task(db._run(pool, work, how)) for pool, size in sizes.items() for _ in range(2 * size)
            ]
            await until(lambda: len(inside) == sum(sizes.values()))
            assert await asyncio.to_thread(ask, postgres_url, f"SELECT count(*) {OURS}") == str(database.CONNECTIONS)
            go_on.set()
            await asyncio.gather(*jobs)
            assert await asyncio.to_thread(ask, postgres_url, f"SELECT count(*) {OURS}") == str(database.CONNECTIONS)

    play(main)


def test_the_docs_tell_the_number_and_what_each_is_for() -> None:
    text = (Path(__file__).parents[2] / "docs" / "storage.md").read_text()
    section = text.partition("## Connections to Postgres\n")[2].partition("\n## ")[0]
    assert f"at most these {database.CONNECTIONS}," in section
    assert sum(map(int, re.findall(r"^\| (\d+) \|", section, re.MULTILINE))) == database.CONNECTIONS


def test_who_would_wait_for_ever_for_a_connection_is_told(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await store.ping()
            go_on = Flag()

            def stay(tx: transaction.Tx, inside: Flag) -> None:
                inside.set()
                go_on.wait()

            flags = Flag(), Flag()
            staying = [asyncio.create_task(store._db.change(partial(stay, inside=flag))) for flag in flags]
            for flag in flags:
                await flag.arrived()
            with pytest.raises(StoreError, match="all 2 connections of this process have been busy for too long"):
                await store.find("r1")
            go_on.set()
            await asyncio.gather(*staying)
            assert await store.find("r1") is None

    monkeypatch.setattr(database, "CONNECTIONS", 2)
    monkeypatch.setattr(engine, "POOL_SECONDS", 0.2)
    play(main)


def test_a_server_without_room_says_so_and_is_used_once_it_has_some(postgres_url: str) -> None:
    async def main(url: str) -> None:
        role = url.partition("://")[2].partition("@")[0]
        limit = f"ALTER ROLE {role} CONNECTION LIMIT "
        tell(postgres_url, limit + "0")
        async with opened(url) as store:
            says = f"too many connections for role.*Raise its max_connections.*uses up to {database.CONNECTIONS}"
            with pytest.raises(StoreError, match=says):
                await store.ping()
            tell(postgres_url, limit + "-1")
            await store.ping()
            await store.enter(record("r1"), "me", LONG, "reject")

    with plain_role(postgres_url) as url:
        play(lambda: main(url))
