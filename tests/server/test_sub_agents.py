# SPDX-License-Identifier: Apache-2.0
"""Runs of agents that served agents have as tools: listed, watched, cancelled and answered, but never started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from andon import Agent, RunStatus, Runtime
from andon.models.scripted import Call, ScriptedModel
from tests.server.live import Live, serving
from tests.server.people import client_of, guarded
from tests.support.till import DELETE, Till

ASK = Call("young", {"prompt": "look"}, id="c")
OLD, YOUNG = "/agents/old/runs", "/agents/young/runs"


def family(till: Till, **options: Any) -> tuple[Agent, Agent]:
    young = Agent("Young", ScriptedModel(DELETE), tools=till.tools, **options)
    return Agent("Old", ScriptedModel(ASK, then="So."), tools=[young.as_tool()]), young


def start(live: Live, **fields: str) -> dict[str, Any]:
    answer = live.post(OLD, message="go", run_id="r", stream="false", **fields)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


@contextmanager
def asking(till: Till | None = None, **options: Any) -> Iterator[Live]:
    """A server of one agent, whose sub-agent waits for a person."""
    old, _ = family(till or Till(), **options)
    with serving(old) as live:
        assert start(live)["status"] == "PAUSED"
        yield live


def test_they_are_listed_and_can_be_watched() -> None:
    with asking() as live:
        lines = {line["run_id"]: line for line in live.client.get("/runs").json()}
        assert {key: (line["agent_id"], line["status"]) for key, line in lines.items()} == {
            "r": ("old", "PAUSED"),
            "r.c": ("young", "PAUSED"),
        }
        assert [line["run_id"] for line in live.client.get(YOUNG).json()] == ["r.c"]
        assert live.client.get(f"{YOUNG}/r.c").json()["parent_run_id"] == "r"
        with live.watch(f"{YOUNG}/r.c/events") as events:
            assert [frame.event for frame in events] == ["RunStarted", "RunPaused"]
        assert 'andon_runs{status="paused"} 2' in live.client.get("/metrics").text


def test_they_are_not_served() -> None:
    with asking() as live:
        assert [agent["id"] for agent in live.client.get("/agents").json()] == ["old"]
        assert live.client.get("/list-apps").json() == ["old"]
        assert live.client.get("/agents/young").status_code == 404
        answer = live.post(YOUNG, message="go", stream="false")
        assert answer.status_code == 404
        assert "there is no agent 'young'; there are: old" in answer.json()["detail"]


def test_one_can_be_cancelled_by_its_id() -> None:
    till = Till()
    with asking(till) as live:
        answer = live.post(f"{YOUNG}/r.c/cancel", wait="5")
        assert (answer.status_code, answer.json()["status"]) == (200, "CANCELLED")
        assert live.client.get(f"{OLD}/r").json()["status"] == "PAUSED"
        answer = live.post(f"{YOUNG}/r.c/continue", stream="false")
        assert answer.status_code == 409, "nobody starts a run of an agent that is not served"
        assert "go on with run 'r'" in answer.json()["detail"]
        assert live.post(f"{YOUNG}/no/cancel").status_code == 404
    assert till.did == []


def test_one_can_be_answered_by_its_id_and_then_its_caller() -> None:
    till = Till()
    with asking(till) as live:
        for path, content in ((f"{YOUNG}/r.c", "OK."), (f"{OLD}/r", "So.")):
            (question,) = live.client.get(path).json()["interrupts"]
            answer = live.client.post(f"{path}/continue", json={"answers": {question["id"]: True}, "stream": False})
            assert (answer.status_code, answer.json()["content"]) == (200, content), answer.text
    assert till.did == ["all"]


def test_all_of_one_agent_can_be_cancelled_also_where_others_call_it() -> None:
    with asking() as live:
        answer = live.post("/runs/cancel", agent_id="young", wait="5").json()
        assert [(each["run_id"], each["status"]) for each in answer["cancelled"]] == [("r.c", "CANCELLED")]
        answer = live.post("/runs/cancel", all="true", wait="5").json()
        assert [(each["run_id"], each["status"]) for each in answer["cancelled"]] == [("r", "CANCELLED")]
        assert live.post("/runs/cancel", agent_id="nobody").status_code == 404


def test_a_block_of_such_an_agent_refuses_its_calls() -> None:
    old, _ = family(Till())
    with serving(old) as live:
        assert live.post("/runs/cancel", agent_id="young", block="true").status_code == 200
        told = start(live)
        assert told["status"] == "COMPLETED"
        assert "young" in told["messages"][2]["content"]


def test_an_agent_that_is_served_too_has_its_runs_in_two_places() -> None:
    """Neither was given a runtime: what is called is where its caller is, and what is asked for directly is not."""
    old, young = family(Till())
    with serving(old, young) as live:
        assert start(live)["status"] == "PAUSED"
        young.model = ScriptedModel(then="Directly.")
        assert live.post(YOUNG, message="go", run_id="own", stream="false").json()["content"] == "Directly."
        assert {line["run_id"] for line in live.client.get(YOUNG).json()} == {"r.c", "own"}
        for run_id, status in (("r.c", "PAUSED"), ("own", "COMPLETED")):
            assert live.client.get(f"{YOUNG}/{run_id}").json()["status"] == status
        assert old.runtime is not young.runtime
        assert live.post(f"{YOUNG}/r.c/cancel", wait="5").json()["status"] == "CANCELLED"


def test_one_on_a_runtime_of_its_own_is_not_known() -> None:
    with asking(runtime=Runtime()) as live:
        assert [line["run_id"] for line in live.client.get("/runs").json()] == ["r"]
        assert live.client.get(f"{YOUNG}/r.c").status_code == 404


def test_two_of_the_same_id_can_be_watched_but_not_answered() -> None:
    """Whose tools are to go on nobody could tell; the run that called it can."""
    tills = Till(), Till()
    youngs = [Agent("Young", ScriptedModel(DELETE), tools=till.tools) for till in tills]
    tools = [youngs[0].as_tool("one"), youngs[1].as_tool("two")]
    old = Agent("Old", ScriptedModel(Call("two", {"prompt": "look"}, id="c"), then="So."), tools=tools)
    with serving(old) as live:
        (question,) = start(live)["interrupts"]
        (own,) = live.client.get(f"{YOUNG}/r.c").json()["interrupts"]
        answer = live.client.post(f"{YOUNG}/r.c/continue", json={"answers": {own["id"]: True}, "stream": False})
        assert answer.status_code == 409
        assert "several agents here have the id 'young'" in answer.json()["detail"]
        answer = live.client.post(f"{OLD}/r/continue", json={"answers": {question["id"]: True}, "stream": False})
        assert answer.json()["status"] == "COMPLETED"
    assert (tills[0].did, tills[1].did) == ([], ["all"])


@pytest.mark.parametrize("name", ["ada", "bob"])
def test_whose_they_are(name: str) -> None:
    old, _ = family(Till())
    with guarded(old) as live, client_of(live, "ada") as ada, client_of(live, name) as asking:
        answer = ada.post(OLD, data={"message": "go", "run_id": "r", "stream": "false"})
        assert answer.json()["status"] == RunStatus.paused.value
        expected = 200 if name == "ada" else 404
        assert asking.get(f"{YOUNG}/r.c").status_code == expected
        assert asking.get(f"{YOUNG}/r.c/events").status_code == expected
        assert [line["run_id"] for line in asking.get(YOUNG).json()] == (["r.c"] if name == "ada" else [])
        assert asking.post(f"{YOUNG}/r.c/cancel").status_code == expected
