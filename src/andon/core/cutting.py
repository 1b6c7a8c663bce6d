# SPDX-License-Identifier: Apache-2.0
"""How much of a text goes into a log: an exception may say a hundred megabytes. What is cut says so."""

from __future__ import annotations

LONGEST_LINE = 4_000
"""In characters: a message, or one line of a traceback."""
LONGEST_TRACEBACK = 20_000


def cut_line(text: str) -> str:
    """The beginning of a long text."""
    over = len(text) - LONGEST_LINE
    return text if over <= 0 else f"{text[:LONGEST_LINE]}… ({over:,} characters left out)"


def cut_traceback(text: str) -> str:
    """The beginning and the end of a long one, and of each of its lines the beginning."""
    half = LONGEST_TRACEBACK // 2
    if (over := len(text) - 2 * half) > 0:  # before it is split: it may have a hundred million lines
        text = f"{text[:half]}\n… ({over:,} characters left out)\n{text[-half:]}"
    return "\n".join(map(cut_line, text.split("\n")))
