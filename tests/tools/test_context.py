# SPDX-License-Identifier: Apache-2.0
"""A tool's context shows what the documentation describes, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from andon import Agent, ToolContext, tool
from andon.models.scripted import Call, ScriptedModel

DOCS = Path(__file__).parents[2] / "docs"
NAMES = {
    "call_id",
    "cancelled",
    "check_cancelled",
    "deadline",
    "deps",
    "interrupt",
    "metadata",
    "on_cancel",
    "on_undo",
    "run_id",
    "session_id",
    "user_id",
}


def public(obj: object) -> set[str]:
    return {name for name in dir(obj) if not name.startswith("_")}


def test_a_context_has_these_names_and_no_others() -> None:
    seen: list[set[str]] = []

    @tool
    async def look(ctx: ToolContext) -> str:
        seen.append(public(ctx))
        return "seen"

    Agent("A", ScriptedModel(Call("look"), "Done."), tools=[look]).run("Hi")
    assert seen == [NAMES]
    assert public(ToolContext) == NAMES


def test_what_is_no_function_is_refused_at_once() -> None:
    @tool
    async def register(ctx: ToolContext, which: str) -> object:
        return getattr(ctx, which)("no function")

    calls = [Call("register", {"which": which}) for which in ("on_cancel", "on_undo")]
    result = Agent("A", ScriptedModel(calls, "Done."), tools=[register]).run("Hi")
    assert [each.content for each in result.messages[2].tool_results] == [
        "TypeError: ctx.on_cancel takes a function, not 'no function'",
        "TypeError: ctx.on_undo takes a function, not 'no function'",
    ]


def test_each_of_them_is_documented() -> None:
    documented = set(re.findall(r"`ctx\.(\w+)", (DOCS / "tools.md").read_text()))
    assert documented == NAMES
