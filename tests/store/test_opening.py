# SPDX-License-Identifier: Apache-2.0
"""A store by its URL: what is understood, and what is said of what is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from andon.errors import ConfigurationError, MissingExtraError, StoreError
from andon.store import MemoryStore, open_store
from andon.store.sql import SQLStore
from tests.store.making import opened
from tests.support import play


def test_memory_is_a_store_too() -> None:
    assert isinstance(open_store("memory://"), MemoryStore)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://host/name", r"mysql:// names no store; there are memory://.*sqlite:///andon.db, postgresql://"),
        ("andon.db", "this names no store"),
        ("memory://x", r"memory:// takes nothing after it but \?keep_days=NUMBER&keep_sessions=NUMBER"),
        ("sqlite://", "SQLite needs a file.*use memory://"),
        ("sqlite:///:memory:", "SQLite needs a file"),
        ("sqlite:///file:x?mode=memory", "not understood"),
        ("sqlite://andon.db", "not understood: three slashes"),
        ("sqlite:///andon.db?cache=shared", r"at most \?synchronous=full"),
        ("sqlite:///andon.db?synchronous=off", "not understood"),
        ("sqlite+aiosqlite:///andon.db", r"sqlite\+aiosqlite:// is no database that Andon can use"),
        ("postgresql+asyncpg://ada:secret@host/x", r"postgresql\+asyncpg:// is no database that Andon can use"),
        ("postgresql://ada:secret@host:port/x", "no database URL"),
        ("sqlite:////no/such/folder/andon.db", "there is no folder /no/such/folder. Make it first"),
        ("sqlite:////tmp", "/tmp is a folder; name a file in it"),
    ],
)
def test_what_is_wrong_with_a_url_is_said_before_anything_is_opened(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as wrong:
        open_store(url)
    assert "secret" not in str(wrong.value)


def test_a_file_that_may_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "andon.db"
    file.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != file)  # root may write everything
    with pytest.raises(ConfigurationError, match=r"andon\.db can't be written"):
        open_store(f"sqlite:///{file}")


@pytest.mark.parametrize(
    ("missing", "url", "extra"),
    [
        ("sqlalchemy", "sqlite:///andon.db", 'pip install "andon[server]"'),
        ("sqlalchemy", "postgresql://host/name", '"andon[postgres]"'),
        ("psycopg", "postgresql://host/name", 'pip install "andon[postgres]"'),
    ],
)
def test_a_missing_package_is_named_with_its_extra(missing: str, url: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
from andon.errors import MissingExtraError
from andon.store import open_store
try:
    open_store({url!r})
except MissingExtraError as error:
    print(error)
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert extra in output
    assert issubclass(MissingExtraError, ImportError)


def test_a_path_is_what_it_was_when_the_store_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()

    async def main() -> None:
        monkeypatch.chdir(tmp_path)
        async with opened("sqlite:///here.db?synchronous=full") as store:
            monkeypatch.chdir(tmp_path / "elsewhere")
            await store.ping()
            assert repr(store) == f"<SQLStore sqlite:///{tmp_path}/here.db>"

    play(main)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "here.db"]


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    async def main() -> None:
        async with opened("postgresql://ada:hush-hush@127.0.0.1:1/x?password=hush-hush") as store:
            with pytest.raises(StoreError, match=r"could not be asked.*Is it running, and is the URL right") as failed:
                await store.ping()
            assert "127.0.0.1" in str(failed.value)
            assert "hush" not in str(failed.value) + repr(store)
            assert failed.value.__cause__ is None

    play(main)


def test_a_wrong_name_is_told_as_such(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url.replace("/test_", "/no_test_")) as store:
            with pytest.raises(StoreError, match=r"no_test_\d+.* does not exist\. Check the names in the URL"):
                await store.ping()

    play(main)


def test_a_closed_store_says_so(sqlite_url: str) -> None:
    async def main() -> None:
        store = SQLStore(sqlite_url)
        await store.close()
        await store.close()
        with pytest.raises(StoreError, match="is closed"):
            await store.ping()

    play(main)
