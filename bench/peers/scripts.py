# SPDX-License-Identifier: Apache-2.0
"""What the provider answers in each situation. A tool's result, or the prompt after a cancel, is answered shortly."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from andon.testing.providers import Answer, Word, call, pause, reasoning, text

Json = dict[str, Any]

NEXT = "Go on."
"""The prompt after a cancel."""
FIRST = "Please tell me about the sea."
SPEAKS_AFTER = 8.0
"""For so long the model is silent, or a tool works."""
PIECES = 200
PACE = 0.05
FAST = 10_000
HELD = 90.0


def said(first: int, count: int, pace: float = 0.0) -> Word:
    """Words that can be found again in a later request."""
    return text(pieces=[f"word{number} " for number in range(first, first + count)], pace=pace)


SLOW = {"seconds": SPEAKS_AFTER}
LONGER = 2.0
ANSWERS: dict[str, Callable[[], list[Word]]] = {
    "silent": lambda: [pause(SPEAKS_AFTER), said(0, 5)],
    "streaming": lambda: [said(0, PIECES, PACE)],
    "stalled": lambda: [said(0, 5), pause(SPEAKS_AFTER), said(5, 5)],
    "async tool": lambda: [call("slow", SLOW)],
    "sync tool": lambda: [call("block", SLOW)],
    "three tools": lambda: [call("slow", {"seconds": LONGER}) for _ in range(3)],
    "two tools": lambda: [call("quick", {"number": 7}), call("slow", SLOW)],
    "mixed": lambda: [said(0, 20, 0.01), call("slow", {"seconds": 0.1}), call("quick", {"number": 7})],
    "thinking": lambda: [reasoning("Let me think. " * 50, pace=PACE), said(0, 5)],
    "held": lambda: [said(0, 5), pause(HELD), said(5, 5)],
    "a tenth": lambda: [text(pieces=["word "] * (FAST // 10))],
    "fast": lambda: [text(pieces=["word "] * FAST)],
    "short": lambda: [said(0, 5)],
}
"""The answer to the first prompt, by the situation's name."""

CHILD = "child-model"
"""The name of the model that a child agent uses."""


class Play:
    """The script of the fakes: `now` is the situation that is played, `delegate` calls the child."""

    def __init__(self) -> None:
        self.now = "short"
        self.child: str | None = None
        self.delegate: tuple[str, Json] = ("child", {})

    def __call__(self, body: Json) -> Answer:
        last = body["messages"][-1]
        if body["model"] == CHILD:
            return "The child has said it." if is_result(last) else ANSWERS[self.child or "short"]()
        if is_result(last):
            # Long enough that a cancel at a random moment may meet it.
            return [said(20, 20, 0.01)] if self.now == "mixed" else "That is all."
        if NEXT in json.dumps(last):
            return "Very well."
        return [call(*self.delegate)] if self.child else ANSWERS[self.now]()


def is_result(message: Json) -> bool:
    """Whether it is a tool's result, as OpenAI or Anthropic have it."""
    content = message["content"]
    return message["role"] == "tool" or (
        isinstance(content, list) and any(block.get("type") == "tool_result" for block in content)
    )
