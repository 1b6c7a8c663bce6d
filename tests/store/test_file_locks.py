# SPDX-License-Identifier: Apache-2.0
"""SQLite's locks belong to the process: whoever opens the file and closes it again drops all of them.

Then the next process to leave takes itself for the last one, and deletes the log that others still write to: from
there on nobody sees what they commit, and they hear of no cancel.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.store.making import KEY, opened
from tests.support import HANG, play

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
