# SPDX-License-Identifier: Apache-2.0
"""Cancelling over HTTP: one run, in any state, with or without waiting, and many at once."""

from __future__ import annotations

from typing import Any

import pytest

from andon import Agent, ModelError, RunStatus, Runtime, tool
from andon.models.scripted import Call, Fail, ScriptedModel, Stall
from andon.testing import probe
from tests.server.live import Live, serving
from tests.support import Flag, Hold, Reach, Silence, eventually, forever

RUNS = "/agents/helper/runs"


def helper(*turns: Any, **options: Any) -> Agent:
    return Agent("Helper", ScriptedModel(*turns, then=Stall()), **options)


def begin(live: Live, run_id: str, path: str = RUNS, **fields: Any) -> None:
    answer = live.post(path, message="Hi", run_id=run_id, background="true", stream="false", **fields)
    assert answer.status_code == 202, answer.text


def test_a_cancel_says_what_it_did() -> None:
    agent = helper()
    with serving(agent) as live:
        begin(live, "r1")
        first = live.client.post(f"{RUNS}/r1/cancel")
        assert first.status_code == 200
        body = first.json()
        assert (body["run_id"], body["outcome"]) == ("r1", "requested")
        assert body["status"] in ("CANCELLING", "CANCELLED")
        assert probe(live.run_of(agent, "r1")).settled_blocking(60)
        again = live.client.post(f"{RUNS}/r1/cancel")
        assert again.status_code == 200
        assert again.json() == {"run_id": "r1", "outcome": "already_finished", "status": "CANCELLED"}


def test_who_waits_gets_the_receipt() -> None:
    silence = Silence()
    with serving(helper(silence)) as live:
        begin(live, "r1")
        silence.reached.wait()
        answer = live.client.post(f"{RUNS}/r1/cancel?wait=30", json={"reason": "enough", "by": "ada"}).json()
        assert (answer["outcome"], answer["status"]) == ("requested", "CANCELLED")
        receipt = answer["receipt"]
        assert (receipt["cause"], receipt["reason"], receipt["by"]) == ("user", "enough", "ada")
        assert (receipt["phase"], receipt["leftovers"]) == ("waiting", [])
        assert live.client.get(f"{RUNS}/r1").json()["receipt"] == receipt
        # For one that was cancelled before, it is the same one.
        assert live.client.post(f"{RUNS}/r1/cancel", data={"wait": "30"}).json()["receipt"] == receipt


def test_what_is_not_gone_is_named() -> None:
    reached, go = Flag(), Flag()

    @tool
    async def stubborn() -> str:
        """Take the cancel, and stay a while."""
        reached.set()
        try:
            await forever()
        finally:
            await go.arrived()

    with serving(helper(Call("stubborn"), tools=[stubborn])) as live:
        begin(live, "r1")
        reached.wait()
        answer = live.client.post(f"{RUNS}/r1/cancel?wait=0.01").json()
        assert (answer["outcome"], answer["status"]) == ("requested", "CANCELLING")
        assert "stubborn" in str(answer["receipt"]["leftovers"])
        go.set()
        answer = live.client.post(f"{RUNS}/r1/cancel?wait=30").json()
        assert (answer["status"], answer["receipt"]["leftovers"]) == ("CANCELLED", [])


def test_modes_are_kept_also_by_those_who_wait() -> None:
    reached, go = Flag(), Flag()

    @tool
    async def work() -> str:
        """Do something."""
        reached.set()
        await go.arrived()
        return "done"

    agent = helper(Call("work"), tools=[work])
    with serving(agent) as live:
        begin(live, "r1")
        reached.wait()
        asked = live.client.post(f"{RUNS}/r1/cancel?mode=after_tools&wait=0").json()
        assert asked["status"] == "CANCELLING"
        go.set()
        receipt = live.client.post(f"{RUNS}/r1/cancel?mode=after_tools&wait=30").json()["receipt"]
        assert [each["outcome"] for each in receipt["tools"]] == ["completed"]


@pytest.mark.parametrize(
    ("turn", "status", "word"), [("Hello!", "COMPLETED", "completed"), (Fail(ModelError("no")), "ERROR", "failed")]
)
def test_what_had_ended_otherwise_is_a_conflict(turn: Any, status: str, word: str) -> None:
    with serving(helper(turn)) as live:
        live.post(RUNS, message="Hi", run_id="r1", stream="false")
        for path in (f"{RUNS}/r1/cancel", f"{RUNS}/r1/cancel?wait=1"):
            answer = live.client.post(path)
            assert answer.status_code == 409
            body = answer.json()
            assert (body["run_id"], body["outcome"], body["status"]) == ("r1", "already_finished", status)
            assert word in body["detail"]


