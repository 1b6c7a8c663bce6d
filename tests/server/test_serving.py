# SPDX-License-Identifier: Apache-2.0
"""What a server says of itself while it goes down."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from andon import Agent
from andon.models.scripted import ScriptedModel
from andon.server import create_app
from andon.server.serving import Server


class Written(io.StringIO):
    """A stdout that knows what was written at once: with PYTHONUNBUFFERED each of these is a write of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def write(self, text: str) -> int:
        self.parts.append(text)
        return len(text)


def test_a_line_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several workers share one stdout. What one of them writes in two parts, another one's line can come between."""
    app, parent, stdout = create_app(Agent("Helper", ScriptedModel())), SimpleNamespace(number=2), Written()
    any_parent: Any = parent
    server = Server(uvicorn.Config(app), app.state.andon, any_parent)
    monkeypatch.setattr("sys.stdout", stdout)
    server._say("waiting for 1 run")
    assert stdout.parts == ["worker 2: waiting for 1 run\n"]
