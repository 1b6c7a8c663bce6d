# SPDX-License-Identifier: Apache-2.0
"""A run that this process does not hold: another one does, or it has ended. All that is known of it is in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from andon.agent.agent import Agent
from andon.core.receipt import CancelRequest, Receipt
from andon.core.records import RunRecord, SessionKey
from andon.core.run.run import Run
from andon.core.selection import Selection
from andon.core.shared.remote import StoredReader, follow, last_event
from andon.core.shared.worker import Keeper
from andon.core.states import CancelOutcome, RunStatus


class Distant:
    """What can be said of such a run, and waited for."""

    def __init__(self, keeper: Keeper, record: RunRecord) -> None:
        self._keeper, self.record = keeper, record

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def status(self) -> RunStatus:
        return self.record.status

    async def look(self) -> RunRecord:
        """How it stands with it now."""
        self.record = await self._keeper.store.find(self.run_id) or self.record
        return self.record

    async def asked(self, outcome: CancelOutcome) -> None:
        """It was asked to stop: if that was news, nobody has to look how it stands with it."""
        if outcome is CancelOutcome.requested:
            self.record = msgspec.structs.replace(self.record, status=RunStatus.cancelling)
        else:
            await self.look()

    async def gone(self, seconds: float) -> Receipt | None:
        """Wait for its end, for so long at the most. What it has left behind, its own process knows."""
        try:
            async with asyncio.timeout(seconds):
                self.record = await follow(self._keeper, self.run_id) or self.record
        except TimeoutError:
            await self.look()
        return self.record.receipt

    async def rested(self, after: int) -> RunRecord:
        """How it stands with it once it has ended, or waits for a person, after the event of that number."""
        reader = self._keeper.read(self.run_id, after)
        while await reader.batch():
            pass
        return await self.look()

    async def reader(self, after: int) -> StoredReader | None:
        """Its events from a number on; None if there are none to come."""
        store, rests = self._keeper.store, self.status.final or self.status is RunStatus.paused
        if rests and not await store.read_events(self.run_id, after, 1):
            if after == 0 or await store.read_events(self.run_id, after - 1, 1):
                return None
            # It has read what died, unwritten: it is told the end.
            last = await last_event(self._keeper, self.run_id)
            after = last[-1].seq - 1 if last else after
        return self._keeper.read(self.run_id, after)


async def cancel(agent: Agent, run: Run | Distant, asked: CancelRequest) -> tuple[CancelOutcome, bool]:
    """Cancel one run. Returns also whether a shared store, if there is one, knows it."""
    if isinstance(run, Run) and agent.runtime.keeper is None:
        return run.ask(asked), True
    outcomes = await agent.runtime.cancel(
        run_id=run.run_id, reason=asked.reason, by=asked.by, mode=asked.mode, grace=asked.grace
    )
    outcome = outcomes.get(run.run_id, CancelOutcome.already_finished)
    if isinstance(run, Distant):
        await run.asked(outcome)
    return outcome, outcomes.stored


async def find_many(agent: Agent, run_ids: Iterable[str]) -> dict[str, Distant]:
    """Those of these runs that the store knows, if it is one that processes share."""
    keeper = agent.runtime.keeper
    if keeper is None:
        return {}
    records = [await keeper.store.find(run_id) for run_id in run_ids]
    return {record.run_id: Distant(keeper, record) for record in records if record is not None}


async def live_in(agent: Agent, key: SessionKey) -> list[Distant]:
    """The runs of a session that have not ended, wherever they are, if the store is one that processes share."""
    keeper = agent.runtime.keeper
    if keeper is None:
        return []
    going = tuple(status for status in RunStatus if not status.final)
    which = Selection(session_id=key.session_id, agent_id=key.agent_id, statuses=going)
    found = await keeper.store.list_runs(which, 100)
    return [Distant(keeper, record) for record in found if record.session == key]
