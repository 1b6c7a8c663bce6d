# SPDX-License-Identifier: Apache-2.0
"""Shared by the options of all commands: the layout of the help, and the types of values."""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
import shlex
import textwrap
from collections.abc import Sequence
from typing import Any

from andon.cli.command_error import CommandError


class Help(argparse.HelpFormatter):
    """Wraps paragraphs to the width of the terminal, except those with indented lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.strip("\n").split("\n\n")
        filled = [textwrap.fill(part, width, initial_indent=indent, subsequent_indent=indent) for part in parts]
        return "\n\n".join(part if "\n  " in part else by_us for part, by_us in zip(parts, filled, strict=True))


def add_parser(
    commands: Any, name: str, help: str, doc: str | None, more: str = "", examples: str = ""
) -> argparse.ArgumentParser:
    """Add a command. Its description begins with the first line of the module's docstring; examples come last."""
    first = (doc or "").splitlines()[0].partition(": ")[2]
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=f"{first[:1].upper()}{first[1:]}\n\n{more}".strip(),
        epilog=f"examples:\n{examples.strip(chr(10))}" if examples else None,
        formatter_class=Help,
    )
    return parser


def database_of(options: argparse.Namespace) -> str | None:
    """The database in --db or else in ANDON_DB."""
    return options.db or os.environ.get("ANDON_DB") or None


def without_secrets(url: str) -> str:
    """The URL of a database as it may be shown: without user, password and options."""
    return re.sub("://.*@", "://", url.partition("?")[0])


def unknown_arguments(parser: argparse.ArgumentParser, command: Sequence[str], given: Sequence[str]) -> CommandError:
    """The error for arguments that a command does not know. It names the most similar option."""
    name = " ".join([parser.prog, *command])
    wrong = [each for each in given if each.startswith("-")] or given
    near = difflib.get_close_matches(wrong[0].partition("=")[0], _options_of(parser), 1)
    meant = f"; did you mean {near[0]}?" if near else "."
    return CommandError(f"{name} takes no {shlex.join(wrong)}{meant} `{name} --help` lists what it takes")


def _options_of(parser: argparse.ArgumentParser) -> list[str]:
    """The options of a parser, and of its commands."""
    commands = [
        each for action in parser._actions if isinstance(action.choices, dict) for each in action.choices.values()
    ]
    return [option for each in [parser, *commands] for option in each._option_string_actions]


def seconds(given: str) -> float:
    """A number above 0."""
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
    if not 1 <= value < math.inf or value != int(value):
        raise argparse.ArgumentTypeError(f"it is a whole number, 1 or more, and not {given!r}")
    return int(value)


def port(given: str) -> int:
    number = int(given) if given.isdecimal() else -1
    if not 0 <= number < 65536:  # the system would use the remainder of a division
        raise argparse.ArgumentTypeError(f"it is a number from 0 to 65535, and not {given!r}")
    return number


def text(given: str) -> str:
    if not given:
        raise argparse.ArgumentTypeError("it is empty: give some text, or leave it out")
    return given


def _number(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        return -1.0
