# SPDX-License-Identifier: Apache-2.0
"""The keeper of a runtime's runs in a shared store: holds their leases, writes what they do, hears of cancels.

It lives on a thread of its own, so that a run's loop, and the portal's, may be as busy as they like. Its parts go on
side by side, and none waits for another: the leases (`leases.py`), the writing (`writer.py`), a net under lost wake-ups
of those who wait for runs of other processes (`news.py`), the end of runs that nobody else will end, and the forgetting
of what is older than is wanted.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from andon.core.fork import start_over_after_fork
from andon.core.portal import Portal, portal
from andon.core.receipt import CancelRequest
from andon.core.shared.clock import ClockWatch
from andon.core.shared.leased_run import Tenure
from andon.core.shared.leases import Leases
from andon.core.shared.news import News
from andon.core.shared.remote import StoredReader
from andon.core.shared.writer import Writer
from andon.core.states import CancelCause
from andon.errors import StoreError, describe, say

if TYPE_CHECKING:
    import concurrent.futures

    from andon.core.run.run import Run
    from andon.core.shared.store import Glance, SharedStore, Taken

    EndOrphan = Callable[[SharedStore, Taken, CancelRequest], Awaitable[None]]

T = TypeVar("T")
log = logging.getLogger(__name__)

ORPHANS_AT_ONCE = 20

PRUNE_SECONDS, DAY = 3600.0, 86400.0
"""How often it is, and for how long the store's clock must have kept pace before that."""

FIRST_DELAY, LONGEST_DELAY = 0.05, 1.0
"""Between two tries to reach the store, in seconds."""

MENDING_SECONDS = 1.0
"""How long a part of the keeper rests after a defect of ours."""


