# SPDX-License-Identifier: Apache-2.0
"""Values of users as JSON: metadata, arguments, and all else that is kept with a run.

What must stay true: every value can be written. A value that JSON can't express becomes text.
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
    except (UnicodeError, RecursionError):  # a lone surrogate, or endless nesting
        return _encode(clean(value)).decode()


def clean(value: Any, depth: int = 0) -> Any:
    """The same value without lone surrogates and endless nesting, which can't be written."""
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
    """A copy with JSON types only: a set becomes a list, and a value that JSON can't express becomes text."""
    if not given:
        return {}
    copied: dict[str, Any]
    try:
        copied = msgspec.json.decode(dump(given))
    except RecursionError:  # it was written, but is nested too deeply to be read
        copied = msgspec.json.decode(_encode(clean(given)))
    return copied
