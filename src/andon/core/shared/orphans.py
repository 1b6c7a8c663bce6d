# SPDX-License-Identifier: Apache-2.0
"""Runs that no worker ends: their worker is gone, or they were cancelled in a pause. Any worker ends them."""

from __future__ import annotations

import asyncio
import logging

from andon.core.receipt import CancelRequest
from andon.core.shared.clock import ClockWatch
from andon.core.shared.link import StoreLink
from andon.core.states import CancelCause
from andon.errors import StoreError, describe

log = logging.getLogger(__name__)

ORPHANS_AT_ONCE = 20


class Orphans:
    """Looks for such runs, and ends them."""

    def __init__(self, link: StoreLink, clock: ClockWatch) -> None:
        self._link, self._clock = link, clock

    async def serve(self) -> None:
        while True:
            try:
                await self.end_all()
                self._link.is_reached()
            except StoreError as error:
                self._link.complain("runs that other workers left behind can't be ended", error)
            await asyncio.sleep(self._link.seconds / 3)

    async def end_all(self) -> None:
        """End all that there are. After a jump of the clock, their workers get the time to renew their leases."""
        link = self._link
        if await self._clock.jumped_within(link.seconds):
            return
        while taken := await link.store.take_orphans(link.owner, link.seconds, ORPHANS_AT_ONCE):
            for each in taken:
                try:
                    await link.end_orphan(each, each.cancel or CancelRequest.make(CancelCause.lost))
                except StoreError:
                    raise
                except Exception as error:
                    log.critical("run %s could not be ended: %s", each.record.run_id, describe(error), exc_info=error)
