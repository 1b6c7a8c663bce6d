# SPDX-License-Identifier: Apache-2.0
"""A conversation as Gemini takes it.

A thought signature goes back on the part that it came with, byte for byte. Gemini 3 refuses a call without one if it is
the first of its message and belongs to the current turn, that is, comes after the last prompt. Where there is none (the
call is another model's), a word of Google's stands in its place, with which the check is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from andon.messages import Block, Media, Message, Reasoning, Text, ToolCall, ToolResult
from andon.models.google.answer import Seal, read_seal
from andon.models.google.media import prompt_part, result_part

NO_SIGNATURE = "skip_thought_signature_validator"

_OLD = r"gemini-[12]\b"


def is_new(model: str) -> bool:
    """Whether it is Gemini 3 or a later one: their calls are signed, and they take more than the older ones."""
    return "gemini-" in model and re.search(_OLD, model) is None


def sent_name(name: str) -> str:
    """The name of a tool as Gemini takes it: it may not begin with a digit or a hyphen."""
    return name if name[:1].isalpha() or name.startswith("_") else f"_{name}"


def contents(messages: Sequence[Message], issuer: str, *, signed: bool) -> list[dict[str, Any]]:
    """The messages. Only signatures of `issuer` go back; if `signed`, the model refuses calls without them."""
    turn = max((place for place, message in enumerate(messages) if message.role == "user"), default=0)
    sent: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        if message.role == "assistant":
            role, parts = "model", _answer(message.content, issuer, signed=signed and place > turn)
        elif message.role == "tool":
            role, parts = "user", [_response(result) for result in message.tool_results]
        else:
            role, parts = "user", _prompt(message.content)
        if parts:
            sent.append({"role": role, "parts": parts})
    return sent


def _prompt(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, Media):
            parts.append(prompt_part(block))
        elif isinstance(block, Text) and block.text:
            parts.append({"text": block.text})
    return parts


def _response(result: ToolResult) -> dict[str, Any]:
    response: dict[str, Any] = {
        "id": result.call_id,
        "name": sent_name(result.name),
        "response": {"output" if result.status == "ok" else "error": result.content},
    }
    if result.attachments:
        response["parts"] = [result_part(media) for media in result.attachments]
    return {"functionResponse": response}


def _answer(blocks: Sequence[Block], issuer: str, *, signed: bool) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    signature = NO_SIGNATURE if signed else None  # of the next call
    for block in blocks:
        if isinstance(block, Text):
            if block.text.strip():
                parts.append({"text": block.text})
        elif isinstance(block, ToolCall):
            call: dict[str, Any] = {
                "functionCall": {"id": block.id, "name": sent_name(block.name), "args": block.arguments}
            }
            if signature is not None:
                call["thoughtSignature"] = signature
            parts.append(call)
            signature = None  # of several calls, only the first one needs it
        elif isinstance(block, Reasoning) and (seal := read_seal(block.signature)) is not None:
            if seal.model != issuer:
                continue
            if seal.on == "call":
                signature = seal.signature
            elif seal.on == "thought":
                said = block.text[-seal.size :] if seal.size else ""
                parts.append({"text": said, "thought": True, "thoughtSignature": seal.signature})
            else:
                parts.append({"text": _signed_text(parts, seal), "thoughtSignature": seal.signature})
    return parts


def _signed_text(parts: list[dict[str, Any]], seal: Seal) -> str:
    """The end of the text before this place, taken off it: a signed part must not be joined with others."""
    last, size = parts[-1] if parts else {}, seal.size
    if not size or last.keys() != {"text"} or len(last["text"]) < size or not last["text"].endswith(seal.blank):
        return seal.blank
    text: str = last["text"]
    parts.pop()
    if len(text) > size:
        parts.append({"text": text[:-size]})
    return text[-size:]
