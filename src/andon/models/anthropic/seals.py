# SPDX-License-Identifier: Apache-2.0
"""What Anthropic must get back as it came, and what no block of ours has a place for.

A block of reasoning is sealed when it is complete, and not before. It goes back in its place in every later request. A
block of a tool that runs at the provider (a web search, for one) is kept in the same way: as reasoning without text.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from andon.messages import Reasoning
from andon.models.common.seals import seal_reader, write_seal

CALL_KINDS = ("server_tool_use", "mcp_tool_use")
"""The calls of tools that run at the provider."""
RESULT_ENDING = "_tool_result"


class Seal(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="of", tag="anthropic"):
    """What must be sent back with a block of reasoning. At most one of the fields is set.

    None is set for thinking that came without a signature: it is complete, and can't be sent back.
    """

    signature: str | None = None
    data: str | None = None
    """Of thinking that the provider hides."""
    block: dict[str, Any] | None = None
    """A block of one of the provider's own tools, whole."""


read_seal = seal_reader(Seal)
UNSIGNED = write_seal(Seal())


def is_of_server_tool(kind: str) -> bool:
    """Whether blocks of this kind belong to a tool that runs at the provider."""
    return kind in CALL_KINDS or (kind.endswith(RESULT_ENDING) and kind != RESULT_ENDING)


def sealed_block(reasoning: Reasoning) -> dict[str, Any] | None:
    """The block that is sent for it; None if there is none."""
    seal = read_seal(reasoning.signature)
    if seal is None:
        return None  # it is another provider's, or has no signature yet
    if seal.block is not None:
        return seal.block
    if seal.data is not None:
        return {"type": "redacted_thinking", "data": seal.data}
    if seal.signature:
        return {"type": "thinking", "thinking": reasoning.text, "signature": seal.signature}
    return None
