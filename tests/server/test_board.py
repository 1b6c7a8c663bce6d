# SPDX-License-Identifier: Apache-2.0
"""What feeds the board: the stream of lines, the tree of a run, and the counts of the last hours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from andon import Agent, Runtime, Usage, tool
from andon.errors import StoreError
from andon.models.scripted import Call, ScriptedModel, Spend, Stall
from andon.server.board import feed as feed_module
from andon.server.board import stream as stream_module
from andon.store.sql import SQLStore
from tests.server.boards import BoardReader, board_of
from tests.server.live import Live, serving
from tests.server.people import client_of, guarded
from tests.support import Do, eventually, forever
from tests.support.till import DELETE, Till

RUNS = "/agents/helper/runs"
BACKGROUND = {"background": "true", "stream": "false"}


@tool
async def slow() -> str:
    await forever()


@tool
async def quick() -> str:
    return "done"


def start(client: httpx.Client, run_id: str, path: str = RUNS, **fields: str) -> None:
    answer = client.post(path, data={"message": "Hi", "run_id": run_id, **BACKGROUND, **fields})
    assert answer.status_code == 202, answer.text


def cancel(client: httpx.Client, run_id: str, path: str = RUNS) -> dict[str, Any]:
    answer = client.post(f"{path}/{run_id}/cancel", params={"wait": 30}, data={"reason": "enough"})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


@pytest.fixture(autouse=True)
def no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that don't end after a while, but where that is tested."""
    monkeypatch.setattr(stream_module, "LONGEST", 3600.0)


# -- one server -------------------------------------------------------------------------------------------------------


def test_it_shows_what_each_run_does_and_how_it_ended() -> None:
    agent = Agent(
        "Helper", ScriptedModel(["I look. ", Call("slow", id="c1"), Call("quick", id="c2")]), tools=[slow, quick]
    )
    with serving(agent) as live, board_of(live.client) as board:
        assert board.hello["admin"] is True
        assert board.hello["agents"] == [{"id": "helper", "name": "Helper", "description": None}]
        assert board.lines == {}
        before = time.time()
        start(live.client, "r", session_id="s", user_id="ada")
        line = board.shows("r", doing="in slow")
        assert (line["status"], line["session_id"], line["user_id"]) == ("RUNNING", "s", "ada")
        assert line["server"] == board.hello["server"]
        assert [(call["call_id"], call["name"]) for call in line["calls"]] == [("c1", "slow")]
        assert (line["tokens"], line["estimated"]) == (2, True)
        assert before <= line["created_at"] <= line["calls"][0]["since"] == line["since"] <= time.time()
        receipt = cancel(live.client, "r")["receipt"]
        line = board.shows("r", status="CANCELLED")
        assert (line["cause"], line["reason"], line["latency"]) == ("user", "enough", receipt["latency"])
        assert line["cut"] == [{"name": "slow", "outcome": "cut"}]
        assert line["created_at"] < line["ended_at"] <= time.time()
        assert "doing" not in line


def test_it_says_what_a_run_waits_for() -> None:
    agent = Agent("Helper", ScriptedModel([Stall()], [Stall()]))
    with serving(agent) as live, board_of(live.client) as board:
        client = live.client
        start(client, "first", session_id="s")
        assert board.shows("first", doing="waiting for the first token").get("tokens", 0) == 0
        start(client, "second", session_id="s", on_busy="queue")
        board.shows("second", doing="waiting for the runs ahead in its session", status="PENDING")
        for run_id in ("second", "first"):
            cancel(client, run_id)
            board.shows(run_id, status="CANCELLED")


def test_a_board_that_is_opened_later_gets_all_that_is_there() -> None:
    agent = Agent("Helper", ScriptedModel("Hello.", ["One. ", Stall()]))
    with serving(agent) as live:
        live.post(RUNS, message="Hi", run_id="over", stream="false")
        start(live.client, "going")
        for _ in range(2):  # the second time after nobody has looked
            with board_of(live.client) as board:
                board.shows("going", doing="writing", tokens=2)
                assert board.shows("over", status="COMPLETED").get("cause") is None
                assert board.resets == 1
        cancel(live.client, "going")


