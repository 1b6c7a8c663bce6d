# SPDX-License-Identifier: Apache-2.0
"""Cancel many and keep them from coming back; and who did that, on record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from andon import Agent
from andon.models.scripted import ScriptedModel, Stall
from tests.server.live import Live, serving
from tests.server.people import client_of, guarded
from tests.support import eventually

BACKGROUND = {"message": "Hi", "background": True, "stream": False}


@pytest.fixture
def live() -> Iterator[Live]:
    """Two agents, each with a runtime of its own."""
    agents = [Agent(name, ScriptedModel(then=Stall())) for name in ("Helper", "Other")]
    with guarded(*agents) as live:
        yield live


@pytest.fixture
def root(live: Live) -> Iterator[httpx.Client]:
    with client_of(live, "root") as client:
        yield client


def start(client: httpx.Client, agent: str = "helper", **fields: Any) -> httpx.Response:
    return client.post(f"/agents/{agent}/runs", json={**BACKGROUND, **fields})


def cancel(client: httpx.Client, **fields: Any) -> Any:
    answer = client.post("/runs/cancel", json=fields)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    return {**told, "cancelled": {each["run_id"]: each["outcome"] for each in told["cancelled"]}}


def test_a_user_is_stopped_everywhere_until_unblocked(live: Live, root: httpx.Client) -> None:
    with client_of(live, "ada") as ada, client_of(live, "bob") as bob:
        for number, agent in enumerate(["helper", "other"]):
            assert start(ada, agent, run_id=f"a{number}").status_code == 202
        assert start(bob, run_id="b").status_code == 202

        stopped = cancel(root, user_id="ada", block=True, reason="too many complaints")
        assert stopped["cancelled"] == {"a0": "requested", "a1": "requested"}
        assert stopped["blocked"] == {"kind": "user", "id": "ada"}
        for agent in ("helper", "other"):
            refused = start(ada, agent)
            assert refused.status_code == 403
            assert "blocked (too many complaints)" in refused.json()["detail"]
            assert start(root, agent, user_id="ada").status_code == 403  # it is the user's runs that are refused
        body = {"userId": "ada", "sessionId": "s1", "appName": "helper", "newMessage": {"parts": [{"text": "Hi"}]}}
        ada.post("/apps/helper/users/ada/sessions/s1")
        assert ada.post("/run", json=body).status_code == 403
        assert ada.post("/agents/helper/runs/a0/continue", json={}).status_code == 403
        assert start(bob).status_code == 202
        assert ada.get("/agents/helper/runs/a0").status_code == 200  # what there is stays hers to read

        (block,) = root.get("/blocks").json()
        assert (block["kind"], block["id"], block["by"]) == ("user", "ada", "admin")
        assert block["reason"] == "too many complaints"
        lifted = root.post("/unblock", json={"user_id": "ada"}).json()
        assert lifted == {"kind": "user", "id": "ada", "unblocked": True}
        assert root.post("/unblock", json={"user_id": "ada"}).json()["unblocked"] is False
        assert root.get("/blocks").json() == []
        assert start(ada).status_code == 202


def test_an_agent_is_stopped_for_everybody(live: Live, root: httpx.Client) -> None:
    with client_of(live, "ada") as ada:
        start(ada, "helper", run_id="r1")
        start(ada, "other", run_id="r2")
        assert cancel(root, agent_id="helper", block=True)["cancelled"] == {"r1": "requested"}
        for client in (ada, root):
            assert start(client, "helper").status_code == 403
            assert start(client, "other").status_code == 202
        root.post("/unblock", data={"agent_id": "helper"})
        assert start(ada, "helper").status_code == 202


@pytest.mark.parametrize(
    "fields",
    [
        {"all": True},
        {"session_id": "s1"},
        {"session_id": "s1", "user_id": "ada"},
        {"user_id": "ada", "agent_id": "helper"},
        {"user_id": "a" * 257},
    ],
)
def test_a_block_is_for_one_user_or_one_agent(root: httpx.Client, fields: dict[str, Any]) -> None:
    answer = root.post("/runs/cancel", json={**fields, "block": True})
    assert (answer.status_code, root.get("/blocks").json()) == (422, [])


def test_an_unknown_agent_is_not_blocked(root: httpx.Client) -> None:
    assert root.post("/runs/cancel", json={"agent_id": "nobody", "block": True}).status_code == 404
    assert root.post("/unblock", json={}).status_code == 422
    assert root.get("/blocks").json() == []


def test_a_user_may_cancel_all_of_their_own_and_may_not_block(live: Live, root: httpx.Client) -> None:
    with client_of(live, "ada") as ada:
        start(ada, run_id="a")
        for fields in ({"user_id": "ada"}, {"agent_id": "helper"}, {"all": True}):
            assert ada.post("/runs/cancel", json={**fields, "block": True}).status_code == 403
        assert root.get("/blocks").json() == []
        assert cancel(ada, all=True)["cancelled"] == {"a": "requested"}


def test_without_tokens_anybody_here_may() -> None:
    with serving(Agent("Helper", ScriptedModel(then=Stall()))) as live:
        cancel(live.client, user_id="ada", block=True, by="me")
        assert start(live.client, user_id="ada").status_code == 403
        assert start(live.client).status_code == 202
        assert live.client.get("/blocks").json()[0]["by"] == "me"


def test_who_cancelled_what_is_on_record(live: Live, root: httpx.Client) -> None:
    with client_of(live, "ada") as ada:
        for run_id in ("a1", "a2"):
            start(ada, run_id=run_id, session_id=run_id)
        start(root, "other", run_id="o1")
        ada.post("/agents/helper/runs/a1/cancel?wait=30", json={"reason": "a typo"})
        cancel(root, all=True, reason="the end of the day")
        eventually(lambda: not root.get("/runs?status=cancelling").json())

        def told(**query: Any) -> list[str]:
            return [entry["run_id"] for entry in root.get("/cancels", params=query).json()]

        assert set(told()) == {"a1", "a2", "o1"}
        assert told()[-1] == "a1"
        assert told(limit=1) != ["a1"]
        assert set(told(user_id="ada")) == {"a1", "a2"}
        assert told(agent_id="other") == ["o1"]
        assert told(session_id="a2") == ["a2"]
        assert told(run_id="nope") == []
        (entry,) = root.get("/cancels?run_id=a1").json()
        assert entry.pop("requested_at") > 0
        assert entry == {
            "run_id": "a1",
            "agent_id": "helper",
            "session_id": "a1",
            "user_id": "ada",
            "cause": "user",
            "reason": "a typo",
            "by": "ada",
            "mode": "now",
        }
        assert root.get("/cancels?limit=0").status_code == 422


def test_the_record_outlives_the_run() -> None:
    agent = Agent("Helper", ScriptedModel(then=Stall()))
    agent.runtime.keep_ended(seconds=0)
    with serving(agent) as live:
        start(live.client, run_id="r1")
        live.client.post("/agents/helper/runs/r1/cancel?wait=30")
        assert agent.runtime.recent("r1") is None
        assert [entry["run_id"] for entry in live.client.get("/cancels").json()] == ["r1"]


def test_the_figures_tell_of_it(live: Live, root: httpx.Client) -> None:
    start(root, run_id="r1")
    start(root, "other", run_id="r2")
    root.post("/agents/helper/runs/r1/cancel?wait=30")
    cancel(root, user_id="ada", block=True)
    response = root.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = response.text.splitlines()
    assert 'andon_cancels_total{cause="user"} 1' in lines
    assert 'andon_runs_ended_total{status="cancelled"} 1' in lines
    assert 'andon_cancel_seconds_bucket{le="+Inf"} 1' in lines
    assert "andon_cancel_seconds_count 1" in lines
    assert 'andon_blocked{kind="user"} 1' in lines
    assert "andon_abandoned_threads 0" in lines
    figures = [line.partition(" ")[0].partition("{")[0] for line in lines if not line.startswith("#")]
    described = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert described == {line.split()[2] for line in lines if line.startswith("# HELP")}
    for name in figures:
        assert name in described or name.rpartition("_")[0] in described  # a histogram has several
    buckets = [int(line.split()[1]) for line in lines if "_bucket" in line]
    assert buckets == sorted(buckets)
