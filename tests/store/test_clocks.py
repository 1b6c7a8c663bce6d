# SPDX-License-Identifier: Apache-2.0
"""Clocks are wrong, and are set: no lease ends by that or lasts for longer, and nothing gets old by it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from andon import RunStatus, SessionKey
from andon.core.selection import Selection
from andon.core.shared.store import Lease, Progress
from andon.store.sql import SQLStore, clocks, leases
from tests.store.making import KEY, LONG, asking, events, opened, record, said
from tests.store.test_schema import execute
from tests.support import play

HOUR, DAY = 3600.0, 86400.0
OTHER = KEY._replace(session_id="s2")


class Wall:
    """The wall clock of this machine, which can be set."""

    def __init__(self) -> None:
        self.ahead, self._time = 0.0, time.time

    def __call__(self) -> float:
        return self._time() + self.ahead


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wall]:
    wall = Wall()
    monkeypatch.setattr(time, "time", wall)
    yield wall
    monkeypatch.undo()


async def entered(store: SQLStore, run_id: str, seconds: float, session: SessionKey = KEY) -> Lease:
    return await store.enter(record(run_id, session=session), "me", seconds, "reject")


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_of_this_machines_clock_ends_no_lease_and_makes_none_longer(url: str, wall: Wall, step: float) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await entered(store, "held", LONG)
            await entered(store, "left", 0.05, OTHER)
            wall.ahead = step
            taken: list[str] = []
            while "left" not in taken:
                taken += [each.lease.run_id for each in await store.take_orphans("you", LONG, 10)]
            assert taken == ["left"]
            assert not (await store.request_cancel(Selection("held"), asking())).has_orphans

    play(main)


def test_an_orphaned_run_is_known_by_the_right_clock(url: str, wall: Wall) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await entered(store, "left", -1.0)
            await entered(store, "many", -1.0, OTHER)
            wall.ahead = -HOUR
            assert (await store.request_cancel(Selection("left"), asking())).has_orphans
            assert (await store.request_cancel(Selection("left"), asking())).has_orphans
            assert (await store.request_cancel(Selection(session_id="s2"), asking())).has_orphans

    play(main)


@pytest.mark.parametrize("ahead", [HOUR, 400 * DAY])
def test_a_lease_that_is_further_ahead_than_it_is_long_is_over(url: str, ahead: float) -> None:
    """The clock was set back, or the machine was restarted, and whoever lives has renewed its leases since."""

    async def main() -> None:
        async with opened(url) as store:
            await entered(store, "left", 10.0)
            await entered(store, "held", 10.0, OTHER)
            execute(url, f"UPDATE andon_runs SET lease_until = lease_until + {ahead}")
            assert (await store.renew([Lease("held", 1)], LONG))[:2] == ([], {})
            other = await entered(store, "next", LONG)  # `left` will be gone soon: it does not count as busy
            [taken] = await store.take_orphans("you", LONG, 10)
            assert taken.lease == Lease("left", 2)
            await store.finish(taken.lease, record("left", RunStatus.cancelled), [], [])
            assert await store.take_turn(other)

    play(main)


def test_a_clock_that_is_corrected_a_little_ends_no_lease(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await entered(store, "held", 10.0)
            execute(url, f"UPDATE andon_runs SET lease_until = lease_until + {clocks.SLACK - 1}")
            assert await store.take_orphans("you", LONG, 10) == []

    play(main)


def test_a_lease_of_before_a_restart_of_the_machine_lasts_no_longer_than_it_is_long(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock that leases go by begins anew with the machine; here it begins at the worst moment."""

    async def main() -> None:
        async with opened(sqlite_url) as store:
            await entered(store, "left", 10.0)
            [(until,)] = execute(sqlite_url, "SELECT lease_until FROM andon_runs")
            assert isinstance(until, float)
            for now, over in ((until - 10.0, False), (until - 16.0, True), (until + 1.0, True), (5.0, True)):
                monkeypatch.setattr(clocks, "monotonic", lambda now=now: now)
                assert await store._db.read(leases.has_orphans) is over

    play(main)


# -- ages -------------------------------------------------------------------------------------------------------------


def test_on_a_server_the_clocks_of_others_make_nothing_old_or_young(postgres_url: str, wall: Wall) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            for number, ahead in enumerate((40 * DAY, -40 * DAY)):
                wall.ahead = ahead
                key = KEY._replace(session_id=f"s{number}")
                gone = KEY._replace(session_id=f"gone{number}")
                for name, session in ((f"r{number}", key), (f"g{number}", gone)):
                    lease = await entered(store, name, LONG, session)
                    await store.write([Progress(lease, said(name), events(name, (1,)))])
                    await store.request_cancel(Selection(name), asking())
                    end = record(name, RunStatus.cancelled, session)
                    assert await store.finish(lease, end, said(name), events(name, (2,))) is None
                await store.delete_session(gone)
                await store.save(record(f"saved{number}", RunStatus.completed, key), said("Two"))
                made = await store.create_session(KEY._replace(session_id=f"made{number}"), {})
                assert made is not None
                assert abs(made.updated_at - await store.clock()) < 60
            for ahead in (40 * DAY, -40 * DAY):
                wall.ahead = ahead
                assert await store.prune(DAY) == {"sessions": 0, "runs": 0, "events": 0}
                assert len(await store.cancel_log(Selection(), 9)) == 4
            assert await store.prune(-1) == {"sessions": 4, "runs": 6, "events": 8}
            assert await store.cancel_log(Selection(), 9) == []

    play(main)


def test_what_a_store_takes_for_the_time(url: str, wall: Wall) -> None:
    async def main() -> None:
        async with opened(url) as store:
            assert abs(await store.clock() - time.time()) < 60
            wall.ahead = HOUR
            assert (await store.clock() - time.time() > -60) is url.startswith("sqlite")

    play(main)
