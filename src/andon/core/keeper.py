# SPDX-License-Identifier: Apache-2.0
"""The keeper of a runtime's runs in a shared store: renews their leases, writes what they do, hears of cancels.

It lives on a thread of its own, so that a run's loop, and the portal's, may be as busy as they like. Six things go on
side by side, and none waits for another: leases are renewed; runs whose lease was not renewed in time are stopped, by
the clock alone; what is new is written; after each wake-up from the store the keeper looks whether its runs were asked
to stop, unless the store has said itself which one was; runs that nobody else will end are ended; and what is older
than is wanted is forgotten. A wake-up may be lost: each renewal looks as well.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from andon.core.following import StoredReader
from andon.core.fork import start_over_after_fork
from andon.core.portal import Portal, portal
from andon.core.receipt import CancelRequest
from andon.core.selection import Selection
from andon.core.states import CancelCause
from andon.core.tenure import Tenure
from andon.core.waiters import Waiters
from andon.errors import StoreError, describe, say

if TYPE_CHECKING:
    import concurrent.futures

    from andon.core.run import Run
    from andon.core.shared import Lease, Renewal, SharedStore, Taken

    EndOrphan = Callable[[SharedStore, Taken, CancelRequest], Awaitable[None]]

T = TypeVar("T")
log = logging.getLogger("andon")

FLUSH_SECONDS = 0.025
"""How long an event waits for others before it is written."""

TRUSTED = 0.8
"""The part of a lease in which a run may go on without a renewal; the rest is for clocks that differ."""

ORPHANS_AT_ONCE = 20

AWAY_SECONDS = 0.5
"""How long what is new waits while the store can't be reached."""

