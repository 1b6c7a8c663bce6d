# SPDX-License-Identifier: Apache-2.0
"""A database's files are their owner's alone: conversations are in them.

SQLite gives its log and its index (`-wal`, `-shm`) the rights that the file has, so the file is made with the right
ones, before SQLite sees it. What must stay true: no file of ours is open to others at any moment, whatever the umask.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

OWNERS = 0o600


def make_file(path: Path) -> None:
    """Make an empty file, unless there is one. For a symbolic link, make the file that it leads to: SQLite would make
    that one itself, with the rights that the umask leaves.
    """
    path = Path(os.path.realpath(path))
    try:
        # Without opening it: to close it again would drop the locks that this process has on it by then.
        os.mknod(path, stat.S_IFREG | OWNERS)
    except FileExistsError:
        pass
    except (AttributeError, OSError):  # not every system lets users make files so
        with contextlib.suppress(OSError):  # why it can't be made, SQLite says
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNERS))


def warn_if_open(path: Path) -> None:
    """Say so if others can read a file that was there before. Its owner may want that, so it stays as it is."""
    if not path.exists():  # SQLite will say why
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        who = "every user of this machine" if mode & 0o007 else "its group"
        log.warning(
            "%s has conversations in it, and can be read or written by %s (%o): run `chmod 600 %s*` to change that",
            path,
            who,
            mode,
            path,
        )
