# SPDX-License-Identifier: Apache-2.0
"""The trial of `bench/neighbour.py`, in short: one user changes large states without a pause, beside a short lease."""

from __future__ import annotations

import asyncio

from andon import Agent, Runtime
from andon.models.scripted import ScriptedModel, Stall
from andon.store.sql import SQLStore
from andon.store.state import MAX_STATE
from tests.server.live import serving
from tests.support import Flag, Silence, Worker

RUNS = "/agents/helper/runs"
MALLORY = "/apps/helper/users/mallory/sessions"


def test_no_run_is_lost_beside_a_bad_neighbour(url: str) -> None:
    runtime = Runtime(SQLStore(url), lease_seconds=4.0)
    silence, over = Silence(), Flag()
    agent = Agent("Helper", ScriptedModel(["Well, ", silence], then=Stall()), runtime=runtime)
    with serving(agent) as live:

        def start(user: str, run_id: str) -> None:
            fields = {"message": "Hi", "background": "true", "stream": "false"}
            assert live.post(RUNS, user_id=user, run_id=run_id, **fields).status_code == 202

        answers: list[int] = []

        def disturb(number: int) -> None:
            with live.another_client() as client:
                path = f"{MALLORY}/s{number}"
                assert client.post(path, json={"x": "x" * (MAX_STATE - 1000)}).status_code == 200
                assert client.patch(path, json={"stateDelta": {"x": "x" * 3_000_000}}).status_code == 413
                while not over.is_set() or len(answers) < 100:
                    answers.append(client.patch(path, json={"stateDelta": {"n": len(answers)}}).status_code)

        start("ada", "held")
        silence.reached.wait()
        workers = [Worker(lambda number=number: disturb(number)) for number in range(8)]  # type: ignore[misc]
        for number in range(5):
            start("bob", f"r{number}")
            cancelled = live.client.post(f"{RUNS}/r{number}/cancel?wait=30").json()
            assert cancelled["receipt"]["cause"] == "user"
        over.set()
        for worker in workers:
            worker.done()
        assert set(answers) == {200}
        assert live.client.get(f"{RUNS}/held").json()["status"] == "RUNNING"
        assert runtime.lost_leases == 0
    asyncio.run(runtime.close())
