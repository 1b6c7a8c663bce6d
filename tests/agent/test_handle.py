# SPDX-License-Identifier: Apache-2.0
"""The handle of a run shows the names that the documentation explains, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from andon import Agent, Run
from andon.models.scripted import ScriptedModel

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"

NAMES = {
    "agent_id",
    "begin",
    "cancel",
    "cancel_and_wait",
    "cancel_tool",
    "continues",
    "events",
    "gone",
    "interrupts",
    "leftovers",
    "metadata",
    "parent_run_id",
    "phase",
    "receipt",
    "result",
    "run_id",
    "session_id",
    "status",
    "user_id",
}


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_the_class_and_its_handles_have_these_names() -> None:
    assert public(Run) == NAMES
    assert public(Agent("Parrot", ScriptedModel("Hello")).start("Hello")) == NAMES


def test_a_handle_takes_no_other_attributes() -> None:
    assert not hasattr(Agent("Parrot", ScriptedModel("Hello")).start("Hello"), "__dict__")


def test_the_page_explains_each_of_them() -> None:
    section = PAGE.read_text("utf-8").split("\n## The handle\n")[1].split("\n## ")[0]
    cells = [row.split(" | ")[0] for row in section.splitlines() if row.startswith("| `")]
    explained = [name for cell in cells for name in re.findall(r"`(?:await )?(\w+)", cell)]
    assert sorted(explained) == sorted(NAMES)
