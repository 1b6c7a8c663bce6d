# SPDX-License-Identifier: Apache-2.0
"""The clock of the database is set while runs go on: those that are alive stay alive, and the dead end soon."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest

from andon import CancelCause, RunStatus, Runtime
from andon.core.shared.store import Taken
from andon.models.scripted import Pause
from andon.store.sql import SQLStore
from tests.shared_store.helpers import check_stored, ended, on, runtimes, store_of
from tests.store.making import LONG, record
from tests.support import Flag, Hold, Reach, play

HOUR = 3600.0

SHIFT = """
CREATE TABLE shift (seconds double precision);
INSERT INTO shift VALUES (0);
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  'SELECT pg_catalog.clock_timestamp() + make_interval(secs => (SELECT seconds FROM public.shift))';
"""


class Settable:
    """A Postgres whose clock can be set: a function of the same name is found before its own."""

    def __init__(self, url: str) -> None:
        self.url = f"{url}&options=-csearch_path%3Dpublic,pg_catalog"
        self._run(SHIFT)

    def step(self, seconds: float) -> None:
        self._run(f"UPDATE shift SET seconds = seconds + {seconds}")

    def _run(self, text: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(text.encode())


class Looking(SQLStore):
    """Says when its worker has looked for the runs of the dead."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.looked = Flag()

    async def take_orphans(self, owner: str, seconds: float, limit: int) -> list[Taken]:
        taken = await super().take_orphans(owner, seconds, limit)
        self.looked.set()
        return taken


def worker_of(runtime: Runtime) -> Any:
    assert runtime.worker is not None
    return runtime.worker


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_of_the_servers_clock_takes_no_run_from_a_live_worker(
    postgres_url: str, step: float, caplog: pytest.LogCaptureFixture
) -> None:
    server = Settable(postgres_url)

    async def main() -> None:
        store = Looking(server.url)
        here = Runtime(store, lease_seconds=LONG)
        async with runtimes(server.url, 1, lease=LONG) as [there]:
            reached, go_on = Flag(), Flag()
            agent, other = on(here, [Reach(reached), Hold(go_on), "Yes."]), on(there)
            await worker_of(there).orphans.end_all()
            async with agent.start("go", run_id="r") as run:
                await reached.arrived()
                await store.looked.arrived()  # at its start; the next time is long after this test
                server.step(step)
                for _ in range(2):  # by that clock its lease is over, and it has not been renewed yet
                    await worker_of(there).orphans.end_all()
                go_on.set()
                assert (await run.result()).status is RunStatus.completed
            await check_stored(here, "r", RunStatus.completed)
            await here.close()
            del other

    play(main)
    [told] = [each.getMessage() for each in caplog.records if "jumped" in each.getMessage()]
    assert told.startswith(f"the store's clock has jumped by {'+' if step > 0 else '-'}3")


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_after_a_step_the_dead_are_ended_soon(postgres_url: str, step: float) -> None:
    server = Settable(postgres_url)

    async def main() -> None:
        dead = SQLStore(server.url)
        await dead.enter(record("r"), "dead", LONG, "queue")
        await dead.close()
        async with runtimes(server.url, 1, lease=0.5) as [here]:
            on(here)
            worker_of(here).start()
            server.step(step)
            receipt = (await ended(here, "r")).receipt
            assert receipt is not None
            assert receipt.cause is CancelCause.lost

    play(main)


def test_a_step_of_the_machines_clock_is_nothing_to_runs_in_a_file(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ahead = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + ahead[0])

    async def main() -> None:
        async with runtimes(sqlite_url, lease=LONG) as (here, there):
            reached, go_on = Flag(), Flag()
            agent, other = on(here, [Reach(reached), Hold(go_on), "Yes."]), on(there, Pause(0))
            async with agent.start("go", run_id="r") as run:
                await reached.arrived()
                ahead[0] = HOUR
                assert await store_of(there).take_orphans("other", LONG, 10) == []
                go_on.set()
                assert (await run.result()).status is RunStatus.completed
            del other

    play(main)
    monkeypatch.undo()
