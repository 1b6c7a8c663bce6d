# SPDX-License-Identifier: Apache-2.0
"""Writes what runs do into a shared store, in batches, beside the runs.

A run that has something new stirs: the next round of writing looks at it, and at the others that stir, and at no run
else. When a round finds nothing new of a run, it is left alone until the next event of its journal. So a run that is
silent costs nothing. Text that only goes on is written in larger batches than all else: each is a row of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from andon.core.selection import Selection
from andon.core.waiters import Waiters
from andon.errors import StoreError

if TYPE_CHECKING:
    from andon.core.shared.leased_run import Tenure
    from andon.core.shared.store import Progress
    from andon.core.shared.worker import Keeper

FLUSH_SECONDS = 0.025
"""How long an event waits for others before it is written."""

AWAY_SECONDS = 0.5
"""How long what is new waits while the store can't be reached."""


class Writer:
    """One for each keeper; its rounds are on the keeper's thread."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._stirring: dict[Tenure, None] = {}
        self._urgent: dict[object, Tenure] = {}
        self._bell, self._written = Waiters(), Waiters()

    def stir(self, tenure: Tenure) -> None:
        """The run has something new, or may have. Called from any thread."""
        if tenure not in self._stirring:
            self._stirring[tenure] = None
            self._bell.wake()

    async def flushed(self, tenure: Tenure, done: Callable[[], bool]) -> None:
        """Have what is new of the run written now, and wait until that is so."""
        key = object()
        self._urgent[key] = tenure
        try:
            self._bell.wake()
            await self._written.wait(lambda: done() or self._keeper.closed)
            self._keeper.check_open()
        finally:
            del self._urgent[key]

    def wake(self) -> None:
        """The keeper is closed: nobody waits any more."""
        self._written.wake()

    async def serve(self) -> None:
        while True:
            await self._bell.wait(lambda: bool(self._stirring or self._urgent))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._bell.wait(lambda: bool(self._urgent))
            try:
                wrote = await self._write_news()
            except StoreError as error:
                self._keeper.complain("what runs do is not written yet", error)
                await asyncio.sleep(AWAY_SECONDS)
                continue
            self._written.wake()
            if not wrote and self._urgent:  # all is written that they wait for: give them the time to see it
                await asyncio.sleep(FLUSH_SECONDS)

    async def _write_news(self) -> bool:
        """False if there was nothing to write."""
        tenures = self._stirred()
        now, hurried = time.monotonic(), set(self._urgent.copy().values())
        news = [
            (tenure, progress)
            for tenure in tenures
            if (progress := tenure.progress(now, hurried=tenure in hurried)) is not None
        ]
        if news:
            await self._write(news)
        writing = {tenure for tenure, _ in news}
        for tenure in tenures:
            if not await self._tell_cancel(tenure) and tenure not in writing and not tenure.has_waiting_text:
                self._stirring.pop(tenure, None)
                tenure.listen()
        return bool(news)

    def _stirred(self) -> list[Tenure]:
        """Those to look at. What a run that ends, or pauses, has done goes with that."""
        found = []
        for tenure in self._stirring.copy() | dict.fromkeys(self._urgent.copy().values()):
            if tenure.run.at_rest or tenure.closing or not self._keeper.leases.holds(tenure):
                self._stirring.pop(tenure, None)  # whoever goes on with it stirs it
            else:
                found.append(tenure)
        return found

    async def _write(self, news: list[tuple[Tenure, Progress]]) -> None:
        lost = await self._keeper.store.write([progress for _, progress in news])
        for tenure, progress in news:
            if tenure.run.run_id not in lost:
                tenure.note(progress, time.monotonic())
        if lost:  # paused or ended just now, or taken over: whoever looks for cancels finds out which
            self._keeper.look(lost)

    async def _tell_cancel(self, tenure: Tenure) -> bool:
        """A run that was cancelled here, and takes its time to end, is known to be cancelled elsewhere too. True if it
        is told in the next round.
        """
        request = tenure.untold_request
        if request is None or tenure.closing:
            return False
        # Most have ended by the next round: till then they are left in peace. Of one that another process has now (so
        # that there is no lease), that process hears by this alone.
        late, tenure.noticed = tenure.noticed or tenure.lease is None, True
        if late:
            await self._keeper.store.request_cancel(Selection(tenure.run.run_id), request)
            tenure.told = True
        return not late
