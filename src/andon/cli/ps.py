# SPDX-License-Identifier: Apache-2.0
"""`andon ps`: list the runs that have not ended."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import Any

from andon.cli.command_error import Exit
from andon.cli.options import add_parser, count, text
from andon.cli.report import RunLine, to_json
from andon.cli.run_source import LIVE, add_source_options, open_run_source
from andon.cli.terminal import Column, age, note, table
from andon.core.selection import Selection

EXAMPLES = """
  andon ps
  andon ps --all --agent storyteller
  andon ps --url https://agents.example.com --token "$TOKEN"
  andon ps --json | jq -r '.[] | select(.status == "PAUSED").run_id'
"""

COLUMNS = [
    Column("RUN", 8, 9),
    Column("AGENT", 8, 7),
    Column("STATUS", 10, 8),
    Column("PHASE", 9, 4),
    Column("SESSION", 8, 3),
    Column("USER", 6, 2),
    Column("AGE", 3, 5),
]


def add(commands: Any) -> None:
    parser = add_parser(commands, "ps", "list runs", __doc__, examples=EXAMPLES)
    parser.add_argument("--all", "-a", action="store_true", help="also those that have ended, as far as they are kept")
    add_filters(parser)
    parser.add_argument("--limit", type=count, default=100, metavar="N", help="the newest so many (%(default)s)")
    parser.add_argument("--json", action="store_true", help="a list of objects, on one line")
    add_source_options(parser)
    parser.set_defaults(run=run)


def add_filters(parser: Any) -> None:
    parser.add_argument("--session", type=text, metavar="ID", help="the runs of this session")
    parser.add_argument("--user", type=text, metavar="ID", help="the runs of this user")
    parser.add_argument("--agent", type=text, metavar="ID", help="the runs of this agent")


def run(options: argparse.Namespace) -> int:
    statuses = () if options.all else LIVE
    which = Selection(None, options.session, options.user, options.agent, statuses)
    with closing(open_run_source(options)) as source:
        lines = source.runs(which, options.limit + 1)
    lines, more = lines[: options.limit], len(lines) > options.limit
    if options.json:
        print(to_json(lines))
        return Exit.ok
    if lines:
        print(table(COLUMNS, [_row(line) for line in lines], sys.stdout))
    else:
        note(f"no runs at {source.name}{'' if options.all else ' now; --all lists those that have ended too'}")
    if more:
        note(f"there are more than {options.limit}: --limit shows them")
    return Exit.ok


def _row(line: RunLine) -> list[str]:
    phase = "" if line.phase is None or line.status.final else str(line.phase)
    return [
        line.run_id,
        line.agent_id,
        line.status.name,
        phase or "-",
        line.session_id,
        line.user_id or "-",
        age(line.created_at),
    ]
