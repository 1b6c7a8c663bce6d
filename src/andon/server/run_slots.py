# SPDX-License-Identifier: Apache-2.0
"""How many runs a server has room for: of all, of one user, and of those that wait for a person.

To look and to take a place is one step: going on with a run waits for the store, and its place is taken meanwhile. A
run that has ended counts for as long as a thread of one of its tools is still running.

Any run that is at work may come to wait for a person. So the limits of paused runs count both: only then no more can
pause than may. A user's paused runs are also counted in the database, where those are that this server does not hold.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Protocol

from andon.core.run.run import Run
from andon.core.runtime import Runtime
from andon.core.selection import Selection
from andon.core.shared.store import SharedStore
from andon.core.states import RunStatus
from andon.server.problems import Problem
from andon.server.quotas import Quotas

BEHIND_SECONDS = 5.0
"""A run that would have to wait longer than this for the database to take it in is refused."""
PAGE = 1000
"""So many paused runs are read from the database at once, to count them."""


_FIRST = "answer or cancel some first"


class RunLimits(Protocol):
    """Those of the server's settings that are of concern here."""

    @property
    def max_runs(self) -> int: ...
    @property
    def max_user_runs(self) -> int: ...
    @property
    def max_paused_runs(self) -> int: ...
    @property
    def max_user_paused_runs(self) -> int: ...


class RunSlots:
    """The places for runs. `live` says which runs there are that have not ended."""

    def __init__(self, limits: RunLimits, runtimes: Sequence[Runtime], live: Callable[[], list[Run]]) -> None:
        self._limits, self._runtimes, self._live = limits, runtimes, live
        self._taken: dict[object, tuple[str, str | None]] = {}
        """Runs that somebody is about to go on with, and whose they are."""
        self._paused = Quotas()

    def check(self, user_id: str | None) -> None:
        """Raise if there is no room for another run of this user's."""
        self._check_working(user_id)
        limits = self._limits
        if self._count_open(limits.max_paused_runs) >= limits.max_paused_runs:
            detail = f"{limits.max_paused_runs} runs wait for a person's answer, or are running and may come to ask"
            raise Problem(429, f"{detail}, as many as this server takes: {_FIRST}", {"retry-after": "1"})
        if user_id is not None and self._count_open(limits.max_user_paused_runs, user_id) >= (
            limits.max_user_paused_runs
        ):
            raise self._too_many_of(user_id)

    @contextlib.asynccontextmanager
    async def new_run_slot(self, user_id: str | None) -> AsyncIterator[None]:
        """Where a run is made. Raise if there is no room for it, also by what the database knows of the user's runs."""
        self.check(user_id)
        stores = [runtime.keeper.store for runtime in self._runtimes if runtime.keeper is not None]
        if user_id is None or not stores:
            yield
            return
        limit = self._limits.max_user_paused_runs

        async def count() -> int:
            found = {run_id for store in stores for run_id in await _paused_in(store, user_id, limit)}
            return len(found | self._open(user_id))

        async with self._paused.reserve(user_id, limit, count) as granted:
            if not granted:
                raise self._too_many_of(user_id)
            yield

    @contextlib.contextmanager
    def continued_run_slot(self, run_id: str, user_id: str | None, *, anew: bool) -> Iterator[None]:
        """Have a place for a run that somebody goes on with, until it has one of its own. `anew`: that makes another
        run; else it is one that is paused, and counts as that.
        """
        self.check(user_id) if anew else self._check_working(user_id)
        key = object()
        self._taken[key] = run_id, user_id
        try:
            yield
        finally:
            del self._taken[key]

    def _too_many_of(self, user_id: str) -> Problem:
        detail = f"{self._limits.max_user_paused_runs} runs of this user wait for an answer, or are running and may"
        return Problem(429, f"{detail} come to ask, as many as one may have: {_FIRST}", {"retry-after": "1"})

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
            for scope in runtime.abandoned.copy().values():
                top = [scope.run, *scope.run.ancestors][-1]
                working[top.run_id] = scope.run.user_id
        return sum(user_id is None or whose == user_id for whose in working.values()) >= limit

    def _count_open(self, limit: int, user_id: str | None = None) -> int:
        """How many runs have not ended, or, with a user, of that one; not counted if they are surely fewer."""
        most = sum(runtime.live for runtime in self._runtimes) + len(self._taken)
        return most if most < limit else len(self._open(user_id))

    def _open(self, user_id: str | None) -> set[str]:
        runs = {run.run_id: run.user_id for run in self._live() if run.parent_run_id is None}
        runs |= dict(self._taken.values())
        return {run_id for run_id, whose in runs.items() if user_id is None or whose == user_id}


async def _paused_in(store: SharedStore, user_id: str, limit: int) -> set[str]:
    """The user's paused runs that a store knows, so many at the most. A sub-agent's run belongs to its parent's."""
    which, found = Selection(user_id=user_id, statuses=(RunStatus.paused,)), set[str]()
    before: tuple[float, str] | None = None
    while len(found) < limit:
        page = await store.list_runs(which, min(PAGE, limit), before)
        found |= {record.run_id for record in page if record.parent_run_id is None}
        if len(page) < min(PAGE, limit):
            break
        before = page[-1].created_at, page[-1].run_id
    return found
