# SPDX-License-Identifier: Apache-2.0
"""The runs that have ended in the last hours, for the list of a board and for its plots.

Runtimes tell it the runs of this process, also while no board is open. The runs of other processes are read from the
store while a board is open.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable

from andon.core.run.run import LocalRun
from andon.core.shared.overview import StoredRun
from andon.server.board.lines import Key, Line, ended_line

HOURS = 6
"""How long a run is remembered."""

KEPT = 10_000
"""The most runs that are remembered."""


class History:
    """Lines of runs that have ended. `run_ended` is called in any thread; all else on the loop of the server."""

    def __init__(self, agent_ids: Callable[[], Collection[str]], server: str) -> None:
        self._agent_ids, self._server = agent_ids, server
        self._arrived: deque[Line] = deque(maxlen=KEPT)
        self._lines: dict[Key, Line] = {}
        self._fresh: deque[Line] = deque(maxlen=KEPT)
        self.begins = time.time()
        """It knows all runs that have ended since this time."""

    def run_ended(self, run: LocalRun) -> None:
        if run.ending is not None and run.ending.record is not None:
            self._arrived.append(ended_line(StoredRun(run.ending.record, None, time.time()), self._server))

    def add(self, lines: Iterable[Line]) -> None:
        """Runs that another process has ended."""
        self._arrived.extend(lines)

    def take(self) -> list[Line]:
        """The runs that are new since the last call."""
        self._gather()
        fresh = list(self._fresh)
        self._fresh.clear()
        return fresh

    def _gather(self) -> None:
        agent_ids = set(self._agent_ids()) if self._arrived else ()
        if len(self._arrived) == KEPT:  # perhaps there were more
            self.begins = max(self.begins, end_of(self._arrived[0]))
        while self._arrived:
            line = self._arrived.popleft()
            if line.key not in self._lines and line.agent_id in agent_ids:
                self._lines[line.key] = line
                self._fresh.append(line)
        self._forget()

    def has(self, run: LocalRun) -> bool:
        """True if this run has ended. A run of another runtime may have the same ids."""
        line = self._lines.get((run.agent_id, run.run_id))
        return line is not None and line.created_at == run.created_at

    def __contains__(self, key: Key) -> bool:
        return key in self._lines

    @property
    def lines(self) -> list[Line]:
        self._gather()
        return list(self._lines.values())

    def last(self, count: int, may_see: Callable[[str | None], bool]) -> list[Line]:
        """The runs that have ended last. The last one comes first."""
        visible = (line for line in self._lines.values() if may_see(line.user_id))
        return heapq.nlargest(count, visible, key=end_of)

    def _forget(self) -> None:
        oldest = time.time() - HOURS * 3600
        while self._lines:
            key, line = next(iter(self._lines.items()))
            if len(self._lines) <= KEPT and end_of(line) >= oldest:
                break
            del self._lines[key]
            if end_of(line) >= oldest:
                self.begins = max(self.begins, end_of(line))


def end_of(line: Line) -> float:
    return line.created_at if line.ended_at is None else line.ended_at
