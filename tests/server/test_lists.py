# SPDX-License-Identifier: Apache-2.0
"""What there is: agents, runs, and the server's own state."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from andon import Agent, RunStatus, Runtime, SessionKey, tool
from andon.models.scripted import ScriptedModel, Stall
from andon.store.sql import SQLStore
from tests.server.live import Live, serving
from tests.store.making import record

RUNS = "/agents/helper/runs"


@tool
async def look() -> str:
    """Look around."""
    return "Nothing."


def begin(live: Live, run_id: str, **fields: str) -> None:
    live.post(RUNS, message="Hi", run_id=run_id, background="true", stream="false", **fields)


def test_agents_and_configuration_have_the_fields_of_their_family() -> None:
    helper = Agent("Helper", ScriptedModel(), description="Helps.", tools=[look])
    with serving(helper, Agent("Other", ScriptedModel(id="other-model"))) as live:
        first, second = live.client.get("/agents").json()
        assert first == {
            "id": "helper",
            "name": "Helper",
            "description": "Helps.",
            "db_id": None,
            "model": {"id": "scripted", "provider": "Andon"},
            "metadata": None,
        }
        assert second["id"] == "other"
        one = live.client.get("/agents/helper").json()
        assert one["tools"] == {"tools": [{"name": "look", "description": "Look around."}]}
        config = live.client.get("/config").json()
        assert config["agents"] == [first, second]
        assert [model["id"] for model in config["available_models"]] == ["scripted", "other-model"]
        assert (config["databases"], config["teams"], config["workflows"], config["interfaces"]) == ([], [], [], [])


def test_runs_are_listed_by_what_is_asked_for() -> None:
    helper, other = Agent("Helper", ScriptedModel("Done.", then=Stall())), Agent("Other", ScriptedModel())
    with serving(helper, other) as live:
        live.post(RUNS, message="Hi", run_id="r1", session_id="s1", stream="false")
        begin(live, "r2", session_id="s1", user_id="ada")
        begin(live, "r3", session_id="s2")
        live.post("/agents/other/runs", message="Hi", run_id="r4", session_id="s1", stream="false")

        def listed(path: str) -> list[str]:
            return [line["run_id"] for line in live.client.get(path).json()]

        assert listed("/runs") == ["r4", "r3", "r2", "r1"]
        assert listed("/runs?session_id=s1&status=completed") == ["r4", "r1"]
        assert listed("/runs?user_id=ada") == ["r2"]
        assert listed("/runs?agent_id=other") == ["r4"]
        assert listed(RUNS) == ["r3", "r2", "r1"]
        assert listed(f"{RUNS}?session_id=s1") == ["r2", "r1"]
        assert listed(f"{RUNS}?status=COMPLETED") == ["r1"]
        (line,) = live.client.get("/runs?user_id=ada").json()
        assert (line["agent_id"], line["session_id"], line["user_id"]) == ("helper", "s1", "ada")


def test_what_is_asked_for_is_not_crowded_out_by_what_is_not(tmp_path: Path) -> None:
    """A database has many runs that have ended, and others that this server has no agent for."""
    store = SQLStore(f"sqlite:///{tmp_path}/andon.db")
    runtime = Runtime(store)

    async def fill() -> None:
        await store.enter(record("old", at=1.0), "someone", 1000.0, "reject")
        for number in range(3):
            ended = record(f"r{number}", RunStatus.completed, SessionKey("helper", None, "s2"), 2.0 + number)
            await store.save(ended, [])
            elsewhere = record(f"x{number}", RunStatus.completed, SessionKey("strange", None, "s2"), 3.0 + number)
            await store.save(elsewhere, [])

    asyncio.run(fill())
    with serving(Agent("Helper", ScriptedModel(), runtime=runtime), Agent("Other", ScriptedModel())) as live:

        def listed(path: str) -> list[str]:
            return [line["run_id"] for line in live.client.get(path).json()]

        assert listed("/runs?limit=2") == listed(f"{RUNS}?limit=2") == ["r2", "r1"]
        assert listed("/runs?limit=2&status=RUNNING") == listed(f"{RUNS}?limit=2&status=running,pending") == ["old"]
        assert listed("/agents/other/runs") == []
        assert live.client.get("/runs?status=PENDING,WHAT").status_code == 422
    asyncio.run(runtime.close())


def test_health_readiness_and_metrics() -> None:
    with serving(Agent("Helper", ScriptedModel("Done.", then=Stall()))) as live:
        live.post(RUNS, message="Hi", stream="false")
        begin(live, "r2")
        assert live.client.get("/health").json() == {"status": "ok"}
        assert live.client.get("/ready").status_code == 200
        lines = live.client.get("/metrics").text.splitlines()
        assert 'andon_runs_ended_total{status="completed"} 1' in lines
        assert sum(int(line.split()[-1]) for line in lines if line.startswith("andon_runs{")) == 1
        live.app.state.andon.draining = True
        assert live.client.get("/ready").status_code == 503
        assert live.client.get("/health").status_code == 200
        refused = live.post(RUNS, message="Hi")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")


def test_a_database_that_is_away_is_told_to_strangers_without_its_address(caplog: pytest.LogCaptureFixture) -> None:
    runtime = Runtime(SQLStore("postgresql://ada:hush-hush@127.0.0.1:1/x?passfile=hush-hush"))
    agent = Agent("Helper", ScriptedModel(), runtime=runtime)
    with caplog.at_level(logging.DEBUG), serving(agent, tokens="t1") as live:
        ready = live.client.get("/ready")
        assert (ready.status_code, ready.json()["detail"].partition(";")[0]) == (
            503,
            "the database can't be asked just now",
        )
        assert "127.0.0.1" in caplog.text
        assert not [word for word in ("127.0.0.1", "ada") if word in ready.text]
        refused = live.client.post(RUNS, json={"message": "Hi"}, headers={"authorization": "Bearer t1"})
        assert refused.status_code == 503
    asyncio.run(runtime.close())
    assert "hush" not in refused.text + caplog.text + repr(runtime.store)


def test_of_a_run_that_has_left_memory_the_record_is_left() -> None:
    agent = Agent("Helper", ScriptedModel("Done."))
    agent.runtime.keep_ended(seconds=0)  # the first call decides
    with serving(agent) as live:
        headers = {"idempotency-key": "k1"}
        live.client.post(RUNS, data={"message": "Hi", "run_id": "r1", "stream": "false"}, headers=headers)
        assert agent.runtime.recent("r1") is None
        state = live.client.get(f"{RUNS}/r1").json()
        assert (state["status"], state["content"], state["stop_reason"]) == ("COMPLETED", "Done.", "end_turn")
        gone = live.client.get(f"{RUNS}/r1/events")
        assert gone.status_code == 410
        assert "state" in gone.json()["detail"]
        assert live.client.post(f"{RUNS}/r1/cancel").status_code == 409
        again = {"message": "Hi", "run_id": "r1"}
        assert live.client.post(RUNS, data=again | {"stream": "false"}, headers=headers).json() == state
        assert live.client.post(RUNS, data=again, headers=headers).status_code == 410
        assert live.client.get("/agents/helper/runs").json() == []


def test_the_app_describes_itself() -> None:
    with serving(Agent("Helper", ScriptedModel())) as live:
        document = live.client.get("/openapi.json").json()
        paths, schemas = document["paths"], document["components"]["schemas"]
        content = paths["/agents/{agent_id}/runs"]["post"]["requestBody"]["content"]
        body = schemas[content["multipart/form-data"]["schema"]["$ref"].rpartition("/")[2]]
        assert body["required"] == ["message"]
        assert {"stream", "session_id", "on_disconnect"} <= body["properties"].keys()
        for path in (
            "/agents/{agent_id}/runs/{run_id}/cancel",
            "/agents/{agent_id}/runs/{run_id}/resume",
            "/runs/cancel",
        ):
            assert paths[path]["post"]["requestBody"]