def test_it_shows_what_a_run_asks() -> None:
    agent = Agent("Helper", ScriptedModel(DELETE, then="Done."), tools=Till().tools)
    with serving(agent) as live, board_of(live.client) as board:
        start(live.client, "r")
        line = board.shows("r", status="PAUSED", doing="asks a person: delete")
        (question,) = line["asks"]
        (asked,) = live.client.get("/board/runs/helper/r").json()["questions"]
        assert (asked["id"], asked["name"], asked["approval"]) == (question["id"], "delete", True)
        answer = live.client.post(
            f"{RUNS}/r/continue", json={"answers": {question["id"]: True}, "background": True, "stream": False}
        )
        assert answer.status_code == 202, answer.text
        assert "asks" not in board.shows("r", status="COMPLETED")
        assert live.client.get("/board/runs/helper/r").json()["questions"] == []


def test_a_user_sees_no_line_of_another_user() -> None:
    agent = Agent("Helper", ScriptedModel(then=[Stall()]))
    with guarded(agent) as live, client_of(live, "ada") as ada, client_of(live, "root") as root:
        assert live.client.get("/board/events").status_code == 401
        with client_of(live, "ada") as hers, board_of(hers) as board, board_of(root) as all_of_it:
            assert (board.hello["admin"], board.hello["user_id"]) == (False, "ada")
            with client_of(live, "bob") as bob:
                start(bob, "his")
                start(ada, "hers")
                all_of_it.shows("his", status="RUNNING")
                board.shows("hers", status="RUNNING")
                cancel(bob, "his")
                all_of_it.shows("his", status="CANCELLED")
                assert bob.get("/board/runs/helper/his").json()["runs"][0]["run_id"] == "his"
                assert sum(bob.get("/board/history").json()["started"]) == 1
            cancel(ada, "hers")
            board.shows("hers", status="CANCELLED")
            assert {line["run_id"] for line in board.seen} == {"hers"}
        assert ada.get("/board/runs/helper/his").status_code == 404
        assert sum(ada.get("/board/history").json()["started"]) == 1
        with client_of(live, "ada") as again, board_of(again) as board:
            assert {line["run_id"] for line in board.seen} == {"hers"}


def test_a_stream_ends_after_a_while_and_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "LONGEST", 2.0)
    agent = Agent("Helper", ScriptedModel(then=[Stall()]))
    with serving(agent) as live:
        start(live.client, "r1")
        with board_of(live.client) as board:
            while board.read():
                pass
            assert (board.resets, [line["run_id"] for line in board.seen]) == (1, ["r1"])
        monkeypatch.undo()  # the next ones are left before they end
        start(live.client, "r2")
        with board_of(live.client, board.last_id) as again:
            assert (again.resets, [line["run_id"] for line in again.seen]) == (0, ["r2"])
        for unknown in ("nothing", "00000000-1", f"{board.last_id}0", board.last_id.replace("-", "-9")):
            with board_of(live.client, unknown) as other:
                assert (other.resets, len(other.lines)) == (1, 2)
        live.post("/runs/cancel", all="true", wait="30")


def test_a_board_that_was_too_far_behind_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "AT_REST", 1)
    agent = Agent("Helper", ScriptedModel(then="Hello."))
    with serving(agent) as live, board_of(live.client) as board:
        first = board.last_id
        for number in range(4):
            live.post(RUNS, message="Hi", run_id=f"r{number}", stream="false")
            board.shows(f"r{number}", status="COMPLETED")
        with board_of(live.client, board.last_id.rpartition("-")[0] + "-" + first.rpartition("-")[2]) as late:
            assert (late.resets, len(late.lines)) == (1, 4)


def test_so_many_runs_that_not_all_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MOST_LINES", 2)
    agent = Agent("Helper", ScriptedModel(then=[Stall()]))
    with serving(agent) as live:
        for number in range(5):
            start(live.client, f"r{number}")
        with board_of(live.client) as board:
            assert [line["run_id"] for line in board.seen] == ["r4", "r3"]
            assert board.more == 3
        live.post("/runs/cancel", all="true", wait="30")


