# SPDX-License-Identifier: Apache-2.0
"""SQLite's file and its log.

Its locks belong to the process: whoever opens the file and closes it again drops all of them. Then the next process to
leave takes itself for the last one, and deletes the log that others still write to: from there on nobody sees what they
commit, and they hear of no cancel.
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from andon.store.sql import database
from andon.store.sql.threads import Answer
from tests.store.making import KEY, opened
from tests.support import HANG, Flag, play, until

COUNT = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT count(*) FROM andon_sessions").fetchone()[0])
connection.close()
"""


def count_elsewhere(path: Path) -> int:
    """How many sessions another process sees, which is gone afterwards."""
    command = [sys.executable, "-c", COUNT, str(path)]
    return int(subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=True).stdout)


def test_opening_a_file_drops_no_locks(tmp_path: Path) -> None:
    path = tmp_path / "andon.db"

    async def main() -> None:
        async with opened(f"sqlite:///{path}") as one, opened(f"sqlite:///{path}") as two:
            await one.create_session(KEY, {})
            assert await two.find_session(KEY) is not None  # the second one has looked at the file before
            assert count_elsewhere(path) == 1
            await one.create_session(KEY._replace(session_id="another"), {})
            assert count_elsewhere(path) == 2

    play(main)


def test_the_log_is_brought_to_the_file_beside_the_changes(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That waits for the disk, and may take its time: no change waits for it, nor does it itself."""
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    monkeypatch.setattr(database, "CHECKPOINT_CHANGES", 3)
    checkpoint, begun, go_on, threads = database.Database._checkpoint, Flag(), Flag(), list[str]()

    def slowly(db: database.Database, answer: Answer[None]) -> None:
        threads.append(threading.current_thread().name)
        begun.set()
        go_on.wait()
        checkpoint(db, answer)

    monkeypatch.setattr(database.Database, "_checkpoint", slowly)

    def written() -> int:
        return path.stat().st_mtime_ns  # to read it would drop its locks

    async def main() -> None:
        async with opened(sqlite_url) as store:
            await store.ping()  # it is opened, and that is in the file
            before = written()
            for number in range(3):
                assert await store.create_session(KEY._replace(session_id=f"{number}"), {}) is not None
            await begun.arrived()
            for number in range(3, 9):
                assert await store.create_session(KEY._replace(session_id=f"{number}"), {}) is not None
            assert written() == before
            go_on.set()
            await until(lambda: written() != before)
            assert set(threads) == {"andon-store-checkpoints"}

    play(main)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM andon_sessions").fetchone() == (9,)
