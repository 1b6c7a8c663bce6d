# SPDX-License-Identifier: Apache-2.0
"""Where runs are looked for: a server, or the database that servers share. The seam, and the options that choose.

Both know the same verbs, so no command knows which of them it talks to; `name` is for errors, which say where the
command has looked.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from andon.cli.command_error import CommandError, Exit
from andon.cli.options import database_of, text
from andon.cli.report import Cancelled, Report, RunLine
from andon.cli.terminal import note
from andon.core.events import Event
from andon.core.receipt import CancelRequest
from andon.core.selection import Selection
from andon.core.states import RunStatus

DEFAULT_URL = "http://127.0.0.1:7777"
DEFAULT_FILE = "andon.db"
SHORTEST = 4
"""The beginning of an id stands for it, from so many characters on."""


LIVE = tuple(status for status in RunStatus if not status.final)

if TYPE_CHECKING:
    from andon.cli.database import DatabaseSource
    from andon.cli.server_client import ServerSource


class RunSource(Protocol):
    """What can be asked of a server or a database. What goes wrong is a `CommandError`."""

    name: str
    local: bool
    """There is nobody there who could go on with a run."""

    def runs(self, which: Selection, limit: int) -> list[RunLine]:
        """Newest first."""
        ...

    def look(self, run_id: str) -> Report | None:
        """How it stands with the run of exactly this id."""
        ...

    def events(self, run: Report) -> Iterator[Event]:
        """A run's events from the first one on, as far as they are kept, up to its end, or to where it is paused."""
        ...

    def cancel(
        self, which: Selection, request: CancelRequest, *, wait: float | None = None, block: bool = False
    ) -> list[Cancelled]:
        """Ask runs to stop, and wait for so long at the most until they have ended and all of them is gone.

        With `block`, refuse new ones of that user or agent from now on.
        """
        ...

    def unblock(self, kind: Literal["user", "agent"], id: str) -> bool:
        """Take new runs of that user or agent again. False if they were not refused."""
        ...

    def close(self) -> None: ...


def add_source_options(parser: argparse.ArgumentParser, *, server: bool = True) -> None:
    without = f"without any: $ANDON_URL, $ANDON_DB, {DEFAULT_URL} if a server answers, ./{DEFAULT_FILE}"
    group = parser.add_argument_group("where", without)
    if server:
        group.add_argument("--url", help="a server")
        group.add_argument("--token", help="the server's token ($ANDON_TOKEN)")
    group.add_argument("--db", metavar="URL", help="a database: sqlite:///andon.db, postgresql://…")


def open_run_source(options: argparse.Namespace) -> RunSource:
    """The server, or the database, that was named; without a name, whichever is there, the server first."""
    url, db = options.url, options.db
    if url and db:
        raise CommandError("--url and --db are two places: give one of them")
    url = url or (None if db else os.environ.get("ANDON_URL"))
    db = db or (None if url else database_of(options))
    if db:
        return open_database(db)
    server = _server(url or DEFAULT_URL, options)
    return server if url else _default_source(server, quiet=getattr(options, "quiet", False))


def default_server_with(run_id: str, options: argparse.Namespace) -> RunSource | None:
    """The server at the usual address, if it has this run. For those who named nothing but $ANDON_DB."""
    server = _server(DEFAULT_URL, options)
    if options.db is None and server.is_there() and server.look(run_id) is not None:
        return server
    return None


def _server(url: str, options: argparse.Namespace) -> ServerSource:
    from andon.cli.server_client import ServerSource

    return ServerSource(url, options.token or os.environ.get("ANDON_TOKEN"))


def _default_source(server: ServerSource, *, quiet: bool) -> RunSource:
    """The server if one answers, otherwise the file in this folder; and say which.

    The server first: it has the agents, so it can go on with a run, and a file beside it is most likely its own. A
    server that is there and hangs, or wants a token, is an error: the file must not answer in its source unasked.
    """
    file = f"sqlite:///{DEFAULT_FILE}" if Path(DEFAULT_FILE).exists() else None
    tell = (lambda text: None) if quiet else note
    if server.is_there():
        other = f"; to ask the file in this folder instead: --db {file}" if file else ""
        tell(f"· asking the server at {server.name}{other}")
        return server
    if file is None:
        return server.without_token()  # what is asked of it says what is wrong
    tell(f"· asking {file}: no server answers at {server.name}")
    return open_database(file)


def continue_arguments(options: argparse.Namespace, source: RunSource) -> str:
    """What `andon continue RUN` needs besides, to find the same run."""
    if source.local:  # named also if nobody named it: a server may be there by then, and would be asked first
        agent = getattr(options, "agent", None) or "module:agent"
        return f"{agent} --db {shlex.quote(source.name)} "
    return f"--url {shlex.quote(options.url)} " if options.url else ""


def open_database(url: str) -> DatabaseSource:
    """A database that is there. Whoever looks for runs in one that isn't has mistyped it."""
    from andon.cli.database import DatabaseSource

    scheme, _, path = url.partition("?")[0].partition(":///")
    if scheme.startswith("sqlite") and path and not Path(path).exists():
        raise CommandError(
            f"there is no database {path!r}: name one with --db, or a server with --url", Exit.unreachable
        )
    return DatabaseSource(url)


def find_run(source: RunSource, given: str) -> Report:
    """The run of this id, or the one whose id begins so."""
    if (report := source.look(text(given))) is not None:
        return report
    fitting: Sequence[RunLine] = []
    if len(given) >= SHORTEST:  # of those that have ended, the newest are enough
        listed = [line for which in (Selection(statuses=LIVE), Selection()) for line in source.runs(which, 10_000)]
        fitting = list({line.run_id: line for line in listed if line.run_id.startswith(given)}.values())
    if len(fitting) > 1:
        ids = ", ".join(line.run_id for line in fitting[:5])
        raise CommandError(f"{given!r} begins the ids of {len(fitting)} runs at {source.name}: {ids}", Exit.usage)
    found = source.look(fitting[0].run_id) if fitting else None
    if found is None:
        raise CommandError(f"there is no run {given!r} at {source.name}; `andon ps --all` lists them", Exit.failed)
    return found
