# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/peers.md about the frameworks' own servers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.peers.over_http import MOMENTS, name_of
from bench.peers.record import Records
from bench.peers.situations import BY_NAME
from bench.peers.tables import NOTHING, Row, seconds, table
from bench.report import number

Json = dict[str, Any]
Column = tuple[str, bool]
"""A system, and whether it is on SQLite."""

BESIDE = ("of an ended run", "of an unknown run")
TITLES = {"andon": "andon serve", "agno": "AgentOS", "google-adk": "adk api_server"}


def columns() -> list[Column]:
    return [(system, sqlite) for system in TITLES for sqlite in (False, True)]


def head(chosen: Sequence[Column]) -> list[str]:
    return ["", *(f"{TITLES[system]}, {'SQLite' if sqlite else 'memory'}" for system, sqlite in chosen)]


def of(records: Records, kind: str, column: Column) -> Json:
    return records.values("http", column[0], name_of(kind, column[1])) or {}


def speeds(records: Records) -> str:
    rows = []
    for readers in ("1", "10"):
        for key, unit in (
            ("tokens_per_s", "tokens per second"),
            ("cpu_ms_per_1000", "CPU per 1,000 tokens, ms"),
            ("peak_mb", "peak memory, MB"),
        ):
            cells = [_median(of(records, "speed", column).get(readers, {}).get(key)) for column in columns()]
            rows.append([f"{readers} {'run' if readers == '1' else 'runs'}: {unit}", *cells])
    return table(head(columns()), rows)


def _median(values: list[float] | None) -> str:
    return number(statistics.median(values)) if values else NOTHING


def routes(records: Records) -> str:
    """The cancel route."""
    found = [of(records, "cancel", column) for column in columns()]
    rows: list[Row] = [
        *([f"seconds to the end: {BY_NAME[name].title}", *(_route(each, name) for each in found)] for name in MOMENTS),
        *([f"status of a cancel {name}", *(_status(each, name) for each in found)] for name in BESIDE),
    ]
    many = [of(records, "many", column) for column in columns()]
    rows.append(
        [
            "500 streams whose models are silent, cancelled at once: ended within a minute",
            *(_many(each, "ended") for each in many),
        ]
    )
    rows.append(["seconds until all had ended", *(_many(each, "all") for each in many)])
    rows.append(["peak memory then, MB", *(_many(each, "peak_mb") for each in many)])
    return table(head(columns()), rows)


def _route(values: Json, name: str) -> str:
    if not values.get("route", True):
        return "no route"
    found = values.get(name)
    return seconds(statistics.median(each["seconds"] for each in found)) if found else NOTHING


def _status(values: Json, name: str) -> str:
    if not values.get("route", True):
        return "no route"
    status = values.get(name)
    return NOTHING if status is None else f"**{status}**" if status == 200 else str(status)


def _many(values: Json, name: str) -> str:
    if not values.get("route", True):
        return "no route"
    if "seconds" not in values:
        return "failed" if "failure" in values else NOTHING
    if name == "ended":
        whole = values["ended"] == values["count"]
        return str(values["ended"]) if whole else f"**{values['ended']} of {values['count']}**"
    if name == "all":
        return seconds(values["seconds"][-1]) if values["seconds"] else NOTHING
    return number(values["peak_mb"])


def others(records: Records) -> str:
    """A client that leaves, and a cancel that is sent to another process."""
    rows = []
    for name in ("streaming", "not streaming"):
        cells = [_left(of(records, "leaving", (system, False)), name) for system in TITLES]
        rows.append([f"the client leaves, {name}: seconds until the provider's connection is closed", *cells])
    found = [of(records, "elsewhere", (system, True)) for system in TITLES]
    rows.append(["two processes on one SQLite file, the cancel sent to the other one", *map(_elsewhere, found)])
    return table(["", *TITLES.values()], rows)


def _left(values: Json, name: str) -> str:
    found = values.get(name)
    if not found:
        return NOTHING
    closed = [each["closed"] for each in found if each["closed"] is not None]
    return seconds(statistics.median(closed)) if len(closed) == len(found) else "**the run goes on to its end**"


def _elsewhere(values: Json) -> str:
    if not values.get("route", True):
        return "no route"
    found = values.get("attempts")
    if not found:
        return NOTHING
    status, last = found[0]["status"], found[0]["last"]
    took = statistics.median(each["seconds"] for each in found)
    return f"{status}, {last} after {seconds(took)} s"
