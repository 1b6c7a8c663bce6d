# SPDX-License-Identifier: Apache-2.0
"""Messages in the JSON of the semantic conventions, for attributes of spans. Only used if content is switched on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from andon.messages import Block, Media, Message, Reasoning, Text, ToolCall


def to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def instructions(text: str) -> str:
    return to_json([{"type": "text", "content": text}])


def asked(messages: Sequence[Message]) -> str:
    return to_json([{"role": each.role, "parts": [_part(block) for block in each.content]} for each in messages])


def answered(blocks: Sequence[Block], finish_reason: str) -> str:
    return to_json([{"role": "assistant", "parts": [_part(block) for block in blocks], "finish_reason": finish_reason}])


def _part(block: Block) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "content": block.text}
    if isinstance(block, Reasoning):
        return {"type": "reasoning", "content": block.text}
    if isinstance(block, ToolCall):
        return {"type": "tool_call", "id": block.id, "name": block.name, "arguments": block.arguments}
    if isinstance(block, Media):  # without the data: they may be megabytes
        return {"type": block.type, "mime_type": block.media_type, "uri": block.url, "size": len(block.data)}
    return {"type": "tool_call_response", "id": block.call_id, "response": block.content}
