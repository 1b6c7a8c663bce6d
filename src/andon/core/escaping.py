# SPDX-License-Identifier: Apache-2.0
"""Escapes text of users, models and tools for logs and terminals.

Characters that could begin a new line, control a terminal, or change the direction of text are replaced by their codes
(`\\x1b`, `\\u202e`).
"""

from __future__ import annotations

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that change the direction of text."""

LINES = "\u2028\u2029"
"""Characters that some programs treat as the end of a line, besides the control characters."""

CONTROLS = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0))))


def _code(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"


_ESCAPES = str.maketrans({char: _code(char) for char in CONTROLS + LINES + BIDI})
_IN_JSON = str.maketrans({char: f"\\u{ord(char):04x}" for char in CONTROLS + LINES + BIDI if char >= "\x7f"})


def escaped(text: str) -> str:
    """The text as one line without control characters."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPES)


def escaped_json(text: str) -> str:
    """The same JSON with such characters as `\\u` escapes. They occur only in its strings, so it means the same."""
    return text if text.isascii() and "\x7f" not in text else text.translate(_IN_JSON)
