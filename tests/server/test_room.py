# SPDX-License-Identifier: Apache-2.0
"""The limits of a server hold for answers that come at once, for runs that wait, and for threads that were left."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from andon import Agent, Run, Runtime, tool
from andon.models.scripted import Call, ScriptedModel, Stall
from andon.store.sql import SQLStore
from tests.server.live import Live, serving
from tests.support import Flag, Worker, eventually, until

RUNS = "/agents/helper/runs"


@tool(approval=True)
async def pay(euros: int) -> str:
    return f"paid {euros}"


def start(live: Live, user: str = "ada", **fields: Any) -> Any:
    return live.post(RUNS, message="Go", background="true", stream="false", user_id=user, **fields)


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
        paused = [run for run in agent.runtime.runs if run.is_paused]
        assert len(paused) == count - 3, "who was refused waits as before"
    if runtime.keeper is not None:
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
        assert "3 runs wait for a person's answer, as many as this server takes" in full.json()["detail"]
        live.client.post(f"{RUNS}/r0/cancel?wait=30")
        assert start(live).status_code == 202


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
        assert "1 runs of this user are going on" in refused.json()["detail"]
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
            await run.open()
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
