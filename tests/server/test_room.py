# SPDX-License-Identifier: Apache-2.0
"""The limits of a server hold for answers that come at once, for runs that wait, and for threads that were left."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from andon import Agent, Run, Runtime, tool
from andon.core.run.handle import local_run
from andon.models.scripted import Call, ScriptedModel, Stall
from andon.store.sql import SQLStore
from tests.server.live import Live, serving, serving_on
from tests.support import Flag, Worker, eventually, until

RUNS = "/agents/helper/runs"
T = TypeVar("T")


@tool(approval=True)
async def pay(euros: int) -> str:
    return f"paid {euros}"


def start(live: Live, user: str = "ada", **fields: Any) -> Any:
    return live.post(RUNS, message="Go", background="true", stream="false", user_id=user, **fields)


START = {"message": "Go", "background": "true", "stream": "false", "user_id": "ada"}
BEHIND = {"stream": False, "background": True}


def at_once(live: Live, count: int, ask: Callable[[httpx.Client, int], T]) -> list[T]:
    """Ask so many times at the same moment."""
    ready, answers = Flag(), list[T]()

    def one(number: int) -> None:
        with live.another_client() as client:
            ready.wait()
            answers.append(ask(client, number))

    workers = [Worker(functools.partial(one, number)) for number in range(count)]
    ready.set()
    for worker in workers:
        worker.done()
    return answers


def pause(live: Live, run_id: str, user: str = "ada") -> None:
    with live.stream(RUNS, message="Go", run_id=run_id, user_id=user) as stream:
        assert list(stream)[-1].event == "RunPaused"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_many_answers_at_once_are_admitted_one_by_one(kind: str, tmp_path: Path) -> None:
    count = 12
    runtime = Runtime(SQLStore(f"sqlite:///{tmp_path}/andon.db") if kind == "sqlite" else None)
    turns = [Call("pay", {"euros": 5}, id="c1")] * count
    agent = Agent("Helper", ScriptedModel(*turns, then=Stall()), tools=[pay], runtime=runtime)
    with serving(agent, max_user_runs=3) as live:
        for number in range(count):
            pause(live, f"r{number}")
        codes: list[int] = []
        ready = Flag()

        def answer(number: int) -> None:
            with live.another_client() as client:
                body = {"tools": [{"tool_call_id": "c1", "confirmed": True}], "stream": False, "background": True}
                ready.wait()
                codes.append(client.post(f"{RUNS}/r{number}/continue", json=body).status_code)

        workers = [Worker(lambda number=number: answer(number)) for number in range(count)]  # type: ignore[misc]
        ready.set()
        for worker in workers:
            worker.done()
        assert Counter(codes) == {202: 3, 429: count - 3}
        assert start(live).status_code == 429
        assert start(live, "bob").status_code == 202
        paused = [run for run in agent.runtime.runs if local_run(run).is_paused]
        assert len(paused) == count - 3, "who was refused waits as before"
    if runtime.worker is not None:
        asyncio.run(runtime.close())


def test_a_place_is_given_back_when_going_on_fails() -> None:
    agent = Agent("Helper", ScriptedModel(Call("pay", {"euros": 5}, id="c1"), then="OK."), tools=[pay])
    with serving(agent, max_user_runs=1) as live:
        pause(live, "r")
        for _ in range(3):
            assert live.client.post(f"{RUNS}/r/continue", json={"answers": {"x": 1}}).status_code == 400
        body = {"tools": [{"tool_call_id": "c1", "confirmed": True}], "stream": False}
        assert live.client.post(f"{RUNS}/r/continue", json=body).json()["status"] == "COMPLETED"


def test_runs_that_wait_for_a_person_have_a_limit_of_their_own() -> None:
    turns = [Call("pay", {"euros": 5}, id="c1")] * 3
    agent = Agent("Helper", ScriptedModel(*turns, then="OK."), tools=[pay])
    with serving(agent, max_user_paused_runs=2, max_paused_runs=3) as live:
        pause(live, "r0")
        pause(live, "r1")
        refused = start(live)
        assert refused.status_code == 429
        assert "2 runs of this user wait for an answer" in refused.json()["detail"]
        pause(live, "r2", "bob")
        full = start(live, "eve")
        assert full.status_code == 429
        assert (
            "3 runs wait for a person's answer, or are running and may come to ask, as many as this server takes"
            in full.json()["detail"]
        )
        live.client.post(f"{RUNS}/r0/cancel?wait=30")
        assert start(live).status_code == 202


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_no_more_runs_can_pause_than_may(kind: str, tmp_path: Path) -> None:
    """Those that are at work count too: each of them may come to ask."""
    count = 12
    runtime = Runtime(SQLStore(f"sqlite:///{tmp_path}/andon.db") if kind == "sqlite" else None)
    agent = Agent("Helper", ScriptedModel(then=Call("pay", {"euros": 5}, id="c1")), tools=[pay], runtime=runtime)
    with serving(agent, max_user_paused_runs=3) as live:
        pause(live, "cut")
        live.client.post(f"{RUNS}/cut/cancel?wait=30")
        codes = at_once(live, count, lambda client, _: client.post(RUNS, data=START).status_code)
        assert Counter(codes) == {202: 3, 429: count - 3}
        eventually(lambda: len(agent.runtime.runs) == sum(local_run(run).is_paused for run in agent.runtime.runs) == 3)
        refused = live.client.post(f"{RUNS}/cut/continue", json={"stream": False})
        assert refused.status_code == 429, "to go on with a run that was cut makes another one"
        assert "3 runs of this user wait for an answer, or are running and may come to ask" in refused.json()["detail"]
        for run in agent.runtime.runs[:2]:
            live.client.post(f"{RUNS}/{run.run_id}/cancel?wait=30")
        codes = at_once(live, 6, lambda client, _: client.post(f"{RUNS}/cut/continue", json=BEHIND).status_code)
        assert codes.count(202) == 1, "the others find the session busy"
        assert codes.count(202) + codes.count(409) + codes.count(429) == 6
        assert start(live, "bob").status_code == 202
    if runtime.worker is not None:
        asyncio.run(runtime.close())


def test_runs_of_all_that_may_come_to_ask_count_for_the_server() -> None:
    agent = Agent("Helper", ScriptedModel(then=Stall()), tools=[pay])
    with serving(agent, max_paused_runs=2) as live:
        assert [start(live, user).status_code for user in ("ada", "bob", "eve")] == [202, 202, 429]


def test_paused_runs_in_the_database_count_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/andon.db"

    def helper() -> Agent:
        return Agent("Helper", ScriptedModel(then=Call("pay", {"euros": 5}, id="c1")), tools=[pay])

    with serving_on(url, helper(), max_user_paused_runs=3) as live:
        for number in range(3):
            pause(live, f"r{number}")
    with serving_on(url, helper(), max_user_paused_runs=3) as live:
        refused = start(live)
        assert refused.status_code == 429
        assert "3 runs of this user wait for an answer" in refused.json()["detail"]
        assert start(live, "bob").status_code == 202
        live.client.post(f"{RUNS}/r0/cancel?wait=30")
        assert [start(live).status_code for _ in range(2)] == [202, 429]


def test_the_paused_runs_of_sub_agents_belong_to_their_parents(tmp_path: Path) -> None:
    """Also in the database, where there may be more of them than of those that count."""
    asks = [Call("inner", {"prompt": "Go"}, id=f"c{number}") for number in range(3)]

    def helper() -> Agent:
        inner = Agent("Inner", ScriptedModel(then=Call("pay", {"euros": 5})), tools=[pay])
        return Agent("Helper", ScriptedModel(then=asks), tools=[inner.as_tool()])

    url = f"sqlite:///{tmp_path}/andon.db"
    with serving_on(url, helper(), max_user_paused_runs=2) as live:
        pause(live, "r0")
    with serving_on(url, helper(), max_user_paused_runs=2) as live:
        paused = live.client.get("/runs?status=paused").json()
        assert len(paused) == 4
        pause(live, "r1")
        assert start(live).status_code == 429


def test_a_run_counts_until_its_threads_are_gone() -> None:
    entered, free = Flag(), Flag()

    @tool
    def block() -> str:
        entered.set()
        free.wait()
        return "at last"

    agent = Agent("Helper", ScriptedModel(Call("block"), then="OK."), tools=[block])
    with serving(agent, max_user_runs=1) as live:
        assert start(live, run_id="r1").status_code == 202
        entered.wait()
        receipt = live.client.post(f"{RUNS}/r1/cancel?wait=0.2").json()["receipt"]
        assert receipt["leftovers"]
        eventually(lambda: not agent.runtime.runs)
        refused = start(live)
        assert refused.status_code == 429
        assert "1 runs of this user are working" in refused.json()["detail"]
        assert start(live, "bob").status_code == 202
        free.set()
        eventually(lambda: not agent.runtime.abandoned)
        assert start(live).status_code == 202


def test_one_user_cannot_take_the_threads_of_all() -> None:
    """He starts and cancels runs whose tool blocks, more often than there may be threads; others' tools still run."""
    free = Flag()
    blocked: list[str] = []

    @tool
    def work(how: str) -> str:
        if how == "block":
            blocked.append(how)
            free.wait()
        return "worked"

    runtime = Runtime(abandoned_threads=6, abandoned_user_threads=2, cut_seconds=0.05, abandon_seconds=0.1)
    turns = [Call("work", {"how": "block"})] * 8
    agent = Agent("Helper", ScriptedModel(*turns, then="OK."), tools=[work], runtime=runtime)

    async def main() -> None:
        runs: list[Run] = []
        for _ in range(8):  # all of them at work before the first one is cancelled: that is more than all may have
            run = agent.start("Go", user_id="mallory", session_id=f"m{len(runs)}")
            await run.begin()
            runs.append(run)
        await until(lambda: len(blocked) == 8)
        for run in runs:
            await run.cancel_and_wait(0)
        for run in runs:
            await run.result()
        assert len(runtime.abandoned) == 8
        mallory, ada = [
            await Agent(
                "Other", ScriptedModel(Call("work", {"how": "quick"}), then="OK."), tools=[work], runtime=runtime
            ).invoke_async("Go", user_id=user)
            for user in ("mallory", "ada")
        ]
        results = [str(result.messages) for result in (mallory, ada)]
        assert "threads of cancelled tools of this user are still running (8)" in results[0]
        assert "Runtime(abandoned_user_threads=...)" in results[0]
        assert "worked" in results[1]
        free.set()

    asyncio.run(main())
    eventually(lambda: not runtime.abandoned)
