# SPDX-License-Identifier: Apache-2.0
"""Runs a program of another framework's client against our server, in the client's own virtual environment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from andon import Agent, tool
from andon.errors import ModelError
from andon.models.base import ModelRequest
from andon.models.scripted import Call, Fail, ScriptedModel, Turn
from tests.server.live import serving
from tests.support import HANG

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-clients"


@tool
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def ask_then_tell(request: ModelRequest) -> Turn:
    if request.messages[-1].role == "tool":
        return "It rains."
    return ["Let me look. ", Call("weather", {"city": "Oslo"}), Call("volcano", {})]


def drive(environment: str, program: str) -> Any:
    """What the program has seen, which it prints as JSON."""
    python = ENVIRONMENTS / environment / "bin" / "python"
    assert python.exists(), f"there is no {python}: make it with `make clients`"
    agents = [
        Agent("story", ScriptedModel.story(pace=0.005), description="Tells stories."),
        Agent("tools", ScriptedModel(then=ask_then_tell), tools=[weather]),
        Agent("broken", ScriptedModel(then=Fail(ModelError("out of order")))),
    ]
    with serving(*agents) as live:
        done = subprocess.run(
            [python, HERE / "programs" / f"{program}.py", live.url, "story"],
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
