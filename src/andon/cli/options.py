# SPDX-License-Identifier: Apache-2.0
"""What the commands' options share: how they are laid out, and what their values may be."""

from __future__ import annotations

import argparse
import math
import textwrap
from typing import Any


class Help(argparse.HelpFormatter):
    """Fills paragraphs to the width that there is, and leaves as they are those that are laid out by hand."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.strip("\n").split("\n\n")
        filled = [textwrap.fill(part, width, initial_indent=indent, subsequent_indent=indent) for part in parts]
        return "\n\n".join(part if "\n  " in part else by_us for part, by_us in zip(parts, filled, strict=True))


def add_parser(
    commands: Any, name: str, help: str, doc: str | None, more: str = "", examples: str = ""
) -> argparse.ArgumentParser:
    """A command: its first sentence is the module's, and it ends with examples."""
    first = (doc or "").splitlines()[0].partition(": ")[2]
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=f"{first[:1].upper()}{first[1:]}\n\n{more}".strip(),
        epilog=f"examples:\n{examples.strip(chr(10))}" if examples else None,
        formatter_class=Help,
    )
    return parser


def seconds(given: str) -> float:
    """More than none of them."""
    if (value := duration(given)) == 0:
        raise argparse.ArgumentTypeError("it is a number of seconds, more than 0")
    return value


def duration(given: str) -> float:
    value = _number(given)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"it is a number of seconds, 0 or more, and not {given!r}")
    return value


def days(given: str) -> float:
    value = _number(given)
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"it is a number of days, 0 or more, and not {given!r}")
    return value


def count(given: str) -> int:
    value = _number(given)
    if value < 1 or value != int(value):
        raise argparse.ArgumentTypeError(f"it is a whole number, 1 or more, and not {given!r}")
    return int(value)


def text(given: str) -> str:
    if not given:
        raise argparse.ArgumentTypeError("it is empty: give some text, or leave it out")
    return given


def _number(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        return -1.0
