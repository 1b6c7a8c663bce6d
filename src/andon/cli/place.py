# SPDX-License-Identifier: Apache-2.0
"""Where runs are looked for: a server, or the database that servers share. The seam, and the options that choose.

Both know the same verbs, so no command knows which of them it talks to; `name` is for errors, which say where the
command has looked.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from andon.cli.mistake import Exit, Mistake
from andon.cli.options import text
from andon.cli.report import Cancelled, Line, Report
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
    from andon.cli.local import Local


class Place(Protocol):
    """What can be asked of a server or a database. What goes wrong is a `Mistake`."""

    name: str
    local: bool
    """There is nobody there who could go on with a run."""

    def runs(self, which: Selection, limit: int) -> list[Line]:
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


def add_where(parser: argparse.ArgumentParser, *, server: bool = True) -> None:
    group = parser.add_argument_group("where", "without any: $ANDON_URL, ./andon.db if it is there, " + DEFAULT_URL)
    if server:
        group.add_argument("--url", help="a server")
        group.add_argument("--token", help="the server's token ($ANDON_TOKEN)")
    group.add_argument("--db", metavar="URL", help="a database: sqlite:///andon.db, postgresql://…")


def open_place(options: argparse.Namespace) -> Place:
    """The server, or the database, that was named; or whichever is there."""
    url, db = options.url, options.db
    if url and db:
        raise Mistake("--url and --db are two places: give one of them")
    url = url or (None if db else os.environ.get("ANDON_URL"))
    if not url and not db and Path(DEFAULT_FILE).exists():
        db = f"sqlite:///{DEFAULT_FILE}"
    if db:
        return open_database(db)
    from andon.cli.remote import Remote

    return Remote(url or DEFAULT_URL, options.token or os.environ.get("ANDON_TOKEN"))


def how_to_go_on(options: argparse.Namespace, place: Place) -> str:
    """What `andon continue RUN` needs besides, to find the same run."""
    flags = f"--db {shlex.quote(without_secrets(options.db))} " if options.db else ""
    flags += f"--url {shlex.quote(options.url)} " if options.url else ""
    return f"module:agent {flags}" if place.local else flags


def without_secrets(url: str) -> str:
    """A database's URL as it may be shown: without its user and password, and without its options."""
    return re.sub("://.*@", "://", url.partition("?")[0])


def open_database(url: str) -> Local:
    """A database that is there. Whoever looks for runs in one that isn't has mistyped it."""
    from andon.cli.local import Local

    scheme, _, path = url.partition("?")[0].partition(":///")
    if scheme.startswith("sqlite") and path and not Path(path).exists():
        raise Mistake(f"there is no database {path!r}: name one with --db, or a server with --url", Exit.unreachable)
    return Local(url)


def find(place: Place, given: str) -> Report:
    """The run of this id, or the one whose id begins so."""
    if (report := place.look(text(given))) is not None:
        return report
    fitting: Sequence[Line] = []
    if len(given) >= SHORTEST:  # of those that have ended, the newest are enough
        listed = [line for which in (Selection(statuses=LIVE), Selection()) for line in place.runs(which, 10_000)]
        fitting = list({line.run_id: line for line in listed if line.run_id.startswith(given)}.values())
    if len(fitting) > 1:
        ids = ", ".join(line.run_id for line in fitting[:5])
        raise Mistake(f"{given!r} begins the ids of {len(fitting)} runs at {place.name}: {ids}", Exit.usage)
    found = place.look(fitting[0].run_id) if fitting else None
    if found is None:
        raise Mistake(f"there is no run {given!r} at {place.name}; `andon ps --all` lists them", Exit.failed)
    return found
