# SPDX-License-Identifier: Apache-2.0
"""Shortens texts for the log: the message of an exception may have a hundred megabytes. A cut text says that it is."""

from __future__ import annotations

LONGEST_LINE = 4_000
"""The limit for a message, or for one line of a traceback, in characters."""
LONGEST_TRACEBACK = 20_000


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
