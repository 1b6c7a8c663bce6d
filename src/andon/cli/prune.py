# SPDX-License-Identifier: Apache-2.0
"""`andon prune`: forget what has ended, and was not touched, for some time."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

from andon.cli.command_error import CommandError, Exit
from andon.cli.options import add_parser, database_of, days
from andon.cli.report import to_json
from andon.cli.run_source import DEFAULT_FILE, open_database

DAY = 86400.0

MORE = """Sessions in which nothing goes on, with their runs and events; and the events of other runs that have ended.
What is paused stays. Servers may be at work on the database meanwhile."""

EXAMPLES = """
  andon prune --keep-days 7 --dry-run
  andon prune --db postgresql://andon@db/andon
"""


def add(commands: Any) -> None:
    parser = add_parser(commands, "prune", "forget what is old", __doc__, MORE, EXAMPLES)
    parser.add_argument("--keep-days", type=days, default=30.0, metavar="N", help="keep N days (%(default)g)")
    parser.add_argument("--dry-run", action="store_true", help="only count")
    parser.add_argument("--json", action="store_true", help="the counts as an object, on one line")
    group = parser.add_argument_group("where", f"without any: $ANDON_DB, ./{DEFAULT_FILE}")
    group.add_argument("--db", metavar="URL", help="a database: sqlite:///andon.db, postgresql://…")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    db = database_of(options)
    if not db and not Path(DEFAULT_FILE).exists():
        raise CommandError(f"there is no {DEFAULT_FILE} here: name a database with --db", Exit.unreachable)
    with closing(open_database(db or f"sqlite:///{DEFAULT_FILE}")) as source:
        counts = source.prune(options.keep_days * DAY, dry_run=options.dry_run)
    if options.json:
        print(to_json({**counts, "keep_days": options.keep_days, "dry_run": options.dry_run}))
    else:
        told = ", ".join(f"{count} {what}" for what, count in counts.items())
        print(f"{'would forget' if options.dry_run else 'forgot'} {told}")
    return Exit.ok
