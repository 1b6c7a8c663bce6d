# SPDX-License-Identifier: Apache-2.0
"""Runs that this server accepts, and worker processes execute (`andon serve --no-execute`).

The server checks a request as if it executed the run, and puts the run into the queue of its store. From then on it
treats the run like any other run of another process: it reads its events, and cancels it, in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from andon.agent.agent import Agent
from andon.agent.queued import encode_answers, queued_start, route_of
from andon.agent.resume import ContinueRequest
from andon.core.cancel_runs import cancel_fitting
from andon.core.events import Event, RunEvent
from andon.core.receipt import CancelRequest
from andon.core.records import RunRecord
from andon.core.run.handle import local_run
from andon.core.run.run import LocalRun
from andon.core.runtime import Runtime
from andon.core.selection import Selection
from andon.core.shared.remote import RemoteRun, StoredReader
from andon.core.shared.run_queue import QueuedAnswers, QueueLimits, Route, RunQueue
from andon.core.shared.worker import Worker
from andon.core.states import CancelCause, RunStatus
from andon.errors import ConfigurationError, NotContinuableError, StoreError
from andon.messages import Message
from andon.scale.maintenance import QueueMaintenance, queue_of

EVENTS_AT_ONCE = 2_000

_TELLS_MESSAGES = frozenset(
    {
        RunEvent.tool_call_started,
        RunEvent.tool_call_completed,
        RunEvent.tool_call_error,
        RunEvent.run_paused,
        RunEvent.run_completed,
        RunEvent.run_cancelled,
        RunEvent.run_error,
    }
)
"""Before one of these, the store has the messages that belong to it."""


class QueuedRuns:
    """The queue, as a server uses it that executes nothing."""

    def __init__(self, runtime: Runtime, limits: QueueLimits) -> None:
        if runtime.worker is None:
            raise ConfigurationError(
                "a server that does not execute runs needs a Postgres that worker processes use too: give it a runtime "
                'on open_store("postgresql://…")'
            )
        self._runtime, self._worker, self._limits = runtime, runtime.worker, limits
        self._queue: RunQueue = queue_of(runtime)
        self._preparing = asyncio.Lock()
        self.draining = False
        """This server shuts down. It closes connections, and that is not the clients' doing."""
        self._is_ready = False

    async def prepare(self) -> None:
        """Create the tables of the queue if they are missing, and check them."""
        await self._ready()

    async def _ready(self) -> RunQueue:
        async with self._preparing:
            if not self._is_ready:
                await self._queue.prepare(self._limits)
                self._is_ready = True
        return self._queue

    @contextlib.asynccontextmanager
    async def maintained(self) -> AsyncIterator[None]:
        """Look after the queue in this block."""
        self.draining = False
        await self._ready()
        looking = asyncio.ensure_future(QueueMaintenance(self._queue, self._worker).serve())
        try:
            yield
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    async def count_open(self, user_id: str | None) -> int:
        """The runs of this user, or of all, that are paused or that take a place in the limits."""
        return await (await self._ready()).count_open(user_id)

    async def begin(self, agent: Agent, run: LocalRun, options: Mapping[str, Any], *, waits: bool) -> AcceptedRun:
        """Put a run into the queue that was made with these options, and has not begun. It does not begin here."""
        queue = await self._ready()
        start = queued_start(run, options, self._route(agent), waits=waits, goes_on=agent.on_lost == "continue")
        if await queue.put(start):
            with contextlib.suppress(StoreError):  # any worker does the rest
                await self._worker.orphans.end_all()
        return AcceptedRun(self, self._runtime, start.record)

    async def resume(
        self, agent: Agent, wanted: ContinueRequest, output_schema: dict[str, Any] | None
    ) -> tuple[AcceptedRun, int]:
        """Also returns the number of the run's last event before this."""
        prepared = await agent.prepare_resume(wanted)
        if not isinstance(prepared, RunRecord):
            run = local_run(prepared)
            run.output_schema = output_schema
            return await self.begin(agent, run, wanted.options, waits=False), 0
        queue, store = await self._ready(), self._worker.store
        last = await store.last_event(prepared.run_id)
        known = 0 if last is None else last.seq
        said, goes_on = encode_answers(wanted.answers, prepared), agent.on_lost == "continue"
        answers = QueuedAnswers(prepared.run_id, known, said, self._route(agent), goes_on)
        if not await queue.put_answers(answers, wanted.request_key):
            raise NotContinuableError(
                f"run {prepared.run_id!r} is not paused any more, or asks something else: another request was quicker"
            )
        record = msgspec.structs.replace(prepared, status=RunStatus.pending, interrupts=[], stop_reason=None)
        return AcceptedRun(self, self._runtime, record), known

    def _route(self, agent: Agent) -> Route:
        return route_of(agent.queue, agent.id, agent.priority)


