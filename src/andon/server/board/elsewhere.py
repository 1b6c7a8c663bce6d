# SPDX-License-Identifier: Apache-2.0
"""Reads, while a board is open, what the runs of other processes on a shared store do.

The store tells that something has changed. Then it is read, at most once a second. The amount of one look is limited.
So in a busy system the lines of those runs get older, and this server does not get slow.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Collection

from msgspec import MsgspecError

from andon.core.shared.link import StoreLink
from andon.core.shared.overview import OverviewStore, StoredRun
from andon.core.states import RunStatus
from andon.core.waiters import Waiters
from andon.errors import StoreError, describe
from andon.scale.inspection import holder_name, worker_names
from andon.server.board.feed import MOST_LINES, Feed
from andon.server.board.history import HOURS, History, end_of
from andon.server.board.lines import Activity, Key, Line, RunHead, ended_line, head_of, live_line
from andon.server.host import Host

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Between two looks, at least."""

SHARE = 0.1
"""Looking takes at most this part of the time."""

LONGEST_PAUSE = 10.0
"""The longest time between two looks, if a notification of the store was lost."""

RUNS_AT_ONCE, EVENTS_AT_ONCE = 50, 500
"""The most runs that one look reads events of, and the most events of each."""

MOST_ENDED, PAGE, MOST_HEARD = 5_000, 200, 100_000

OVERLAP = 5.0
"""A run's end may become visible a little after its time."""


class RemoteLine:
    """A live run of another process."""

    def __init__(self, stored: StoredRun) -> None:
        self.head: RunHead = head_of(stored.record)
        self.stored, self.activity = stored, Activity()
        self.shown: Line | None = None

    @property
    def key(self) -> Key:
        return self.head.session.agent_id, self.head.run_id


class Elsewhere:
    """The runs of other processes on the store of one runtime."""

    def __init__(self, host: Host, link: StoreLink, feed: Feed, history: History) -> None:
        self._host, self._link, self._feed, self._history = host, link, feed, history
        self._waiters = Waiters()
        self._heard: deque[str | None] = deque(maxlen=MOST_HEARD)
        """The runs that may have changed, as other threads report them; None stands for all."""
        self._unread: dict[str, None] = {}
        """The runs of which there may be new events. The first one has waited longest."""
        self._seen_ended = 0.0
        """Up to this time of the store, the runs that have ended were read."""
        self._names: dict[str, str] = {}
        """The names of worker processes, by the names under which they hold runs."""

    async def watch(self) -> None:
        """Look until cancelled."""
        store = self._link.store
        if not isinstance(store, OverviewStore):
            return
        lines: dict[str, RemoteLine] = {}
        self._link.start()  # its listener hears the news
        self._link.news.watch_all(self._hear)
        try:
            while True:
                begun = time.monotonic()
                pause = PAUSE
                try:
                    await self._look(store, lines)
                    self._link.is_reached()
                    pause = min(LONGEST_PAUSE, max(PAUSE, (time.monotonic() - begun) / SHARE))
                except StoreError as error:
                    self._link.complain("a board can't see the runs of other processes", error)
                except (ValueError, MsgspecError) as error:
                    log.warning("a board can't see the runs of other processes: %s", describe(error))
                await asyncio.sleep(pause)
                await self._listen()
        finally:
            self._link.news.unwatch_all(self._hear)

    def _hear(self, run_ids: Collection[str]) -> None:
        """Called from any thread."""
        self._heard.extend(run_ids or (None,))
        self._waiters.wake()

    async def _listen(self) -> None:
        """Wait for news, but not longer than `LONGEST_PAUSE`."""
        try:
            async with asyncio.timeout(LONGEST_PAUSE):
                await self._waiters.wait(lambda: bool(self._heard or self._unread))
        except TimeoutError:
            self._heard.append(None)

    async def _look(self, store: OverviewStore, lines: dict[str, RemoteLine]) -> None:
        agent_ids = self._host.directory.ids
        live = await store.live_runs(MOST_LINES)
        self._names = await worker_names(store)
        await self._look_for_ended(store)  # after it: each run is in one of the two
        found = {
            stored.record.run_id: stored
            for stored in live
            if stored.record.session.agent_id in agent_ids and not self._is_here(stored.record.run_id)
        }
        for run_id in lines.keys() - found.keys():
            if (last := lines.pop(run_id).shown) is not None:
                self._feed.drop(last)
        changed = {run_id for run_id, stored in found.items() if self._take(run_id, stored, lines)}
        changed |= await self._read_events(store, lines, changed)
        for run_id in changed:
            if run_id in lines and not self._is_here(run_id) and lines[run_id].key not in self._history:
                self._show(lines[run_id])

    def _is_here(self, run_id: str) -> bool:
        return any(runtime.find(run_id) is not None for runtime in self._host.runtimes)

    def _take(self, run_id: str, stored: StoredRun, lines: dict[str, RemoteLine]) -> bool:
        """True if the run is new, or its state has changed."""
        known = lines.get(run_id)
        if known is None:
            lines[run_id] = RemoteLine(stored)
            self._unread = {run_id: None, **self._unread}
            return True
        before, known.stored = known.stored, stored
        return before.record.status is not stored.record.status or before.owner != stored.owner

    async def _read_events(self, store: OverviewStore, lines: dict[str, RemoteLine], first: set[str]) -> set[str]:
        """Read new events of some runs: first of new runs, then of those that have waited longest. Returns the runs
        that have new events.
        """
        while self._heard:
            run_id = self._heard.popleft()
            self._unread.update(dict.fromkeys(lines if run_id is None else (run_id,)))
        self._unread = {run_id: None for run_id in self._unread if run_id in lines}
        wanted = list(self._unread)[:RUNS_AT_ONCE]
        for run_id in wanted:
            del self._unread[run_id]
        found = await store.new_events({run_id: lines[run_id].activity.seq for run_id in wanted}, EVENTS_AT_ONCE)
        for run_id, events in found.items():
            lines[run_id].activity.take(run_id, events)
            if len(events) == EVENTS_AT_ONCE:
                self._unread[run_id] = None
        return {run_id for run_id, events in found.items() if events}

    async def _look_for_ended(self, store: OverviewStore) -> None:
        """Read the runs that have ended since the last time, page by page. The run that ended last comes first."""
        since, until = max(self._seen_ended - OVERLAP, time.time() - HOURS * 3600), math.inf
        lines: list[Line] = []
        while len(lines) < MOST_ENDED:
            page = await store.ended_runs(since, until, PAGE)
            lines += map(ended_line, page)
            if len(page) < PAGE or page[-1].ended_at == until:
                break
            until = page[-1].ended_at or since
        self._history.begins = min(self._history.begins, since) if len(lines) < MOST_ENDED else until
        self._seen_ended = max([self._seen_ended, *map(end_of, lines)])
        self._history.add(reversed(lines))

    def _show(self, line: RemoteLine) -> None:
        record, owner = line.stored.record, line.stored.owner
        server = None if owner is None else holder_name(owner, self._names)
        asks = record.interrupts if record.status is RunStatus.paused else ()
        line.shown = live_line(line.head, record.status, line.activity, server, asks=asks)
        self._feed.put(line.shown)
