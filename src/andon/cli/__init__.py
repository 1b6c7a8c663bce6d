# SPDX-License-Identifier: Apache-2.0
"""The command `andon`. Each subcommand is a module with `add` (its options) and `run` (what it does). Only the module
of the given subcommand is imported.

A mistake of the user is one sentence on stderr and an exit code. A traceback is only for defects of Andon.

run_source       the protocol for the next two, and the options that choose one
server_client    a server, over HTTP
database         a shared database, without a server
local_run        a run in this process: signals, output, questions
top_board        the screen of `andon top`; `top_feed` has the sources of its runs, `top_rows` its list
screen           a terminal that is drawn line by line, and its keys
event_printer    prints the events of a run; `terminal` has colours and tables
questions        asks a person, or reads the answers from options
agent_import     imports the agent that `module:name` means
serve_options    the options of `andon serve` for access and limits
mcp_serving      the MCP server of `andon mcp`
worker           a process that executes runs, which servers have accepted
workers          several serving processes, and --reload
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
    "worker": "worker",
    "drain": "drain",
    "run": "run",
    "ps": "ps",
    "top": "top",
    "watch": "watch",
    "cancel": "cancel",
    "unblock": "unblock",
    "continue": "continuing",
    "prune": "prune",
    "mcp": "mcp",
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
    except CommandError as error:
        return _print_error(error)
    except AndonError as error:
        return _print_error(command_error_of(error))
    except KeyboardInterrupt:
        return Exit.interrupted
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        _redirect_stdout()
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


def _print_error(error: CommandError) -> Exit:
    if error.details:
        print(without_controls(error.details), end="", file=sys.stderr)
    print(f"andon: {without_controls(str(error))}", file=sys.stderr)
    return error.code


def _redirect_stdout() -> None:
    """The reader has closed the pipe: the flush of buffered output at exit must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
