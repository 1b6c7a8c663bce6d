# SPDX-License-Identifier: Apache-2.0
"""The command `andon`. Each command is a file of its own, with `add` (its options) and `run` (what it does), and only
the one that was asked for is loaded.

What a user got wrong is one sentence on stderr and an exit code of its own; a traceback is for our own defects.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module

from andon import __version__
from andon.cli.command_error import CommandError, Exit, command_error_of
from andon.cli.options import Help, unknown_arguments
from andon.cli.terminal import prepare_streams, without_controls
from andon.errors import AndonError

MODULES = {
    "serve": "serve",
    "run": "run",
    "ps": "ps",
    "watch": "watch",
    "cancel": "cancel",
    "unblock": "unblock",
    "continue": "continuing",
    "prune": "prune",
}

EPILOG = """
where runs are looked for: --url, --db, $ANDON_URL, $ANDON_DB, http://127.0.0.1:7777 if a server answers, ./andon.db

exit codes:
  0    all well; a run that was followed has completed
  1    the run failed, or what was asked for is not there
  2    wrong usage
  3    the run was cancelled
  4    the run is paused and waits for an answer
  5    the server or the database can't be reached
  130  left by Ctrl-C (in `andon run`, by the second one)

andon COMMAND --help tells more, with examples.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    prepare_streams()
    if arguments is None:
        arguments = sys.argv[1:]
    asked = [name for name in arguments[:1] if name in MODULES]
    parser = make_parser(asked or MODULES)
    options, unknown = parser.parse_known_args(arguments)
    options.given = list(arguments)
    try:
        if unknown:
            raise unknown_arguments(parser, asked, unknown)
        code = int(options.run(options))
        sys.stdout.flush()
    except CommandError as mistake:
        return _say(mistake)
    except AndonError as error:
        return _say(command_error_of(error))
    except KeyboardInterrupt:
        return Exit.interrupted
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        _let_go_of_stdout()
        return Exit.pipe_closed
    return code


def make_parser(names: Iterable[str] = MODULES) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="andon",
        description="AI agents whose runs can always be cancelled.",
        epilog=EPILOG,
        formatter_class=Help,
    )
    parser.add_argument("--version", action="version", version=f"andon {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        import_module(f"andon.cli.{MODULES[name]}").add(commands)
    return parser


def _say(mistake: CommandError) -> Exit:
    if mistake.details:
        print(without_controls(mistake.details), end="", file=sys.stderr)
    print(f"andon: {without_controls(str(mistake))}", file=sys.stderr)
    return mistake.code


def _let_go_of_stdout() -> None:
    """Nobody reads it any more: what is still buffered must not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
