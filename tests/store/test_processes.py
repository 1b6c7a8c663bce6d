# SPDX-License-Identifier: Apache-2.0
"""Two processes on one database: what one commits the other is told of, and what it may not write it can't."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine, Iterator
from typing import Any

import psycopg
import pytest

from andon import CancelOutcome, RunStatus
from andon.core.selection import Selection
from andon.core.shared.store import Lease, Progress
from andon.store.sql import SQLStore, notifications
from tests.store.elsewhere import Elsewhere
from tests.store.making import KEY, LONG, PAST, asking, events, opened, record, said
from tests.support import Flag, play


class Bell:
    """Counts wake-ups, and wakes whoever waits for one."""

    def __init__(self) -> None:
        self.rings, self._flag = 0, Flag()

    def __call__(self, *_: object) -> None:
        self.rings += 1
        flag, self._flag = self._flag, Flag()
        flag.set()

    def next(self) -> Coroutine[Any, Any, None]:
        """The next one from now on, not from when it is awaited."""
        return self._flag.arrived()


@pytest.fixture(scope="module")
def process() -> Iterator[Elsewhere]:
    """One for all tests: it takes a while to start."""
    other = Elsewhere()
    yield other
    other.leave()


@pytest.fixture
def elsewhere(process: Elsewhere, url: str) -> Iterator[Elsewhere]:
    process.ensure_running()
    process.ask("open", url)
    yield process
    if process.is_running:
        process.ask("close")


async def found_cancelled(store: SQLStore, bell: Bell, lease: Lease) -> str | None:
    """Look whenever the bell rings, as a worker does."""
    while True:
        waiting = asyncio.ensure_future(bell.next())
        if (request := (await store.renew([lease], None)).cancels.get(lease.run_id)) is not None:
            waiting.cancel()
            return request.by
        await waiting


def test_progress_wakes_readers_alone(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file does not tell what has changed in it."""
    monkeypatch.setattr(notifications, "PING_SECONDS", LONG)

    async def main() -> None:
        async with opened(postgres_url) as store:
            called, progress = Bell(), Bell()
            store.listen(called, progress)
            await called.next()  # it has connected
            lease = await store.enter(record("r1"), "me", LONG, "queue")
            await store.take_turn(lease)
            before = called.rings
            for turn in (1, 2):  # what the first one says too much is heard before the second one
                written = asyncio.ensure_future(progress.next())
                await asyncio.sleep(0)
                await store.write([Progress(lease, said("One"), events("r1", (turn,)))])
                await written
            assert called.rings == before
            asked = asyncio.ensure_future(called.next())
            await asyncio.sleep(0)
            await store.request_cancel(Selection("r1"), asking())
            await asked
            assert progress.rings == 2

    play(main)


