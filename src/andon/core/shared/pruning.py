# SPDX-License-Identifier: Apache-2.0
"""Deletes the events of runs that have ended some minutes ago. The runs, with their messages and receipts, stay.

By the store's clock, which may jump: so nothing is deleted until that clock has kept pace for as long as events are
kept.
"""

from __future__ import annotations

import asyncio
import logging

from andon.core.shared.clock import ClockWatch
from andon.core.shared.link import StoreLink
from andon.core.shared.store import EventStore
from andon.errors import StoreError

log = logging.getLogger(__name__)

LONGEST_SECONDS = 60.0
"""How often old events are looked for, at the least."""
SHORTEST_SECONDS = 1.0


class EventPruning:
    """Deletes the events of runs that have ended so many minutes ago."""

    def __init__(self, link: StoreLink, store: EventStore, clock: ClockWatch, minutes: float) -> None:
        self._link, self._store, self._clock, self._minutes = link, store, clock, minutes
        self._since = 0.0

    async def serve(self) -> None:
        """Delete them until cancelled."""
        seconds = self._minutes * 60
        while True:
            try:
                if await self._clock.kept_pace_for(seconds):
                    count, self._since = await self._store.prune_events(seconds, self._since)
                    if count:
                        log.info("pruned %d events", count)
            except StoreError as error:
                self._link.complain("old events can't be pruned", error)
            await asyncio.sleep(max(SHORTEST_SECONDS, min(seconds / 4, LONGEST_SECONDS)))
