# SPDX-License-Identifier: Apache-2.0
"""Over HTTP, while the store can't be asked: what this server works on is stopped at once, and the answer says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from andon import Agent, Run, RunStatus, Runtime
from andon.core.run.handle import local_run
from andon.errors import StoreError
from andon.models.scripted import Call, ScriptedModel, Stall
from andon.server import create_app
from andon.testing import probe
from tests.shared_store.helpers import LONG, Shaky
from tests.support import Flag, play, until
from tests.support.till import Till


@contextlib.asynccontextmanager
async def served(url: str, *names: str) -> AsyncIterator[tuple[httpx.AsyncClient, Shaky, Runtime]]:
    store = Shaky(url)
    runtime = Runtime(store, lease_seconds=LONG, settle_seconds=0.2)
    asks = ScriptedModel([Call("delete", {"name": "all"}, id="d")], then=Stall())
    agents = [
        Agent(name, asks if name == "asks" else ScriptedModel(then=Stall()), runtime=runtime, tools=Till().tools)
        for name in names
    ]
    transport = httpx.ASGITransport(create_app(agents, runtime))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client, store, runtime
    store.away = False
    await runtime.close()


async def begun(client: httpx.AsyncClient, runtime: Runtime, agent: str, **fields: Any) -> Run:
    body = {"message": "go", "background": True, "stream": False, "user_id": "ada", **fields}
    answer = await client.post(f"/agents/{agent}/runs", json=body)
    assert answer.status_code == 202
    run = runtime.run(answer.json()["run_id"])
    assert run is not None
    return run


def test_the_holder_answers_202_until_the_store_knows(url: str) -> None:
    async def main() -> None:
        async with served(url, "works") as (client, store, runtime):
            run = await begun(client, runtime, "works", run_id="r1")
            store.away = True
            for outcome in ("requested", "already_requested"):
                answer = await client.post("/agents/works/runs/r1/cancel")
                assert answer.status_code == 202
                told = {"run_id": "r1", "outcome": outcome, "status": "CANCELLING", "stored": False}
                assert answer.json() == told
            store.away = False
            await probe(run).ended()
            answer = await client.post("/agents/works/runs/r1/cancel")
            assert (answer.status_code, "stored" in answer.json()) == (200, False)

    play(main)


def test_a_run_that_waits_for_a_person_is_a_503_however_often_one_asks(url: str) -> None:
    async def main() -> None:
        async with served(url, "asks") as (client, store, runtime):
            run = await begun(client, runtime, "asks", run_id="r1")
            await until(lambda: probe(run).is_paused)
            store.away = True
            for _ in range(3):
                assert (await client.post("/agents/asks/runs/r1/cancel")).status_code == 503
            assert run.status is RunStatus.paused

    play(main)


def test_the_kill_switch_stops_the_runs_of_every_agent_here(url: str) -> None:
    async def main() -> None:
        for block in (True, False):
            async with served(url, "one", "two") as (client, store, runtime):
                runs = [await begun(client, runtime, name) for name in ("one", "two")]
                store.away = True
                answer = await client.post("/runs/cancel", json={"user_id": "ada", "block": block})
                assert answer.status_code == 503
                assert [run.status for run in runs] == [RunStatus.cancelling] * 2

    play(main)


class Silence:
    """A store that does not answer cancels and blocks, and then can't be asked."""

    def __init__(self, store: Shaky) -> None:
        self.reached, self.over = Flag(), Flag()
        store.request_cancel = store.block = self._wait  # type: ignore[assignment, method-assign]

    async def _wait(self, *_: Any) -> Any:
        self.reached.set()
        await self.over.arrived()
        raise StoreError("the database is away, says the test")


@pytest.mark.parametrize("block", [True, False])
def test_the_kill_switch_asks_all_runs_here_before_it_asks_a_store(url: str, block: bool) -> None:
    async def main() -> None:
        async with served(url, "idle", "one", "two") as (client, store, runtime):
            runs = [await begun(client, runtime, name) for name in ("one", "two")]
            silence = Silence(store)
            cancelling = asyncio.create_task(client.post("/runs/cancel", json={"user_id": "ada", "block": block}))
            await silence.reached.arrived()
            assert [local_run(run).signal.request is not None for run in runs] == [True, True]
            if block:  # it is not blocked yet
                runs.append(await begun(client, runtime, "idle"))
            silence.over.set()
            answer = await cancelling
            assert answer.status_code == 503
            assert f"runs of this process were asked to stop: {len(runs)};" in answer.json()["detail"]
            assert all(local_run(run).signal.request is not None for run in runs), (
                "also the one that was quicker than the block"
            )

    play(main)


@pytest.mark.parametrize(("method", "suffix"), [("POST", ":cancel"), ("DELETE", "")])
def test_a_session_s_runs_are_stopped_though_it_can_not_be_looked_up(url: str, method: str, suffix: str) -> None:
    async def main() -> None:
        async with served(url, "works") as (client, store, runtime):
            run = await begun(client, runtime, "works", session_id="s1")
            other = await begun(client, runtime, "works", session_id="s2")
            store.away = True
            answer = await client.request(method, f"/apps/works/users/ada/sessions/s1{suffix}")
            assert answer.status_code == 503
            assert run.status is RunStatus.cancelling
            assert other.status is RunStatus.running

    play(main)


@pytest.mark.parametrize("named", [False, True])
def test_a_run_that_the_store_has_not_taken_in_yet_can_be_stopped(url: str, named: bool) -> None:
    """Only if its id was made here, no other server can have a run of that id, and its cancel is certain."""

    async def main() -> None:
        async with served(url, "works") as (client, store, runtime):
            store.delay = 3.0
            wanted = {"message": "go", "stream": False, **({"run_id": "r1"} if named else {})}
            starting = asyncio.create_task(client.post("/agents/works/runs", json=wanted))
            await until(lambda: bool(runtime.runs))
            run_id = runtime.runs[0].run_id
            answer = await asyncio.wait_for(client.post(f"/agents/works/runs/{run_id}/cancel"), 2)
            if named:
                assert answer.status_code == 503
                assert "runs of this process were asked to stop: 1" in answer.json()["detail"]
            else:
                assert (answer.status_code, answer.json()["stored"]) == (202, False)
                assert answer.headers["location"].endswith(f"/runs/{answer.headers['andon-run-id']}")
            store.delay = 0.0
            assert (await starting).json()["status"] == "CANCELLED"

    play(main)
