# SPDX-License-Identifier: Apache-2.0
"""The leases of a worker: they are renewed, and a run whose lease was not renewed in time is stopped.

Three loops run side by side. One renews the leases. One looks at the clock, and needs no store for that. One reads the
state of runs from the store after a notification. Rows are authoritative. Notifications are hints; a lost one is caught
at the next renewal.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Protocol

from andon.core.receipt import CancelRequest
from andon.core.shared.link import StoreLink
from andon.core.shared.store import CallRequest, Lease, Renewal
from andon.core.states import CancelCause, CancelOutcome
from andon.core.waiters import Waiters
from andon.errors import StoreError

log = logging.getLogger(__name__)

TRUSTED = 0.8
"""The part of a lease in which a run may go on without a renewal. The rest allows for clocks that differ."""

NAMED = 10
"""How many of the lost runs are named in the log."""


class HeldRun(Protocol):
    """A run that this worker holds, as its leases see it."""

    valid_until: float
    """When this process must stop the run unless the lease was renewed, as `time.monotonic()` counts."""

    @property
    def run_id(self) -> str: ...

    @property
    def lease(self) -> Lease | None: ...

    @property
    def is_closing(self) -> bool:
        """The store is being asked to take the run's end, or its pause."""
        ...

    @property
    def is_settled(self) -> bool: ...

    def check_alive(self) -> None:
        """End the run if its event loop was closed."""
        ...

    def cancel_for(self, cause: CancelCause, reason: str) -> CancelOutcome: ...

    def request_cancel(self, request: CancelRequest) -> CancelOutcome: ...

    def on_cancel(self, owner: str, request: CancelRequest) -> None:
        """The store has reported that the run was cancelled."""
        ...

    def on_call_requests(self, requests: Sequence[CallRequest]) -> None:
        """Other processes have asked to cancel single calls of the run."""
        ...

    def on_taken_over(self) -> bool:
        """Another worker has the run. True if it was at work here, and is stopped."""
        ...


