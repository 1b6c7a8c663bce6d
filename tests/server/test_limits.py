# SPDX-License-Identifier: Apache-2.0
"""What a server takes at the most: of a prompt, of a user, of a run."""

from __future__ import annotations

import pytest

from andon import Agent, ConfigurationError, Runtime
from andon.models.scripted import Burst, ScriptedModel, Stall
from andon.server import create_app
from tests.server.live import serving

RUNS = "/agents/helper/runs"


def test_a_long_prompt_is_refused_on_every_way_in() -> None:
    agent = Agent("Helper", ScriptedModel())
    with serving(agent, max_message=10) as live:
        refused = live.post(RUNS, message="x" * 11)
        assert refused.status_code == 413
        assert "11 characters, and may have 10" in refused.json()["detail"]
        assert live.post(RUNS, message="x" * 10).status_code == 200
        live.client.post("/apps/helper/users/ada/sessions/s1")
        body = {"userId": "ada", "sessionId": "s1", "newMessage": {"parts": [{"text": "x" * 6}, {"text": "y" * 6}]}}
        for route in ("/run", "/run_sse"):
            assert live.client.post(route, json=body).status_code == 413


def test_a_user_has_so_many_runs_and_others_have_theirs() -> None:
    agent = Agent("Helper", ScriptedModel(then=Stall()))
    with serving(agent, max_user_runs=2) as live:

        def start(user: str | None, **fields: str) -> int:
            named = {} if user is None else {"user_id": user}
            return live.post(RUNS, message="Hi", background="true", stream="false", **named, **fields).status_code

        assert [start("ada", run_id=f"r{number}") for number in range(3)] == [202, 202, 429]
        refused = live.post(RUNS, message="Hi", user_id="ada")
        assert "2 runs of this user" in refused.json()["detail"]
        assert refused.headers["retry-after"] == "1"
        assert start("bob") == 202
        assert [start(None) for _ in range(3)] == [202, 202, 202]  # nobody in particular
        live.client.post(f"{RUNS}/r0/cancel?wait=30")
        assert live.client.post(f"{RUNS}/r0/continue", json={"stream": False, "background": True}).status_code == 202
        assert live.client.post(f"{RUNS}/r0/continue", json={}).status_code == 429
        assert start("ada") == 429


def test_a_run_that_writes_without_end_is_cancelled() -> None:
    agent = Agent("Helper", ScriptedModel([Burst("x", 1000), Stall()]))
    with serving(agent, max_events=100) as live, live.stream(RUNS, message="Hi", events="all") as stream:
        told = list(stream)
    last = told[-1].data
    assert last["event"] == "RunCancelled"
    assert last["receipt"]["cause"] == "budget"
    assert "100 events" in last["receipt"]["reason"]
    assert told[99].id == 100


def test_a_runtimes_own_limit_is_kept() -> None:
    agent = Agent("Helper", ScriptedModel(), runtime=Runtime(max_events=5))
    create_app(agent)
    assert agent.runtime.max_events == 5
    other = Agent("Helper", ScriptedModel())
    create_app(other, max_events=0)
    assert other.runtime.max_events == 0


@pytest.mark.parametrize("name", ["max_message", "max_user_runs", "max_events"])
def test_limits_that_mean_nothing_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        create_app(Agent("Helper", ScriptedModel()), **{name: -1})  # type: ignore[arg-type]