def test_a_run_that_is_about_to_end_is_a_conflict_too() -> None:
    """Its fate is decided and its end is not written yet."""
    reached, go = Flag(), Flag()

    class SlowStore:
        def __init__(self, agent: Agent) -> None:
            self.inner: Any = agent.runtime.store

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        async def save(self, record: Any, messages: Any) -> None:
            reached.set()
            await go.arrived()
            await self.inner.save(record, messages)

    agent = helper("Hello!")
    agent.runtime.store = SlowStore(agent)
    with serving(agent) as live:
        begin(live, "r1")
        reached.wait()
        assert live.run_of(agent, "r1").cancel() == "already_finished"
        go.set()
        answer = live.client.post(f"{RUNS}/r1/cancel")
        assert (answer.status_code, answer.json()["status"]) == (409, "COMPLETED")


def test_the_unknown_is_not_found_and_leaves_nothing() -> None:
    agent = helper("Hello!")
    with serving(agent) as live:
        for path in (f"{RUNS}/nope/cancel", "/agents/nobody/runs/r1/cancel"):
            answer = live.client.post(path)
            assert answer.status_code == 404
            assert "detail" in answer.json()
        # It is not armed: a run of that id, and the agent's next one, go their way.
        assert live.post(RUNS, message="Hi", run_id="nope", stream="false").json()["content"] == "Hello!"


def test_a_run_is_found_under_its_own_agent_only() -> None:
    runtime = Runtime()
    helper_, other = helper(), Agent("Other", ScriptedModel())
    with serving(helper_, other, runtime=runtime) as live:
        assert helper_.runtime is other.runtime is runtime
        begin(live, "r1")
        for method, path in (("POST", "cancel"), ("POST", "resume"), ("GET", "events"), ("GET", "")):
            answer = live.client.request(method, f"/agents/other/runs/r1/{path}".rstrip("/"))
            assert answer.status_code == 404, path
        assert live.client.get(f"{RUNS}/r1").json()["status"] in ("PENDING", "RUNNING")
        live.client.post(f"{RUNS}/r1/cancel?wait=30")


def test_a_queued_run_is_cancelled_and_the_one_ahead_is_not() -> None:
    agent = helper()
    with serving(agent) as live:
        begin(live, "r1", session_id="s1")
        begin(live, "r2", session_id="s1", on_busy="queue")
        answer = live.client.post(f"{RUNS}/r2/cancel?wait=30").json()
        assert (answer["status"], answer["receipt"]["phase"]) == ("CANCELLED", "queued")
        assert live.run_of(agent, "r1").status is RunStatus.running


# -- many -------------------------------------------------------------------------------------------------------------


def crowd(live: Live) -> None:
    begin(live, "r1", session_id="s1", user_id="ada")
    begin(live, "r2", session_id="s2", user_id="ada")
    begin(live, "r3", session_id="s1", user_id="bob")
    begin(live, "r4", "/agents/other/runs", session_id="s1", user_id="ada")


@pytest.mark.parametrize(
    ("asked", "hit"),
    [
        ({"session_id": "s1"}, {"r1", "r3", "r4"}),
        ({"user_id": "ada"}, {"r1", "r2", "r4"}),
        ({"agent_id": "other"}, {"r4"}),
        ({"agent_id": "helper", "user_id": "ada", "session_id": "s2"}, {"r2"}),
        ({"all": True}, {"r1", "r2", "r3", "r4"}),
        ({"session_id": "nowhere"}, set()),
    ],
)
def test_many_are_cancelled_by_what_they_have_in_common(asked: dict[str, Any], hit: set[str]) -> None:
    agents = helper(), Agent("Other", ScriptedModel(then=Stall()))
    with serving(*agents) as live:
        crowd(live)
        answer = live.client.post("/runs/cancel", json=asked | {"reason": "closing time"})
        assert answer.status_code == 200
        found = {each["run_id"]: each for each in answer.json()["cancelled"]}
        assert {run_id: each["outcome"] for run_id, each in found.items()} == dict.fromkeys(hit, "requested")
        assert {each["status"] for each in found.values()} <= {"CANCELLING", "CANCELLED"}
        assert not any("receipt" in each for each in found.values())
        left = {"r1", "r2", "r3", "r4"} - hit
        eventually(lambda: {run.run_id for agent in agents for run in agent.runtime.runs} == left)
        receipts = [probe(run).result.receipt for agent in agents for run in agent.runtime.ended]
        assert [each.reason for each in receipts if each] == ["closing time"] * len(hit)


def test_who_waits_for_many_gets_all_their_receipts() -> None:
    reached, go = Flag(), Flag()

    @tool
    async def stubborn() -> str:
        """Take the cancel, and stay a while."""
        reached.set()
        try:
            await forever()
        finally:
            await go.arrived()

    silence = Silence()
    agents = helper(Call("stubborn"), tools=[stubborn]), Agent("Other", ScriptedModel(silence))
    with serving(*agents) as live:
        begin(live, "r1", session_id="s1")
        begin(live, "r2", "/agents/other/runs", session_id="s1")
        reached.wait()
        silence.reached.wait()
        asked = live.client.post("/runs/cancel?wait=0.01", json={"session_id": "s1", "reason": "enough"}).json()
        first, _ = asked["cancelled"]
        assert (first["agent_id"], first["run_id"], first["status"]) == ("helper", "r1", "CANCELLING")
        assert "stubborn" in str(first["receipt"]["leftovers"])
        go.set()
        again = live.client.post("/runs/cancel", data={"all": "true", "wait": "30"}).json()["cancelled"]
        assert all((each["status"], each["receipt"]["leftovers"]) == ("CANCELLED", []) for each in again)
        assert live.client.get(f"{RUNS}/r1").json()["receipt"]["reason"] == "enough"
        assert live.client.post("/runs/cancel?wait=-1&all=true").status_code == 422


