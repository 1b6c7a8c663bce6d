# SPDX-License-Identifier: Apache-2.0
"""The five figures of docs/peers.md that the README quotes, between two marks; a README without them stays as it is."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.peers.environments import SYSTEMS
from bench.peers.http_tables import TITLES, of
from bench.peers.record import ROOT, Records
from bench.peers.tables import NOTHING, attempts, median_of, seconds, table
from bench.report import number

README = ROOT / "README.md"
BEGIN, END = "<!-- peers -->\n", "<!-- /peers -->\n"


def write(records: Records, path: Path = README) -> None:
    path.write_text(with_table(path.read_text("utf-8"), records), "utf-8")


def with_table(readme: str, records: Records) -> str:
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}{quoted(records)}{end}{after}" if begin and end else readme


def quoted(records: Records) -> str:
    names = [system.name for system in SYSTEMS]
    figures: list[tuple[str, Callable[[str], str]]] = [
        (
            "a silent model: seconds from the cancel to the end of the run",
            lambda name: _latency(records, name, "silent"),
        ),
        ("an async tool of 8 s: the same", lambda name: _latency(records, name, "async tool")),
        (
            "of 200 cancels at random moments: conversations that the provider rejects",
            lambda name: _random(records, name),
        ),
        ("tokens per second, one core · peak memory, MB", lambda name: _cost(records, name)),
        ("over HTTP: tokens per second · CPU per 1,000 tokens, ms", lambda name: _http(records, name)),
    ]
    rows = [[title, *(figure(name) for name in names)] for title, figure in figures]
    return f"{table(['', *(_column(records, name) for name in names)], rows)}\n{_told(records, names)}"


def _column(records: Records, name: str) -> str:
    return f"{name} {records.version(name) or ''}".strip()


def _told(records: Records, names: Sequence[str]) -> str:
    dates = sorted({record["date"] for _, system, _, record in records.all() if system in names})
    machines = sorted({record["machine"] for _, system, _, record in records.all() if system in names})
    when = f"{dates[0]} to {dates[-1]}" if dates[0] != dates[-1] else dates[0]
    return f"`make bench-peers`, {when}, {'; '.join(machines)}. [All of it](docs/peers.md).\n"


def _latency(records: Records, name: str, situation: str) -> str:
    found = attempts(records, name, situation)
    return seconds(median_of(found, "seconds")) if found else NOTHING


def _random(records: Records, name: str) -> str:
    values = records.values("random", name, "all") or {}
    return str(values.get("rejected", NOTHING))


def _cost(records: Records, name: str) -> str:
    values = records.values("fast", name, "all") or {}
    if "tokens_per_s" not in values:
        return NOTHING
    speed, memory = (number(statistics.median(values[key])) for key in ("tokens_per_s", "peak_mb"))
    return f"{speed} · {memory}"


def _http(records: Records, name: str) -> str:
    """To one reader, in memory."""
    values = of(records, "speed", (name, False)).get("1") if name in TITLES else None
    if values is None:
        return "no server" if name not in TITLES else NOTHING
    return " · ".join(number(statistics.median(values[key])) for key in ("tokens_per_s", "cpu_ms_per_1000"))
