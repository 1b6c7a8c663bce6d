# SPDX-License-Identifier: Apache-2.0
"""Who sits in front of a command: the name at the keyboard, and the reader of what it prints."""

from __future__ import annotations

import getpass
import os
import select
import stat
import sys
import threading
from collections.abc import Callable

from andon.cli.mistake import Exit


def who() -> str | None:
    """Whoever sits at the keyboard."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None


def on_reader_gone(act: Callable[[], object]) -> None:
    """Do this when whoever reads our stdout through a pipe has left, also while there is nothing to write."""
    if not hasattr(select, "poll"):
        return
    try:
        file = sys.stdout.fileno()
        if not stat.S_ISFIFO(os.fstat(file).st_mode):
            return
    except (OSError, ValueError, AttributeError):  # there is no stdout
        return

    def watch() -> None:
        poll = select.poll()
        poll.register(file, 0)  # errors are told without being asked for
        poll.poll()
        act()

    threading.Thread(target=watch, name="andon-stdout", daemon=True).start()


def leave_with_reader() -> None:
    """End this process when whoever reads our stdout has left. A server that does a run for us sees that."""
    on_reader_gone(lambda: os._exit(Exit.pipe_closed))