def test_two_agents_may_have_runs_of_one_id_where_each_has_a_runtime_of_its_own() -> None:
    agents = helper(), Agent("Other", ScriptedModel(then=Stall()))
    with serving(*agents) as live:
        begin(live, "r1")
        begin(live, "r1", "/agents/other/runs")

        def both(listed: list[dict[str, Any]]) -> set[tuple[str, str]]:
            return {(each["agent_id"], each["run_id"]) for each in listed}

        assert both(live.client.get("/runs").json()) == {("helper", "r1"), ("other", "r1")}
        cancelled = live.client.post("/runs/cancel?wait=30", json={"all": True}).json()["cancelled"]
        assert both(cancelled) == {("helper", "r1"), ("other", "r1")}
        assert [each["status"] for each in cancelled] == ["CANCELLED", "CANCELLED"]


@pytest.mark.parametrize("asked", [{}, {"session_id": ""}, {"all": "false"}, {"reason": "all of them"}])
def test_many_must_be_named(asked: dict[str, str]) -> None:
    agent = helper()
    with serving(agent) as live:
        begin(live, "r1")
        assert live.client.post("/runs/cancel", data=asked).status_code == 400
        assert live.client.post("/runs/cancel", data={"agent_id": "nobody"}).status_code == 404
        assert not probe(live.run_of(agent, "r1")).is_cancelling


def test_superseding_ends_the_older_run_for_its_reader() -> None:
    reached, go = Flag(), Flag()
    agent = helper([Reach(reached), Stall()], [Hold(go), "New."])
    with serving(agent) as live, live.stream(RUNS, message="Hi", session_id="s1") as older:
        reached.wait()
        begin(live, "r2", session_id="s1", on_busy="cancel")
        last = list(older)[-1].data
        assert (last["event"], last["receipt"]["cause"]) == ("RunCancelled", "superseded")
        go.set()
        with live.watch(f"{RUNS}/r2/events") as newer:
            assert list(newer)[-1].data["content"] == "New."


@pytest.mark.parametrize("path", ["one", "many", "call"])
def test_force_cuts_what_a_cancel_lets_finish(path: str) -> None:
    at_work = Flag()

    @tool(on_cancel="finish", finish_within=600)
    async def send() -> str:
        """Send it."""
        at_work.set()
        await forever()

    with serving(helper(Call("send", id="s"), tools=[send])) as live:
        begin(live, "r1", session_id="s1")
        at_work.wait()
        assert live.client.post(f"{RUNS}/r1/cancel?wait=0.01").json()["status"] == "CANCELLING"
        if path == "one":
            answer = live.client.post(f"{RUNS}/r1/cancel?wait=30", json={"force": True}).json()
        elif path == "many":
            body = {"session_id": "s1", "force": True, "wait": 30}
            [answer] = live.client.post("/runs/cancel", json=body).json()["cancelled"]
        else:
            live.client.post(f"{RUNS}/r1/tools/s/cancel", json={"force": True})
            answer = live.client.post(f"{RUNS}/r1/cancel?wait=30").json()
        assert answer["status"] == "CANCELLED"
        assert [call["outcome"] for call in answer["receipt"]["tools"]] == ["cut"]


def test_force_with_a_mode_is_refused() -> None:
    with serving(helper()) as live:
        begin(live, "r1")
        answer = live.client.post(f"{RUNS}/r1/cancel", json={"force": True, "mode": "after_tools"})
        assert (answer.status_code, "force" in answer.json()["detail"]) == (422, True)


def test_a_call_that_is_let_finish_and_one_that_is_undone_are_told() -> None:
    at_work, go = Flag(), Flag()

    async def undo() -> None: ...

    @tool(on_cancel="finish")
    async def send() -> str:
        """Send it."""
        await go.arrived()
        return "sent"

    @tool(on_cancel=undo)
    async def pay() -> str:
        """Pay it."""
        at_work.set()
        await forever()

    with serving(helper([Call("send", id="s"), Call("pay", id="p")], tools=[send, pay])) as live:
        with live.stream(RUNS, message="Hi", run_id="r1", events="all") as stream:
            at_work.wait()
            live.client.post(f"{RUNS}/r1/cancel")
            go.set()
            frames = list(stream)
        assert [frame.data["tool"]["tool_call_id"] for frame in frames if frame.event == "ToolUndoStarted"] == ["p"]
        sent, paid = live.client.get(f"{RUNS}/r1").json()["receipt"]["tools"]
        assert (sent["outcome"], sent["let_finish"], paid["outcome"]) == ("completed", True, "compensated")
