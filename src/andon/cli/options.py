# SPDX-License-Identifier: Apache-2.0
"""What the commands' options share: how they are laid out, and what their values may be."""

from __future__ import annotations

import argparse
import math
from typing import Any


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
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def seconds(text: str) -> float:
    """More than none of them."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("it is a number of seconds, more than 0")
    return value


def grace(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError("it is a number of seconds, 0 or more")
    return value


def text(given: str) -> str:
    if not given:
        raise argparse.ArgumentTypeError("it is empty: give some text, or leave it out")
    return given


def whole(given: str) -> int:
    value = int(given)
    if value < 1:
        raise argparse.ArgumentTypeError("it is a whole number, 1 or more")
    return value
