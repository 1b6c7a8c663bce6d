# SPDX-License-Identifier: Apache-2.0
"""A client that a generator has made of our OpenAPI document, against our server: every part of it is used."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from andon import Agent, tool
from andon.models.scripted import Call, ScriptedModel
from tests.clients.driving import ENVIRONMENTS, HERE, ask_then_tell, weather
from tests.server.live import serving
from tests.support import HANG

TOKEN = "a-token-of-an-admin"


@tool(approval=True)
async def delete() -> str:
    """Delete it."""
    return "deleted"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    python = ENVIRONMENTS / "openapi" / "bin" / "python"
    assert python.exists(), f"there is no {python}: make it with `make clients`"
    agents = [
        Agent("story", ScriptedModel.story(pace=0.005)),
        Agent("tools", ScriptedModel(then=ask_then_tell), tools=[weather]),
        Agent("asks", ScriptedModel([Call("delete", {})], then="It is gone."), tools=[delete]),
    ]
    folder: Path = tmp_path_factory.mktemp("made")
    with serving(*agents, tokens=TOKEN) as live:
        command = [str(python), str(HERE / "programs" / "generated.py"), live.url, TOKEN, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_lists_what_there_is(seen: Any) -> None:
    assert seen["lists"] == {
        "agents": ["story", "tools", "asks"],
        "model": "Andon",
        "tools": ["weather"],
        "health": "ok",
        "version": "ServerVersion",
    }


def test_it_runs_an_agent(seen: Any) -> None:
    assert seen["plainly"] == {
        "kind": "RunOutput",
        "status": "COMPLETED",
        "content": "Let me look. It rains.",
        "outcomes": {"weather": False, "volcano": True},
        "listed": True,
        "header": True,
    }
    assert seen["by_form"] == "COMPLETED"


def test_it_watches_a_run_and_cancels_it(seen: Any) -> None:
    seen = seen["in_the_background"]
    assert (seen["code"], seen["location"]) == (202, True)
    assert seen["events"] == ["RunStarted", "RunContent", "RunContent", "RunContent"]
    assert seen["said"]
    assert seen["state"] == ["RunOutput", "RUNNING"]
    assert (seen["outcome"], seen["late"]) == ("requested", "already_finished")
    assert seen["receipt"] == ["Receipt", "user", "enough", "admin"]
    assert seen["text"] == 1


def test_it_answers_a_question(seen: Any) -> None:
    assert seen["asking"] == {
        "status": "PAUSED",
        "paused": ["RunPaused", True],
        "ended": ["COMPLETED", "It is gone."],
    }


def test_it_reads_what_went_wrong(seen: Any) -> None:
    assert seen["errors"] == [[404, "ProblemDetail", True], [422, "ProblemDetail", True], [401, "ProblemDetail", True]]


def test_it_talks_in_sessions(seen: Any) -> None:
    assert seen["by_session"] == {"session": "s9", "events": "SessionEvent", "kept": True, "cancelled": []}


def test_it_gets_a_ticket(seen: Any) -> None:
    assert seen["ticket"] == 1