PRUNE_SECONDS, DAY = 3600.0, 86400.0

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
        self._end_orphan = end_orphan
        self._count = itertools.count(1)
        self.changes = self.calls = 0
        """Count the wake-ups: all of them, and those that may be more than progress of some run."""
        self.closed = self._complained = False
        self._portal = Portal("andon-keeper")
        self.start_over()
        start_over_after_fork(self)
        _keepers.add(self)

    def start_over(self) -> None:
        """Hold nothing; also in a forked child, where the thread is gone, and the runs are its parent's."""
        self.owner = os.urandom(8).hex()
        self._held: dict[str, Tenure] = {}
        self._waiters = Waiters()
        self._bell = Waiters()
        self._urgent: dict[object, None] = {}
        self.leaving: dict[str, concurrent.futures.Future[None]] = {}  # see core/taking.py
        self._lock = threading.Lock()
        self._served: concurrent.futures.Future[None] | None = None
        self._portal.forget()

    # -- for runs -----------------------------------------------------------------------------------------------------

    def tenure(self, run: Run) -> Tenure:
        return Tenure(self, run)

    def hold(self, tenure: Tenure) -> None:
        self._held[tenure.run.run_id] = tenure
        self._bell.wake()
        self.start()
        self.wake()  # it may have been asked to stop since it was entered, and nobody has looked for it
        tenure.run.wake_waiters()

    def ring(self) -> None:
        """A run has something to be written, or will have."""
        self._bell.wake()

    def release(self, tenure: Tenure) -> None:
        if self._held.get(tenure.run.run_id) is tenure:
            del self._held[tenure.run.run_id]

    def validity(self, began: float) -> float:
        return began + TRUSTED * self.seconds

    async def ask(self, make: Callable[[], Awaitable[T]]) -> T:
        """Ask the store, again and again if it can't be reached: whoever waits has a lease that bounds it."""
        tries = 0
        while True:
            self._check_open()
            try:
                return await make()
            except StoreError as error:
                if type(error) is not StoreError:  # it could be reached, and said no
                    raise
                self._complain("what is asked of the store has to wait", error)
            await self.pause_before_retry(tries)
            tries += 1

    @staticmethod
    async def pause_before_retry(tries: int) -> None:
        await asyncio.sleep(min(LONGEST_DELAY, FIRST_DELAY * 2**tries))

    def read(self, run_id: str, after: int) -> StoredReader:
        """The events of a run, wherever it is, as they are written."""
        return StoredReader(self, run_id, after)

    async def changed(self, seen: int) -> None:
        """Wait for a wake-up later than those that were seen."""
        await self._waiters.wait(lambda: self.changes != seen)
        self._check_open()

    async def flushed(self, done: Callable[[], bool]) -> None:
        """Have what is new written now, and wait until that is so."""
        key = object()
        self._urgent[key] = None
        try:
            self._bell.wake()
            await self._waiters.wait(lambda: done() or self.closed)
            self._check_open()
        finally:
            del self._urgent[key]

    def wake(self) -> None:
        """Something may have changed in the store. Called from any thread."""
        self.calls = next(self._count)  # two threads at once may set it back, but never to what a waiter has seen
        self.wake_readers()

    def wake_readers(self) -> None:
        """Some run has made progress: nothing was asked of ours."""
        self.changes = next(self._count)
        self._waiters.wake()

    # -- its life -----------------------------------------------------------------------------------------------------

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Have something done here that whoever asks for it may not live to see."""
        with self._lock:
            self._check_open()
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
        self.wake()

    def _complain(self, what: str, error: StoreError) -> None:
        """Once for each time that the store goes away, and not each time that it is tried again."""
        log.log(logging.DEBUG if self._complained else logging.WARNING, "%s: %s", what, say(error))
        self._complained = True

    def _check_open(self) -> None:
        if self.closed:
            raise StoreError("the runtime was closed: nothing more is written by it")

    async def _serve(self) -> None:
        listening = self.store.listen(self.wake, self.wake_readers, self.hear)
        parts = (
            self._renew_leases,
            self._watch_clock,
            self._write_progress,
            self._hear_cancels,
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

    async def _renew_leases(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._renew(began)
            except StoreError as error:
                self._complain("leases could not be renewed", error)
            self.wake()  # the net under lost wake-ups
            await asyncio.sleep(max(0.0, began + self.seconds / 3 - time.monotonic()))

    async def _renew(self, began: float) -> None:
        if leases := self._leases():
            self._act_on(await self.store.renew(leases, self.seconds), leases)
            for lease in leases:
                tenure = self._held.get(lease.run_id)
                if tenure is not None and tenure.lease == lease:
                    tenure.valid_until = self.validity(began)

    async def _watch_clock(self) -> None:
        while True:
            await asyncio.sleep(self.seconds / 20)
            self._stop_overdue(time.monotonic())

    def _stop_overdue(self, now: float) -> None:
        """Asks nobody: if the store can't be reached, the runs here are stopped before others may take them over.

        A run whose loop was closed under it is ended as well: nobody else could, while it is held here.
        """
        for tenure in self._tenures():
            tenure.run.ensure_ending()
            if tenure.valid_until < now and not tenure.run.at_rest:
                tenure.run.cancel_for(CancelCause.lost, "its lease could not be renewed in time")

    async def _write_progress(self) -> None:
        while True:
            await self._bell.wait(lambda: any(not tenure.run.at_rest for tenure in self._tenures()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._bell.wait(lambda: bool(self._urgent))
            try:
                wrote = await self._write_news()
                await self._tell_cancels()
            except StoreError as error:
                self._complain("what runs do is not written yet", error)
                await asyncio.sleep(AWAY_SECONDS)
                continue
            self._waiters.wake()
            if not wrote and self._urgent:  # all is written that they wait for: give them the time to see it
                await asyncio.sleep(FLUSH_SECONDS)

    async def _write_news(self) -> bool:
        """False if there was nothing to write. What a run that ends has done goes with its end: nothing may be in the
        way of that.
        """
        tenures = (each for each in self._tenures() if not each.run.at_rest and not each.closing)
        news = [(tenure, progress) for tenure in tenures if (progress := tenure.progress()) is not None]
        if not news:
            return False
        lost = await self.store.write([progress for _, progress in news])
        for tenure, progress in news:
            if tenure.run.run_id not in lost:
                tenure.note(progress)
        if lost:  # paused or ended just now, or taken over: whoever looks for cancels finds out which
            self.wake()
        return True

    async def _tell_cancels(self) -> None:
        """A run that was cancelled here, and takes its time to end, is known to be cancelled elsewhere too."""
        for tenure in self._tenures():
            request = tenure.run.signal.request
            if request is None or request.cause is CancelCause.lost:  # which is our own affair
                continue
            # Most have ended by the next round: till then they are left in peace. Of one that another process has now
            # (so that there is no lease), that process hears by this alone.
            late, tenure.noticed = tenure.noticed or tenure.lease is None, True
            if late and not tenure.told and not tenure.closing:
                await self.store.request_cancel(Selection(tenure.run.run_id), request)
                tenure.told = True

    def hear(self, run_id: str, owner: str, request: CancelRequest) -> None:
        """Someone has asked this run to stop, and the store has said so itself. Called from any thread."""
        if (tenure := self._held.get(run_id)) is not None:
            tenure.hear(owner, request)

    async def _hear_cancels(self) -> None:
        while True:
            seen = self.calls
            # Of one that is ending, the store says so when it takes the end.
            leases = [tenure.lease for tenure in self._tenures() if tenure.lease is not None and not tenure.closing]
            try:
                if leases:
                    self._act_on(await self.store.renew(leases, None), leases)
            except StoreError as error:
                self._complain("cancels can't be heard", error)
            await self._called(seen)

    async def _called(self, seen: int) -> None:
        await self._waiters.wait(lambda: self.calls != seen)
        self._check_open()

    def _leases(self) -> list[Lease]:
        return [tenure.lease for tenure in self._tenures() if tenure.lease is not None]

    def _tenures(self) -> list[Tenure]:
        return list(self._held.copy().values())  # runs come and go on other threads

    def _act_on(self, renewal: Renewal, leases: list[Lease]) -> None:
        for run_id, request in renewal.cancels.items():
            if (tenure := self._held.get(run_id)) is not None:
                tenure.run.ask(request)
        for lease in leases:
            if lease.run_id in renewal.lost and (tenure := self._held.get(lease.run_id)) is not None:
                self._lose(tenure, lease)

    def _lose(self, tenure: Tenure, lease: Lease) -> None:
        """The store does not know this lease any more. While the run is ended or taken up here, that is no news."""
        if tenure.lease == lease and not tenure.closing and not tenure.taking:
            tenure.run.lose()

    # -- what others left ---------------------------------------------------------------------------------------------

    async def _look_for_orphans(self) -> None:
        while True:
            try:
                await self.end_orphans()
                self._complained = False
            except StoreError as error:
                self._complain("runs that others left behind can't be ended", error)
            await asyncio.sleep(self.seconds / 3)

    async def end_orphans(self) -> None:
        """End runs that nobody else will end."""
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
            if self._keep_days is not None:
                try:
                    counts = await self.store.prune(time.time() - self._keep_days * DAY)
                    if any(counts.values()):
                        log.info("forgot %s", ", ".join(f"{count} {what}" for what, count in counts.items()))
                except StoreError as error:
                    self._complain("what is old can't be forgotten", error)
            await asyncio.sleep(PRUNE_SECONDS)


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


def _stop_all() -> None:
    portal.exit()  # first: runs that it ends at exit need their keeper (which is imported late, so stopped early)
    for keeper in list(_keepers):
        keeper.stop()


atexit.register(_stop_all)
