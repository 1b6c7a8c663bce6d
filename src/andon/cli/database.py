# SPDX-License-Identifier: Apache-2.0
"""The shared database, used directly, without a server.

A cancel is a committed row, and reaches the process that has the run. Orphaned runs are ended from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Literal, TypeVar

from andon.agent.orphan_end import end_orphan
from andon.cli.command_error import CommandError
from andon.cli.options import without_secrets
from andon.cli.report import Cancelled, Report, RunLine
from andon.core.events import Event, RunEvent
from andon.core.receipt import CancelRequest
from andon.core.runtime import Runtime
from andon.core.selection import Block, Selection
from andon.core.shared.store import SharedStore
from andon.core.states import CancelOutcome, RunStatus
from andon.errors import StoreError
from andon.scale.inspection import holders, look, queue_at
from andon.scale.overview import Overview
from andon.store import open_store

T = TypeVar("T")

BATCH = 500
LOOK_AGAIN_SECONDS = 1.0
"""How often to poll, because a notification of the store may be lost."""


class DatabaseSource:
    """A shared database, as a `RunSource`."""

    local = True

    def __init__(self, url: str) -> None:
        store = open_store(url)
        if not isinstance(store, SharedStore):
            raise CommandError(f"{url!r} is in the memory of another process: name its server with --url")
        self.store: SharedStore = store
        self._runtime = Runtime(store)
        self._runtime.keep(end_orphan)
        self.name = without_secrets(url)
        self._runner = asyncio.Runner()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    # -- the verbs ----------------------------------------------------------------------------------------------------

    def runs(self, which: Selection, limit: int) -> list[RunLine]:
        return self._run(self._runs(which, limit))

    async def _runs(self, which: Selection, limit: int) -> list[RunLine]:
        records = await self.store.list_runs(which, limit)
        held_by = await holders(self.store, [each.run_id for each in records if not each.status.final])
        return [RunLine.of(each, held_by.get(each.run_id)) for each in records]

    def workers(self) -> Overview:
        queue = queue_at(self.store)
        return Overview([], []) if queue is None else self._run(look(queue))

    def drain(self, worker: str) -> bool:
        queue = queue_at(self.store)
        return queue is not None and self._run(queue.drain(worker))

    def look(self, run_id: str) -> Report | None:
        record = self._run(self.store.find(run_id))
        return None if record is None else Report.of_record(record)

    def events(self, run: Report) -> Iterator[Event]:
        after, resting = 0, False
        with self._woken() as wait:
            while True:
                # The status is read before the events: so no event from before the end is missed.
                status = self._status(run.run_id)
                while batch := self._run(self.store.read_events(run.run_id, after, BATCH)):
                    for event in batch:
                        after = event.seq
                        if event.run_id == run.run_id:
                            resting = event.event is RunEvent.run_paused
                        yield event
                        if event.run_id == run.run_id and event.event.terminal:
                            return
                if status is None or status.final or (resting and status is RunStatus.paused):
                    return
                wait(LOOK_AGAIN_SECONDS)

    def _status(self, run_id: str) -> RunStatus | None:
        record = self._run(self.store.find(run_id))
        return None if record is None else record.status

    def cancel(
        self, which: Selection, request: CancelRequest, *, wait: float | None = None, block: bool = False
    ) -> list[Cancelled]:
        cancelled = self._run(self._cancel(which, request, block))
        if wait is None:
            return cancelled
        until = time.monotonic() + wait
        return [self._ended(each, until) for each in cancelled]

    async def _cancel(self, which: Selection, request: CancelRequest, block: bool) -> list[Cancelled]:
        if block:  # first, so that no run starts in between
            kind: Literal["user", "agent"] = "user" if which.user_id else "agent"
            id = which.user_id or which.agent_id or ""
            await self.store.block(Block(kind, id, request.by, request.reason, request.requested_at))
        outcomes = await self._runtime.cancel(
            run_id=which.run_id,
            session_id=which.session_id,
            user_id=which.user_id,
            agent_id=which.agent_id,
            all=which == Selection(),
            reason=request.reason,
            by=request.by,
            mode=request.mode,
            grace=request.grace,
            force=request.force,
        )
        assert self._runtime.worker is not None
        # Here, because there may be no server to do it; by the database's clock, because ours may be wrong.
        with contextlib.suppress(StoreError):
            await self._runtime.worker.orphans.end_all()
        return [await self._cancelled(run_id, outcome) for run_id, outcome in outcomes.items()]

    async def _cancelled(self, run_id: str, outcome: CancelOutcome) -> Cancelled:
        record = await self.store.find(run_id)
        return Cancelled(run_id, outcome, *(() if record is None else (record.status, record.receipt)))

    def _ended(self, asked: Cancelled, until: float) -> Cancelled:
        with self._woken() as wait:
            while True:
                found = self._run(self._cancelled(asked.run_id, asked.outcome))
                left = until - time.monotonic()
                if found.status is None or found.status.final or left <= 0:
                    return found
                wait(min(left, LOOK_AGAIN_SECONDS))

    def unblock(self, kind: Literal["user", "agent"], id: str) -> bool:
        return self._run(self.store.unblock(kind, id))

    def prune(self, older_than: float, *, dry_run: bool) -> dict[str, int]:
        return self._run(self.store.prune(older_than, dry_run=dry_run))

    def close(self) -> None:
        self._run(self._runtime.close())
        self._runner.close()

    @contextlib.contextmanager
    def _woken(self) -> Iterator[Callable[[float], None]]:
        """A function that waits until the store reports a change since its last call, for at most some seconds."""
        loop = self._runner.get_loop()
        changed = asyncio.Event()

        def wake(*_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(changed.set)

        async def wait(seconds: float) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await changed.wait()
            changed.clear()

        listening = self.store.listen(wake)
        try:
            yield lambda seconds: self._run(wait(seconds))
        finally:
            listening.close()
