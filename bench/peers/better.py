# SPDX-License-Identifier: Apache-2.0
"""Where another system is better than Andon, found in the records, and what it would take to be as good.

What must stay true: nobody chooses what is listed. A figure is listed if it is better by a tenth, and, if it is a time,
by half a millisecond.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.peers.http_tables import TITLES, of
from bench.peers.record import Records
from bench.peers.situations import SITUATIONS
from bench.peers.tables import attempts, median_of
from bench.report import number

Json = dict[str, Any]
OURS = "andon"
TENTH = 1.1
LEAST_SECONDS = 0.0005

TAKES = {
    "latency": "A run of Andon ends when the conversation, the receipt and the store are final: less work for that.",
    "tokens_per_s": "A faster way from the provider's stream to the reader.",
    "cpu_ms_per_1000": "A cheaper way from the provider's stream to the reader.",
    "peak_mb": "Fewer modules at the first request: OpenAI's SDK is most of it.",
    "import_s": "Fewer modules at the import.",
    "distributions": "Fewer dependencies.",
    "http": "A cheaper way from the journal to the socket, or a smaller server.",
}


@dataclass(frozen=True)
class Figure:
    """One figure of all systems."""

    title: str
    takes: str
    values: dict[str, float]
    unit: str = ""
    more_is_better: bool = False

    def better(self) -> list[str]:
        """The systems that are better, the best first."""
        ours = self.values.get(OURS)
        if ours is None:
            return []
        rest = {name: value for name, value in self.values.items() if name != OURS and self._beats(value, ours)}
        return sorted(rest, key=lambda name: rest[name], reverse=self.more_is_better)

    def _beats(self, value: float, ours: float) -> bool:
        if self.more_is_better:
            return value > ours * TENTH
        return value * TENTH < ours and (self.unit != "s" or ours - value > LEAST_SECONDS)


def figures(records: Records, systems: Sequence[str]) -> Iterator[Figure]:
    for situation in SITUATIONS:
        if situation.moment.beside != "late":
            found = {system: attempts(records, system, situation.name) for system in systems}
            values = {system: median_of(each, "seconds") for system, each in found.items() if each}
            yield Figure(f"the time to the end: {situation.title}", "latency", values, "s")
    for key, title, unit in (
        ("tokens_per_s", "tokens per second", ""),
        ("cpu_ms_per_1000", "CPU per 1,000 tokens", "ms"),
        ("peak_mb", "peak memory", "MB"),
        ("import_s", "the import", "s"),
    ):
        taken = {system: records.values("fast", system, "all") or {} for system in systems}
        medians = {system: statistics.median(each[key]) for system, each in taken.items() if key in each}
        yield Figure(title, key, medians, unit, more_is_better=key == "tokens_per_s")
    facts = {system: records.values("system", system, "all") or {} for system in systems}
    counts = {system: float(each["distributions"]) for system, each in facts.items() if "distributions" in each}
    yield Figure("distributions", "distributions", counts)
    yield from _http(records)


def _http(records: Records) -> Iterator[Figure]:
    for sqlite in (False, True):
        where = "on SQLite" if sqlite else "in memory"
        for readers in ("1", "10"):
            for key, title, unit in (
                ("tokens_per_s", "tokens per second", ""),
                ("cpu_ms_per_1000", "CPU per 1,000 tokens", "ms"),
                ("peak_mb", "peak memory", "MB"),
            ):
                taken = {system: of(records, "speed", (system, sqlite)).get(readers, {}) for system in TITLES}
                values = {system: statistics.median(each[key]) for system, each in taken.items() if key in each}
                runs = "one run" if readers == "1" else f"{readers} runs"
                yield Figure(f"over HTTP, {where}, {runs}: {title}", "http", values, unit, key == "tokens_per_s")


def lines(records: Records, systems: Sequence[str]) -> str:
    """A list of what is better elsewhere."""
    shown = []
    for figure in figures(records, systems):
        if names := figure.better():
            beside = ", ".join(f"{name} {_value(figure, name)}" for name in names)
            shown.append(f"- {figure.title}: {beside}; Andon {_value(figure, OURS)}. {TAKES[figure.takes]}")
    return "\n".join(shown) + "\n" if shown else "Nowhere in these figures.\n"


def _value(figure: Figure, name: str) -> str:
    value = figure.values[name]
    return f"{value * 1000:.1f} ms" if figure.unit == "s" and value < 1 else f"{number(value)} {figure.unit}".strip()
