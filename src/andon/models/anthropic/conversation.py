# SPDX-License-Identifier: Apache-2.0
"""A conversation as Anthropic takes it.

What must stay true: what was sent once is sent again with the same bytes. A signed block of thinking is bound to all
that precedes it, so each rule here looks only at the message itself, at what precedes it, and at refused turns. A
refused turn never precedes anything that was sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from andon.messages import Block, Media, Message, Reasoning, Text, ToolCall, ToolResult
from andon.models.anthropic.media import part
from andon.models.anthropic.seals import CALL_KINDS, RESULT_ENDING, sealed_block
from andon.models.common.history import without_refused

Json = dict[str, Any]

GO_ON = "Go on."
"""The end of a conversation that would end with the assistant: newer models refuse that."""

_NOT_IN_AN_ID = r"[^a-zA-Z0-9_-]"


def conversation(messages: Sequence[Message]) -> list[Json]:
    """The messages of a request."""
    ids = _Ids()
    sent: list[Json] = []
    for message in without_refused(messages):
        role = "assistant" if message.role == "assistant" else "user"
        content = _assistant(message, ids) if role == "assistant" else _user(message, ids)
        if not content:
            continue
        if sent and sent[-1]["role"] == role:
            sent[-1]["content"] += content
        else:
            sent.append({"role": role, "content": content})
    if not sent or sent[-1]["role"] == "assistant":
        sent.append({"role": "user", "content": [_text(GO_ON)]})
    return sent


def without_thinking(messages: Sequence[Json]) -> list[Json]:
    """The messages of a request without all thinking: all of it, because each block is bound to those before it."""
    hidden = ("thinking", "redacted_thinking")
    return [
        {**each, "content": [block for block in each["content"] if block["type"] not in hidden]} for each in messages
    ]


def _user(message: Message, ids: _Ids) -> list[Json]:
    """Results of tools come first, as the provider wants it."""
    results = [_result(block, ids) for block in message.content if isinstance(block, ToolResult)]
    return results + _parts(message.content)


def _parts(blocks: Sequence[Block]) -> list[Json]:
    return [
        _text(block.text) if isinstance(block, Text) else part(block)
        for block in blocks
        if isinstance(block, Media) or (isinstance(block, Text) and block.text.strip())
    ]


def _result(result: ToolResult, ids: _Ids) -> Json:
    sent: Json = {"type": "tool_result", "tool_use_id": ids.clean(result.call_id)}
    if result.attachments:
        sent["content"] = _parts([Text(result.content), *result.attachments])
    elif result.content.strip():
        sent["content"] = result.content
    if result.status == "error":
        sent["is_error"] = True
        sent.setdefault("content", "error")
    return sent


def _assistant(message: Message, ids: _Ids) -> list[Json]:
    """Text goes before the calls, also where another provider had it behind them."""
    said: list[Json] = []
    calls: list[Json] = []
    for block in message.content:
        if isinstance(block, ToolCall):
            call = {"type": "tool_use", "id": ids.clean(block.id), "name": block.name, "input": block.arguments}
            calls.append(call)
        elif isinstance(block, Reasoning):
            if (sealed := sealed_block(block)) is not None:
                (calls or said).append(sealed)
        elif isinstance(block, Text) and block.text.strip():
            said.append(_text(block.text))
    return _paired(said + calls)


def _paired(content: list[Json]) -> list[Json]:
    """Without what a cut has left alone: a call of one of the provider's own tools, or its result."""
    called = {block["id"] for block in content if block["type"] in CALL_KINDS}
    ended = {block.get("tool_use_id") for block in content if block["type"].endswith(RESULT_ENDING)}

    def has_its_pair(block: Json) -> bool:
        if block["type"] in CALL_KINDS:
            return block["id"] in ended
        return not block["type"].endswith(RESULT_ENDING) or block.get("tool_use_id") in called

    return [block for block in content if has_its_pair(block)]


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


class _Ids:
    """The ids of calls in characters that the provider takes. Each id of a conversation becomes one of its own."""

    def __init__(self) -> None:
        self._cleaned: dict[str, str] = {}
        self._taken: set[str] = set()

    def clean(self, call_id: str) -> str:
        if call_id not in self._cleaned:
            clean = re.sub(_NOT_IN_AN_ID, "_", call_id) or "call"
            while clean in self._taken:
                clean += "_"
            self._taken.add(clean)
            self._cleaned[call_id] = clean
        return self._cleaned[call_id]
