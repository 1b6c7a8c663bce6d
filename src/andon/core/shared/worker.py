# SPDX-License-Identifier: Apache-2.0
"""A worker: what a process does for its runs in a shared store. It holds their leases, writes what they do, and hears
of cancels.

It has a thread of its own, so that neither a busy event loop of a run nor a busy portal holds it up. Its parts run side
by side, and none waits for another: the leases (`leases.py`), the writing (`writer.py`), the watching of runs of other
processes (`news.py`), the end of runs that other workers have left behind (`orphans.py`), the pruning of old rows, and
the text that goes through an event channel, if there is one (`relay.py`).
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import weakref
from collections.abc import Awaitable, Callable, Sequence

from andon.core.fork import start_over_after_fork
from andon.core.portal import portal
from andon.core.records import RunRecord, SessionKey
from andon.core.run.run import LocalRun
from andon.core.selection import Block, BlockKind, CancelEntry, Selection
from andon.core.session import Session
from andon.core.shared.claim import given_back
from andon.core.shared.clock import ClockWatch
from andon.core.shared.event_channel import EventChannel
from andon.core.shared.leased_run import LeasedRun
from andon.core.shared.leases import Leases
from andon.core.shared.link import EndOrphan, StoreLink
from andon.core.shared.orphans import Orphans
from andon.core.shared.pruning import EventPruning
from andon.core.shared.relay import ChannelLink, Receiver, Relay
from andon.core.shared.remote import RemoteRun, StoredReader
from andon.core.shared.store import EventStore, Glance, SharedStore
from andon.core.shared.writer import Writer
from andon.errors import StoreError, describe

log = logging.getLogger(__name__)

PRUNE_SECONDS, DAY = 3600.0, 86400.0
"""How often old rows are pruned, and for how long the store's clock must have kept pace before that."""

MENDING_SECONDS = 1.0
"""How long a part of the worker rests after a defect of ours."""


