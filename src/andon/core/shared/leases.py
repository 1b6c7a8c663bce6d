# SPDX-License-Identifier: Apache-2.0
"""The leases that a keeper holds: they are renewed, and a run whose lease was not renewed in time is stopped.

Three things go on side by side: renewing; a look at the clock, which asks nobody; and, where something may have changed
in the store that was not said, a look at how it stands with the runs. Each renewal looks as well.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from andon.core.receipt import CancelRequest
from andon.core.states import CancelCause, CancelOutcome
from andon.core.waiters import Waiters
from andon.errors import StoreError

if TYPE_CHECKING:
    from andon.core.shared.leased_run import Tenure
    from andon.core.shared.store import Lease, Renewal
    from andon.core.shared.worker import Keeper

log = logging.getLogger(__name__)

TRUSTED = 0.8
"""The part of a lease in which a run may go on without a renewal; the rest is for clocks that differ."""

NAMED = 10
"""How many of the runs that were lost are named in the log."""


class Leases:
    """One for each keeper."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper, self._seconds = keeper, keeper.seconds
        self._held: dict[str, Tenure] = {}
        self.lost = 0
        """How many runs were stopped here because their leases were lost."""
        self.missed = 0
        """Counts what was said of runs that are not held here, or may be of any."""
        self._doubted: dict[str, None] = {}
        self._doubts_all = False
        self._bell = Waiters()

    def hold(self, tenure: Tenure) -> None:
        self._held[tenure.run.run_id] = tenure

    def release(self, tenure: Tenure) -> None:
        if self._held.get(tenure.run.run_id) is tenure:
            del self._held[tenure.run.run_id]

    def holds(self, tenure: Tenure) -> bool:
        return self._held.get(tenure.run.run_id) is tenure

    def validity(self, since: float) -> float:
        """Until when a run may go on whose lease counts from then on, as `time.monotonic()` does."""
        return since + TRUSTED * self._seconds

    # -- renewing -----------------------------------------------------------------------------------------------------

    async def renew(self) -> None:
        soon = min(1.0, self._seconds / 10)
        while True:
            began = time.monotonic()
            try:
                rest = self._seconds / 3 if await self._renew() else soon
            except StoreError as error:
                self._keeper.complain("leases could not be renewed", error)
                rest = soon
            await asyncio.sleep(max(0.0, began + rest - time.monotonic()))

    async def _renew(self) -> bool:
        """False if some could not be renewed now, and are to be tried again soon."""
        leases = [tenure.lease for tenure in self._tenures() if tenure.lease is not None]
        if not leases:
            return True
        renewal = await self._keeper.store.renew(leases, self._seconds)
        self._act_on(renewal, leases)
        for lease in leases:
            tenure = self._held.get(lease.run_id)
            if tenure is not None and tenure.lease == lease and lease.run_id not in renewal.locked:
                tenure.valid_until = self.validity(renewal.since)
        return not renewal.locked

    # -- the clock ----------------------------------------------------------------------------------------------------

    async def watch_clock(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / 20)
            self._stop_overdue(time.monotonic())

    def _stop_overdue(self, now: float) -> None:
        """Asks nobody: if the store can't be reached, the runs here are stopped before others may take them over.

        A run whose loop was closed under it is ended as well: nobody else could, while it is held here.
        """
        overdue = []
        for tenure in self._tenures():
            tenure.run.ensure_ending()
            if tenure.valid_until < now and not tenure.run.at_rest:
                asked = tenure.run.cancel_for(CancelCause.lost, "its lease could not be renewed in time")
                if asked is CancelOutcome.requested:
                    overdue.append(tenure.run.run_id)
        self.lost += len(overdue)
        if overdue:
            more = f" and {len(overdue) - NAMED} more" if len(overdue) > NAMED else ""
            what = "stopped as lost, because their leases could not be renewed in time: %s%s"
            log.warning(what, ", ".join(overdue[:NAMED]), more)

    # -- looking ------------------------------------------------------------------------------------------------------

    def look(self, run_ids: Sequence[str] = ()) -> None:
        """Something may have changed in the store: of these runs, or, without any, of all. Called from any thread."""
        mine = [run_id for run_id in run_ids if run_id in self._held]
        if len(mine) < len(run_ids) or not run_ids:
            self.missed += 1
        if mine or not run_ids:
            for run_id in mine:
                self._doubted[run_id] = None
            if not run_ids:
                self._doubts_all = True
            self._bell.wake()

    def hear(self, run_id: str, owner: str, request: CancelRequest) -> None:
        """Someone has asked this run to stop, and the store has said so itself. Called from any thread."""
        if (tenure := self._held.get(run_id)) is not None:
            tenure.hear(owner, request)
        else:
            self.missed += 1

    async def look_again(self) -> None:
        while True:
            await self._bell.wait(lambda: self._doubts_all or bool(self._doubted))
            every, self._doubts_all = self._doubts_all, False
            doubted = list(self._doubted.copy())
            for run_id in doubted:  # one by one: others may come meanwhile, from other threads
                self._doubted.pop(run_id, None)
            # Of one that is ending, the store says so when it takes the end.
            tenures = (tenure for tenure in self._tenures() if not tenure.closing)
            leases = [each.lease for each in tenures if each.lease and (every or each.run.run_id in doubted)]
            try:
                if leases:
                    self._act_on(await self._keeper.store.renew(leases, None), leases)
            except StoreError as error:  # the next renewal looks at all of them
                self._keeper.complain("cancels can't be heard", error)

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
        if tenure.lease != lease or tenure.closing or tenure.taking:
            return
        if not tenure.run.at_rest and tenure.run.signal.request is None:
            self.lost += 1
            log.warning("run %s is stopped as lost: another worker has taken it over", tenure.run.run_id)
        tenure.run.lose()
