# SPDX-License-Identifier: Apache-2.0
"""How many runs a server has room for: of all, of one user, and of those that wait for a person.

To look and to take a place is one step: going on with a run waits for the store, and its place is taken meanwhile. A
run that has ended counts for as long as a thread of one of its tools is still running.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from andon.core.run import Run
from andon.core.runtime import Runtime
from andon.server.problems import Problem

BEHIND_SECONDS = 5.0
"""A run that would have to wait longer than this for the database to take it in is refused."""


class Limits(Protocol):
    """Those of the server's settings that are of concern here."""

    @property
    def max_runs(self) -> int: ...
    @property
    def max_user_runs(self) -> int: ...
    @property
    def max_paused_runs(self) -> int: ...
    @property
    def max_user_paused_runs(self) -> int: ...


class Room:
    """The places for runs. `live` says which runs there are that have not ended."""

    def __init__(self, limits: Limits, runtimes: Sequence[Runtime], live: Callable[[], list[Run]]) -> None:
        self._limits, self._runtimes, self._live = limits, runtimes, live
        self._taken: dict[object, tuple[str, str | None]] = {}
        """Runs that somebody is about to go on with, and whose they are."""

    def check(self, user_id: str | None) -> None:
        """Raise if there is no room for another run of this user's."""
        self._check_working(user_id)
        limits = self._limits
        if self._has_paused(limits.max_paused_runs):
            detail = f"{limits.max_paused_runs} runs wait for a person's answer, as many as this server takes"
            raise Problem(429, f"{detail}: answer or cancel some first", {"retry-after": "1"})
        if user_id is not None and self._has_paused(limits.max_user_paused_runs, user_id):
            detail = f"{limits.max_user_paused_runs} runs of this user wait for an answer, as many as one may have"
            raise Problem(429, f"{detail}: answer or cancel some first", {"retry-after": "1"})

    @contextlib.contextmanager
    def place(self, run_id: str, user_id: str | None) -> Iterator[None]:
        """Have a place for a run that somebody goes on with, until it has one of its own."""
        self._check_working(user_id)
        key = object()
        self._taken[key] = run_id, user_id
        try:
            yield
        finally:
            del self._taken[key]

    def _check_working(self, user_id: str | None) -> None:
        if max(runtime.lag for runtime in self._runtimes) > BEHIND_SECONDS:
            detail = "the database is behind with the runs that this server has already: try again later"
            raise Problem(429, detail, {"retry-after": str(math.ceil(BEHIND_SECONDS))})
        limits = self._limits
        if self._is_full(limits.max_runs):
            detail = f"{limits.max_runs} runs are going on, as many as this server takes: try again later"
            raise Problem(429, detail, {"retry-after": "1"})
        if user_id is not None and self._is_full(limits.max_user_runs, user_id):
            detail = f"{limits.max_user_runs} runs of this user are going on, as many as one may have"
            raise Problem(429, f"{detail}: cancel one, or try again later", {"retry-after": "1"})

    def _is_full(self, limit: int, user_id: str | None = None) -> bool:
        """Are so many runs at work, or, with a user, of that one? Paused runs are counted apart, and a sub-agent's run
        belongs to its parent's.
        """
        most = sum(runtime.live + len(runtime.abandoned) for runtime in self._runtimes) + len(self._taken)
        if most < limit:  # by far the most frequent case, and quickly told
            return False
        runs = [run for run in self._live() if not run.is_paused and run.parent_run_id is None]
        working = {run.run_id: run.user_id for run in runs} | dict(self._taken.values())
        for runtime in self._runtimes:
            for scope in runtime.abandoned.copy():
                top = [scope.run, *scope.run.ancestors][-1]
                working[top.run_id] = scope.run.user_id
        return sum(user_id is None or whose == user_id for whose in working.values()) >= limit

    def _has_paused(self, limit: int, user_id: str | None = None) -> bool:
        if sum(runtime.live for runtime in self._runtimes) < limit:
            return False
        theirs = [run for run in self._live() if user_id is None or run.user_id == user_id]
        return sum(run.is_paused and run.parent_run_id is None for run in theirs) >= limit
