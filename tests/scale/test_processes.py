# SPDX-License-Identifier: Apache-2.0
"""Workers and servers that are stopped, killed, or halted past their leases: each run ends once, and none is lost."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import Andon
from tests.operating.processes import eventually
from tests.scale.parts import eventually_forgotten, rows
from tests.scale.programs import Site


@pytest.fixture
def site(tmp_path: Path, postgres_url: str) -> Site:
    return Site(tmp_path, postgres_url)


def cause_of(run: dict[str, Any]) -> str:
    return str(run["receipt"]["cause"])


def test_a_deploy_of_servers_and_workers_loses_no_run(site: Site) -> None:
    with site.worker() as worker:
        with site.server() as server:
            body = {"message": "Hi", "run_id": "s1", "session_id": "s1"}
            with server.http.stream("POST", "/agents/stall/runs", json=body) as response:
                lines = response.iter_lines()
                while "RunContent" not in next(lines):
                    pass
                assert server.program.end() == 0  # with a client that reads
        with site.server() as server:
            assert server.http.get("/agents/stall/runs/s1").json()["status"] == "RUNNING"
            # The worker drains: its run is cancelled, and what comes then is executed by the next one.
            assert worker.end() == 0
            assert cause_of(server.ended("stall", "s1")) == "shutdown"
            server.start("where", "w1")
            with site.worker() as another:
                found = server.ended("where", "w1")
                assert found["content"] == f"by {another.process.pid}"
                assert another.end(signal.SIGINT) == 0
            eventually_forgotten(site.url)  # a server is enough for that


def test_a_worker_that_drains_lets_its_runs_finish(site: Site) -> None:
    with site.server() as server, site.worker("--drain", "60") as worker:
        server.start("asking", "a1")
        eventually(lambda: len(site.notes("ask")) == 1)
        worker.send(signal.SIGTERM)
        server.start("where", "w1")
        site.answer()
        assert server.ended("asking", "a1")["content"] == "asked"
        assert worker.done() == 0
        assert server.http.get("/agents/where/runs/w1").json()["status"] == "PENDING"


def test_a_killed_worker_loses_its_runs_and_others_go_on(site: Site) -> None:
    with site.server() as server:
        with site.worker() as worker:
            for agent in ("stall", "goeson", "asking", "charging"):
                server.start(agent, agent)
            for agent in ("stall", "goeson"):
                server.until(agent, agent, "RunContent")
            for agent in ("asking", "charging"):
                server.until(agent, agent, "ToolCallStarted")
            eventually(lambda: len(site.notes("")) == 2)
            worker.send(signal.SIGKILL)
        site.answer()
        for agent in ("stall", "goeson", "asking", "charging"):
            assert cause_of(server.ended(agent, agent)) == "lost"
        with site.worker():
            eventually(lambda: server.exists("asking", "asking~2") and server.exists("charging", "charging~2"))
            found = server.ended("asking", "asking~2")
            assert (found["status"], found["content"], found["continues"]) == ("COMPLETED", "asked", "asking")
            assert len(site.notes("ask")) == 2
            found = server.ended("charging", "charging~2")
            assert found["status"] == "COMPLETED"
            assert "unknown" in found["content"]
            assert len(site.notes("charge")) == 1  # not once more
            assert not server.exists("stall", "stall~2")
            server.until("goeson", "goeson~2", "RunContent")
            server.http.post("/runs/cancel?wait=30", json={"all": True})
            eventually_forgotten(site.url)
            assert not server.exists("goeson", "goeson~3")


def test_a_run_that_was_lost_goes_on_before_the_prompts_behind_it(site: Site) -> None:
    with site.server() as server:
        with site.worker() as worker:
            server.start("asking", "one", session_id="s")
            for run_id in ("two", "three"):
                server.start("asking", run_id, session_id="s", on_busy="queue", message=run_id)
            server.until("asking", "one", "ToolCallStarted")
            worker.send(signal.SIGKILL)
        site.answer()
        assert cause_of(server.ended("asking", "one")) == "lost"
        with site.worker():
            for run_id in ("three", "two", "one~2"):
                assert server.ended("asking", run_id)["status"] == "COMPLETED", run_id
            eventually(lambda: rows(site.url, "SELECT count(*) FROM andon_waiting") == [(0,)])
        order = rows(site.url, "SELECT run_id FROM andon_runs ORDER BY ended")
        assert [run_id for (run_id,) in order] == ["one", "one~2", "two", "three"]
        found = server.http.get("/agents/asking/sessions/s", params={"user_id": ""}).json()["messages"]
        said = [part.get("text") for message in found for part in message["content"] if part.get("text")]
        assert said == ["Hi", "asked", "two", "asked", "three", "asked"]


def test_a_run_goes_on_only_so_often(site: Site) -> None:
    with site.server() as server:
        server.start("goeson", "g")
        for run_id in ("g", "g~2", "g~3", "g~4"):
            with site.worker() as worker:
                eventually(lambda run_id=run_id: server.exists("goeson", run_id))  # type: ignore[misc]
                server.until("goeson", run_id, "RunContent")
                worker.end()  # without time to drain: cut by the shutdown
            assert cause_of(server.ended("goeson", run_id)) == "shutdown"
        eventually_forgotten(site.url)
        assert not server.exists("goeson", "g~5")


def test_a_worker_that_was_halted_past_its_lease_does_no_harm(site: Site) -> None:
    with site.server() as server, site.worker() as worker:
        server.start("stall", "s1")
        server.until("stall", "s1", "RunContent")
        worker.send(signal.SIGSTOP)
        assert cause_of(server.ended("stall", "s1")) == "lost"
        server.start("where", "w1")
        with site.worker() as another:
            assert server.ended("where", "w1")["content"] == f"by {another.process.pid}"
            assert another.end() == 0
        worker.send(signal.SIGCONT)
        server.start("where", "w2")
        assert server.ended("where", "w2")["content"] == f"by {worker.process.pid}"
        assert cause_of(server.ended("stall", "s1")) == "lost"
        assert len(site.notes("began")) == 2
        assert worker.end() == 0
        eventually_forgotten(site.url)


@pytest.mark.usefixtures("site")
def test_what_can_not_be_is_said(andon: Andon, tmp_path: Path, sqlite_url: str) -> None:
    for arguments in (("serve", "program:agents", "--no-execute"), ("worker", "program:agents")):
        for url in (sqlite_url, "memory://"):
            code, _, said = andon(*arguments, "--db", url)
            assert code == 2
            assert "postgres" in said.lower(), said
            assert len(said.splitlines()) == 1, said
    assert not (tmp_path / "andon.db").exists(), "no file is left behind"
    code, _, said = andon("worker", "program:agents")
    assert (code, "--db postgresql://" in said) == (2, True), said
