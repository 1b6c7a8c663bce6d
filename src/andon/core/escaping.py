# SPDX-License-Identifier: Apache-2.0
"""Text that users, models and tools wrote, as it may stand in a log or on a terminal.

What could begin another line, steer a terminal, or turn around what is shown, is written out (`\\x1b`, `\\u202e`).
"""

from __future__ import annotations

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""What changes the direction in which text is shown."""

LINES = "\u2028\u2029"
"""What some take for the end of a line, besides the control characters."""

CONTROLS = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0))))


def _code(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"


_ESCAPES = str.maketrans({char: _code(char) for char in CONTROLS + LINES + BIDI})
_IN_JSON = str.maketrans({char: f"\\u{ord(char):04x}" for char in CONTROLS + LINES + BIDI if char >= "\x7f"})


def escaped(text: str) -> str:
    """The text in one line that does nothing but stand there."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPES)


def escaped_json(text: str) -> str:
    """The same JSON, in which only what it says itself is written out: such characters occur in its strings alone."""
    return text if text.isascii() and "\x7f" not in text else text.translate(_IN_JSON)
