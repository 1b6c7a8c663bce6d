# SPDX-License-Identifier: Apache-2.0
"""Keeps the lines that boards show, and knows which of them a board has not seen yet.

While a board is open, the feed looks at the runs twice a second. A look that finds a change makes a new version. A
board has seen all lines up to some version, and is sent the lines that have changed since. So a line that has changed
often is sent once, and a slow board gets fewer messages. Boards with the same version and the same rights are sent the
same bytes, so a hundred boards cost little more than one. While no board is open, the feed does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from andon.core.run.run import LocalRun
from andon.core.states import RunStatus
from andon.core.waiters import Waiters
from andon.server.access import Principal
from andon.server.board.history import History
from andon.server.board.lines import Activity, Key, Line, RunHead, live_line
from andon.server.host import Host
from andon.server.responses import to_json
from andon.server.sse import escape_line_separators

LOOK_SECONDS = 0.5

LINGER_SECONDS = 5.0
"""How long the feed goes on looking after the last board has left."""

MOST_LINES = 5_000
"""How many live runs a new board is sent."""

LAST_ENDED = 200
"""How many ended runs a new board is sent."""

AT_REST = 1_000
"""How many lines of runs that have ended or are gone are kept, for boards that have not seen them yet."""


class ShownAgent(Struct):
    id: str
    name: str
    description: str | None


class Entry(Struct):
    """A line, and the version of its last change."""

    line: Line
    version: int
    gone: bool = False
    """The run can't be found any more, and its end is not known."""


class Hello(Struct, tag_field="event", tag="hello"):
    """The first message to a board."""

    now: float
    """The time of the server, in seconds. All times in lines are the server's."""
    server: str
    version: str
    admin: bool
    user_id: str | None
    agents: list[ShownAgent]


class Changes(Struct, tag_field="event", tag="runs", omit_defaults=True):
    """The lines that have changed."""

    now: float
    runs: list[Line]
    reset: bool = False
    """Forget all lines that were sent before."""
    gone: list[list[str]] = []
    """Live runs that can't be found any more, as pairs of agent id and run id."""
    more: int = 0
    """How many live runs are not listed."""


class LocalLine:
    """Makes the line of a run of this process."""

    def __init__(self, run: LocalRun, server: str) -> None:
        self.run, self._server, self._activity = run, server, Activity()
        self._seen: tuple[Any, ...] = ()
        self.last: Line | None = None

    def changed(self) -> Line | None:
        """The line, if it has changed since the last time."""
        run = self.run
        seen = len(run.journal.events), run.status, run.phase
        if seen == self._seen:
            return None
        self._seen = seen
        return self.line()

    def line(self) -> Line:
        run = self.run
        self._activity.take(run.run_id, run.journal.events.glimpse(self._activity.seq))
        asks = run.interrupts if run.status is RunStatus.paused else ()
        head = RunHead(run.run_id, run.session.key, run.created_at, run.parent_run_id, run.continues)
        self.last = live_line(head, run.status, self._activity, self._server, run.phase, asks)
        return self.last


