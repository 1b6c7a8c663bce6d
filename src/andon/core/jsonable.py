# SPDX-License-Identifier: Apache-2.0
"""What is not ours, as JSON: metadata, arguments, whatever is kept with a run.

What must stay true: all of it can be written. What JSON can't express becomes text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from andon.errors import say, show
from andon.messages import sendable

MAX_DEPTH = 200

_encode = msgspec.json.Encoder(enc_hook=show).encode


def dump(value: object) -> str:
    try:
        return _encode(value).decode()
    except (UnicodeError, RecursionError):  # half a character, or something without end
        return _encode(clean(value)).decode()


def clean(value: Any, depth: int = 0) -> Any:
    """The same without what can't be written: half a character, or something without end."""
    if isinstance(value, str):
        return sendable(value)
    if depth > MAX_DEPTH:
        return "…"
    if isinstance(value, msgspec.Struct):
        fields = {name: clean(getattr(value, name), depth + 1) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, dict):
        return {say(key): clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [clean(item, depth + 1) for item in value]
    return value


def as_json(given: dict[str, Any] | None) -> dict[str, Any]:
    """A copy of it as JSON has it: a set becomes a list, and what JSON can't express becomes text."""
    if not given:
        return {}
    copied: dict[str, Any]
    try:
        copied = msgspec.json.decode(dump(given))
    except RecursionError:  # it can be written, and not read
        copied = msgspec.json.decode(_encode(clean(given)))
    return copied
