# SPDX-License-Identifier: Apache-2.0
"""Where `andon top` gets its runs: the board's stream of a server, or the list of a shared database once a second.

A feed works in a thread of its own, and never ends by itself. If its source can't be reached, it says so and tries
again. At the start, a source that can't be reached is an error.
"""

from __future__ import annotations

import http.client
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Protocol

import msgspec
from msgspec import Struct

from andon.cli.command_error import CommandError, Exit
from andon.cli.report import RunLine
from andon.cli.run_source import LIVE, RunSource
from andon.cli.server_client import Answer, NotAndonError, RefusedError, ServerSource, UnreachableError
from andon.core.selection import Selection
from andon.core.states import RunStatus
from andon.errors import AndonError

SILENCE_SECONDS = 40.0
"""After this time without data or a heartbeat, the stream is opened again."""

SHORT_SECONDS = 1.0
"""A stream that ends earlier was broken off."""

FIRST_DELAY, LONGEST_DELAY = 0.5, 5.0

LOOK_SECONDS = 1.0
"""How often a database is asked."""

MOST_OF_A_DATABASE = 1_000

Key = tuple[str, str]
"""The id of the agent and of the run."""


class Shown(Struct, omit_defaults=True):
    """A run in the board's stream."""

    run_id: str
    agent_id: str
    status: str
    created_at: float
    session_id: str = ""
    user_id: str | None = None
    server: str | None = None
    doing: str | None = None
    since: float | None = None
    tokens: int | None = None
    estimated: bool | None = None
    ended_at: float | None = None
    cause: str | None = None
    by: str | None = None
    latency: float | None = None
    error: str | None = None

    @property
    def key(self) -> Key:
        return self.agent_id, self.run_id

    @property
    def live(self) -> bool:
        return self.status in LIVE


class Update(Struct):
    """What has changed."""

    runs: list[Shown]
    now: float
    """By the clock of the source."""
    reset: bool = False
    """Forget what was known."""
    gone: list[Key] = []
    more: int | None = None
    """How many more runs are not listed."""


class Away(Struct):
    """The source can't be reached. The next update says that it is back."""

    why: str


class Crashed(Struct):
    """The feed, or another thread of the command, has ended with an error."""

    error: BaseException


Message = Update | Away | Crashed
Tell = Callable[[Message], None]


class Feed(Protocol):
    close_seconds: float
    """How long its source may take to close."""

    def updates(self) -> Generator[Update, None, None]:
        """The updates of the source, until the connection ends. Raises `CommandError` or `AndonError`."""
        ...


class ServerFeed:
    """The stream of a server's board."""

    close_seconds = 0.0

    def __init__(self, source: ServerSource) -> None:
        self._source = source
        self._last_id = ""
        """The id of the last message."""

    def updates(self) -> Generator[Update, None, None]:
        opened = -math.inf
        while time.monotonic() - opened > SHORT_SECONDS:  # the server ends a long stream, to be asked again
            opened = time.monotonic()
            with self._open() as answer:
                for name, data in self._messages(answer):
                    if name == "runs":
                        yield self._update(data)

    def _update(self, data: bytes) -> Update:
        try:
            return msgspec.json.decode(data, type=Update)
        except msgspec.DecodeError as error:  # and ValidationError, which is one
            raise NotAndonError(f"can't read the stream of {self._source.name}: {error}") from None

    def _open(self) -> Answer:
        headers = {"last-event-id": self._last_id} if self._last_id else {}
        try:
            return self._source.open_response("GET", "/board/events", headers=headers, seconds=SILENCE_SECONDS)
        except RefusedError as refused:
            if refused.status not in (404, 405):
                raise
            name = self._source.name
            raise CommandError(
                f"{name} has no board: it is older than this command. `andon ps --url {name}` lists its runs",
                Exit.failed,
            ) from None

    def _messages(self, answer: Answer) -> Iterator[tuple[str, bytes]]:
        """The server-sent events of the stream. Comments, the heartbeat, are left out."""
        name, data, rest = "", b"", b""
        while part := self._read(answer):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.startswith(b"event:"):
                    name = line[6:].strip().decode("utf-8", "replace")
                elif line.startswith(b"id:"):
                    self._last_id = line[3:].strip().decode("ascii", "ignore")
                elif line.startswith(b"data:"):
                    data = line[5:]
                elif not line.strip():
                    if data:
                        yield name, data
                    name, data = "", b""

    def _read(self, answer: Answer) -> bytes:
        try:
            return answer.read1(65536)
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise UnreachableError(f"{self._source.name} broke off ({why})") from None


class DatabaseFeed:
    """The list of a shared database. It does not say what a run does at this moment."""

    close_seconds = 0.5

    def __init__(self, open_source: Callable[[], RunSource], which: Selection, stopped: threading.Event) -> None:
        self._open, self._which, self._stopped = open_source, which, stopped

    def updates(self) -> Generator[Update, None, None]:
        with closing(self._open()) as source:
            while not self._stopped.is_set():
                lines = source.runs(self._which, MOST_OF_A_DATABASE + 1)
                more = 1 if len(lines) > MOST_OF_A_DATABASE else None
                yield Update([_shown(line) for line in lines[:MOST_OF_A_DATABASE]], time.time(), reset=True, more=more)
                self._stopped.wait(LOOK_SECONDS)


def _shown(line: RunLine) -> Shown:
    return Shown(
        line.run_id,
        line.agent_id,
        line.status.value,
        line.created_at,
        line.session_id,
        line.user_id,
        doing=_DOING.get(line.status),
    )


_DOING = {RunStatus.paused: "asks a person", RunStatus.cancelling: "stopping"}


class FeedThread:
    """Reads a feed until it is stopped, and passes its updates on."""

    def __init__(self, feed: Feed, tell: Tell, stopped: threading.Event) -> None:
        self._feed, self._tell, self._stopped = feed, tell, stopped
        self._thread = threading.Thread(target=self._work, name="andon-top", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let it close its source. A source that does not answer delays the command's end for `close_seconds` only."""
        self._stopped.set()
        self._thread.join(self._feed.close_seconds)

    def _work(self) -> None:
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001 - the main thread raises it, when the terminal is as it was
            self._tell(Crashed(error))

    def _follow(self) -> None:
        known, delay = False, FIRST_DELAY
        while not self._stopped.is_set():
            why = "it has ended the connection"
            try:
                with closing(self._feed.updates()) as updates:
                    for update in updates:
                        known, delay = True, FIRST_DELAY
                        self._tell(update)
            except (CommandError, AndonError) as error:
                if not known:
                    raise
                why = str(error)
            if not self._stopped.is_set():
                self._tell(Away(why))
                self._stopped.wait(delay)
                delay = min(2 * delay, LONGEST_DELAY)
