# SPDX-License-Identifier: Apache-2.0
"""The board and what other servers, other runtimes and other versions do."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from andon import Agent, Runtime
from andon.core.events import Event, RunEvent
from andon.core.process_name import process_name
from andon.core.records import RunRecord, SessionKey
from andon.core.shared.overview import StoredRun
from andon.core.states import RunStatus
from andon.models.scripted import ScriptedModel, Stall, Turn
from andon.server.board import elsewhere as elsewhere_module
from andon.server.board import stream as stream_module
from andon.server.board.elsewhere import Elsewhere, RemoteLine
from andon.server.board.history import KEPT, History
from andon.server.board.lines import Activity, Line, RunHead, live_line
from andon.store.sql import SQLStore
from tests.server.boards import board_of
from tests.server.live import Live, serving
from tests.server.people import client_of, guarded
from tests.support.till import DELETE, Till

RUNS = "/agents/helper/runs"
BACKGROUND = {"message": "Hi", "background": True, "stream": False}


@pytest.fixture(autouse=True)
def no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "LONGEST", 3600.0)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "andon.db"


@pytest.fixture
def servers(place: Path) -> Iterator[tuple[Live, Live]]:
    runtimes = [Runtime(SQLStore(f"sqlite:///{place}")) for _ in range(2)]
    asks: Turn = DELETE
    stays: Turn = ["Once. ", Stall()]
    first, second = (
        Agent("Helper", ScriptedModel(asks, then=stays), tools=Till().tools, runtime=each) for each in runtimes
    )
    with serving(first) as here, serving(second) as there:
        yield here, there
        here.post("/runs/cancel", all="true", wait="30")
    for runtime in runtimes:
        asyncio.run(runtime.close())


def test_a_run_that_is_answered_on_another_server_stays_on_the_board(servers: tuple[Live, Live]) -> None:
    here, there = servers
    here.client.post(RUNS, json={**BACKGROUND, "run_id": "r"})
    with board_of(here.client) as board:
        (question,) = board.shows("r", status="PAUSED")["asks"]
        there.client.post(RUNS, json={**BACKGROUND, "run_id": "first"})  # its model's first turn
        answer = {"answers": {question["id"]: True}, "background": True, "stream": False}
        assert there.client.post(f"{RUNS}/r/continue", json=answer).status_code == 202
        line = board.shows("r", status="RUNNING", doing="writing")
        assert line["server"] == process_name(), "a claim has a name too"
        assert there.client.post(f"{RUNS}/r/cancel?wait=30").status_code == 200
        board.shows("r", status="CANCELLED")


def test_what_another_version_has_written_hides_nothing_else(servers: tuple[Live, Live], place: Path) -> None:
    here, there = servers
    for run_id in ("odd", "plain"):
        here.client.post(RUNS, json={**BACKGROUND, "run_id": run_id})
        assert here.client.post(f"{RUNS}/{run_id}/cancel?wait=30").status_code == 200
    with closing(sqlite3.connect(place)) as database, database:
        numbers = "SELECT number FROM andon_runs WHERE run_id = 'odd'"
        database.execute(f"""UPDATE andon_records SET record = '{{"receipt": 7}}' WHERE number IN ({numbers})""")
    with board_of(there.client) as board:
        board.shows("plain", status="CANCELLED")
        assert board.line("odd") is None


def test_runs_of_one_id_on_two_runtimes_are_told_apart() -> None:
    agents = [Agent(name, ScriptedModel(then=["Once. ", Stall()])) for name in ("First", "Second")]
    with guarded(*agents) as live, client_of(live, "ada") as ada, client_of(live, "bob") as bob:
        for client, agent in ((ada, "first"), (bob, "second")):
            assert client.post(f"/agents/{agent}/runs", json={**BACKGROUND, "run_id": "r"}).status_code == 202
        assert ada.post("/agents/first/runs/r/cancel?wait=30", json={"reason": "Ada's secret"}).status_code == 200
        told = bob.get("/board/runs/second/r")
        assert [(line["agent_id"], line["user_id"]) for line in told.json()["runs"]] == [("second", "bob")]
        assert "Ada's secret" not in told.text
        (line,) = ada.get("/board/runs/first/r").json()["runs"]
        assert (line["agent_id"], line["reason"]) == ("first", "Ada's secret")
        with board_of(bob) as board:
            assert board.shows("r", status="RUNNING")["agent_id"] == "second"
        bob.post("/agents/second/runs/r/cancel?wait=30")


def test_no_run_waits_for_ever_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these runs has new events all the time. In turn, all of them are read."""
    monkeypatch.setattr(elsewhere_module, "RUNS_AT_ONCE", 5)
    monkeypatch.setattr(elsewhere_module, "EVENTS_AT_ONCE", 1)
    read: list[str] = []

    class Busy:
        async def new_events(self, after: Mapping[str, int], limit: int) -> Mapping[str, list[Event]]:
            read.extend(after)
            return {
                run_id: [Event(RunEvent.run_content, run_id, "s", "a", seq + 1, 0.0, "word")]
                for run_id, seq in after.items()
            }

    nothing: Any = None
    elsewhere = Elsewhere(nothing, nothing, nothing, nothing)
    records = [RunRecord(f"r{n}", SessionKey("a", None, "s"), RunStatus.running, 0.0, {}) for n in range(20)]
    lines = {record.run_id: RemoteLine(StoredRun(record, "o", None)) for record in records}
    elsewhere._hear([*lines])
    store: Any = Busy()
    for _ in range(8):
        asyncio.run(elsewhere._read_events(store, lines, set()))
    assert {run_id: read.count(run_id) for run_id in lines} == dict.fromkeys(lines, 2)


def test_the_history_says_from_when_it_is_complete() -> None:
    history = History(lambda: ["a"], "here")
    now = time.time()
    history.begins = now - 20_000
    history.add(
        Line(f"r{n}", "a", "s", RunStatus.completed, now - 20_000 + n, ended_at=now - 20_000 + n)
        for n in range(KEPT + 100)
    )
    assert len(history.lines) == KEPT
    assert history.begins == now - 20_000 + 100


def test_a_shutdown_waits_for_no_paused_run_that_stays(servers: tuple[Live, Live]) -> None:
    here, _ = servers
    here.client.post(RUNS, json={**BACKGROUND, "run_id": "r"})
    host = here.app.state.andon
    with board_of(here.client) as board:
        board.shows("r", status="PAUSED")
        host.draining = True
        while board.read():
            pass
        host.draining = False


def test_a_run_that_no_process_holds_waits_for_its_turn() -> None:
    head = RunHead("r", SessionKey("helper", None, "s"), 1.0)
    told = {
        (status, server): live_line(head, status, Activity(), server).doing
        for status in (RunStatus.pending, RunStatus.cancelling)
        for server in ("a:1", None)
    }
    assert told.pop((RunStatus.pending, None)) == "waiting for its turn"
    assert set(told.values()) == {"starting", "stopping"}
