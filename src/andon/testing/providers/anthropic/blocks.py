# SPDX-License-Identifier: Apache-2.0
"""The blocks of messages, each by itself: their fields, and where they may be."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable

from andon.testing.providers.anthropic.errors import Rejected, missing, unknown, wrong_type
from andon.testing.providers.api import Json

_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,200}")
IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_FIELDS: dict[str, tuple[str, str]] = {
    # the required fields, and the others
    "text": ("text", "cache_control citations"),
    "image": ("source", "cache_control transformations"),
    "document": ("source", "cache_control citations context title"),
    "thinking": ("thinking signature", ""),
    "redacted_thinking": ("data", ""),
    "tool_use": ("id name input", "cache_control caller toolset_name"),
    "tool_result": ("tool_use_id", "cache_control content is_error toolset_name"),
    "server_tool_use": ("id name input", "cache_control caller"),
    "web_search_tool_result": ("tool_use_id content", "cache_control caller"),
    "web_fetch_tool_result": ("tool_use_id content", "cache_control caller"),
    "code_execution_tool_result": ("tool_use_id content", "cache_control"),
}
_ROLES = {
    "user": ("text", "image", "document", "tool_result"),
    "assistant": tuple(kind for kind in _FIELDS if kind not in ("image", "document", "tool_result")),
}
_IN_RESULTS = ("text", "image", "document")
_TEXTS = frozenset({"text", "thinking", "signature", "data", "id", "name", "tool_use_id", "title", "context"})


def check_block(block: object, where: str, role: str) -> None:
    """Raises `Rejected` for a block that can't be in a message of this role."""
    kind = _fields(block, where, _ROLES[role])
    assert isinstance(block, dict)
    check = _CHECKS.get(kind)
    if check is not None:
        check(block, where)


def _fields(block: object, where: str, kinds: tuple[str, ...]) -> str:
    if not isinstance(block, dict):
        raise wrong_type(where, "dictionary")
    kind = block.get("type")
    if kind is None:
        raise missing(f"{where}.type")
    if kind not in kinds:
        expected = ", ".join(f"'{each}'" for each in kinds)
        raise Rejected(
            f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags: {expected}"
        )
    required, others = (names.split() for names in _FIELDS[kind])
    for name in required:
        if name not in block:
            raise missing(f"{where}.{kind}.{name}")
    for name, value in block.items():
        if name not in ("type", *required, *others):
            raise unknown(f"{where}.{kind}.{name}")
        if name in _TEXTS and not isinstance(value, str):
            raise wrong_type(f"{where}.{kind}.{name}", "string")
    return str(kind)


def _text(block: Json, where: str) -> None:
    if not block["text"]:
        raise Rejected("messages: text content blocks must be non-empty")
    if not block["text"].strip():
        raise Rejected("messages: text content blocks must contain non-whitespace text")


def _image(block: Json, where: str) -> None:
    _source(block["source"], f"{where}.image.source", IMAGES)


def _document(block: Json, where: str) -> None:
    source, at = block["source"], f"{where}.document.source"
    if isinstance(source, dict) and source.get("type") == "text":
        if source.get("media_type") != "text/plain":
            raise Rejected(f"{at}.text.media_type: Input should be 'text/plain'")
        if not isinstance(source.get("data"), str) or not source["data"]:
            raise missing(f"{at}.text.data")
        return
    _source(source, at, ("application/pdf",))


def _source(source: object, where: str, kinds: tuple[str, ...]) -> None:
    if not isinstance(source, dict):
        raise wrong_type(where, "dictionary")
    if source.get("type") == "url":
        if not str(source.get("url", "")).startswith(("https://", "http://")):
            raise Rejected(f"{where}.url.url: Only HTTP and HTTPS URLs are supported")
        return
    if source.get("type") != "base64":
        raise Rejected(f"{where}: Input tag '{source.get('type')}' found using 'type' does not match: 'base64', 'url'")
    if source.get("media_type") not in kinds:
        raise Rejected(f"{where}.base64.media_type: Input should be {' or '.join(map(repr, kinds))}")
    try:
        data = base64.b64decode(str(source.get("data", "")), validate=True)
    except binascii.Error:
        raise Rejected(f"{where}.base64: invalid base64 data") from None
    if not data:
        raise Rejected(f"{where}.base64.data: empty data")


def _call(block: Json, where: str) -> None:
    if not _ID.fullmatch(block["id"]):
        raise Rejected(f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if not _NAME.fullmatch(block["name"]):
        raise Rejected(f"{where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,200}}$'")
    if not isinstance(block["input"], dict):
        raise wrong_type(f"{where}.tool_use.input", "dictionary")


def _result(block: Json, where: str) -> None:
    content = block.get("content")
    if isinstance(content, list):
        for number, each in enumerate(content):
            at = f"{where}.tool_result.content.{number}"
            kind = _fields(each, at, _IN_RESULTS)
            _CHECKS[kind](each, at)
    elif not isinstance(content, str | None):
        raise wrong_type(f"{where}.tool_result.content", "string")
    if block.get("is_error") and not content:
        raise Rejected(f"{where}.tool_result: content cannot be empty if `is_error` is true")


_CHECKS: dict[str, Callable[[Json, str], None]] = {
    "text": _text,
    "image": _image,
    "document": _document,
    "tool_use": _call,
    "tool_result": _result,
}
