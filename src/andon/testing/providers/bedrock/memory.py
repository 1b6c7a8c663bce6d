# SPDX-License-Identifier: Apache-2.0
"""What the fake of Bedrock remembers of the reasoning that it has issued.

What must stay true: a signature is known from the moment that it is sent. It holds for its own text only; with models
that have preserved thinking, also only for the conversation that it was made in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from andon.testing.providers.api import Json


@dataclass(slots=True)
class Issued:
    """A signed block of reasoning."""

    text: str
    conversation: str
    """What came before it: see `digest`."""
    before: list[str]
    """The signatures, and redacted contents, before it in its own message."""


@dataclass(slots=True)
class Memory:
    signed: dict[str, Issued] = field(default_factory=dict)
    """By signature."""
    redacted: dict[str, Issued] = field(default_factory=dict)
    """By content, as it is on the wire."""


def digest(body: Json, messages: Sequence[Json]) -> str:
    """A conversation up to a message: system, tools, and all messages before it, without cache points."""
    tools = (body.get("toolConfig") or {}).get("tools") or []
    kept = [_without_points(part) for part in (body.get("system") or [], tools)]
    kept += [[each["role"], _without_points(each["content"])] for each in messages]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def marks(content: Sequence[Json]) -> list[str]:
    """The signatures, and redacted contents, of the reasoning in a message."""
    found: list[str] = []
    for block in content:
        reasoning = block.get("reasoningContent")
        if reasoning is not None:
            found.append(
                reasoning.get("redactedContent") or (reasoning.get("reasoningText") or {}).get("signature", "")
            )
    return found


def _without_points(blocks: Sequence[Json]) -> list[Any]:
    return [block for block in blocks if "cachePoint" not in block]
