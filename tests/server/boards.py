# SPDX-License-Identifier: Apache-2.0
"""A board that is read as the page reads it, without a browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec

from andon.server.board.feed import Changes, Hello

Line = dict[str, Any]


class BoardReader:
    """Reads the stream of a board, and has the lines that the page would show."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.hello: dict[str, Any] = {}
        self.last_id = ""
        self.lines: dict[tuple[str, str], Line] = {}
        self.resets, self.more = 0, 0
        self.seen: list[Line] = []
        """Every line that was ever sent."""
        assert self.read() == "hello"
        assert self.read() == "runs"

    def read(self) -> str:
        """Take one message. Empty at the end of the stream."""
        told: list[str] = []
        for line in self._lines:
            if line and not line.startswith(":"):
                told.append(line)
            elif told:
                break
        if not told:
            return ""
        fields = dict(line.split(": ", 1) for line in told)
        name, sent = fields["event"], fields["data"]
        self.last_id = fields.get("id", "")
        data = json.loads(sent)
        msgspec.json.decode(sent, type=Hello | Changes)
        assert data.pop("event") == name
        if name == "hello":
            self.hello = data
        else:
            self._take(data)
        return name

    def _take(self, data: dict[str, Any]) -> None:
        if data.get("reset"):
            self.resets += 1
            self.lines.clear()
        for line in data["runs"]:
            self.lines[line["agent_id"], line["run_id"]] = line
            self.seen.append(line)
        for agent_id, run_id in data.get("gone", ()):
            self.lines.pop((agent_id, run_id), None)
        self.more = data.get("more", 0)

    def until(self, holds: Callable[[BoardReader], Any]) -> Any:
        while not (found := holds(self)):
            assert self.read(), "the stream of the board has ended"
        return found

    def line(self, run_id: str) -> Line | None:
        return next((line for line in self.lines.values() if line["run_id"] == run_id), None)

    def shows(self, run_id: str, **facts: Any) -> Line:
        """Read until the line of this run has these facts."""

        def holds(_: BoardReader) -> Line | None:
            line = self.line(run_id)
            return line if line is not None and all(line.get(name) == fact for name, fact in facts.items()) else None

        found: Line = self.until(holds)
        return found


@contextmanager
def board_of(client: httpx.Client, after: str = "") -> Iterator[BoardReader]:
    with client.stream("GET", "/board/events", headers={"last-event-id": after} if after else {}) as response:
        assert response.status_code == 200, response.read()
        yield BoardReader(response.iter_lines())