class AcceptedRun:
    """A run that waits for a worker process, or that one executes."""

    def __init__(self, queued: QueuedRuns, runtime: Runtime, record: RunRecord) -> None:
        assert runtime.worker is not None
        self._queued, self._runtime, self.record = queued, runtime, record
        self._worker: Worker = runtime.worker
        self.remote = RemoteRun(self._worker.link, record)
        self.own_messages: Sequence[Message] = []
        """What it has added to its session so far, as of the last event that was read."""

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def session_id(self) -> str:
        return self.record.session.session_id

    @property
    def agent_id(self) -> str:
        return self.record.session.agent_id

    @property
    def metadata(self) -> dict[str, Any]:
        return self.record.metadata

    @property
    def status(self) -> RunStatus:
        return self.remote.status

    def cancel_for(self, cause: CancelCause, reason: str | None = None) -> None:
        """Cancel it without waiting for the store. If the store can't be reached, this is tried until it can.

        A shutdown of this server does not cancel it: another process executes it.
        """
        if cause is CancelCause.shutdown or (cause is CancelCause.disconnect and self._queued.draining):
            return
        link, which, request = self._worker.link, Selection(self.run_id), CancelRequest.make(cause, reason)

        async def cancel() -> None:
            await link.retry(lambda: cancel_fitting(self._runtime, which, request))

        with contextlib.suppress(StoreError):  # the runtime is closed
            link.submit(cancel)

    def read(self, after: int = 0) -> AcceptedRunReader:
        """Its events, from a number on."""
        return AcceptedRunReader(self, StoredReader(self._worker.link, self.run_id, after))

    async def rested(self) -> tuple[RunRecord, list[Event], list[Message]]:
        """Wait until it has ended, or waits for a person. Returns its record, all its events, and the conversation."""
        reader, events = self.remote.read(0), list[Event]()
        while batch := await reader.batch(EVENTS_AT_ONCE):
            events += batch
        link, conversation = self._worker.link, list[Message]()
        record = await link.retry(self.remote.look)
        for before, added in await link.retry(lambda: link.store.history(record.session)):
            conversation += added
            if before.run_id == self.run_id:
                break
        return record, events, conversation

    async def read_messages(self) -> None:
        link = self._worker.link
        added = await link.retry(lambda: link.store.added(self.run_id))
        self.own_messages = added or self.own_messages


class AcceptedRunReader:
    """Reads the events of a run of a worker process. The run's messages are read with them."""

    def __init__(self, run: AcceptedRun, reader: StoredReader) -> None:
        self._run, self._reader = run, reader

    @property
    def at_end(self) -> bool:
        return self._reader.at_end

    async def batch(self, limit: int = EVENTS_AT_ONCE) -> list[Event]:
        events = await self._reader.batch(limit)
        if any(event.event in _TELLS_MESSAGES for event in events):
            await self._run.read_messages()
        return events

    async def __aiter__(self) -> AsyncIterator[Event]:
        while events := await self.batch():
            for event in events:
                yield event
