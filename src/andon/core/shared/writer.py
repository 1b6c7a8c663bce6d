# SPDX-License-Identifier: Apache-2.0
"""Writes the events and messages of runs to a shared store, in batches, while the runs go on.

A run that has something new is marked as changed. The next round of writing looks only at the changed runs. If a round
finds nothing new in a run, that run is not looked at until the next event of its journal. So a silent run costs
nothing. Text is written in larger batches than other events, because each batch is a row. While an event channel
carries it to readers as well (`relay.py`), the batches are larger still.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from andon.core.receipt import CancelRequest
from andon.core.selection import Selection
from andon.core.shared.link import StoreLink
from andon.core.shared.relay import Relay, RelayedRun
from andon.core.shared.store import Lease, Progress
from andon.core.waiters import Waiters
from andon.errors import StoreError

FLUSH_SECONDS = 0.025
"""How long an event waits for others before it is written."""

AWAY_SECONDS = 0.5
"""How long to wait before the next try while the store can't be reached."""


class WrittenRun(RelayedRun, Protocol):
    """A run that this worker holds, as its writer sees it."""

    cancel_seen: bool
    """A round of writing has seen that the run was cancelled."""

    @property
    def run_id(self) -> str: ...

    @property
    def lease(self) -> Lease | None: ...

    @property
    def has_waiting_text(self) -> bool:
        """It has text that will be written a little later."""
        ...

    @property
    def untold_request(self) -> CancelRequest | None:
        """The cancel of the run, if the store must be told of it and does not know it."""
        ...

    def progress(self, now: float, *, hurried: bool, relayed: bool) -> Progress | None:
        """What the run has done since the last round. None if nothing is new."""
        ...

    def note(self, progress: Progress, now: float) -> None:
        """This progress is written."""
        ...

    def listen(self) -> None:
        """Mark the run as changed with the next event of its journal."""
        ...

    def cancel_was_stored(self) -> None: ...


class Writer:
    """Writes for one worker, on the worker's thread."""

    def __init__(self, link: StoreLink, look: Callable[[Sequence[str]], None], relay: Relay) -> None:
        self._link, self._look, self._relay = link, look, relay
        self._changed: dict[WrittenRun, None] = {}
        self._urgent: dict[object, WrittenRun] = {}
        self._work_available, self._written = Waiters(), Waiters()

    def changed(self, run: WrittenRun) -> None:
        """The run has something new, or may have. Called from any thread."""
        if run not in self._changed:
            self._changed[run] = None
            self._work_available.wake()

    async def flush(self, run: WrittenRun, done: Callable[[], bool]) -> None:
        """Write all that is new of the run now, and wait until it is written."""
        key = object()
        self._urgent[key] = run
        try:
            self._work_available.wake()
            await self._written.wait(lambda: done() or self._link.closed)
            self._link.check_open()
        finally:
            del self._urgent[key]

    def wake(self) -> None:
        """The worker is closed: wake all calls of `flush`."""
        self._written.wake()

    async def serve(self) -> None:
        while True:
            await self._work_available.wait(lambda: bool(self._changed or self._urgent))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._work_available.wait(lambda: bool(self._urgent))
            try:
                wrote = await self._write_news()
            except StoreError as error:
                self._link.complain("events and messages of runs are not written yet", error)
                await asyncio.sleep(AWAY_SECONDS)
                continue
            self._written.wake()
            if not wrote and self._urgent:  # all that they wait for is written: give them time to see it
                await asyncio.sleep(FLUSH_SECONDS)

    async def _write_news(self) -> bool:
        """False if there was nothing to write."""
        runs = self._to_look_at()
        now, hurried, relayed = time.monotonic(), set(self._urgent.copy().values()), self._relay.is_up
        news = []
        for run in runs:
            self._relay.changed(run)
            progress = run.progress(now, hurried=run in hurried, relayed=relayed)
            if progress is not None:
                news.append((run, progress))
        if news:
            await self._write(news)
        writing = {run for run, _ in news}
        for run in runs:
            if not await self._tell_cancel(run) and run not in writing and not run.has_waiting_text:
                self._changed.pop(run, None)
                run.listen()
        return bool(news)

    def _to_look_at(self) -> list[WrittenRun]:
        """The changed runs, without those that end or pause: their last progress is stored together with that."""
        found = []
        for run in self._changed.copy() | dict.fromkeys(self._urgent.copy().values()):
            if run.is_settled or run.is_closing or not run.is_held:
                self._changed.pop(run, None)  # if it goes on, it is marked again
            else:
                found.append(run)
        return found

    async def _write(self, news: list[tuple[WrittenRun, Progress]]) -> None:
        lost = await self._link.store.write([progress for _, progress in news])
        for run, progress in news:
            if run.run_id not in lost:
                run.note(progress, time.monotonic())
        if lost:  # paused, ended or taken over just now: `Leases` finds out which
            self._look(lost)

    async def _tell_cancel(self, run: WrittenRun) -> bool:
        """Tell the store of the cancel of a run that does not end at once, so that other processes know it too.

        True if the store is told in the next round. Most runs have ended by then, and the store need not be told. If
        there is no lease here, another process has the run now. That process learns of the cancel only in this way, so
        the store is told now.
        """
        request = run.untold_request
        if request is None or run.is_closing:
            return False
        late, run.cancel_seen = run.cancel_seen or run.lease is None, True
        if late:
            await self._link.store.request_cancel(Selection(run.run_id), request)
            run.cancel_was_stored()
        return not late
