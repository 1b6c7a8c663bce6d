# SPDX-License-Identifier: Apache-2.0
"""Thinking that is bound to what precedes it, and the leave to drop it where that has changed.

Newer Claude models refuse a conversation with such thinking if its instructions, tools or earlier messages have
changed. With the leave, they go on without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BETA = "thinking-binding-controls-2026-08-01"
FIELDS = "additionalModelRequestFields"
_OTHER_CONVERSATION = "bound to a different conversation"

Json = dict[str, Any]


def is_of_other_conversation(error: Exception) -> bool:
    """Whether a request was refused because a block of thinking is bound to something else than what precedes it."""
    said = getattr(error, "response", None)
    return isinstance(said, Mapping) and _OTHER_CONVERSATION in str(said.get("Error"))


def says_what_to_do(body: Mapping[str, Any]) -> bool:
    """Whether a request says already what is to be done with such thinking."""
    return "block_binding" in _thinking(body.get(FIELDS) or {})


def has_place(more: Mapping[str, Any]) -> bool:
    """Whether these fields of Claude's have a place for the leave: not if it is not to think."""
    return _thinking(more).get("type") in ("adaptive", "enabled")


def with_leave(more: Mapping[str, Any]) -> Json:
    """Claude's own fields, with the leave."""
    given = more.get("anthropic_beta") or ()
    betas = [given] if isinstance(given, str) else list(given)
    return {
        **more,
        "thinking": {**_thinking(more), "block_binding": {"prefix_mismatch_behavior": "drop_block"}},
        "anthropic_beta": betas if BETA in betas else [*betas, BETA],
    }


def body_with_leave(body: Mapping[str, Any]) -> Json:
    """A request with the leave, or, where it has no place, without thinking."""
    more = body.get(FIELDS) or {}
    if has_place(more):
        return {**body, FIELDS: with_leave(more)}
    # All of it, because each block is also bound to those before it.
    kept = [
        {**each, "content": [block for block in each["content"] if "reasoningContent" not in block]}
        for each in body["messages"]
    ]
    return {**body, "messages": kept}


def _thinking(more: Mapping[str, Any]) -> Mapping[str, Any]:
    thinking = more.get("thinking")
    return thinking if isinstance(thinking, Mapping) else {"type": "adaptive"}  # what these models do without it, too
