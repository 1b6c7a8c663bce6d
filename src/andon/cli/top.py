# SPDX-License-Identifier: Apache-2.0
"""`andon top`: show what runs now, live, with a key to stop the run under the cursor."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

from andon.cli.command_error import CommandError, Exit
from andon.cli.options import add_parser, database_of
from andon.cli.ps import add_filters
from andon.cli.run_source import DEFAULT_FILE, LIVE, RunSource, add_source_options, open_database, open_run_source
from andon.cli.terminal import is_terminal
from andon.core.selection import Selection

MORE = """From a server it shows what each run is doing. A database has only the status, and is read once a second. The
key ? shows all keys. The runs go on after you quit."""

EXAMPLES = """
  andon top
  andon top --agent storyteller
  andon top --url https://agents.example.com --token "$TOKEN"
"""


def add(commands: Any) -> None:
    parser = add_parser(commands, "top", "watch all runs, and stop them", __doc__, MORE, EXAMPLES)
    add_filters(parser)
    add_source_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)) or os.environ.get("TERM") == "dumb":
        raise CommandError("andon top needs a terminal, for its screen and its keys: use `andon ps` to list the runs")
    try:
        from andon.cli.screen import Ended
    except ImportError:  # not a POSIX system
        raise CommandError("andon top needs the terminal of a POSIX system: use `andon ps` to list the runs") from None
    try:
        _show(options)
    except Ended as ended:
        if ended.number == signal.SIGINT:
            return Exit.interrupted
        ended.repeat()
    return Exit.ok


def _show(options: argparse.Namespace) -> None:
    import threading

    from andon.cli.server_client import ServerSource
    from andon.cli.top_board import Inbox, Top
    from andon.cli.top_feed import DatabaseFeed, Feed, FeedThread, ServerFeed
    from andon.cli.top_rows import RunRows

    which = Selection(None, options.session, options.user, options.agent, LIVE)
    source, inbox, stopped = open_run_source(options), Inbox(), threading.Event()

    def open_source() -> RunSource:
        """A database is used by one thread at a time, so each thread opens its own."""
        return open_database(database_of(options) or f"sqlite:///{DEFAULT_FILE}") if source.local else source

    if isinstance(source, ServerSource):
        feed: Feed = ServerFeed(source)
    else:
        source.close()
        feed = DatabaseFeed(open_source, which, stopped)
    Top(source.name, RunRows(which), inbox, open_source).start(FeedThread(feed, inbox.put, stopped))
