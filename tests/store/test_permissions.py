# SPDX-License-Identifier: Apache-2.0
"""The files of a database are their owner's alone, whatever the umask."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from andon.store.sql import SQLStore, permissions
from tests.store.making import KEY, opened
from tests.support import play


@pytest.fixture(params=[0o000, 0o022])
def lenient(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}


async def use(store: SQLStore) -> None:
    await store.create_session(KEY, {"colour": "blue"})
    assert await store.find_session(KEY) is not None


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("by_opening", [False, True])
def test_the_file_and_its_companions(tmp_path: Path, by_opening: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_opening:  # as where users may not make files in the other way
        monkeypatch.delattr(os, "mknod")

    async def go() -> None:
        async with opened(f"sqlite:///{tmp_path}/andon.db") as store:
            await use(store)
            assert modes(tmp_path) == dict.fromkeys(["andon.db", "andon.db-wal", "andon.db-shm"], 0o600)

    play(go)


@pytest.mark.usefixtures("lenient")
def test_a_file_that_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "andon.db").symlink_to("disk/real.db")

    async def go() -> None:
        async with opened(f"sqlite:///{tmp_path}/andon.db") as store:
            await use(store)
            assert modes(tmp_path / "disk") == dict.fromkeys(["real.db", "real.db-wal", "real.db-shm"], 0o600)

    play(go)


@pytest.mark.usefixtures("lenient")
def test_the_copy_that_is_made_before_a_migration(tmp_path: Path) -> None:
    dump = (Path(__file__).parent / "version_1" / "sqlite.sql").read_text()
    path = tmp_path / "andon.db"
    permissions.make_file(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(dump)

    async def go() -> None:
        async with opened(f"sqlite:///{path}") as store:
            await use(store)

    play(go)
    found = modes(tmp_path)
    assert found.pop("andon.db.v1.bak") == 0o600
    assert set(found.values()) == {0o600}


@pytest.mark.parametrize(("mode", "whom"), [(0o644, "every user"), (0o660, "its group"), (0o600, None)])
def test_a_file_that_others_can_read_is_told_of_and_stays_as_it_is(
    tmp_path: Path, mode: int, whom: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "andon.db"
    path.touch()
    path.chmod(mode)

    async def go() -> None:
        async with opened(f"sqlite:///{path}") as store:
            await use(store)

    with caplog.at_level(logging.WARNING, "andon"):
        play(go)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    told = [line for line in caplog.messages if "chmod 600" in line]
    assert len(told) == (0 if whom is None else 1)
    assert all(str(whom) in line for line in told)
