# SPDX-License-Identifier: Apache-2.0
"""What the model says: the prompt names the kind of answer, and chance does the rest."""

from __future__ import annotations

from random import Random
from typing import Any

from andon.testing.providers import FakeChat, Word, call, text

KINDS = ("story", "tools", "delete", "both", "stall")
STALL_SECONDS = 12.0
"""Longer than a run may take. Not for ever: one that is continued has no deadline, and may get this for its answer."""
NEXT = "next"
"""The prompt that is answered at once."""
ASKING, BUSY = "delete", ("look", "grind")
"""Prompts by which a run asks a person, and by which it is in a tool for long."""
BUSY_SECONDS = 20.0


def make_provider(seed: str) -> FakeChat:
    chance = Random(seed)

    def say(words: int) -> Word:
        return text("".join(f"word-{number} " for number in range(words)), pace=chance.uniform(0.005, 0.04))

    def look_up() -> Word:
        return call("look_up", {"word": "andon", "seconds": round(chance.uniform(0, 0.6), 3)}, pieces=3, pace=0.01)

    def answer(body: dict[str, Any]) -> list[Word]:
        last = body["messages"][-1]
        kind = str(last["content"])
        if last["role"] == "tool":  # some turns call again
            return [say(chance.randrange(1, 20)), *([look_up()] if chance.random() < 0.2 else [])]
        if kind == "tools":
            return [say(3), look_up(), call("count", {"number": chance.randrange(40)}), look_up()]
        if kind == ASKING:
            return [say(3), call("delete", {"name": "it"})]
        if kind == "both":
            return [look_up(), call("delete", {"name": "it"}), call("delete", {"name": "that"})]
        if kind == "look":
            return [call("look_up", {"word": "andon", "seconds": BUSY_SECONDS})]
        if kind == "grind":
            return [call("count", {"number": int(BUSY_SECONDS * 100)})]
        if kind == "stall":
            return [say(3), text("at last", pieces=2, pace=STALL_SECONDS)]
        return [text("Here I am.")] if kind == NEXT else [say(chance.randrange(1, 60))]

    return FakeChat(answer)
