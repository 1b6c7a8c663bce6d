# SPDX-License-Identifier: Apache-2.0
"""Where commands find runs: a server, or the shared database. The protocol of both, and the options that choose one.

Both have the same methods, so a command need not know which one it uses. Errors show the `name` of the source.
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
from andon.scale.overview import Overview

DEFAULT_URL = "http://127.0.0.1:7777"
DEFAULT_FILE = "andon.db"
SHORTEST = 4
"""How many characters of an id are enough to find a run by it."""


LIVE = tuple(status for status in RunStatus if not status.final)

if TYPE_CHECKING:
    from andon.cli.database import DatabaseSource
    from andon.cli.server_client import ServerSource


class RunSource(Protocol):
    """A server or a database. Its methods raise `CommandError`."""

    name: str
    local: bool
    """A database: it has no agents that could continue a run."""

    def runs(self, which: Selection, limit: int) -> list[RunLine]:
        """Newest first."""
        ...

    def look(self, run_id: str) -> Report | None:
        """The state of the run with exactly this id."""
        ...

    def events(self, run: Report) -> Iterator[Event]:
        """The events of a run from the first one that is kept, up to its end or its pause."""
        ...

    def cancel(
        self, which: Selection, request: CancelRequest, *, wait: float | None = None, block: bool = False
    ) -> list[Cancelled]:
        """Cancel runs, and wait for at most `wait` seconds until they have ended and their leftovers are known.

        With `block`, new runs of that user or agent are refused from now on.
        """
        ...

    def unblock(self, kind: Literal["user", "agent"], id: str) -> bool:
        """Accept new runs of that user or agent again. False if they were not blocked."""
        ...

    def workers(self) -> Overview:
        """The worker processes, and what waits for them."""
        ...

    def drain(self, worker: str) -> bool:
        """Ask a worker process to stop. False if there is none of this name."""
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
    """The server or database of the options; without one, the default server, or else the default file."""
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
    """The server at the default address, if it has this run and --db was not given."""
    server = _server(DEFAULT_URL, options)
    if options.db is None and server.is_there() and server.look(run_id) is not None:
        return server
    return None


def _server(url: str, options: argparse.Namespace) -> ServerSource:
    from andon.cli.server_client import ServerSource

    return ServerSource(url, options.token or os.environ.get("ANDON_TOKEN"))


def _default_source(server: ServerSource, *, quiet: bool) -> RunSource:
    """The server if one answers, otherwise the file in this folder. A note says which.

    The server comes first: it has the agents, so it can continue a run, and a file beside it is most likely its own. A
    server that hangs or needs a token is an error: the file must not be used instead without the user knowing.
    """
    file = f"sqlite:///{DEFAULT_FILE}" if Path(DEFAULT_FILE).exists() else None
    tell = (lambda text: None) if quiet else note
    if server.is_there():
        other = f"; to ask the file in this folder instead: --db {file}" if file else ""
        tell(f"· asking the server at {server.name}{other}")
        return server
    if file is None:
        return server.without_token()  # its first request will fail with the reason
    tell(f"· asking {file}: no server answers at {server.name}")
    return open_database(file)


def continue_arguments(options: argparse.Namespace, source: RunSource) -> str:
    """The arguments after `andon continue RUN` that find the same run."""
    if source.local:  # also if it was the default: a server may run by then, and would be used first
        agent = getattr(options, "agent", None) or "module:agent"
        return f"{agent} --db {shlex.quote(source.name)} "
    return f"--url {shlex.quote(options.url)} " if options.url else ""


def open_database(url: str) -> DatabaseSource:
    """A database that exists. One that does not is most likely a typing error."""
    from andon.cli.database import DatabaseSource

    scheme, _, path = url.partition("?")[0].partition(":///")
    if scheme.startswith("sqlite") and path and not Path(path).exists():
        raise CommandError(
            f"there is no database {path!r}: name one with --db, or a server with --url", Exit.unreachable
        )
    return DatabaseSource(url)


def find_run(source: RunSource, given: str) -> Report:
    """The run with this id, or the one whose id begins with it."""
    if (report := source.look(text(given))) is not None:
        return report
    fitting: Sequence[RunLine] = []
    if len(given) >= SHORTEST:  # of ended runs, the newest are enough
        listed = [line for which in (Selection(statuses=LIVE), Selection()) for line in source.runs(which, 10_000)]
        fitting = list({line.run_id: line for line in listed if line.run_id.startswith(given)}.values())
    if len(fitting) > 1:
        ids = ", ".join(line.run_id for line in fitting[:5])
        raise CommandError(f"{given!r} begins the ids of {len(fitting)} runs at {source.name}: {ids}", Exit.usage)
    found = source.look(fitting[0].run_id) if fitting else None
    if found is None:
        raise CommandError(f"there is no run {given!r} at {source.name}; `andon ps --all` lists them", Exit.failed)
    return found
