# SPDX-License-Identifier: Apache-2.0
"""A gate around the writes to SQLite, which is closed while the process forks.

SQLite keeps the locks of a process in its memory, and a fork copies that memory. If a thread were writing at that
moment, the child would find the database locked by a connection that it does not have, and for ever. So a fork waits
until no thread is writing. What must stay true: a fork waits for `FORK_SECONDS` at the most.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType

FORK_SECONDS = 2.0


class ForkGate:
    """`with gate:` around a write. Threads that come while a fork is under way wait until it is over."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """In a forked child: none of the parent's threads is here."""
        self._changed = threading.Condition()
        self._inside = self._forks = 0

    def __enter__(self) -> None:
        with self._changed:
            while self._forks:
                self._changed.wait()
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._inside -= 1
            if self._forks:
                self._changed.notify_all()

    def close(self) -> None:
        """A fork begins."""
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: not self._inside, FORK_SECONDS)

    def open(self) -> None:
        """The fork is over, or has failed."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()


gate = ForkGate()
os.register_at_fork(before=gate.close, after_in_parent=gate.open, after_in_child=gate.start_over)
