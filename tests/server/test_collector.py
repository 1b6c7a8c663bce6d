# SPDX-License-Identifier: Apache-2.0
"""How often a server stops for the garbage collector: a cancel that comes meanwhile is not heard."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest

from andon.server.serving import FULL_COLLECTION
from tests.cli.test_serve import serving

PROGRAM = """
import gc
from andon import Agent
from andon.models.scripted import ScriptedModel

gc.set_threshold({})
agent = Agent("Helper", ScriptedModel(then=lambda _: f"{{gc.get_threshold()}} {{gc.get_freeze_count() > 10_000}}"))
"""


@pytest.mark.parametrize(
    ("own", "then"),
    [
        ((700, 10, 10), (700, 10, FULL_COLLECTION)),
        ((0, 10, 10), (0, 10, FULL_COLLECTION)),  # none at all
        ((50_000, 20, 1000), (50_000, 20, 1000)),  # what a program has set itself stays, if it is calmer
    ],
)
def test_full_collections_are_rare(own: tuple[int, ...], then: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "collecting.py").write_text(PROGRAM.format(", ".join(map(str, own))))
    with serving(tmp_path, "collecting:agent") as served:
        answer = httpx.post(f"{served.url}/agents/helper/runs", data={"message": "Hi", "stream": "false"}, verify=False)
        assert answer.json()["content"] == f"{then} True"
        assert served.end(signal.SIGTERM) == 0
