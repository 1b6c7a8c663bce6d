# SPDX-License-Identifier: Apache-2.0
"""What the tests of agents on a database share: runtimes, a store that misbehaves, and what is true of a stored run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from andon import Agent, CancelCause, Event, Run, RunEvent, RunStatus, Runtime
from andon.core.events import TERMINAL_EVENT
from andon.core.records import RunRecord
from andon.core.run.handle import local_run
from andon.core.shared.leased_run import LeasedRun
from andon.core.shared.store import SharedStore
from andon.errors import StoreError
from andon.models.scripted import ScriptedModel, Turn
from andon.store.sql import SQLStore
from andon.testing import probe
from andon.testing.validators import next_prompt_accepted, validate
from tests.support import Flag
from tests.support.checks import TERMINAL

LEASE = 5.0
"""Seconds: short enough to wait for its end, long enough for a busy machine."""
LONG = 30.0
"""A lease that no test outlives."""


class Shaky(SQLStore):
    """A store that is away, slow, or does what it is asked and does not say so, when the test wants that."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.away = False
        self.mute = False
        """It does what it is asked, and its answers are lost."""
        self.delay = 0.0
        self.refused = Flag()
        """Set when it was asked while it was away."""
        ask = self._db._run

        async def run(*arguments: Any) -> Any:
            await asyncio.sleep(self.delay)
            if self.away:
                self.refused.set()
                raise StoreError("the database is away, says the test")
            answer = await ask(*arguments)
            if self.mute:
                self.refused.set()
                raise StoreError("the answer was lost, says the test")
            return answer

        self._db._run = run  # type: ignore[assignment, method-assign]


@contextlib.asynccontextmanager
async def runtimes(url: str, count: int = 2, lease: float = LONG, **bounds: Any) -> AsyncIterator[list[Runtime]]:
    """Several runtimes on one database, as several processes would have them."""
    made = [Runtime(SQLStore(url), lease_seconds=lease, **bounds) for _ in range(count)]
    try:
        yield made
    finally:
        for runtime in made:
            await runtime.close()


def on(runtime: Runtime, *turns: Turn, **agent: Any) -> Agent:
    """The agent that every runtime has; what differs between two of them is what its model will say."""
    return Agent(agent.pop("name", "Keeper"), ScriptedModel(*turns), runtime=runtime, **agent)


def store_of(runtime: Runtime) -> SharedStore:
    assert isinstance(runtime.store, SharedStore)
    return runtime.store


async def stored_events(runtime: Runtime, run_id: str) -> list[Event]:
    return await store_of(runtime).read_events(run_id, 0, 100_000)


async def found(runtime: Runtime, run_id: str) -> RunRecord:
    record = await store_of(runtime).find(run_id)
    assert record is not None
    return record


async def changed_to(runtime: Runtime, run_id: str, holds: Callable[[RunRecord], bool]) -> RunRecord:
    """Look whenever the store says that something has changed, until this holds."""
    assert runtime.worker is not None
    runtime.worker.start()
    with runtime.worker.link.news.watch(run_id) as topic:
        while True:
            seen = topic.count
            record = await store_of(runtime).find(run_id)
            if record is not None and holds(record):
                return record
            await topic.changed(seen)


async def ended(runtime: Runtime, run_id: str) -> RunRecord:
    return await changed_to(runtime, run_id, lambda record: record.status.final)


async def check_stored(runtime: Runtime, run_id: str, status: RunStatus, cause: CancelCause | None = None) -> RunRecord:
    """What is true of every run that has ended: one end, no gaps, and a conversation that everybody accepts."""
    store, record = store_of(runtime), await found(runtime, run_id)
    assert record.status is status
    assert (record.receipt is None) == (cause is None)
    if record.receipt is not None:
        assert record.receipt.cause is cause
    events = await stored_events(runtime, run_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[0].event is RunEvent.run_started
    assert [event.event for event in events if event.event in TERMINAL] == [TERMINAL_EVENT[status]]
    assert events[-1].event is TERMINAL_EVENT[status]
    assert events[-1].receipt == record.receipt
    messages = await store.load(record.session)
    assert validate(messages) == []
    assert next_prompt_accepted(messages) == []
    return record


def check_same(run: Run, events: list[Event]) -> None:
    """A reader here and one elsewhere have seen the same."""
    assert [(event.seq, event.event, event.content) for event in probe(run).events] == [
        (event.seq, event.event, event.content) for event in events
    ]


def leased(run: Run) -> LeasedRun:
    """The hold that this process has on the run."""
    storage = local_run(run).storage
    assert isinstance(storage, LeasedRun)
    return storage
