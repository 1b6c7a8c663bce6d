# SPDX-License-Identifier: Apache-2.0
"""The list that `andon top` shows: which runs, in which order, where the cursor is, and how a line looks.

Each cell is written at its own column of the screen. So a character that the terminal draws wider than expected does
not move the cells after it. All text is shown as one line without control characters.
"""

from __future__ import annotations

import sys
import time

from andon.cli.terminal import Column, age, cells, fit, milliseconds, one_line, styled
from andon.cli.top_feed import Key, Shown, Update
from andon.core.selection import Selection

KEEP_SECONDS = 10.0
"""How long a run that has ended is shown."""

LONGEST = 400
"""The most characters of a text that are read; no screen shows more."""

MARK = "> "
_GAP = 2

COLUMNS = [
    Column("RUN", 8, 9),
    Column("AGENT", 8, 8),
    Column("USER", 4, 2),
    Column("STATUS", 8, 7),
    Column("AGE", 3, 5),
    Column("TOKENS", 6, 4),
    Column("DOING", 12, 6),
    Column("SERVER", 6, 1),
]
_MOST = [16, 20, 14, 10, 4, 9, 0, 24]
"""The most that a column may take. The column DOING gets the rest."""

_TITLES = [column.title for column in COLUMNS]
_DOING, _SERVER = _TITLES.index("DOING"), _TITLES.index("SERVER")
_ENOUGH = 32
"""If there is no room for so much of what the runs do, the servers give theirs."""
_STYLES = {"PAUSED": "yellow", "CANCELLING": "yellow", "CANCELLED": "yellow", "ERROR": "red", "COMPLETED": "green"}


class RunRows:
    """The runs, newest first, and the cursor, which stays on its run."""

    def __init__(self, which: Selection) -> None:
        self._which = which
        self._runs: dict[Key, Shown] = {}
        self._rows: list[Shown] = []
        self._cursor: Key | None = None
        self._place = 0  # the row of the cursor
        self._first = 0  # the first row on the screen
        self._ahead = 0.0  # how much the source's clock is ahead of ours
        self._widths = [cells(column.title) for column in COLUMNS]  # of the longest texts that were shown
        self.filter = ""
        self.more = 0

    def update(self, update: Update) -> None:
        if update.reset:
            self._runs.clear()
        for key in update.gone:
            self._runs.pop(key, None)
        self._runs.update({run.key: run for run in update.runs if self._fits(run)})
        self._ahead, self.more = update.now - time.time(), update.more or 0
        self.arrange()

    def _fits(self, run: Shown) -> bool:
        asked = self._which
        pairs = (asked.session_id, run.session_id), (asked.user_id, run.user_id), (asked.agent_id, run.agent_id)
        return all(wanted is None or wanted == given for wanted, given in pairs)

    def arrange(self) -> None:
        """Remove runs that ended a while ago, leave out runs that don't match the filter, and find the cursor's row."""
        since = self.now() - KEEP_SECONDS
        self._runs = {key: run for key, run in self._runs.items() if run.live or (run.ended_at or 0) > since}
        words = self.filter.lower()
        rows = [run for run in self._runs.values() if not words or words in self._searched(run)]
        self._rows = sorted(rows, key=lambda run: (-run.created_at, run.key))
        places = [place for place, run in enumerate(self._rows) if run.key == self._cursor]
        self.move_to(places[0] if places else self._place)

    def _searched(self, run: Shown) -> str:
        texts = run.run_id, run.agent_id, run.user_id, run.status, run.doing, run.server
        return "\n".join(text for text in texts if text).lower()

    def now(self) -> float:
        """By the clock of the source."""
        return time.time() + self._ahead

    @property
    def current(self) -> Shown | None:
        """The run under the cursor."""
        return self._rows[self._place] if self._rows else None

    def move(self, by: int) -> None:
        self.move_to(self._place + by)

    def move_to(self, place: int) -> None:
        self._place = max(0, min(place, len(self._rows) - 1))
        self._cursor = self._rows[self._place].key if self._rows else None

    def counts(self) -> str:
        """How many runs go on, in words."""
        live = [run.status for run in self._runs.values() if run.live]
        words = [f"{live.count(status):,} {status.lower()}" for status in dict.fromkeys(live) if status != "RUNNING"]
        total = f"{len(live):,} run{'' if len(live) == 1 else 's'}"
        return ", ".join([total, *words, *(["and more that are not listed"] if self.more else [])])

    # -- drawing ------------------------------------------------------------------------------------------------------

    def draw(self, width: int, height: int, *, away: bool) -> list[str]:
        """The head of the table, and `height` rows."""
        self._first = min(self._first, self._place, max(0, len(self._rows) - height))
        self._first = max(self._first, self._place - height + 1)
        seen = self._rows[self._first : self._first + height]
        texts = [self._cells(run) for run in seen]
        self._widths = [max(cells(text) for text in column) for column in zip(self._heads(), *texts, strict=True)]
        places = _layout(self._widths, width)
        lines = [styled(_line(_TITLES, places), "bold", sys.stdout)]
        for run, line in zip(seen, texts, strict=True):
            if run.key == self._cursor:
                lines.append(f"\x1b[7m{' ' * width}\r{MARK}{_line(line, places)}\x1b[0m")
            else:
                lines.append(_styled_line(run, line, places, dim=away or not run.live))
        return lines

    def _heads(self) -> list[str]:
        """Texts as wide as the columns were. A column may get wider, never narrower, so the table does not jump."""
        return ["x" * width for width in self._widths]

    def _cells(self, run: Shown) -> list[str]:
        tokens = "-" if run.tokens is None else f"{'~' if run.estimated else ''}{run.tokens:,}"
        texts = [run.run_id, run.agent_id, run.user_id or "-", run.status, age(run.created_at - self._ahead), tokens]
        return [one_line(text[:LONGEST]) for text in (*texts, self._doing(run), run.server or "-")]

    def _doing(self, run: Shown) -> str:
        if run.live:
            since = "" if run.since is None else f", {age(run.since - self._ahead)}"
            return f"{run.doing}{since}" if run.doing else "-"
        if run.status != "CANCELLED":
            return run.error or "-"
        by = f" by {run.by}" if run.by else ""
        took = "" if run.latency is None else f" in {milliseconds(run.latency)}"
        return f"{run.cause or 'cancelled'}{by}{took}"


