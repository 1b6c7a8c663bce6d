# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/peers.md, one function each. A cell is the median of all attempts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from bench.peers.record import Records
from bench.peers.situations import SITUATIONS
from bench.report import number

Json = dict[str, Any]
Row = list[str]

SLOW = 1.0
"""Seconds: what takes longer is bold."""
NOTHING = "–"


def table(head: Sequence[str], rows: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in [list(head), ["---"] * len(head), *rows]]
    return "\n".join(lines) + "\n"


def seconds(value: float) -> str:
    shown = f"{value:.1f}" if value >= SLOW else f"{value:.3f}" if value >= 0.0095 else f"{value:.4f}"
    return f"**{shown}**" if value > SLOW else shown


def attempts(records: Records, system: str, name: str) -> list[Json]:
    values = records.values("situation", system, name) or {}
    found: list[Json] = values.get("attempts", [])
    return found


def median_of(found: Sequence[Json], key: str) -> float:
    return statistics.median(float(each[key]) for each in found)


# -- a run in the process ---------------------------------------------------------------------------------------------


def latencies(records: Records, systems: Sequence[str]) -> str:
    """Seconds from the cancel to the end of the run."""
    rows = [
        [situation.title, *(_latency(records, system, situation.name) for system in systems)]
        for situation in SITUATIONS
        if situation.moment.beside != "late"
    ]
    return table(["the run is cancelled", *systems], rows)


def _latency(records: Records, system: str, name: str) -> str:
    found, values = attempts(records, system, name), records.values("situation", system, name)
    if values is None:
        return NOTHING
    if not found:
        return "not ended" if values.get("failures") else "failed"
    lost = len(values["failures"])
    return seconds(median_of(found, "seconds")) + (f"; {lost} did not end" if lost else "")


Cell = Callable[[list[Json]], str]


def most(found: Sequence[Json], key: str) -> str:
    """What most of the attempts have."""
    return str(statistics.mode(str(each[key]) for each in found))


def yes(key: str, good: bool = True) -> Cell:
    def cell(found: list[Json]) -> str:
        share = sum(bool(each[key]) for each in found)
        shown = "yes" if share == len(found) else "no" if not share else f"{share} of {len(found)}"
        fine = (share == len(found)) if good else not share
        return shown if fine else f"**{shown}**"

    return cell


def count(key: str) -> Cell:
    def cell(found: list[Json]) -> str:
        value = median_of(found, key)
        return f"**{value:.0f}**" if value else "0"

    return cell


def _upstream(found: list[Json]) -> str:
    if not all(each["hung_up"] for each in found):
        return f"**never; {median_of(found, 'tokens_after'):.0f}**"
    return f"{seconds(median_of(found, 'closed'))}; {median_of(found, 'tokens_after'):.0f}"


def _usage(found: list[Json]) -> str:
    known = [each["usage"] for each in found if isinstance(each["usage"], int | float)]
    if not known:
        return "**none**"
    value = statistics.median(known)
    return f"{value:.0f}" if value else "**0**"


def _thread(found: list[Json]) -> str:
    if not any(each["running"] for each in found):
        return "no thread is left"
    return "named" if all(each["left"] for each in found) else "**goes on, unsaid**"


def _late(found: list[Json]) -> str:
    ends = most(found, "next")
    return "runs" if ends == "completed" else f"**{ends}**"


def _told(found: list[Json]) -> str:
    text = most(found, "how")
    return text if most(found, "told") == "cancelled" else f"**{text}**"


ASPECTS: list[tuple[str, str, Cell]] = [
    ("three calls: how many ran to their end", "three tools", count("not_cut")),
    ("the result of a call that had finished is in the next request", "two tools", yes("result_kept")),
    ("the text so far is in the next request", "streaming", yes("text_kept")),
    ("the prompt of the cancelled run is in the next request", "streaming", yes("prompt_kept")),
    ("output tokens that are reported for the run", "streaming", _usage),
    ("seconds until the provider's connection is closed; tokens sent meanwhile", "streaming", _upstream),
    ("the same of a child's model, silent", "child silent", _upstream),
    ("a blocking tool: the longest time that the event loop stood, s", "sync tool", lambda f: seconds(worst(f))),
    ("a blocking tool: its thread", "sync tool", _thread),
    ("cancelled before it began: requests sent", "before", count("requests")),
    ("the prompt after a cancel that came too late", "late", _late),
    ("how the caller is told", "streaming", _told),
]


def worst(found: Sequence[Json]) -> float:
    return median_of(found, "blocked")


def aspects(records: Records, systems: Sequence[str]) -> str:
    """What is left behind, in one situation each."""
    rows = []
    for title, name, cell in ASPECTS:
        cells = [attempts(records, system, name) for system in systems]
        rows.append([title, *(cell(found) if found else NOTHING for found in cells)])
    rows.append(["situations in which the next prompt is rejected", *(_rejected(records, each) for each in systems)])
    return table(["", *systems], rows)


def _rejected(records: Records, system: str) -> str:
    names = [each.name for each in SITUATIONS]
    found = [name for name in names if any(each["rejected"] for each in attempts(records, system, name))]
    return f"**{', '.join(found)}**" if found else "none"


# -- cancels at random moments ----------------------------------------------------------------------------------------

COUNTS = {
    "rejected": "conversations that the provider rejects on the next prompt",
    "started_after": "tool calls that started after the cancel",
    "tokens_after": "tokens that the provider sent after the cancel",
    "like_success": "runs that ended early, and like a success",
    "ignored": "runs that went on to their normal end",
    "failed": "attempts that failed",
}


def randoms(records: Records, systems: Sequence[str]) -> str:
    found = [records.values("random", system, "all") or {} for system in systems]
    rows = [["cancels", *(_cell(values, "cancels", bold=False) for values in found)]]
    for name, title in COUNTS.items():
        rows.append([title, *(_cell(values, name) for values in found)])
    return table(["", *systems], rows)


def _cell(values: Json, name: str, *, bold: bool = True) -> str:
    if name not in values:
        return "failed" if "failure" in values else NOTHING
    return f"**{values[name]}**" if values[name] and bold else str(values[name])


# -- cost -------------------------------------------------------------------------------------------------------------


def costs(records: Records, systems: Sequence[str]) -> str:
    found = [records.values("fast", system, "all") or {} for system in systems]
    rows = []
    for key, title in (
        ("tokens_per_s", "tokens per second, one run"),
        ("cpu_ms_per_1000", "CPU per 1,000 tokens, ms"),
        ("peak_mb", "peak memory, MB"),
        ("import_s", "import, s"),
    ):
        rows.append([title, *(number(statistics.median(each[key])) if key in each else NOTHING for each in found)])
    facts = [records.values("system", system, "all") or {} for system in systems]
    rows.append(["distributions", *(str(each.get("distributions", NOTHING)) for each in facts)])
    return table(["", *systems], rows)