def test_at_a_shutdown_it_shows_the_ends_and_is_over() -> None:
    agent = Agent("Helper", ScriptedModel([Stall()]))
    with serving(agent) as live, board_of(live.client) as board:
        start(live.client, "r")
        board.shows("r", status="RUNNING")
        host = live.app.state.andon
        asyncio.run(host.shut_down(0))
        board.shows("r", status="CANCELLED", cause="shutdown")
        assert board.read() == ""
        host.draining = False


def test_nothing_is_looked_at_while_no_board_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent("Helper", ScriptedModel(then=[Stall()]))
    with serving(agent) as live:
        feed = live.app.state.board.feed
        monkeypatch.setattr(feed_module, "LINGER_SECONDS", 0.0)
        start(live.client, "r")
        with board_of(live.client) as board:
            board.shows("r", status="RUNNING")
            assert len(feed.live) == 1
        eventually(lambda: feed.live == [])
        cancel(live.client, "r")


# -- several servers --------------------------------------------------------------------------------------------------


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Live, Live]]:
    """Two servers on one database, each with the same agents."""
    runtimes = [Runtime(SQLStore(f"sqlite:///{tmp_path}/andon.db")) for _ in range(2)]
    first, second = (
        Agent(
            "Helper",
            ScriptedModel(["Once. ", Call("slow", id="c1")], then=["Again. ", Stall()]),
            tools=[slow],
            runtime=each,
        )
        for each in runtimes
    )
    with serving(first) as here, serving(second) as there:
        yield here, there
    for runtime in runtimes:
        asyncio.run(runtime.close())


def test_it_shows_the_runs_of_other_servers(servers: tuple[Live, Live]) -> None:
    here, there = servers
    start(here.client, "early")
    with board_of(there.client) as board:
        line = board.shows("early", doing="in slow")
        assert (line["server"], line["tokens"]) == (board.hello["server"], 2)  # both are in this process
        assert [call["call_id"] for call in line["calls"]] == ["c1"]
        start(here.client, "late")
        board.shows("late", doing="writing", tokens=2)
        with board_of(here.client) as other:
            for run_id in ("early", "late"):
                assert cancel(there.client, run_id)["status"] == "CANCELLED"
                for each in (board, other):
                    ended = each.shows(run_id, status="CANCELLED", cause="user", reason="enough")
                    assert ended["latency"] > 0
            assert other.line("early") is not None
        assert board.line("early")["cut"] == [{"name": "slow", "outcome": "cut"}]  # type: ignore[index]
    with board_of(there.client) as later:
        assert later.shows("early", status="CANCELLED")
    assert sum(there.client.get("/board/history").json()["causes"]["user"]) == 2