def test_a_server_says_which_run_was_asked_to_stop(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told by that has nothing to look for."""
    monkeypatch.setattr(notifications, "PING_SECONDS", LONG)

    async def main() -> None:
        async with opened(postgres_url) as store, opened(postgres_url) as other:
            called, progress, heard = Bell(), Bell(), []
            store.listen(called, progress, lambda *notice: heard.append(notice))
            await called.next()  # it has connected
            lease = await store.enter(record("r1"), "me", LONG, "queue")
            before, request = called.rings, asking(reason="«Genug»", by="ada", mode="after_turn", grace=2.5)
            told = progress.next()
            await other.request_cancel(Selection("r1"), request)
            await told
            assert heard == [("r1", "me", request)]
            assert called.rings == before
            assert (await store.renew([lease], None)).cancels == {"r1": request}

    play(main)


@pytest.mark.parametrize(
    ("which", "names", "reason"),
    [
        (Selection("r1"), ["r1"], "why? " * 2000),
        (Selection("r1"), ["r1"], "half \ud800"),
        (Selection("r\ud800"), ["r\ud800"], None),
        (Selection(session_id="s1"), ["r1"], "why? " * 2000),
        (Selection(session_id="s1"), ["r1", "r2"], None),
    ],
    ids=["long", "half a character", "an odd id", "long, by session", "several"],
)
def test_of_what_a_server_can_not_say_exactly_it_says_that_something_has_changed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, which: Selection, names: list[str], reason: str | None
) -> None:
    monkeypatch.setattr(notifications, "PING_SECONDS", LONG)

    async def main() -> None:
        async with opened(postgres_url) as store:
            called, heard = Bell(), []
            store.listen(called, None, lambda *notice: heard.append(notice))
            await called.next()  # it has connected
            leases = [await store.enter(record(name), "me", LONG, "queue") for name in names]
            told = called.next()
            await store.request_cancel(which, asking(reason=reason))
            await told
            assert heard == []
            assert list((await store.renew(leases, None)).cancels) == names

    play(main)


@pytest.mark.parametrize("said", ['["r1","me",{"odd":' + "[" * 7000, "+" + "[" * 7000])
def test_what_somebody_says_without_a_bottom_only_has_everybody_look(
    postgres_url: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every role that may connect can say it. The connection stays."""
    monkeypatch.setattr(notifications, "PING_SECONDS", LONG)

    async def main() -> None:
        async with opened(postgres_url) as store:
            called = Bell()
            store.listen(called)
            await called.next()  # it has connected
            told = called.next()
            with psycopg.connect(postgres_url, autocommit=True) as anybody:
                anybody.execute("SELECT pg_notify(%s, %s)", (notifications.CHANNEL, said))
            await told
            assert "can't be watched" not in caplog.text

    play(main)


def test_a_cancel_in_another_process_wakes_the_holder_of_the_run(url: str, elsewhere: Elsewhere) -> None:
    async def main() -> None:
        async with opened(url) as store:
            bell = Bell()
            listening = store.listen(bell)
            for number in range(5):
                lease = await store.enter(record(f"r{number}"), "me", LONG, "queue")
                looking = asyncio.create_task(found_cancelled(store, bell, lease))
                elsewhere.tell("cancel", f"r{number}")
                assert await looking == "elsewhere"
                assert elsewhere.answer() == {f"r{number}": CancelOutcome.requested}
            listening.close()

    play(main)


def test_progress_and_ends_wake_too(url: str, elsewhere: Elsewhere) -> None:
    async def main() -> None:
        async with opened(url) as store:
            bell = Bell()
            store.listen(bell)
            assert elsewhere.ask("enter", "r1", LONG) == ["r1", 1]
            seen = 0
            elsewhere.tell("write", "r1", 1, 7)
            while seen < 7:
                waiting = asyncio.ensure_future(bell.next())
                fresh = await store.read_events("r1", seen, 100)
                seen += len(fresh)
                if seen < 7:
                    await waiting
                waiting.cancel()
            assert elsewhere.answer() == []
            elsewhere.tell("finish", "r1", 1, "COMPLETED")
            while True:
                waiting = asyncio.ensure_future(bell.next())
                found = await store.find("r1")
                if found is not None and found.status is RunStatus.completed:
                    waiting.cancel()
                    break
                await waiting
            assert elsewhere.answer() is None

    play(main)


def test_who_has_closed_is_not_woken_and_a_callback_that_fails_breaks_nothing(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with opened(url) as store:
            quiet, loud = Bell(), Bell()

            def broken(*_: object) -> None:
                raise RuntimeError("a callback of someone's")

            store.listen(broken)
            closing = store.listen(quiet)
            store.listen(loud)
            first = loud.next()
            closing.close()
            closing.close()
            before = quiet.rings
            await first
            for number in range(3):
                waiting = asyncio.ensure_future(loud.next())
                await asyncio.sleep(0)
                await store.save(record(f"r{number}", RunStatus.completed), said("x"))
                await waiting
            assert quiet.rings <= before + 1
            store.listen(quiet).close()

    with caplog.at_level(logging.ERROR, "andon"):
        play(main)
    assert "a callback that listens to the store failed" in caplog.text


def test_one_can_listen_again_after_all_have_left(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            for number in range(3):
                bell = Bell()
                first = asyncio.ensure_future(bell.next())
                await asyncio.sleep(0)
                listening = store.listen(bell)
                await first  # it is connected
                waiting = asyncio.ensure_future(bell.next())
                await asyncio.sleep(0)
                await store.save(record(f"r{number}", RunStatus.completed), said("x"))
                await waiting
                listening.close()

    play(main)


def test_what_a_killed_process_was_told_is_kept(url: str, elsewhere: Elsewhere) -> None:
    async def main() -> None:
        async with opened(url) as store:
            elsewhere.ask("enter", "r1", LONG)
            assert elsewhere.ask("write", "r1", 1, 3) == []
            assert elsewhere.ask("cancel", "r1") == {"r1": CancelOutcome.requested}
            elsewhere.signal(signal.SIGKILL)
            elsewhere.leave()
            assert await store.load(KEY) == said("r1")
            assert await store.read_events("r1", 0, 10) == events("r1", (1, 2, 3))
            assert (await store.renew([Lease("r1", 1)], None)).cancels["r1"].by == "elsewhere"

    play(main)


def test_a_worker_that_was_stopped_past_its_lease_can_not_write(url: str, elsewhere: Elsewhere) -> None:
    async def main() -> None:
        async with opened(url) as store:
            elsewhere.ask("enter", "r1", PAST)
            elsewhere.signal(signal.SIGSTOP)
            elsewhere.tell("write", "r1", 1, 3)
            elsewhere.tell("finish", "r1", 1, "COMPLETED")
            [taken] = await store.take_orphans("me", LONG, 10)
            end = record("r1", RunStatus.cancelled)
            assert await store.finish(taken.lease, end, said("here"), []) is None
            elsewhere.signal(signal.SIGCONT)
            assert elsewhere.answer() == ["r1"]
            assert elsewhere.answer() == "CANCELLED"
            assert await store.load(KEY) == said("here")
            assert await store.read_events("r1", 0, 10) == []
            assert await store.find("r1") == end

    play(main)


def test_a_cancel_and_an_end_in_two_processes_have_one_winner(url: str, elsewhere: Elsewhere) -> None:
    async def main() -> None:
        async with opened(url) as store:
            for number in range(10):
                run_id = f"r{number}"
                elsewhere.ask("enter", run_id, LONG)
                elsewhere.tell("finish", run_id, 1, "COMPLETED")
                outcome = (await store.request_cancel(Selection(run_id=run_id), asking()))[run_id]
                answer = elsewhere.answer()
                requested = outcome is CancelOutcome.requested
                assert requested == (answer == "asked to stop")
                assert requested or (outcome, answer) == (CancelOutcome.already_finished, None)
                if requested:
                    assert elsewhere.ask("finish", run_id, 1, "CANCELLED") is None

    play(main)
