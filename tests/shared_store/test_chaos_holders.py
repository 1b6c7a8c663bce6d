# SPDX-License-Identifier: Apache-2.0
"""Which text `bench.chaos` lets be lost: what a process had shown that has lost the run, and nothing else."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import msgspec
import pytest

from andon import Event, RunEvent, RunStatus
from andon.core.records import RunRecord
from andon.core.shared.store import Lease, Progress
from andon.store.sql import SQLStore
from andon.testing.providers import FakeChat
from bench.chaos.checks import DISAGREE, TWO_ENDS, Checks
from bench.chaos.clients import Clients
from bench.chaos.holders import Holders
from tests.store.making import KEY, LONG, PAST, events, opened, record, said
from tests.support import play

RUN = "r"
SHOWN = 4
"""So many events were shown to clients."""


async def finish(store: SQLStore, lease: Lease) -> None:
    """End it as a process does that has taken it over: with more than one event."""
    end = len(await store.read_events(RUN, 0, 100)) + 2
    whose = RUN, KEY.session_id, KEY.agent_id
    last = [
        Event(RunEvent.tool_call_cancelled, *whose, end - 1, 2.5),
        Event(RunEvent.run_cancelled, *whose, end, 2.5, status=RunStatus.cancelled),
    ]
    assert await store.finish(lease, record(RUN, RunStatus.cancelled), said("Hi"), last) is None


async def faults(store: SQLStore, holders: Holders, shown: int) -> dict[str, list[str]]:
    clients = Clients(1, "test", Random(1))
    clients.ledger.told[RUN] = {event.seq: event.content for event in events(RUN, range(1, shown + 1))}
    checks = Checks(store, clients, cast(FakeChat, None), holders, LONG)
    holders.read()
    await checks._check_run(cast(RunRecord, await store.find(RUN)))
    await clients.close()
    assert not checks.faults[TWO_ENDS]
    return checks.faults


@pytest.mark.parametrize("stored", [1, 2, SHOWN])
@pytest.mark.parametrize("is_lost", [True, False])
def test_only_who_loses_a_run_may_lose_its_text(url: str, stored: int, is_lost: bool) -> None:
    async def main() -> None:
        holders = Holders(url)
        async with opened(url) as store:
            await store.ping()
            holders.begin()
            lease: Any = await store.enter(record(RUN), "one", PAST if is_lost else LONG, "queue")
            await store.write([Progress(lease, said("Hi"), events(RUN, range(1, stored + 1)))])
            if is_lost:
                [taken] = await store.take_orphans("another", LONG, 10)
                lease = taken.lease
            await finish(store, lease)
            found = (await faults(store, holders, SHOWN))[DISAGREE]
            assert len(found) == (0 if is_lost else SHOWN - stored)

    play(main)


def test_what_was_stored_may_not_be_lost_whoever_ends_it(url: str) -> None:
    """Nor may it be another text."""

    async def main() -> None:
        holders = Holders(url)
        async with opened(url) as store:
            await store.ping()
            holders.begin()
            lease: Any = await store.enter(record(RUN), "one", PAST, "queue")
            other = [msgspec.structs.replace(event, content="other") for event in events(RUN, [1, 2])]
            await store.write([Progress(lease, said("Hi"), other)])
            [taken] = await store.take_orphans("another", LONG, 10)
            await finish(store, taken.lease)
            assert len((await faults(store, holders, SHOWN))[DISAGREE]) == 2

    play(main)


def test_a_run_that_waits_and_is_claimed_was_not_lost(url: str) -> None:
    """Each process lets go of it before the next one takes it."""

    async def main() -> None:
        holders = Holders(url)
        async with opened(url) as store:
            await store.ping()
            holders.begin()
            lease: Any = await store.enter(record(RUN), "one", LONG, "queue")
            paused = Event(RunEvent.run_paused, RUN, KEY.session_id, KEY.agent_id, 1, 2.5)
            assert await store.finish(lease, record(RUN, RunStatus.paused), said("Hi"), [paused]) is None
            taken = await store.take_up(RUN, "another", LONG)
            assert taken is not None
            await finish(store, taken.lease)
            holders.read()
            assert holders.stored_when_lost(RUN) is None

    play(main)