def test_a_store_that_is_away_is_tried_again(servers: tuple[Live, Live], monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = servers
    store = there.app.state.andon.runtimes[0].store
    failures = iter([StoreError("away"), StoreError("away")])
    real = store.live_runs

    async def live_runs(limit: int) -> Any:
        for failure in failures:
            raise failure
        return await real(limit)

    monkeypatch.setattr(store, "live_runs", live_runs)
    start(here.client, "r")
    with board_of(there.client) as board:
        board.shows("r", doing="in slow")
    cancel(here.client, "r")


# -- the tree ---------------------------------------------------------------------------------------------------------


def family(*, runtime: Runtime | None = None) -> Agent:
    deepest = Agent("Deepest", ScriptedModel(["Hm. ", Stall()]), runtime=runtime)
    young = Agent("Young", ScriptedModel(Call("deepest", {"prompt": "dig"}, id="d")), tools=[deepest.as_tool()])
    return Agent(
        "Old", ScriptedModel(Call("young", {"prompt": "look"}, id="c")), tools=[young.as_tool()], runtime=runtime
    )


def check_family(live: Live, board: BoardReader) -> None:
    start(live.client, "r", "/agents/old/runs")
    board.shows("r.c.d", doing="writing", parent_run_id="r.c")

    def tree(agent_id: str, run_id: str) -> list[tuple[str, str | None, str]]:
        told = live.client.get(f"/board/runs/{agent_id}/{run_id}").json()
        return [(line["run_id"], line.get("parent_run_id"), line["status"]) for line in told["runs"]]

    whole = [("r", None), ("r.c", "r"), ("r.c.d", "r.c")]
    assert tree("old", "r") == [(*each, "RUNNING") for each in whole]
    assert tree("young", "r.c") == [(*each, "RUNNING") for each in whole[1:]]
    cancel(live.client, "r", "/agents/old/runs")
    board.shows("r.c.d", status="CANCELLED", cause="parent")
    board.shows("r", status="CANCELLED", cause="user")
    assert tree("old", "r") == [(*each, "CANCELLED") for each in whole]
    assert live.client.get("/board/runs/old/nothing").status_code == 404


def test_the_runs_inside_a_run() -> None:
    with serving(family()) as live, board_of(live.client) as board:
        check_family(live, board)


def test_the_runs_inside_a_run_on_a_database(tmp_path: Path) -> None:
    runtime = Runtime(SQLStore(f"sqlite:///{tmp_path}/andon.db"))
    with serving(family(), runtime=runtime) as live, board_of(live.client) as board:
        check_family(live, board)
    asyncio.run(runtime.close())


# -- the counts -------------------------------------------------------------------------------------------------------


def test_the_counts_of_the_last_hours() -> None:
    agent = Agent("Helper", ScriptedModel(["Hello.", Spend(Usage(10, 5))], [Do(_fail)], then=[Stall()]))
    with serving(agent) as live:
        live.post(RUNS, message="Hi", stream="false")
        live.post(RUNS, message="Hi", stream="false")
        for number in range(3):
            start(live.client, f"r{number}")
            cancel(live.client, f"r{number}")
        told = live.client.get("/board/history", params={"hours": 2}).json()
        assert told["step"] == 120
        assert {len(told["started"]), len(told["tokens"]), *map(len, told["ended"].values())} == {60}
        assert told["from"] <= told["complete_from"] <= told["now"]
        assert sum(told["started"]) == 5
        ends = {"COMPLETED": 1, "ERROR": 1, "CANCELLED": 3}
        assert {end: sum(counts) for end, counts in told["ended"].items()} == ends
        assert {cause: sum(counts) for cause, counts in told["causes"].items()} == {"user": 3}
        assert sum(told["tokens"]) == 5
        latency = told["latency"]
        assert sum(latency["counts"]) == latency["count"] == 3
        assert len(latency["counts"]) == len(latency["bounds"]) + 1
        assert 0 < latency["p50"] <= latency["p99"] < 30


def _fail() -> None:
    raise RuntimeError("broken")


@pytest.mark.parametrize("hours", ["0", "7", "many"])
def test_hours_that_are_not_kept(hours: str) -> None:
    with serving(Agent("Helper", ScriptedModel("Hi."))) as live:
        answer = live.client.get("/board/history", params={"hours": hours})
        assert answer.status_code == 422
        assert "hours" in answer.json()["detail"]


# -- taking a run back ------------------------------------------------------------------------------------------------


def test_a_run_is_taken_back_out_of_its_session() -> None:
    agent = Agent("Helper", ScriptedModel("One.", ["Two. ", Stall()], then="Three."))
    with guarded(agent) as live, client_of(live, "ada") as ada, client_of(live, "bob") as bob:
        ada.post(RUNS, data={"message": "First", "session_id": "s", "run_id": "first", "stream": "false"})
        start(ada, "second", session_id="s")
        refused = ada.post(f"{RUNS}/second/rollback")
        assert refused.status_code == 409
        assert "cancel it" in refused.json()["detail"]
        cancel(ada, "second")
        assert bob.post(f"{RUNS}/second/rollback").status_code == 404
        answer = ada.post(f"{RUNS}/second/rollback")
        assert answer.json() == {"run_id": "second", "session_id": "s", "rolled_back": True}
        assert answer.headers["andon-run-id"] == "second"
        said = ada.get("/agents/helper/sessions/s").json()["messages"]
        assert [message["role"] for message in said] == ["user", "assistant"]
        assert ada.get(f"{RUNS}/second").json()["status"] == "CANCELLED"
        assert ada.post(f"{RUNS}/nothing/rollback").status_code == 404
