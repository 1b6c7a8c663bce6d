# SPDX-License-Identifier: Apache-2.0
"""The limits on runs: of the server, of one user, and of paused runs.

A slot is checked and taken in one step. Continuing a run waits for the store, and its slot is taken meanwhile. A run
that has ended counts as long as a thread of one of its tools still runs.

Any working run may pause later. So the limits of paused runs count working and paused runs. The paused runs of a user
are also counted in the database, because this server does not hold all of them. A server that executes nothing holds
none: it counts all of them in the database.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Protocol

from andon.core.run.run import LocalRun
from andon.core.runtime import Runtime
from andon.core.selection import Selection
from andon.core.shared.store import SharedStore
from andon.core.states import RunStatus
from andon.server.problems import Problem
from andon.server.quotas import Quotas

BEHIND_SECONDS = 5.0
"""A run is refused if the database would need longer than this to admit it."""
PAGE = 1000
"""How many paused runs are read from the database at once, to count them."""


_FIRST = "answer or cancel some first"

CountOpen = Callable[[str | None], Awaitable[int]]
"""Counts the runs of a user, or of all, that are paused, work, or are about to work, in all processes."""


class RunLimits(Protocol):
    """The settings of the server that limit runs."""

    @property
    def max_runs(self) -> int: ...
    @property
    def max_user_runs(self) -> int: ...
    @property
    def max_paused_runs(self) -> int: ...
    @property
    def max_user_paused_runs(self) -> int: ...


class RunSlots:
    """The slots for runs. `live` returns the runs that have not ended. `count_open` is for a server whose runs are
    executed by other processes.
    """

    def __init__(
        self,
        limits: RunLimits,
        runtimes: Sequence[Runtime],
        live: Callable[[], list[LocalRun]],
        count_open: CountOpen | None = None,
    ) -> None:
        self._limits, self._runtimes, self._live, self._count_all_open = limits, runtimes, live, count_open
        self._taken: dict[object, tuple[str, str | None]] = {}
        """The runs that are about to be continued, and their users."""
        self._paused = Quotas()

    def check(self, user_id: str | None) -> None:
        """Raise if there is no slot for another run of this user."""
        self._check_working(user_id)
        limits = self._limits
        if self._count_open(limits.max_paused_runs) >= limits.max_paused_runs:
            raise self._too_many("this server takes")
        if user_id is not None and self._count_open(limits.max_user_paused_runs, user_id) >= (
            limits.max_user_paused_runs
        ):
            raise self._too_many_of(user_id)

    @contextlib.asynccontextmanager
    async def new_run_slot(self, user_id: str | None) -> AsyncIterator[None]:
        """Start a run in this block. Raises if no slot is left, counting the user's paused runs in the database too."""
        self.check(user_id)
        if self._count_all_open is not None:
            async with self._slot_of_all(self._count_all_open, user_id):
                yield
            return
        stores = [runtime.worker.store for runtime in self._runtimes if runtime.worker is not None]
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

    @contextlib.asynccontextmanager
    async def _slot_of_all(self, count_open: CountOpen, user_id: str | None) -> AsyncIterator[None]:
        """The same on a server that executes nothing: both limits count the runs of all processes."""
        limits = self._limits
        async with contextlib.AsyncExitStack() as slots:
            asked: dict[str | None, int] = {None: limits.max_paused_runs}
            if user_id is not None:
                asked[user_id] = limits.max_user_paused_runs
            for whose, limit in asked.items():
                counted = self._paused.reserve(whose, limit, functools.partial(count_open, whose))
                if not await slots.enter_async_context(counted):
                    raise self._too_many("all servers together take") if whose is None else self._too_many_of(whose)
            yield

    @contextlib.contextmanager
    def continued_run_slot(self, run_id: str, user_id: str | None, *, anew: bool) -> Iterator[None]:
        """Hold a slot while a run is being continued. `anew`: that makes a new run; else the run is paused, and already
        counts as paused.
        """
        self.check(user_id) if anew else self._check_working(user_id)
        key = object()
        self._taken[key] = run_id, user_id
        try:
            yield
        finally:
            del self._taken[key]

    def _too_many(self, who_takes: str) -> Problem:
        detail = f"{self._limits.max_paused_runs} runs wait for a person's answer, or are running and may come to ask"
        return Problem(429, f"{detail}, as many as {who_takes}: {_FIRST}", {"retry-after": "1"})

    def _too_many_of(self, user_id: str) -> Problem:
        detail = f"{self._limits.max_user_paused_runs} runs of this user wait for an answer, or are running and may"
        return Problem(429, f"{detail} come to ask, as many as one may have: {_FIRST}", {"retry-after": "1"})

    def _check_working(self, user_id: str | None) -> None:
        if max(runtime.lag for runtime in self._runtimes) > BEHIND_SECONDS:
            detail = "the database is slow to admit the runs that this server already has: try again later"
            raise Problem(429, detail, {"retry-after": str(math.ceil(BEHIND_SECONDS))})
        limits = self._limits
        if self._is_full(limits.max_runs):
            detail = f"{limits.max_runs} runs are working, which is the limit of this server: try again later"
            raise Problem(429, detail, {"retry-after": "1"})
        if user_id is not None and self._is_full(limits.max_user_runs, user_id):
            detail = f"{limits.max_user_runs} runs of this user are working, which is the limit"
            raise Problem(429, f"{detail}: cancel one, or try again later", {"retry-after": "1"})

    def _is_full(self, limit: int, user_id: str | None = None) -> bool:
        """Whether `limit` runs are working, of this user if one is given. Paused runs and those of sub-agents don't
        count.
        """
        most = sum(runtime.live + len(runtime.abandoned) for runtime in self._runtimes) + len(self._taken)
        if most < limit:  # by far the most frequent case, and cheap
            return False
        runs = [run for run in self._live() if not run.is_paused and run.parent_run_id is None]
        working = {run.run_id: run.user_id for run in runs} | dict(self._taken.values())
        for runtime in self._runtimes:
            for scope in runtime.abandoned.copy().values():
                place = scope.run.children
                top = [place, *place.ancestors][-1]
                working[top.run_id] = scope.run.user_id
        return sum(user_id is None or whose == user_id for whose in working.values()) >= limit

    def _count_open(self, limit: int, user_id: str | None = None) -> int:
        """How many runs have not ended, of this user if one is given. Below the limit, an upper bound."""
        most = sum(runtime.live for runtime in self._runtimes) + len(self._taken)
        return most if most < limit else len(self._open(user_id))

    def _open(self, user_id: str | None) -> set[str]:
        runs = {run.run_id: run.user_id for run in self._live() if run.parent_run_id is None}
        runs |= dict(self._taken.values())
        return {run_id for run_id, whose in runs.items() if user_id is None or whose == user_id}


async def _paused_in(store: SharedStore, user_id: str, limit: int) -> set[str]:
    """The paused runs of the user in a store, at most `limit`, without those of sub-agents."""
    which, found = Selection(user_id=user_id, statuses=(RunStatus.paused,)), set[str]()
    before: tuple[float, str] | None = None
    while len(found) < limit:
        page = await store.list_runs(which, min(PAGE, limit), before)
        found |= {record.run_id for record in page if record.parent_run_id is None}
        if len(page) < min(PAGE, limit):
            break
        before = page[-1].created_at, page[-1].run_id
    return found
