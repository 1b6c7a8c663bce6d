# SPDX-License-Identifier: Apache-2.0
"""A Postgres that is set up so that something would silently not work, or get lost: it is refused, or it is said."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from andon import RunStatus
from andon.cli import main as andon
from andon.core.selection import Selection
from andon.errors import ConfigurationError, StoreError
from andon.store.sql import configuration, notifications
from tests.store.admin import ask, plain_role, tell
from tests.store.making import LONG, asking, events, opened, record, said
from tests.store.pooler import SESSIONS, pooling
from tests.store.server import Server
from tests.store.test_processes import Bell
from tests.support import HANG, play

TABLES = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"


async def ping(url: str) -> None:
    async with opened(url) as store:
        await store.ping()


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.fixture
def hasty_ears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "HEAR_SECONDS", 0.5)


@pytest.mark.usefixtures("hasty_ears")
def test_a_pooler_that_gives_each_transaction_another_session_is_refused(postgres_url: str) -> None:
    with pooling(postgres_url, by_transaction=True) as url:
        with pytest.raises(
            ConfigurationError, match=r"127\.0\.0\.1.* is a pooler .*session mode .*or give the address"
        ):
            play(lambda: ping(url))
        with contextlib.ExitStack() as stack:  # others share these sessions: nothing of ours is left in any
            for _ in range(SESSIONS):
                other = stack.enter_context(psycopg.connect(url))
                assert other.execute("SHOW statement_timeout").fetchone() == ("0",)
                assert other.execute("SELECT count(*) FROM pg_listening_channels()").fetchone() == (0,)
    assert ask(postgres_url, TABLES) == "0"


@pytest.mark.usefixtures("hasty_ears")
def test_the_command_line_says_so_in_one_line(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pooling(postgres_url, by_transaction=True) as url:
        for command, code in ((["serve", "--demo"], 5), (["ps"], 5), (["cancel", "--all"], 5)):
            assert andon([*command, "--db", url]) == code
            (told,) = capsys.readouterr().err.splitlines()
            assert "pool_mode=session" in told


def test_a_pooler_in_session_mode_is_as_good_as_the_server(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "PING_SECONDS", HANG)  # only a notification wakes

    async def main() -> None:
        with pooling(postgres_url, by_transaction=False) as url:
            async with opened(url) as store, opened(postgres_url) as other:
                bell = Bell()
                connected = bell.next()
                store.listen(bell)
                await connected
                heard = asyncio.ensure_future(bell.next())
                await asyncio.sleep(0)
                await other.save(record("r1", RunStatus.completed), said("One"))
                await heard

    play(main)


def test_a_standby_is_refused_until_it_is_the_primary(own_server: Server) -> None:
    own_server.kill()
    (own_server.data / "standby.signal").touch()
    own_server.start()

    async def main() -> None:
        async with opened(own_server.url("postgres")) as store:
            with pytest.raises(ConfigurationError, match=r"is a standby.*name the primary.*target_session_attrs"):
                await store.ping()
            assert await asyncio.to_thread(ask, own_server.url("postgres"), "SELECT pg_promote()") == "True"
            await store.ping()

    play(main)


def test_a_database_that_is_read_only_is_refused_and_named_if_it_becomes_so_later(postgres_url: str) -> None:
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    switch = f"ALTER DATABASE {name} SET default_transaction_read_only = "
    tell(postgres_url, switch + "on")
    with pytest.raises(ConfigurationError, match=r"read-only for this user \(default_transaction_read_only is on\)"):
        play(lambda: ping(postgres_url))
    assert ask(postgres_url, TABLES) == "0"
    with psycopg.connect(postgres_url, autocommit=True, options="-c default_transaction_read_only=off") as admin:
        admin.execute(switch + "off")

    async def main() -> None:
        async with opened(postgres_url) as store:
            await store.ping()
            tell(postgres_url, switch + "on")
            tell(
                postgres_url,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'andon' "
                "AND datname = current_database()",
            )
            with pytest.raises(StoreError, match=r"read-only transaction\. It is a standby, or set to read-only"):
                await store.enter(record("r1"), "me", LONG, "reject")

    play(main)


# -- what is said -----------------------------------------------------------------------------------------------------


def test_what_was_answered_survives_a_server_that_commits_without_the_disk(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Postgres keeps such commits to itself for a moment, here for ten seconds, and a kill comes sooner."""
    url = own_server.url("postgres")
    tell(url, "ALTER SYSTEM SET synchronous_commit = off", "SELECT pg_reload_conf()")
    assert ask(url, "SHOW synchronous_commit") == "off"

    async def main() -> None:
        async with opened(url) as store:
            first = await store.enter(record("r1"), "me", LONG, "queue")
            second = await store.enter(record("r2"), "me", LONG, "queue")
            request = asking()
            await store.request_cancel(Selection("r1"), request)
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.start)
            assert (await store.renew([first, second], None)).cancels == {"r1": request}
            end = record("r2", RunStatus.completed)
            assert await store.finish(second, end, said("Two"), events("r2", (1,))) is None
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.start)
            assert await store.find("r2") == end

    with caplog.at_level(logging.INFO, "andon"):
        play(main)
    told = [text for text in caplog.messages if "synchronous_commit" in text]
    assert len(told) == 1
    assert "has synchronous_commit=off" in told[0]


@pytest.mark.parametrize("value", ["local", "remote_write", "on", "remote_apply"])
def test_how_far_a_commit_has_to_be_on_its_way_is_the_administrators_choice(
    postgres_url: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = f"{postgres_url}&options=-c%20synchronous_commit%3D{value}"

    async def main() -> None:
        async with opened(chosen) as store:
            await store.ping()
            with store._db._engine.connect() as connection:
                assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == value

    with caplog.at_level(logging.INFO, "andon"):
        play(main)
    assert "synchronous_commit" not in caplog.text


def test_a_server_that_its_machine_may_destroy_is_named(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The one of these tests is such a server. Opened once, it is said once."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            await asyncio.gather(*(store.find(f"r{number}") for number in range(5)))

    play(main)
    (told,) = caplog.messages
    assert "has fsync=off and full_page_writes=off" in told


@pytest.mark.parametrize("style", [(), ("--log-format", "json")], ids=["without a log", "with a log"])
def test_who_starts_a_server_sees_what_is_said(postgres_url: str, tmp_path: Path, style: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "andon", "serve", "--demo", "--port", "0", "--db", postgres_url, *style]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("serving ")
        process.kill()
        told = process.communicate()[1]
    assert told.count("has fsync=off and full_page_writes=off") == 1


@contextlib.contextmanager
def replica(url: str) -> Iterator[None]:
    """One that gets all that is written, and says nothing."""
    with contextlib.closing(psycopg.connect(url, autocommit=True, replication="true")) as connection:
        place = connection.pgconn.exec_(b"IDENTIFY_SYSTEM").get_value(0, 2)
        assert place is not None
        connection.pgconn.exec_(b"START_REPLICATION PHYSICAL " + place)
        yield


def test_replicas_that_may_be_behind_are_mentioned_to_those_who_may_know_of_them(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    said_of = "has replicas and does not wait for them"
    with plain_role(postgres_url) as plain, caplog.at_level(logging.INFO, "andon"):
        play(lambda: ping(plain))
        play(lambda: ping(postgres_url))
        assert said_of not in caplog.text
        with replica(postgres_url):
            play(lambda: ping(plain))
            assert said_of not in caplog.text
            play(lambda: ping(postgres_url))
        assert said_of in caplog.text