class Leases:
    """The leases of one worker."""

    def __init__(self, link: StoreLink) -> None:
        self._link, self._seconds = link, link.seconds
        self._held: dict[str, HeldRun] = {}
        self.lost = 0
        """How many runs were stopped here because their leases were lost."""
        self.missed = 0
        """How many notifications concerned runs that are not held here, or may concern any run."""
        self._doubted: dict[str, None] = {}
        self._doubts_all = self._doubts_calls = False
        self._work_available = Waiters()

    def hold(self, held: HeldRun) -> None:
        self._held[held.run_id] = held

    def release(self, held: HeldRun) -> None:
        if self._held.get(held.run_id) is held:
            del self._held[held.run_id]

    def holds(self, held: HeldRun) -> bool:
        return self._held.get(held.run_id) is held

    def validity(self, since: float) -> float:
        """Until when a run may go on whose lease began at `since`, both by `time.monotonic()`."""
        return since + TRUSTED * self._seconds

    # -- renewing -----------------------------------------------------------------------------------------------------

    async def renew(self) -> None:
        soon = min(1.0, self._seconds / 10)
        while True:
            began = time.monotonic()
            try:
                rest = self._seconds / 3 if await self._renew() else soon
            except StoreError as error:
                self._link.complain("leases could not be renewed", error)
                rest = soon
            await asyncio.sleep(max(0.0, began + rest - time.monotonic()))

    async def _renew(self) -> bool:
        """False if some leases could not be renewed now, and must be tried again soon."""
        leases = [held.lease for held in self._runs() if held.lease is not None]
        if not leases:
            return True
        renewal = await self._link.store.renew(leases, self._seconds)
        self._act_on(renewal, leases)
        for lease in leases:
            held = self._held.get(lease.run_id)
            if held is not None and held.lease == lease and lease.run_id not in renewal.locked:
                held.valid_until = self.validity(renewal.since)
        self._doubts_calls = True  # the next loop looks: a renewal waits for nothing else
        self._work_available.wake()
        return not renewal.locked

    # -- the clock ----------------------------------------------------------------------------------------------------

    async def watch_clock(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / 20)
            self._stop_overdue(time.monotonic())

    def _stop_overdue(self, now: float) -> None:
        """Stop the runs whose leases were not renewed in time. This needs no store: if the store can't be reached, the
        runs here are stopped before other workers may take them over.

        A run whose event loop was closed is ended too: while it is held here, no other worker can end it.
        """
        overdue = []
        for held in self._runs():
            held.check_alive()
            if held.valid_until < now and not held.is_settled:
                asked = held.cancel_for(CancelCause.lost, "its lease could not be renewed in time")
                if asked is CancelOutcome.requested:
                    overdue.append(held.run_id)
        self.lost += len(overdue)
        if overdue:
            more = f" and {len(overdue) - NAMED} more" if len(overdue) > NAMED else ""
            what = "stopped as lost, because their leases could not be renewed in time: %s%s"
            log.warning(what, ", ".join(overdue[:NAMED]), more)

    # -- looking ------------------------------------------------------------------------------------------------------

    def look(self, run_ids: Sequence[str] = ()) -> None:
        """Something may have changed in the store: in these runs, or, without any, in all. Safe from any thread."""
        mine = [run_id for run_id in run_ids if run_id in self._held]
        if len(mine) < len(run_ids) or not run_ids:
            self.missed += 1
        if mine or not run_ids:
            for run_id in mine:
                self._doubted[run_id] = None
            if not run_ids:
                self._doubts_all = True
            self._work_available.wake()

    def on_cancel(self, run_id: str, owner: str, request: CancelRequest) -> None:
        """The store has notified this worker that the run was cancelled. Safe from any thread."""
        if (held := self._held.get(run_id)) is not None:
            held.on_cancel(owner, request)
        else:
            self.missed += 1

    async def look_again(self) -> None:
        while True:
            await self._work_available.wait(lambda: self._doubts_all or self._doubts_calls or bool(self._doubted))
            self._doubts_calls = False
            every, self._doubts_all = self._doubts_all, False
            doubted = list(self._doubted.copy())
            for run_id in doubted:  # one by one: other threads may add more meanwhile
                self._doubted.pop(run_id, None)
            # For a run that is ending, `finish` reports a cancel or a takeover.
            helds = (held for held in self._runs() if not held.is_closing)
            leases = [each.lease for each in helds if each.lease and (every or each.run_id in doubted)]
            try:
                if leases:
                    self._act_on(await self._link.store.renew(leases, None), leases)
                await self._look_for_calls()
            except StoreError as error:  # the next renewal looks at all of them
                self._link.complain("cancels could not be read", error)

    async def _look_for_calls(self) -> None:
        """Pass on what other processes have asked of single calls of the runs that are held here."""
        if not self._held:
            return
        for lease, requests in (await self._link.store.open_call_requests()).items():
            held = self._held.get(lease.run_id)
            if held is not None and held.lease == lease:
                held.on_call_requests(requests)

    def _runs(self) -> list[HeldRun]:
        return list(self._held.copy().values())  # a copy: other threads add and remove runs

    def _act_on(self, renewal: Renewal, leases: list[Lease]) -> None:
        for run_id, request in renewal.cancels.items():
            if (held := self._held.get(run_id)) is not None:
                held.request_cancel(request)
        for lease in leases:
            if lease.run_id in renewal.lost and (held := self._held.get(lease.run_id)) is not None:
                self._lose(held, lease)

    def _lose(self, held: HeldRun, lease: Lease) -> None:
        """The store does not know this lease any more."""
        if held.lease == lease and held.on_taken_over():
            self.lost += 1
            log.warning("run %s is stopped as lost: another worker has taken it over", held.run_id)
