# SPDX-License-Identifier: Apache-2.0
"""Output at a terminal: colour, tables, and the receipt of a cancel.

Colour is for terminals only, and not if `NO_COLOR` is set. Control characters are removed from the text of models,
tools and users before it is shown at a terminal. A table is as wide as the terminal; without one it has no limit,
so that a script finds whole ids in it.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO

from msgspec import Struct

from andon.core.log_text import BIDI, CONTROLS, LINES
from andon.core.receipt import Receipt, ToolReceipt
from andon.core.states import Stopped, ToolOutcome
from andon.messages import Usage

STYLES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
NARROWEST = 20
_ANY = CONTROLS + LINES + BIDI
_LEFT = "\t\n\u061c\u200e\u200f"
"""These are kept: some languages need the direction marks, which only affect punctuation."""
_CONTROLS = re.compile(f"[{re.escape(''.join(sorted(set(_ANY) - set(_LEFT))))}]")
_ANY_CONTROLS = re.compile(f"[{re.escape(_ANY)}]+")


def prepare_streams() -> None:
    """Show characters that the encoding of the terminal lacks as `?`, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def styled(text: str, style: str, stream: TextIO) -> str:
    if not text or not is_terminal(stream) or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def note(text: str, style: str = "dim") -> None:
    """Print a line on stderr."""
    print(styled(without_controls(text), style, sys.stderr), file=sys.stderr, flush=True)


def width_of(stream: TextIO) -> int | None:
    """How many columns the terminal has; None if there is no terminal."""
    if not is_terminal(stream):
        return None
    columns = os.environ.get("COLUMNS", "")
    try:
        width = int(columns) if columns.isdigit() else os.get_terminal_size(stream.fileno()).columns
    except OSError:
        width = 0
    return max(width or 80, NARROWEST)


def without_controls(text: str) -> str:
    """The text without control characters, except line breaks and tabs."""
    return _CONTROLS.sub("�", text)


def one_line(text: str) -> str:
    """The same in a single line."""
    return _ANY_CONTROLS.sub(" ", text).strip()


def cells(text: str) -> int:
    """How many columns a text takes: some characters take two, some none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) != 0 for char in text)


def fit(text: str, width: int) -> str:
    """The text in exactly `width` columns: cut, or padded."""
    if cells(text) > width:
        while text and cells(text) > width - 1:
            text = text[:-1]
        text += "…" if width else ""
    return text + " " * (width - cells(text))


# -- tables -----------------------------------------------------------------------------------------------------------


class Column(Struct, frozen=True):
    """A column of a table. If the terminal is too narrow, columns with the lowest `matters` are left out."""

    title: str
    least: int
    """Its minimal width."""
    matters: int = 0


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], stream: TextIO) -> str:
    """A table with a head, as wide as its contents, and at most as wide as the terminal."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(cells(each) for each in (head.title, *(row[n] for row in rows))) for n, head in enumerate(columns)]
    shown = list(range(len(columns)))
    if (room := width_of(stream)) is not None:
        while len(shown) > 1 and _least(columns, widths, shown) > room:
            shown.remove(min(shown, key=lambda n: (columns[n].matters, -n)))
        _shrink(columns, widths, shown, room)
    head = "  ".join(fit(columns[n].title, widths[n]) for n in shown).rstrip()
    body = ["  ".join(fit(row[n], widths[n]) for n in shown).rstrip() for row in rows]
    return "\n".join([styled(head, "bold", stream), *body])


def _least(columns: Sequence[Column], widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(min(widths[n], columns[n].least) for n in shown) + 2 * (len(shown) - 1)


def _shrink(columns: Sequence[Column], widths: list[int], shown: Sequence[int], room: int) -> None:
    """Shrink the widest column by one until the table fits."""
    while sum(widths[n] for n in shown) + 2 * (len(shown) - 1) > room:
        able = [n for n in shown if widths[n] > min(columns[n].least, room)]
        if not able:
            return
        widths[max(able, key=lambda n: widths[n])] -= 1


def facts(pairs: Iterable[tuple[str, str]], stream: TextIO, indent: str = "  ") -> str:
    """Names and values, one pair per line; long values are wrapped."""
    shown = [(name, one_line(value)) for name, value in pairs]
    names = max((len(name) for name, _ in shown), default=0)
    lead = len(indent) + names + 2
    room = width_of(stream)
    lines = []
    for name, value in shown:
        parts = [value] if room is None else textwrap.wrap(value, max(room - lead, 8)) or [""]
        lines.append(f"{indent}{styled(name.ljust(names), 'dim', stream)}  {parts[0]}".rstrip())
        lines += [" " * lead + part for part in parts[1:]]
    return "\n".join(lines)


# -- what runs leave --------------------------------------------------------------------------------------------------

_MEANINGS = {
    ToolOutcome.abandoned: "abandoned, may still be running",
    ToolOutcome.cut: "cut while it ran",
    ToolOutcome.not_started: "never started",
    ToolOutcome.compensated: "cut, and undone",
}

_STOPPED = {Stopped.asked: "; its processes ended at SIGTERM", Stopped.killed: "; its processes were killed"}


def receipt_of(receipt: Receipt, stream: TextIO) -> str:
    """The receipt of a cancel as text."""
    pairs = [("cause", str(receipt.cause)), ("reason", receipt.reason or ""), ("by", receipt.by or "")]
    pairs += [("mode", str(receipt.mode)), ("phase", str(receipt.phase)), ("latency", milliseconds(receipt.latency))]
    pairs += [("tool", f"{each.name}: {_meaning(each)}") for each in receipt.tools]
    pairs += [("usage", usage_of(receipt.usage)), ("left over", ", ".join(receipt.leftovers) or "nothing")]
    return facts([(name, value) for name, value in pairs if value], stream)


def _meaning(call: ToolReceipt) -> str:
    """How a call ended, in words."""
    words = _MEANINGS.get(call.outcome, str(call.outcome))
    if call.stopped is not None:
        words += _STOPPED[call.stopped]
    if call.let_finish:
        words += ", let finish"
    if call.undo is not None:
        words += f"; {call.undo}" if call.outcome is ToolOutcome.abandoned else f"; not undone: {call.undo}"
    return words


def usage_of(usage: Usage) -> str:
    spent = [
        f"{'?' if count is None else count} {what}"
        for count, what in ((usage.input_tokens, "in"), (usage.output_tokens, "out"))
    ]
    return f"{', '.join(spent)} tokens{' (estimated)' if usage.estimated else ''}"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def age(created_at: float) -> str:
    """How long ago, in one number."""
    seconds = max(0, int(time.time() - created_at))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
