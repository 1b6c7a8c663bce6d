# SPDX-License-Identifier: Apache-2.0
"""Provider-neutral messages, their blocks, and token usage.

All of them are frozen: runs, readers and the store share the messages of a conversation, so none may change them.

Roles: `user` (a prompt), `assistant` (text, reasoning, tool calls) and `tool` (the results of one turn's calls).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import msgspec

from andon.media import File as File
from andon.media import Image as Image
from andon.media import Media as Media
from andon.media import estimate_media
from andon.plain import Plain

Role = Literal["user", "assistant", "tool"]


class Text(Plain, frozen=True, gc=False, tag_field="type", tag="text"):
    """Text of a person or of the model."""

    type: ClassVar[str] = "text"
    text: str


class Reasoning(Plain, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="reasoning"):
    """The reasoning of the model. `signature` is the provider's: without it a block can't be sent back."""

    type: ClassVar[str] = "reasoning"
    text: str
    signature: str | None = None


class ToolCall(Plain, frozen=True, gc=False, tag_field="type", tag="tool_call"):
    """The model calls a tool. Only complete calls become part of a conversation."""

    type: ClassVar[str] = "tool_call"
    id: str
    name: str
    arguments: dict[str, Any]


class ToolResult(Plain, frozen=True, gc=False, tag_field="type", tag="tool_result"):
    """The result of one tool call; with status `error`, the reason why there is none."""

    type: ClassVar[str] = "tool_result"
    call_id: str
    name: str
    content: str
    status: Literal["ok", "error"] = "ok"
    attachments: list[Media] = msgspec.field(default_factory=list)
    """Images and files that the tool returned."""


Block = Text | Reasoning | ToolCall | ToolResult | Image | File


class Message(Plain, frozen=True, gc=False):
    """One message of a conversation: a role, and a list of blocks."""

    role: Role
    content: list[Block]

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return "".join(block.text for block in self.content if isinstance(block, Text))

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [block for block in self.content if isinstance(block, ToolCall)]

    @property
    def tool_results(self) -> list[ToolResult]:
        return [block for block in self.content if isinstance(block, ToolResult)]


def user(text: str) -> Message:
    return Message("user", [Text(sendable(text))])


def assistant(*blocks: Block) -> Message:
    return Message("assistant", list(blocks))


class Usage(Plain, frozen=True, gc=False):
    """Tokens spent. `None` is unknown, which is not zero; `estimated` marks numbers that the provider didn't give."""

    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cached_tokens: int | None = 0
    reasoning_tokens: int | None = 0
    estimated: bool = False

    @property
    def total_tokens(self) -> int | None:
        return _sum(self.input_tokens, self.output_tokens)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            _sum(self.input_tokens, other.input_tokens),
            _sum(self.output_tokens, other.output_tokens),
            _sum(self.cached_tokens, other.cached_tokens),
            _sum(self.reasoning_tokens, other.reasoning_tokens),
            self.estimated or other.estimated,
        )


def sendable(text: str) -> str:
    """The text as it can be encoded: a lone surrogate (half a character) can be in a str, but not in UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


_ESCAPES = rb"(?s)\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"


def sendable_json(text: bytes) -> bytes:
    """The same for JSON, where a lone surrogate is an escape. Some encoders write it, and decoders refuse it."""
    return re.sub(_ESCAPES, lambda found: rb"\ufffd" if found[1] else found[0], text)


UNKNOWN_USAGE = Usage(None, None, None, None)

CHARACTERS_PER_TOKEN = 4


def pieces_of(message: Message) -> list[str]:
    """The texts of a message, for an estimate of its tokens."""
    pieces = []
    for block in message.content:
        if isinstance(block, ToolCall):
            pieces.append(block.name + msgspec.json.encode(block.arguments).decode())
        elif not isinstance(block, Media):
            pieces.append(block.content if isinstance(block, ToolResult) else block.text)
    return pieces


def media_of(message: Message) -> list[Media]:
    """The images and files of a message, those in the results of tools included."""
    found: list[Media] = []
    for block in message.content:
        if isinstance(block, Media):
            found.append(block)
        elif isinstance(block, ToolResult):
            found += block.attachments
    return found


def estimate_messages(messages: Iterable[Message]) -> int:
    """A rough count of the tokens of messages, images and files included."""
    listed = list(messages)
    text = estimate_tokens(piece for message in listed for piece in pieces_of(message))
    return text + sum(estimate_media(media) for message in listed for media in media_of(message))


def estimate_tokens(pieces: Iterable[str]) -> int:
    """A rough count, if the provider could not report one: four characters per token, rounded up."""
    return -(-sum(map(len, pieces)) // CHARACTERS_PER_TOKEN)


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b