class Feed:
    """The lines of all runs that the server sees."""

    def __init__(self, host: Host, history: History, server: str) -> None:
        self._host, self._history, self._server = host, history, server
        self._version = 0
        self._forgotten = 0
        """Changes up to this version are not complete any more."""
        self._entries: dict[Key, Entry] = {}
        """In the order of their last changes."""
        self._local: dict[Key, LocalLine] = {}
        self._at_rest: deque[Key] = deque()
        self._is_changed = False
        self._encoded: dict[tuple[Any, ...], bytes] = {}
        self._live_counts: Counter[str | None] | None = None
        self._waiters = Waiters()
        self._boards, self._left = 0, 0.0
        self._name = os.urandom(4).hex()
        """A part of each message's id, because each process counts its own versions."""

    # -- for boards ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """A board is open."""
        self._boards += 1
        try:
            yield
        finally:
            self._boards -= 1
            self._left = time.monotonic()

    def begin(self) -> None:
        """Look for the first time, before `keep_up`."""
        self._history.take()  # a new board is sent these from the history itself
        self._left = time.monotonic()
        self._look()

    async def keep_up(self) -> None:
        """Look again and again while boards are open, and a little longer: most boards open their stream again."""
        try:
            while self._boards or time.monotonic() < self._left + LINGER_SECONDS:
                await asyncio.sleep(LOOK_SECONDS)
                self._look()
        finally:
            self._close()

    @property
    def is_over(self) -> bool:
        """The server shuts down, and only runs that stay paused are left."""
        return self._host.draining and all(run.may_be_elsewhere for run in self._host.live)

    async def changes(self, principal: Principal, seen: int | None, keeping: asyncio.Task[None]) -> tuple[int, bytes]:
        """Wait for a version after `seen`. Returns that version, and the message with all changes since `seen`.
        `keeping` is the task that keeps the lines up to date.
        """
        await self._waiters.wait(lambda: seen != self._version or keeping.done())
        if keeping.done():
            keeping.result()  # raises what went wrong
        return self._version, self._message(principal, seen)

    def wake(self) -> None:
        self._waiters.wake()

    def version_of(self, message_id: str | None) -> int | None:
        """The version that a board has seen, from the id of its last message."""
        name, _, version = (message_id or "").partition("-")
        known = name == self._name and version.isascii() and version.isdigit() and len(version) < 18
        return int(version) if known and self._forgotten <= int(version) <= self._version else None

    @property
    def live(self) -> list[Line]:
        """The lines of the runs that have not ended, as far as they are known."""
        return [entry.line for entry in self._entries.values() if _is_live(entry)]

    def live_line(self, run: LocalRun) -> Line:
        """The line of a run of this process."""
        return LocalLine(run, self._server).line()

    def known_line(self, key: Key) -> Line | None:
        """The line of a run that has not ended, as it was last seen, here or elsewhere."""
        entry = self._entries.get(key)
        return entry.line if entry is not None and _is_live(entry) else None

    # -- changing lines -----------------------------------------------------------------------------------------------

    def put(self, line: Line) -> None:
        self._change(Entry(line, self._version + 1))

    def drop(self, line: Line) -> None:
        """A live run can't be found any more. If its entry has another line by now, another source knows the run."""
        entry = self._entries.get(line.key)
        if entry is not None and entry.line is line and _is_live(entry):
            self._change(Entry(line, self._version + 1, gone=True))

    def _change(self, entry: Entry) -> None:
        key = entry.line.key
        self._entries.pop(key, None)
        self._entries[key] = entry
        self._is_changed = True
        if not _is_live(entry):
            self._at_rest.append(key)

    # -- looking ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        found = {(run.agent_id, run.run_id): run for run in self._host.live}
        for key, run in found.items():
            if self._history.has(run):  # it has ended just now
                continue
            known = self._local.get(key)
            if known is None or known.run is not run:
                known = self._local[key] = LocalLine(run, self._server)
            if (line := known.changed()) is not None:
                self.put(line)
        for key in self._local.keys() - found.keys():
            if (last := self._local.pop(key).last) is not None:
                self.drop(last)
        for line in self._history.take():
            self.put(line)
        if self._is_changed or self.is_over:
            self._is_changed = False
            self._version += 1
            self._encoded.clear()
            self._live_counts = None
            self._waiters.wake()
        self._forget()

    def _forget(self) -> None:
        while len(self._at_rest) > AT_REST:
            entry = self._entries.get(key := self._at_rest.popleft())
            if entry is not None and not _is_live(entry):
                del self._entries[key]
                self._forgotten = max(self._forgotten, entry.version)

    def _close(self) -> None:
        """No board is open. The lines are not kept up to date any more, so forget them."""
        self._forgotten = self._version
        self._entries.clear()
        self._local.clear()
        self._at_rest.clear()
        self._encoded.clear()

    # -- messages -----------------------------------------------------------------------------------------------------

    def _message(self, principal: Principal, seen: int | None) -> bytes:
        if seen is not None and seen < self._forgotten:
            seen = None
        wanted = principal.admin, principal.user_id, seen
        if (message := self._encoded.get(wanted)) is None:
            changes = self._everything(principal) if seen is None else self._since(principal, seen)
            changes.more = max(0, self._count_live(principal) - MOST_LINES)
            message = self._encoded[wanted] = frame("runs", changes, f"{self._name}-{self._version}")
        return message

    def _count_live(self, principal: Principal) -> int:
        """How many live runs the principal may see; 0 if they are certainly not too many to list."""
        if len(self._entries) <= MOST_LINES:
            return 0
        if (counts := self._live_counts) is None:
            counts = self._live_counts = Counter(line.user_id for line in self.live)
        return counts.total() if principal.admin else counts[principal.user_id]

    def _since(self, principal: Principal, seen: int) -> Changes:
        changes = Changes(time.time(), [])
        for entry in reversed(self._entries.values()):
            if entry.version <= seen:
                break
            if principal.may_see(entry.line.user_id):
                if entry.gone:
                    changes.gone.append([*entry.line.key])
                else:
                    changes.runs.append(entry.line)
        changes.runs.reverse()
        return changes

    def _everything(self, principal: Principal) -> Changes:
        lines = self._visible(principal)
        lines.sort(key=lambda line: -line.created_at)
        ended = self._history.last(LAST_ENDED, principal.may_see)
        return Changes(time.time(), lines[:MOST_LINES] + ended, reset=True)

    def _visible(self, principal: Principal) -> list[Line]:
        return [line for line in self.live if principal.may_see(line.user_id)]


def _is_live(entry: Entry) -> bool:
    return not entry.gone and not entry.line.status.final


def frame(name: str, message: Hello | Changes, id: str | None = None) -> bytes:
    """A message to boards, as a server-sent event."""
    head = "" if id is None else f"id: {id}\n"
    return escape_line_separators(f"{head}event: {name}\ndata: ".encode() + to_json(message) + b"\n\n")
