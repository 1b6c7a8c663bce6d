# SPDX-License-Identifier: Apache-2.0
"""Notices that the reader of our stdout has closed the pipe (`andon watch … | head -1`)."""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from collections.abc import Callable

from andon.cli.command_error import Exit


def on_stdout_closed(act: Callable[[], object]) -> None:
    """Call `act` when the reader of our stdout closes the pipe, also while there is nothing to write."""
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
        poll.register(file, 0)  # errors are always reported
        poll.poll()
        act()

    threading.Thread(target=watch, name="andon-stdout", daemon=True).start()


def exit_when_stdout_closes() -> None:
    """End this process when the reader of our stdout closes the pipe. A server that runs an agent for it notices."""
    on_stdout_closed(lambda: os._exit(Exit.pipe_closed))