class Keeper:
    """Holds a runtime's runs in a shared store."""

    def __init__(
        self, store: SharedStore, seconds: float, end_orphan: EndOrphan, keep_days: float | None = None
    ) -> None:
        self.store, self.seconds, self._keep_days = store, seconds, keep_days
        self._end_orphan, self._clock = end_orphan, ClockWatch(store.clock)
        self.closed = self._complained = False
        self._portal = Portal("andon-keeper")
        self.start_over()
        start_over_after_fork(self)
        _keepers.add(self)

    def start_over(self) -> None:
        """Hold nothing; also in a forked child, where the thread is gone, and the runs are its parent's."""
        self.owner = os.urandom(8).hex()
        self.leases, self.writer, self.news = Leases(self), Writer(self), News()
        self.leaving: dict[str, concurrent.futures.Future[None]] = {}  # see claim.py
        self._lock = threading.Lock()
        self._served: concurrent.futures.Future[None] | None = None
        self._portal.forget()

    # -- for runs -----------------------------------------------------------------------------------------------------

    def tenure(self, run: Run) -> Tenure:
        return Tenure(self, run)

    def hold(self, tenure: Tenure) -> None:
        self.leases.hold(tenure)
        self.writer.stir(tenure)
        self.start()
        tenure.run.wake_waiters()

    async def ask(self, make: Callable[[], Awaitable[T]]) -> T:
        """Ask the store, again and again if it can't be reached: whoever waits has a lease that bounds it."""
        tries = 0
        while True:
            self.check_open()
            try:
                return await make()
            except StoreError as error:
                if type(error) is not StoreError:  # it could be reached, and said no
                    raise
                self.complain("what is asked of the store has to wait", error)
            await self.pause_before_retry(tries)
            tries += 1

    @staticmethod
    async def pause_before_retry(tries: int) -> None:
        await asyncio.sleep(min(LONGEST_DELAY, FIRST_DELAY * 2**tries))

    def read(self, run_id: str, after: int) -> StoredReader:
        """The events of a run, wherever it is, as they are written."""
        return StoredReader(self, run_id, after)

    # -- what the store says, from any thread -------------------------------------------------------------------------

    def look(self, run_ids: Sequence[str] = ()) -> None:
        """Something may have changed: of these runs, or, without any, of all."""
        self.leases.look(run_ids)
        if run_ids:
            self.news.tell(run_ids)
        else:
            self.news.tell_all()

    # -- its life -----------------------------------------------------------------------------------------------------

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Have something done here that whoever asks for it may not live to see."""
        with self._lock:
            self.check_open()
            return self._portal.submit(make)

    def start(self) -> None:
        """Begin to look after runs; also after those that other processes have left behind."""
        with self._lock:
            if not self.closed and (self._served is None or self._served.done()):
                self._served = self._portal.submit(self._serve)

    async def close(self) -> None:
        """Stop, for good. Who still waits for the store is told so."""
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        with self._lock:  # whoever is about to begin something has begun it, and it is ended with the rest
            self.closed = True
        self._portal.close()
        self.writer.wake()
        self.news.tell_all()

    def complain(self, what: str, error: StoreError) -> None:
        """Once for each time that the store goes away, and not each time that it is tried again."""
        log.log(logging.DEBUG if self._complained else logging.WARNING, "%s: %s", what, say(error))
        self._complained = True

    def check_open(self) -> None:
        if self.closed:
            raise StoreError("the runtime was closed: nothing more is written by it")

    async def _serve(self) -> None:
        listening = self.store.listen(self.look, self.news.tell, self.leases.hear)
        self.look()  # what was said before that, nobody has heard
        parts = (
            self.leases.renew,
            self.leases.watch_clock,
            self.leases.look_again,
            self.writer.serve,
            self._watch_news,
            self._look_for_orphans,
            self._forget_old,
        )
        try:
            await asyncio.gather(*map(self._mended, parts))
        finally:
            listening.close()

    async def _mended(self, part: Callable[[], Awaitable[None]]) -> None:
        """Do this until the end. Should it break, that is a defect of ours, and no reason to let go of every run."""
        while not self.closed:
            try:
                await part()
            except Exception as error:
                if not self.closed:
                    log.critical("the keeper broke: %s", describe(error), exc_info=error)
                    await asyncio.sleep(MENDING_SECONDS)

    # -- its parts ----------------------------------------------------------------------------------------------------

    # Each part waits in a frame that knows of no run, so that one which has ended is freed.

    async def _watch_news(self) -> None:
        """A net under lost wake-ups: a process may die between its commit and its telling of it."""
        seen: dict[str, Glance | None] = {}
        while True:
            await asyncio.sleep(self.seconds / 3)
            if not (run_ids := self.news.run_ids):
                continue
            try:
                found = await self.store.glance(run_ids)
            except StoreError as error:
                self.complain("runs of other processes can't be watched", error)
                continue
            now = {run_id: found.get(run_id) for run_id in run_ids}
            # One that is watched for the first time may have changed before this look at it.
            self.news.tell([run_id for run_id in run_ids if run_id not in seen or seen[run_id] != now[run_id]])
            seen = now

    # -- what others left ---------------------------------------------------------------------------------------------

    async def _look_for_orphans(self) -> None:
        while True:
            try:
                await self.end_orphans()
                self._complained = False
            except StoreError as error:
                self.complain("runs that others left behind can't be ended", error)
            await asyncio.sleep(self.seconds / 3)

    async def end_orphans(self) -> None:
        """End runs that nobody else will end. After a jump of the clock, their holders may renew them first."""
        if await self._clock.jumped_within(self.seconds):
            return
        while taken := await self.store.take_orphans(self.owner, self.seconds, ORPHANS_AT_ONCE):
            for each in taken:
                try:
                    await self.end_orphan(each, each.cancel or CancelRequest.make(CancelCause.lost))
                except StoreError:
                    raise
                except Exception as error:
                    log.critical("run %s could not be ended: %s", each.record.run_id, describe(error), exc_info=error)

    async def end_orphan(self, taken: Taken, request: CancelRequest) -> None:
        await self._end_orphan(self.store, taken, request)

    # -- what is old --------------------------------------------------------------------------------------------------

    async def _forget_old(self) -> None:
        while True:
            try:
                if self._keep_days is not None and await self._clock.kept_pace_for(PRUNE_SECONDS):
                    counts = await self.store.prune(self._keep_days * DAY)
                    if any(counts.values()):
                        log.info("forgot %s", ", ".join(f"{count} {what}" for what, count in counts.items()))
            except StoreError as error:
                self.complain("what is old can't be forgotten", error)
            await asyncio.sleep(PRUNE_SECONDS)


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


def _stop_all() -> None:
    portal.exit()  # first: runs that it ends at exit need their keeper (which is imported late, so stopped early)
    for keeper in list(_keepers):
        keeper.stop()


atexit.register(_stop_all)
