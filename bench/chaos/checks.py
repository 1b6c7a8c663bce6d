# SPDX-License-Identifier: Apache-2.0
"""What must hold when all is quiet, whatever has happened before: by the database, and by a server that is left."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from andon import RunStatus, ToolOutcome
from andon.core.records import RunRecord, SessionKey
from andon.core.selection import Selection
from andon.core.shared.event_channel import TEXT
from andon.core.shared.remote import read_all
from andon.core.shared.run_queue import RunQueue
from andon.store.sql import SQLStore
from andon.testing import next_prompt_accepted, validate
from andon.testing.providers import FakeChat
from bench.chaos.agent import AGENT, Note, read_notes
from bench.chaos.clients import Clients, Ledger
from bench.chaos.cutoff import STOP_SECONDS, HeldCancel
from bench.chaos.holders import Holders
from bench.chaos.provider import NEXT
from bench.chaos.servers import Member

T = TypeVar("T")

ALL = 1_000_000
GOING = (RunStatus.pending, RunStatus.running, RunStatus.cancelling)
QUIET_SECONDS = ANSWER_SECONDS = 30.0
"""How long the last runs have to end; how long one answer may take then, when nothing is in trouble any more."""
ACKNOWLEDGE_SECONDS = 5.0
"""How long a server may take to acknowledge the cancel of a run that it holds, with the database away."""
AT_ONCE = 8

LOST, WORKED, UNHEARD, TWO_ENDS, DISAGREE, REJECTED, ENDLESS, VANISHED, TWICE, ODD = (
    "acknowledged cancels lost",
    "work that went on after its cancel was answered",
    "cancels that the server which holds the run did not acknowledge",
    "runs with two ends, or gaps in their events",
    "runs whose end or text was told in two ways",
    "sessions rejected",
    "runs without an end",
    "runs that vanished",
    "tool calls started twice, or although they were said not to be",
    "answers that no server should give",
)
FAULTS = (LOST, WORKED, UNHEARD, TWO_ENDS, DISAGREE, REJECTED, ENDLESS, VANISHED, TWICE, ODD)


class Checks:
    """Finds faults, and says of each what was seen."""

    def __init__(
        self,
        store: SQLStore,
        clients: Clients,
        provider: FakeChat,
        holders: Holders,
        lease: float,
        queue: RunQueue | None = None,
    ) -> None:
        self._store, self._clients, self._provider, self._holders = store, clients, provider, holders
        self._queue = queue
        self._heard_seconds = 2 * lease + 2
        """After so long, the server that holds a run has heard of its cancel, even if it was stopped for two leases."""
        self.faults: dict[str, list[str]] = {kind: [] for kind in FAULTS}
        self.ends: Counter[str] = Counter()

    @property
    def _ledger(self) -> Ledger:
        return self._clients.ledger

    async def make(self, url: str, notes: Path, held: Sequence[HeldCancel] = ()) -> None:
        """With one server left, at this address."""
        self.faults[ODD] += self._ledger.odd
        await self._quiet()
        await self._end_paused(url)
        await self._quiet()
        records = await read_records(self._store)
        await asyncio.to_thread(self._holders.read)
        self.ends.update(_end_of(record) for record in records)
        for run_id in self._ledger.admitted - {record.run_id for record in records}:
            self.faults[VANISHED].append(f"{run_id} was admitted")
        for record in records:
            await self._check_run(record)
        self._check_tools(records, read_notes(notes))
        self._check_held(held, read_notes(notes))
        await self._each(records, lambda record: self._check_http(url, record))
        await self._each(sorted(self._ledger.sessions), lambda session: self._check_session(url, session))
        for request in self._provider.served:
            if "rejected" in request.reached:
                self.faults[REJECTED].append(f"by the provider: {request.error}")

    def note_defects(self, fleet: Iterable[Member]) -> None:
        """What servers have logged that they never should."""
        self.faults[ODD] += [defect for member in fleet for defect in member.program.defects]

    async def _each(self, items: Iterable[T], check: Callable[[T], Awaitable[None]]) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(item: T) -> None:
            async with gate:
                await check(item)

        await asyncio.gather(*map(one, items))

    # -- runs ---------------------------------------------------------------------------------------------------------

    async def _quiet(self) -> None:
        """Leases run out, and what nobody holds is ended, or goes on with another worker: until then, wait."""
        deadline, looks = time.monotonic() + QUIET_SECONDS, 0
        while looks < 2:  # one look is several queries, between which a run may end and go on
            looks = 0 if await self._is_at_work() else looks + 1
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.2)

    async def _is_at_work(self) -> bool:
        """A run has not ended, or has ended and will go on."""
        if self._queue is not None and await self._queue.cut_off():
            return True
        return bool(await self._store.list_runs(Selection(statuses=GOING), 1))

    async def _end_paused(self, url: str) -> None:
        """Those that nobody has answered; a cancel that was acknowledged would have ended them."""
        for record in await self._store.list_runs(Selection(statuses=[RunStatus.paused]), ALL):
            if record.run_id in self._ledger.acknowledged:
                self.faults[LOST].append(f"{record.run_id} is still paused")
            await self._clients.cancel(record.run_id, url)

    async def _check_run(self, record: RunRecord) -> None:
        run_id, status = record.run_id, record.status
        if not status.final:
            self.faults[ENDLESS].append(f"{run_id} is {status.name}")
        if run_id in self._ledger.acknowledged and status is not RunStatus.cancelled:
            self.faults[LOST].append(f"{run_id} is {status.name}")
        events = await read_all(self._store, run_id)
        if [event.seq for event in events] != list(range(1, len(events) + 1)):
            self.faults[TWO_ENDS].append(f"{run_id} has the events {[event.seq for event in events]}")
        ends = [(event.seq, event.status) for event in events if event.event.terminal]
        if status.final and ends != [(len(events), status)]:
            self.faults[TWO_ENDS].append(f"{run_id} is {status.name}, and of {len(events)} events ends are {ends}")
        text = {event.seq: event.content for event in events if event.event in TEXT}
        lost_after = self._holders.stored_when_lost(run_id)
        for seq, told in self._ledger.told[run_id].items():
            if text.get(seq) != told and (lost_after is None or seq <= lost_after):
                held = f"{_end_of(record)}, held by {self._holders.of(run_id)}"
                self.faults[DISAGREE].append(f"{run_id}: event {seq} is {text.get(seq)!r}; told was {told!r}; {held}")
        if self._ledger.ends[run_id] - {status.value}:
            self.faults[DISAGREE].append(f"{run_id} is {status.name}; told was {self._ledger.ends[run_id]}")

    async def _check_http(self, url: str, record: RunRecord) -> None:
        path = f"/agents/{AGENT}/runs/{record.run_id}"
        status, found = await self._clients.ask("GET", path, at=url, timeout=ANSWER_SECONDS)
        if (status, found.get("status")) != (200, record.status.value):
            self.faults[DISAGREE].append(f"{record.run_id} is {record.status.name}; HTTP says {status} {found}")

    def _check_tools(self, records: list[RunRecord], notes: list[Note]) -> None:
        calls = Counter(note.call_id for note in notes if note.starts)
        self.faults[TWICE] += [f"{call_id} started {times} times" for call_id, times in calls.items() if times > 1]
        for note in notes:
            answered = self._ledger.acknowledged.get(note.run_id)
            if note.starts and answered is not None and (late := note.at - answered) > self._heard_seconds:
                self.faults[WORKED].append(f"{note.call_id} of {note.run_id} started {late:.1f} s later")
        gone_on_with = {record.continues for record in records}  # whoever goes on starts what had not started
        for record in records:
            for each in record.receipt.tools if record.receipt and record.run_id not in gone_on_with else ():
                if each.outcome is ToolOutcome.not_started and calls[each.call_id]:
                    told = f"{each.call_id} of {record.run_id} is said not to have started: {record.receipt}"
                    self.faults[TWICE].append(told)

    def _check_held(self, held: Sequence[HeldCancel], notes: list[Note]) -> None:
        """Their work is stopped where they were cancelled, so that neither the store nor another server matters."""
        for each in held:
            ends = [note.at - each.asked for note in notes if note.run_id == each.run_id and not note.starts]
            if not ends or max(ends) > STOP_SECONDS:
                when = f"{max(ends):.1f} s" if ends else "not at all"
                self.faults[WORKED].append(f"{each.run_id}, {each.how}: its tool ended after {when}")
            if each.status not in (200, 202) or each.seconds > ACKNOWLEDGE_SECONDS:
                told = f"{each.status or 'nothing'} after {each.seconds:.1f} s"
                self.faults[UNHEARD].append(f"{each.run_id}, {each.how}: it was answered {told}")

    # -- sessions -----------------------------------------------------------------------------------------------------

    async def _check_session(self, url: str, session: str) -> None:
        """Its conversation is valid for every provider, and the next prompt in it works."""
        messages = await self._store.load(SessionKey(AGENT, None, session))
        for problem in validate(messages) or next_prompt_accepted(messages):
            self.faults[REJECTED].append(f"{session}: {problem}")
        body = {"message": NEXT, "session_id": session, "stream": False}
        status, said = await self._clients.ask(
            "POST", f"/agents/{AGENT}/runs", at=url, json=body, timeout=ANSWER_SECONDS
        )
        if (status, said.get("status")) != (200, "COMPLETED"):
            self.faults[REJECTED].append(f"{session}: the next prompt got {status} {said.get('receipt')} {said}")


async def read_records(store: SQLStore) -> list[RunRecord]:
    """Of all runs. A list of them does not have their receipts."""
    found = [await store.find(run.run_id) for run in await store.list_runs(Selection(), ALL)]
    return [record for record in found if record is not None]


def _end_of(record: RunRecord) -> str:
    why = record.error if record.receipt is None else record.receipt.cause.value
    return record.status.name if why is None else f"{record.status.name}, {why}"