class Worker:
    """Holds a runtime's runs in a shared store. It is the runtime's backend (`core/backend.py`)."""

    copies_conversations = True

    def __init__(
        self,
        store: SharedStore,
        seconds: float,
        end_orphan: EndOrphan,
        keep_days: float | None = None,
        keep_event_minutes: float | None = None,
        channel: EventChannel | None = None,
    ) -> None:
        self._keep_days, self._clock, self._channel = keep_days, ClockWatch(store.clock), channel
        self._keep_event_minutes = keep_event_minutes
        self.link = StoreLink(store, seconds, self._serve, end_orphan)
        self._make_parts()
        start_over_after_fork(self)
        _workers.add(self)

    def start_over(self) -> None:
        """In a forked child: hold nothing. The thread is gone, and the runs are the parent's."""
        self.link.start_over()
        self._make_parts()

    def _make_parts(self) -> None:
        channel = None if self._channel is None else ChannelLink(self.link, self._channel)
        self.leases = Leases(self.link)
        self.relay = Relay(channel)
        self._receiver = None if channel is None else Receiver(channel, self.link.cache)
        self.writer = Writer(self.link, self.look, self.relay)
        self.orphans = Orphans(self.link, self._clock)

    @property
    def store(self) -> SharedStore:
        return self.link.store

    # -- for runs -----------------------------------------------------------------------------------------------------

    def storage_for(self, run: LocalRun) -> LeasedRun:
        return LeasedRun(self, run, run.on_busy)

    def session(self, key: SessionKey) -> Session:
        """An object for this run alone: the queue of the session is in the store."""
        return Session(key)

    def check_blocked(self, run: LocalRun) -> None:
        """The store refuses the run when it is entered."""

    async def find_record(self, run_id: str) -> RunRecord | None:
        return await self.store.find(run_id)

    async def list_records(
        self, which: Selection, limit: int, before: tuple[float, str] | None = None
    ) -> list[RunRecord]:
        return await self.store.list_runs(which, limit, before)

    def remote_run(self, record: RunRecord) -> RemoteRun:
        return RemoteRun(self.link, record)

    async def given_back(self, run_id: str, seconds: float) -> bool:
        return await given_back(self.link, run_id, seconds)

    @property
    def lag(self) -> float:
        return self.store.lag

    @property
    def lost_leases(self) -> int:
        return self.leases.lost

    async def block(self, block: Block) -> None:
        await self.store.block(block)

    async def unblock(self, kind: BlockKind, id: str) -> bool:
        return await self.store.unblock(kind, id)

    async def blocks(self) -> list[Block]:
        return await self.store.blocks()

    async def cancel_log(self, which: Selection, limit: int) -> list[CancelEntry]:
        return await self.store.cancel_log(which, limit)

    def read(self, run_id: str, after: int) -> StoredReader:
        """The events of a run, whichever process has it, as they are written."""
        return StoredReader(self.link, run_id, after)

    def look(self, run_ids: Sequence[str] = ()) -> None:
        """Something may have changed in the store: of these runs, or, without any, of all. Safe from any thread."""
        self.leases.look(run_ids)
        if run_ids:
            self.link.news.tell(run_ids)
        else:
            self.link.news.tell_all()

    # -- its life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look after runs; also after those that other processes have left behind."""
        self.link.start()

    async def close(self) -> None:
        """Stop, for good. Callers that still wait for the store get an error that says so."""
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        self.link.stop()
        self.writer.wake()

    async def _serve(self) -> None:
        listening = self.store.listen(self.look, self.link.news.tell, self.leases.on_cancel)
        self.look()  # what was told before that was not heard
        parts: list[Callable[[], Awaitable[None]]] = [
            self.leases.renew,
            self.leases.watch_clock,
            self.leases.look_again,
            self.writer.serve,
            self._watch_news,
            self.orphans.serve,
            self._prune,
        ]
        if self._keep_event_minutes is not None and isinstance(self.store, EventStore):
            parts.append(EventPruning(self.link, self.store, self._clock, self._keep_event_minutes).serve)
        if self._channel is not None and self._receiver is not None:
            parts += [self.relay.serve, self._receiver.receive, self._receiver.interrupt]
        try:
            await asyncio.gather(*map(self._mended, parts))
        finally:
            listening.close()
            if self._channel is not None:
                await self._channel.close()

    async def _mended(self, part: Callable[[], Awaitable[None]]) -> None:
        """Do this until the end. A part that breaks is a defect of ours, and no reason to let go of every run."""
        while not self.link.closed:
            try:
                await part()
            except Exception as error:
                if not self.link.closed:
                    log.critical("the worker broke: %s", describe(error), exc_info=error)
                    await asyncio.sleep(MENDING_SECONDS)

    # Each part waits in a frame that refers to no run, so that a run that has ended is freed.

    async def _watch_news(self) -> None:
        """A safety net for lost notifications: a process may die between its commit and its notification."""
        link, seen = self.link, dict[str, Glance | None]()
        while True:
            await asyncio.sleep(link.seconds / 3)
            if not (run_ids := link.news.run_ids):
                continue
            try:
                found = await link.store.glance(run_ids)
            except StoreError as error:
                link.complain("runs of other processes can't be watched", error)
                continue
            now = {run_id: found.get(run_id) for run_id in run_ids}
            # A run that is watched for the first time may have changed before this look at it.
            link.news.tell([run_id for run_id in run_ids if run_id not in seen or seen[run_id] != now[run_id]])
            seen = now

    async def _prune(self) -> None:
        while True:
            try:
                if self._keep_days is not None and await self._clock.kept_pace_for(PRUNE_SECONDS):
                    counts = await self.store.prune(self._keep_days * DAY)
                    if any(counts.values()):
                        log.info("pruned %s", ", ".join(f"{count} {what}" for what, count in counts.items()))
            except StoreError as error:
                self.link.complain("old rows can't be pruned", error)
            await asyncio.sleep(PRUNE_SECONDS)


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _stop_all() -> None:
    portal.exit()  # first: the portal ends runs at exit, which need their worker
    for worker in list(_workers):
        worker.stop()


atexit.register(_stop_all)
