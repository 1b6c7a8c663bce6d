# SPDX-License-Identifier: Apache-2.0
"""Nothing grows for ever: what is old and has ended can be forgotten."""

from __future__ import annotations

import pytest

from andon import RunStatus, SessionKey
from andon.core.selection import Selection
from andon.core.shared.store import Progress
from andon.store.sql import SQLStore, maintenance
from tests.store.making import KEY, LONG, asking, events, opened, record, said
from tests.support import play

ALL = -1.0
"""Older than it can be."""
NOTHING = {"sessions": 0, "runs": 0, "events": 0}


async def ended(store: SQLStore, run_id: str, key: SessionKey, count: int = 3) -> None:
    lease = await store.enter(record(run_id, session=key), "me", LONG, "queue")
    await store.write([Progress(lease, said(run_id), events(run_id, range(1, count + 1)))])
    await store.finish(lease, record(run_id, RunStatus.completed, key), said(run_id), events(run_id, (count + 1,)))


async def pruned(store: SQLStore, older_than: float) -> dict[str, int]:
    """What was forgotten, which is what was announced."""
    would = await store.prune(older_than, dry_run=True)
    did = await store.prune(older_than)
    assert would == did
    return did


def test_what_was_touched_since_is_kept(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await ended(store, "r1", KEY)
            assert await pruned(store, 60) == NOTHING
            assert await store.load(KEY) == said("r1")

    play(main)


def test_old_sessions_go_with_all_that_they_had(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SESSIONS_AT_ONCE", 2)

    async def main() -> None:
        async with opened(url) as store:
            keys = [KEY._replace(session_id=f"s{number}") for number in range(5)]
            for number, key in enumerate(keys):
                await ended(store, f"r{number}", key)
            await store.create_session(KEY._replace(user_id=None), {"empty": True})
            assert await pruned(store, ALL) == {"sessions": 6, "runs": 5, "events": 20}
            assert await store.list_runs(Selection(), 10) == []
            assert await store.list_sessions("helper", "ada") == []
            assert await store.read_events("r1", 0, 10) == []
            assert await pruned(store, ALL) == NOTHING
            await ended(store, "r1", keys[1])  # the id is free again, and the session begins anew
            assert await store.load(keys[1]) == said("r1")

    play(main)


def test_a_session_with_a_live_or_paused_run_is_kept_but_old_events_go(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "EVENTS_AT_ONCE", 4)

    async def main() -> None:
        async with opened(url) as store:
            other = KEY._replace(session_id="s2")
            for number in range(3):
                await ended(store, f"r{number}", KEY)
            live = await store.enter(record("r8"), "me", LONG, "queue")
            await store.write([Progress(live, None, events("r8", (1,)))])
            await ended(store, "r3", other)
            asked = await store.enter(record("r9", session=other), "me", LONG, "queue")
            await store.finish(asked, record("r9", RunStatus.paused, other), said("r9"), events("r9", (1,)))
            assert await pruned(store, ALL) == {"sessions": 0, "runs": 0, "events": 16}
            assert len(await store.load(KEY)) == 6
            assert await store.load(other) == [*said("r3"), *said("r9")]
            assert await store.read_events("r0", 0, 10) == []
            assert await store.read_events("r8", 0, 10) == events("r8", (1,))
            assert await store.read_events("r9", 0, 10) == events("r9", (1,), other)

    play(main)


def test_runs_of_deleted_sessions_and_old_cancels_go_too(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await ended(store, "r1", KEY)
            await store.enter(record("r2"), "me", LONG, "reject")
            await store.request_cancel(Selection(run_id="r2"), asking())
            await store.delete_session(KEY)
            assert await pruned(store, ALL) == {"sessions": 0, "runs": 1, "events": 4}
            assert await store.find("r1") is None
            assert await store.find("r2") is not None
            assert await store.cancel_log(Selection(), 10) == []

    play(main)
