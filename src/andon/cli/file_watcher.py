# SPDX-License-Identifier: Apache-2.0
"""Checks the `.py` files of a program for changes, for `andon serve --reload`.

It checks all files below the working directory, without hidden folders and installed packages.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

LOOK_SECONDS = 0.25
"""How often files are checked. No notification of changes works on every system."""

NOT_OURS = {"__pycache__", "node_modules", "site-packages"}


class FileWatcher:
    """Watches the files below a folder."""

    def __init__(self, folder: str = ".") -> None:
        self._folder = folder
        self._seen = dict(self._look())

    async def changed(self) -> list[str]:
        """Wait until files have changed since the last call, and return their names."""
        while True:
            now = dict(self._look())
            if now != self._seen:
                before, self._seen = self._seen, now
                return sorted({name for name, _ in before.items() ^ now.items()})
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for folder, folders, names in os.walk(self._folder):
            folders[:] = [each for each in folders if not _is_foreign(folder, each)]
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)
                    try:
                        found = os.stat(path)
                    except OSError:  # it was just deleted
                        continue
                    yield os.path.relpath(path, self._folder), (found.st_mtime_ns, found.st_size)


def _is_foreign(folder: str, name: str) -> bool:
    """A hidden folder, one of installed packages, or a virtual environment."""
    return name.startswith(".") or name in NOT_OURS or os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
