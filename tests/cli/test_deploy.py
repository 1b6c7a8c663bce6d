# SPDX-License-Identifier: Apache-2.0
"""A deploy, with real processes: `andon serve` gets a SIGTERM, is started again, and what it had asked is answered."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.test_serve import HANG, Served, andon, serving
from tests.server.live import frames

PROGRAM = """
from pathlib import Path
from andon import Agent, tool
from andon.models.scripted import Call, ScriptedModel

restarted = Path("restarted").exists()

def plays(*turns):
    return ScriptedModel(then="Done.") if restarted else ScriptedModel(*turns)

@tool(approval=True)
async def delete(name: str) -> str:
    "Delete it."
    with open("deleted", "a") as file:
        file.write(name + "\\n")
    return "deleted " + name

@tool
def wait() -> str:
    "Wait until someone writes to the pipe."
    print("working", flush=True)
    return Path("pipe").read_text()

ask = Call("delete", {"name": "all"}, id="d")
agent = Agent("Helper", plays(ask), tools=[delete])
late = Agent("Late", plays(Call("wait"), ask), tools=[wait, delete])
young = Agent("Young", plays(ask), tools=[delete])
middle = Agent("Middle", plays(Call("young", {"prompt": "look"}, id="y")), tools=[young.as_tool()])
old = Agent("Old", plays(Call("middle", {"prompt": "look"}, id="m")), tools=[middle.as_tool()])
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def restart(here: Path) -> None:
    (here / "restarted").touch()


def start(served: Served, agent: str) -> None:
    answer = served.client.post(f"/agents/{agent}/runs", data={"message": "go", "run_id": "r", "stream": "false"})
    assert (answer.status_code, answer.json()["status"]) == (200, "PAUSED")


def state(served: Served, agent: str, run_id: str = "r") -> dict[str, Any]:
    found: dict[str, Any] = served.client.get(f"/agents/{agent}/runs/{run_id}").json()
    return found


def answer(served: Served, agent: str, run_id: str = "r") -> dict[str, Any]:
    """Say yes to all that it asks."""
    answers = {each["id"]: True for each in state(served, agent, run_id)["interrupts"]}
    path = f"/agents/{agent}/runs/{run_id}/continue"
    told = served.client.post(path, json={"answers": answers, "stream": False})
    assert told.status_code == 200, told.text
    ended: dict[str, Any] = told.json()
    return ended


def deleted(here: Path) -> list[str]:
    file = here / "deleted"
    return file.read_text().split() if file.exists() else []


def test_a_pending_approval_survives(here: Path) -> None:
    with serving(here, "program:agent") as served:
        start(served, "helper")
        assert served.end(signal.SIGTERM) == 0
    restart(here)
    with serving(here, "program:agent") as served:
        assert state(served, "helper")["status"] == "PAUSED"
        ended = answer(served, "helper")
        assert (ended["status"], ended["content"], deleted(here)) == ("COMPLETED", "Done.", ["all"])
        assert served.end(signal.SIGTERM) == 0


def test_a_run_that_asks_while_the_server_drains(here: Path) -> None:
    os.mkfifo(here / "pipe")
    with serving(here, "program:late", "--drain", str(HANG)) as served:
        with served.client.stream("POST", "/agents/late/runs", data={"message": "go", "run_id": "r"}) as response:
            assert served.output.readline() == "working\n"
            served.process.send_signal(signal.SIGTERM)
            with httpx.Client(base_url=served.url, verify=False) as other:
                while other.get("/ready").status_code != 503:
                    pass
            (here / "pipe").write_text("go on")
            assert list(frames(response.iter_lines()))[-1].event == "RunPaused"
        assert served.process.wait(HANG) == 0
    restart(here)
    with serving(here, "program:late") as served:
        assert answer(served, "late")["status"] == "COMPLETED"
        assert deleted(here) == ["all"]


@pytest.mark.parametrize("by_hand", [False, True], ids=["its caller", "itself first"])
def test_the_approval_of_a_sub_agents_sub_agent(here: Path, by_hand: bool) -> None:
    with serving(here, "program:old") as served:
        start(served, "old")
        assert served.end(signal.SIGTERM) == 0
    restart(here)
    with serving(here, "program:old") as served:
        listed = {line["run_id"]: line["status"] for line in served.client.get("/runs").json()}
        assert listed == {"r": "PAUSED", "r.m": "PAUSED", "r.m.y": "PAUSED"}
        if by_hand:
            assert answer(served, "young", "r.m.y")["status"] == "COMPLETED"
        assert answer(served, "old")["status"] == "COMPLETED"
        assert deleted(here) == ["all"]
        for agent, run_id in (("old", "r"), ("middle", "r.m"), ("young", "r.m.y")):
            assert state(served, agent, run_id)["status"] == "COMPLETED"


def test_a_sub_agent_is_listed_and_cancelled_by_the_command(here: Path) -> None:
    with serving(here, "program:old") as served:
        start(served, "old")
        for place in (["--url", served.url], ["--db", "sqlite:///andon.db"]):
            with andon(here, "ps", *place) as process:
                told, _ = process.communicate(timeout=HANG)
            assert "r.m.y" in told
            assert "young" in told
        with andon(here, "cancel", "r.m.y", "--url", served.url, "--wait", "10") as process:
            told, complaint = process.communicate(timeout=HANG)
        assert process.returncode == 0, complaint
        assert state(served, "young", "r.m.y")["status"] == "CANCELLED"
        assert state(served, "old")["status"] == "PAUSED"


def test_a_cancel_just_before_the_deploy_is_kept(here: Path) -> None:
    with serving(here, "program:agent") as served:
        start(served, "helper")
        assert served.client.post("/agents/helper/runs/r/cancel", data={"reason": "no"}).status_code == 200
        assert served.end(signal.SIGTERM) == 0
    with serving(here, "program:agent") as served:
        found = state(served, "helper")
        assert (found["status"], found["receipt"]["cause"], found["receipt"]["reason"]) == ("CANCELLED", "user", "no")


def test_in_memory_it_is_cancelled_and_the_log_says_so(here: Path) -> None:
    options = ["--db", "memory://", "--log-format", "text"]
    with serving(here, "program:agent", *options, complains="(?s).*kept in memory alone: 1\n.*") as served:
        start(served, "helper")
        assert served.end(signal.SIGTERM) == 0
