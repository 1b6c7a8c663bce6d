# SPDX-License-Identifier: Apache-2.0
"""Postgres on a disk that takes its time: nobody waits for what someone else has written, and a push comes first."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from andon import RunStatus
from andon.core.selection import Selection
from andon.core.shared.store import Lease, Progress
from andon.core.states import CancelOutcome
from andon.store.sql import SQLStore, database, notifications
from tests.store.making import KEY, LONG, asking, events, opened, record, said
from tests.store.server import Server
from tests.store.test_processes import Bell
from tests.support import play, until

ENDING = [f"ending {number}" for number in range(database.ENDERS + 1)]


class Disk:
    """The disk of a server. It can be held up: a commit that waits for it then waits as for a standby that isn't there,
    which is the same to all others.
    """

    def __init__(self, server: Server) -> None:
        self.url = server.url("postgres")

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        is_free = threading.Event()

        def commit_until_free() -> None:
            with psycopg.connect(self.url, autocommit=True, application_name="probe") as probe:
                while not is_free.is_set():
                    probe.execute("SELECT pg_logical_emit_message(true, 'probe', '')")

        self._configure("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        trying = asyncio.create_task(asyncio.to_thread(commit_until_free))
        try:
            await until(lambda: self.waits("probe") == 1)  # by then everybody does
            yield
        finally:
            is_free.set()
            self._configure("ALTER SYSTEM RESET synchronous_standby_names")
            await trying

    def _configure(self, how: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute(how)
            admin.execute("SELECT pg_reload_conf()")

    def waits(self, who: str = "andon") -> int:
        """How many wait for it."""
        with psycopg.connect(self.url, autocommit=True) as admin:
            found = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event = 'SyncRep'"
            row = admin.execute(found, (who,)).fetchone()
            assert row is not None
            return int(row[0])


@pytest.fixture
def disk(own_server: Server) -> Disk:
    return Disk(own_server)


async def entered(store: SQLStore) -> Lease:
    lease = await store.enter(record("r1"), "me", LONG, "queue")
    await store.take_turn(lease)
    return lease


def test_a_cancel_does_not_wait_for_other_transactions(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not until a lease is renewed on the disk, not for the ends of other runs, however many (of all who notify, one at
    a time may commit), nor until it is there itself: who holds the run hears of it at once. Who has asked waits.
    """
    monkeypatch.setattr(notifications, "PING_SECONDS", LONG)

    async def main() -> None:
        async with opened(disk.url) as store, opened(disk.url) as other:
            lease = await entered(store)
            for name in ENDING:
                await store.enter(record(name, session=KEY._replace(session_id=name)), "you", LONG, "queue")
            connected, heard = Bell(), []
            store.listen(connected, None, lambda *notice: heard.append(notice[0]))
            await connected.next()
            async with disk.held():
                waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(store.renew([lease], LONG))]
                for name in ENDING:
                    end = record(name, RunStatus.completed, KEY._replace(session_id=name))
                    waiting.append(asyncio.ensure_future(store.finish(Lease(name, 1), end, [], events(name, (1,)))))
                await until(lambda: disk.waits() == database.ENDERS + 1)
                asked = asyncio.ensure_future(store.request_cancel(Selection("r1"), asking()))
                await until(lambda: bool(heard))
                await until(lambda: disk.waits() == database.ENDERS + 2)
                more = asyncio.ensure_future(store.request_cancel(Selection("r1"), asking()))
                await until(lambda: disk.waits() == database.ENDERS + 3)  # what it is told must not get lost either
                assert not any(call.done() for call in (*waiting, asked, more))
                nobody = await other.request_cancel(Selection("r3"), asking())  # for nothing, nobody waits
                assert nobody == {"r3": CancelOutcome.unknown}
            assert heard == ["r1"]
            assert await asked == {"r1": CancelOutcome.requested}
            assert await more == {"r1": CancelOutcome.already_requested}
            assert (await asyncio.gather(*waiting))[1:] == [None] * len(ENDING)

    play(main)


def test_an_end_does_not_wait_until_events_are_on_the_disk_and_comes_there_with_them(disk: Disk) -> None:
    async def main() -> None:
        async with opened(disk.url) as store, opened(disk.url) as other:
            lease = await entered(store)
            async with disk.held():
                writing = asyncio.ensure_future(store.write([Progress(lease, said("One"), events("r1", (1, 2)))]))
                await until(lambda: disk.waits() == 1)
                end = record("r1", RunStatus.completed)
                ending = asyncio.ensure_future(store.finish(lease, end, said("One"), events("r1", (3,))))
                await until(lambda: disk.waits() == 2)
                found = await other.find("r1")
                assert found is not None
                assert found.status is RunStatus.running  # nobody is told of an end that may still get lost
                assert not writing.done()
                assert not ending.done()
            assert await writing == []
            assert await ending is None
            assert await other.read_events("r1", 0, 9) == events("r1", (1, 2, 3))

    play(main)
