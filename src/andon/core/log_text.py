# SPDX-License-Identifier: Apache-2.0
"""Makes text of users, models and tools safe for logs and terminals: escapes it, and shortens it.

Characters that could begin a new line, control a terminal, or change the direction of text are replaced by their codes
(`\\x1b`, `\\u202e`). Long texts are cut, and say so: the message of an exception may have a hundred megabytes.
"""

from __future__ import annotations

LONGEST_LINE = 4_000
"""The limit for a message, or for one line of a traceback, in characters."""
LONGEST_TRACEBACK = 20_000

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


def cut_line(text: str) -> str:
    """The beginning of a long text; a short one as it is."""
    over = len(text) - LONGEST_LINE
    return text if over <= 0 else f"{text[:LONGEST_LINE]}… ({over:,} characters left out)"


def cut_traceback(text: str) -> str:
    """The beginning and the end of a long traceback, and of each line the beginning."""
    half = LONGEST_TRACEBACK // 2
    if (over := len(text) - 2 * half) > 0:  # before the split: it may have a hundred million lines
        text = f"{text[:half]}\n… ({over:,} characters left out)\n{text[-half:]}"
    return "\n".join(map(cut_line, text.split("\n")))
