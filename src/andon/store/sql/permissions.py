# SPDX-License-Identifier: Apache-2.0
"""Only its owner can read or write a database file: it contains conversations.

SQLite gives its log and its index (`-wal`, `-shm`) the permissions of the file. So the file is created with mode 600
before SQLite opens it. What must stay true: no file that we create is open to others at any moment, with any umask.
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
    """Create an empty file, unless there is one. For a symbolic link, create the file that it leads to: SQLite would
    create that one itself, with the permissions that the umask leaves.
    """
    path = Path(os.path.realpath(path))
    try:
        # Without opening it: closing it again would drop the locks that this process may have on it by then.
        os.mknod(path, stat.S_IFREG | OWNERS)
    except FileExistsError:
        pass
    except (AttributeError, OSError):  # not every system lets users call mknod
        with contextlib.suppress(OSError):  # SQLite will say why
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNERS))


def warn_if_open(path: Path) -> None:
    """Log a warning if others can read a file that existed before. Its owner may want that, so it is not changed."""
    if not path.exists():  # SQLite will say why
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        who = "every user of this machine" if mode & 0o007 else "its group"
        log.warning(
            "%s contains conversations, and can be read or written by %s (%o): run `chmod 600 %s*` to change that",
            path,
            who,
            mode,
            path,
        )