def _layout(widths: list[int], room: int) -> list[tuple[int, int]]:
    """Where each column begins, and its width; 0 if there is no room for it."""
    least = [column.least for column in COLUMNS]
    shown = list(range(len(COLUMNS)))
    room -= len(MARK)
    wanted = [min(width, most or _ENOUGH) + _GAP for width, most in zip(widths, _MOST, strict=True)]
    if sum(wanted) - _GAP > room:
        shown.remove(_SERVER)
    while len(shown) > 1 and sum(least[n] + _GAP for n in shown) - _GAP > room:
        shown.remove(min(shown, key=lambda n: COLUMNS[n].matters))
    given = [least[n] if n in shown else 0 for n in range(len(COLUMNS))]
    left = room - sum(given[n] + _GAP for n in shown) + _GAP
    for number in sorted(shown, key=lambda n: -COLUMNS[n].matters):
        more = max(0, min(left, min(widths[number], _MOST[number]) - given[number]))
        given[number], left = given[number] + more, left - more
    if _DOING in shown or left < 0:
        last = _DOING if _DOING in shown else shown[0]
        given[last] = max(0, given[last] + left)
    places, at = [], len(MARK)
    for width in given:
        places.append((at, width))
        at += width + _GAP if width else 0
    return places


def _line(texts: list[str], places: list[tuple[int, int]]) -> str:
    pairs = zip(texts, places, strict=True)
    return "".join(f"\x1b[{at + 1}G{fit(text, width).rstrip()}" for text, (at, width) in pairs if width)


def _styled_line(run: Shown, texts: list[str], places: list[tuple[int, int]], *, dim: bool) -> str:
    if dim:
        return styled(_line(texts, places), "dim", sys.stdout)
    status = _TITLES.index("STATUS")
    line = ""
    for number, (text, (at, width)) in enumerate(zip(texts, places, strict=True)):
        shown = fit(text, width).rstrip()
        if number == status and run.status in _STYLES:
            shown = styled(shown, _STYLES[run.status], sys.stdout)
        line += f"\x1b[{at + 1}G{shown}" if width else ""
    return line
