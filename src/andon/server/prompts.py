# SPDX-License-Identifier: Apache-2.0
"""Prompts with images and files: a message and its `files`, or the parts of an ADK message.

All of them become the same blocks. A client that sends something else gets an error, and no run starts: without its
images, a prompt would be a different one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from andon.agent.prompt import Prompt
from andon.errors import describe
from andon.messages import File, Image, Media
from andon.server.body import parse_json_field
from andon.server.problems import Problem

MAX_FILES = 1_000
"""How many images and files one request may send."""


def read_prompt(message: str, given: Any) -> Prompt:
    """The prompt of a request: its message, with the images and files that it has. In a form these may be text."""
    listed: list[Any] | None = parse_json_field(given, "files", list)
    if not listed:
        return message
    if len(listed) > MAX_FILES:
        raise Problem(413, f"there are {len(listed):,} files, and {MAX_FILES:,} are the most: send fewer at once")
    return [message, *(_read_file(each, f"files[{number}]") for number, each in enumerate(listed))]


def read_parts(parts: Sequence[Any]) -> list[str | Media]:
    """The parts of an ADK message, in snake_case or camelCase. A part of another kind is a 415."""
    return [_read_part(part, f"parts[{number}]") for number, part in enumerate(parts)]


def join_parts(parts: Sequence[str | Media]) -> Prompt:
    """Parts as one prompt: one text if there is nothing else in them."""
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) if len(texts) == len(parts) else list(parts)


def size_of(part: str | Media) -> int:
    """The characters of a text, or the bytes of an image or a file."""
    return len(part) if isinstance(part, str) else len(part.data)


def characters_of(prompt: Prompt) -> int:
    """How much text a prompt has."""
    parts = [prompt] if isinstance(prompt, str | Media) else prompt
    return sum(len(part) for part in parts if isinstance(part, str))


_SNAKE = {
    "inlineData": "inline_data",
    "fileData": "file_data",
    "mimeType": "mime_type",
    "displayName": "display_name",
    "fileUri": "file_uri",
}


def _read_part(part: Any, where: str) -> str | Media:
    match given := _in_snake_case(part):
        case {"text": str(text)} if len(given) == 1:
            return text
        case {"inline_data": dict(data)} if len(given) == 1:
            inline = _in_snake_case(data)
            return _read_file(_block(inline, data=inline.get("data")), where)
        case {"file_data": dict(data)} if len(given) == 1:
            named = _in_snake_case(data)
            return _read_file(_block(named, url=named.get("file_uri")), where)
    has = ", ".join(given) or "nothing"
    raise Problem(415, f"a part of the message has {has} where text, inline_data or file_data is taken: leave it out")


def _in_snake_case(given: Any) -> dict[str, Any]:
    named: dict[str, Any] = given if isinstance(given, dict) else {}
    return {_SNAKE.get(name, name): value for name, value in named.items() if value is not None}


def _block(given: dict[str, Any], **content: Any) -> dict[str, Any]:
    kind = given.get("mime_type", "")
    if str(kind).startswith("image/"):
        return {"type": "image", "media_type": kind, **content}
    return {"type": "file", "media_type": kind, "name": given.get("display_name"), **content}


def _read_file(given: Any, where: str) -> Media:
    try:
        if isinstance(given, dict) and isinstance(data := given.get("data"), str):
            # ADK's clients write base64 with the characters for URLs.
            given = {**given, "data": data.replace("-", "+").replace("_", "/")}
        read: Media = msgspec.convert(given, Image | File)
    except (ValueError, TypeError) as error:
        example = '{"type": "image", "data": "<base64>"}, or {"type": "file", "url": "https://…"}'
        raise Problem(422, f"{where} can't be read: {describe(error)}. Send it like {example}") from None
    return read
