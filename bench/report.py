# SPDX-License-Identifier: Apache-2.0
"""What a benchmark says: rows of numbers, each with the goals that it has, as a table or as JSON; and its progress."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Goal:
    """A bound on one of a row's values."""

    of: str
    limit: float
    at_least: bool = False

    def reached(self, values: dict[str, float]) -> bool:
        value = values[self.of]
        return value >= self.limit if self.at_least else value <= self.limit

    def show(self, values: dict[str, float]) -> str:
        sign, verdict = "≥" if self.at_least else "≤", "reached" if self.reached(values) else "MISSED"
        return f"{label(self.of)} {sign} {self.limit:,g} {verdict}"

    def as_json(self, values: dict[str, float]) -> dict[str, Any]:
        bound = "at_least" if self.at_least else "at_most"
        return {"of": self.of, bound: self.limit, "reached": self.reached(values)}


@dataclass(frozen=True)
class Row:
    """One line of a figure. A value's name ends with its unit, where it has one."""

    name: str
    values: dict[str, float]
    goals: Sequence[Goal] = ()

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "values": self.values, "goals": [goal.as_json(self.values) for goal in self.goals]}


@dataclass
class Figure:
    """A table: what it shows, how it was taken, and its rows."""

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    stolen: float | None = None
    """What others had of the processor time that was wanted meanwhile, where that is known (`bench/stolen.py`)."""

    def as_json(self) -> dict[str, Any]:
        rows = [row.as_json() for row in self.rows]
        return {"figure": self.name, "title": self.title, "stolen": self.stolen, "rows": rows}

    def as_table(self) -> str:
        columns = list(dict.fromkeys(key for row in self.rows for key in row.values))
        cells = [["", *map(label, columns), "goal"]]
        for row in self.rows:
            numbers = [number(row.values[key]) if key in row.values else "" for key in columns]
            cells.append([row.name, *numbers, ", ".join(goal.show(row.values) for goal in row.goals)])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join([name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:-1]), goal]).rstrip()
            for name, *numbers, goal in cells
        ]
        stolen = "" if self.stolen is None else f" (others had {self.stolen:.1%} of the time wanted)"
        return "\n".join([f"{self.name}: {self.title}{stolen}", *lines])


def label(key: str) -> str:
    return key.replace("_us", " µs").replace("_", " ")


def number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.3g}"


class Progress:
    """Says on stderr how far a figure has come."""

    def __init__(self, figure: str) -> None:
        self._figure = figure
        self._live = sys.stderr.isatty()

    def __call__(self, done: int, of: int, what: str) -> None:
        line = f"{self._figure} {done}/{of}: {what}"
        # On a terminal one line that changes; in a file, lines that stay, but not thousands of them.
        if self._live:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif done == 1 or done * 10 // of != (done - 1) * 10 // of:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def percentile(samples: Sequence[float], q: float) -> float:
    """The value that a share `q` of the samples stay below."""
    return sorted(samples)[min(len(samples) - 1, int(q * len(samples)))]
