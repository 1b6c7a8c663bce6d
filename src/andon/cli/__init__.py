# SPDX-License-Identifier: Apache-2.0
"""The command `andon`. Each command is a file of its own, with `add` (its options) and `run` (what it does).

What a user got wrong is one sentence on stderr and exit code 2; a traceback is for our own defects.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from andon import __version__
from andon.cli import serve
from andon.cli.mistake import Mistake

COMMANDS = [serve]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="andon", description="AI agents whose runs can always be cancelled.")
    parser.add_argument("--version", action="version", version=f"andon {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except Mistake as mistake:
        print(f"andon: {mistake}", file=sys.stderr)
        return 2
