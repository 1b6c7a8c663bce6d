# SPDX-License-Identifier: Apache-2.0
"""`andon unblock`: take new runs again of a user, or of an agent, that `andon cancel --block` had refused."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

from andon.cli.command_error import CommandError, Exit
from andon.cli.options import add_parser, text
from andon.cli.report import to_json
from andon.cli.run_source import add_source_options, open_run_source
from andon.cli.terminal import note

EXAMPLES = """
  andon unblock --user ada
  andon unblock --agent storyteller
"""


def add(commands: Any) -> None:
    parser = add_parser(commands, "unblock", "take runs again after a block", __doc__, examples=EXAMPLES)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--user", type=text, metavar="ID", help="the user")
    which.add_argument("--agent", type=text, metavar="ID", help="the agent")
    parser.add_argument("--json", action="store_true", help="an object, on one line")
    add_source_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with closing(open_run_source(options)) as source:
        lifted = source.unblock("user", options.user) if options.user else source.unblock("agent", options.agent)
    kind, id = ("user", options.user) if options.user else ("agent", options.agent)
    if options.json:
        print(to_json({"kind": kind, "id": id, "unblocked": lifted}))
    elif lifted:
        note(f"new runs of {kind} {id} are taken again")
    else:
        raise CommandError(f"{kind} {id!r} is not blocked at {source.name}", Exit.failed)
    return Exit.ok if lifted else Exit.failed
