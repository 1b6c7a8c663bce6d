# SPDX-License-Identifier: Apache-2.0
"""The page of all figures, and the five that the README quotes: both are made of what `make bench` has recorded.

`python -m bench --record` adds its run to `docs/figures.json` and writes both anew. A test compares them with that
file, so neither can say anything else than what was measured.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.chaos.figure import ZERO
from bench.report import Figure, label, number

ROOT = Path(__file__).parent.parent
RECORD, PAGE, README = ROOT / "docs" / "figures.json", ROOT / "docs" / "figures.md", ROOT / "README.md"
BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->\n"
RUNS_KEPT = 3

Json = dict[str, Any]

STREAMS = {
    "OpenAI": "chat: through an agent",
    "Anthropic": "anthropic: through an agent",
    "Bedrock": "bedrock: through an agent",
    "Gemini": "gemini: through an agent",
}
"""The rows of `streaming` that the README quotes."""

HEAD = """\
# Figures

`make bench` makes this page, and the table in the [README](../README.md). `python -m bench NAME` shows one figure.

Each cell has one value for each run in the first table, the oldest first. Most figures are ratios to a baseline from
the same run, because machines differ and are shared. A value that missed its goal is **bold**. A goal is an aim, and no
test demands it.

`CPU steal` is the CPU time during the run that this machine wanted and other virtual machines used. If it is more than
a few percent, the times are longer.

"""


def new_run(figures: Sequence[Figure]) -> Json:
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "figures": {figure.name: figure.as_json() for figure in figures},
    }


def read_runs() -> list[Json]:
    runs: list[Json] = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else []
    return runs


def record(figures: Sequence[Figure], methods: Mapping[str, str], *, alone: bool = False) -> None:
    """Add a run, and write the page and the README's table anew. Figures that were taken `alone` replace theirs."""
    runs = with_figures(read_runs(), figures) if alone else [*read_runs(), new_run(figures)][-RUNS_KEPT:]
    RECORD.write_text(json.dumps(runs, indent=1) + "\n", "utf-8")
    PAGE.write_text(page_of(runs, methods), "utf-8")
    README.write_text(with_table(README.read_text("utf-8"), runs), "utf-8")


def with_figures(runs: Sequence[Json], figures: Sequence[Figure]) -> list[Json]:
    """The runs, with these figures in the newest one. Older runs measured them with other code, and lose them."""
    taken = {figure.name: {**figure.as_json(), "alone": new_run([])["date"]} for figure in figures}
    *older, newest = runs
    kept = [{name: each for name, each in run["figures"].items() if name not in taken} for run in older]
    earlier = [{**run, "figures": left} for run, left in zip(older, kept, strict=True)]
    return [*earlier, {**newest, "figures": newest["figures"] | taken}]


# -- the page ---------------------------------------------------------------------------------------------------------


def page_of(runs: Sequence[Json], methods: Mapping[str, str]) -> str:
    """`methods` says of each figure, by its name, how it is taken."""
    parts = [HEAD, _table([["run", "date", "Python", "machine"], *map(_run_row, runs, range(1, len(runs) + 1))])]
    for name, figure in runs[-1]["figures"].items():
        parts.append(f"\n## {name}\n\n{figure['title'][:1].upper()}{figure['title'][1:]}.\n\n{methods[name]}\n\n")
        parts.append(_table(_figure_rows(name, runs)))
        steal = [run["figures"][name]["stolen"] for run in runs if name in run["figures"]]
        if known := [share for share in steal if share is not None]:
            parts.append(f"\nCPU steal: {', '.join(f'{share:.1%}' for share in known)}.\n")
        if "alone" in figure:
            parts.append(f"\nTaken alone, with newer code than the last run, on {figure['alone']}.\n")
    return "".join(parts)


def _run_row(run: Json, order: int) -> list[str]:
    return [str(order), run["date"], run["python"], run["system"]]


def _figure_rows(name: str, runs: Sequence[Json]) -> list[list[str]]:
    """The rows of the newest run, with what the others have measured of them."""
    rows = runs[-1]["figures"][name]["rows"]
    columns = list(dict.fromkeys(key for row in rows for key in row["values"]))
    table = [["", *map(label, columns), "goal"]]
    for row in rows:
        cells = [", ".join(_cells(name, row["name"], key, runs)) if key in row["values"] else "" for key in columns]
        table.append([row["name"], *cells, ", ".join(map(_goal, row["goals"]))])
    return table


def _cells(name: str, row_name: str, key: str, runs: Sequence[Json]) -> list[str]:
    """One value in each run that has it."""
    cells = []
    for run in runs:
        for row in run["figures"].get(name, {}).get("rows", ()):
            if row["name"] == row_name and key in row["values"]:
                missed = any(goal["of"] == key and not goal["reached"] for goal in row["goals"])
                cells.append(f"**{number(row['values'][key])}**" if missed else number(row["values"][key]))
    return cells


def _goal(goal: Json) -> str:
    bound = f"≥ {goal['at_least']:,g}" if "at_least" in goal else f"≤ {goal['at_most']:,g}"
    return f"{label(goal['of'])} {bound}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ("| " + " | ".join(row) + " |\n" for row in rows)
    return "".join([head, "|" + "---|" * len(rows[0]) + "\n", *body])


# -- the README's table -----------------------------------------------------------------------------------------------


def with_table(readme: str, runs: Sequence[Json]) -> str:
    """The README with the table of these runs."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the README has no place for the figures: {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}{_readme_table(runs)}{END}{after}"


def _readme_table(runs: Sequence[Json]) -> str:
    def values(figure: str, key: str, *rows: str) -> list[float]:
        """The worst of these rows, in each run."""
        found = [run["figures"].get(figure, {"rows": []})["rows"] for run in runs]
        taken = [[row["values"][key] for row in each if row["name"] in rows] for each in found]
        return [max(each) for each in taken if each]

    def span(numbers: Sequence[float], unit: str = "") -> str:
        least, most = number(min(numbers)), number(max(numbers))
        return f"{least}{unit}" if least == most else f"{least} to {most}{unit}"

    kinds = ("waiting", "streaming")
    across = {
        kind: values("across", "p99_ms", *(f"{kind}, {each}" for each in kinds)) for kind in ("postgres", "sqlite")
    }
    trials = [row["values"] for run in runs for row in run["figures"].get("chaos", {"rows": []})["rows"]]
    faults = sum(trial[name] for trial in trials for name in ZERO)
    rows = [
        ["figure", "measured", "command"],
        [
            "time from `run.cancel()` in another thread until the reader has the last event; the model is silent; p50",
            f"{span(values('latency', 'p50_us', 'model silent'), ' µs')}; a bare `task.cancel` takes"
            f" {span(values('latency', 'p50_bare_us', 'model silent'), ' µs')}",
            "`python -m bench latency`",
        ],
        [
            "tokens per second through an agent, compared with each provider's SDK alone",
            ", ".join(f"{name} {span(values('streaming', 'times_bare', row))} ×" for name, row in STREAMS.items()),
            "`python -m bench streaming`",
        ],
        [
            "memory per waiting run, with 10,000 of them; time to cancel all of them",
            f"{span(values('idle', 'kb_each', 'runs'), ' KB')}; {span(values('idle', 'cancel_all_s', 'runs'), ' s')}",
            "`python -m bench idle`",
        ],
        [
            "time until a run ends whose cancel was sent to another server process; p99",
            f"{span(across['postgres'], ' ms')} on Postgres, {span(across['sqlite'], ' ms')} on SQLite",
            "`python -m bench across`",
        ],
        [
            f"{sum(trial['runs'] for trial in trials):,} runs on three servers that are killed, stopped and cut off"
            " from their database: acknowledged cancels that were lost, runs without exactly one end, rejected"
            " sessions",
            f"{faults:,}",
            "`python -m bench chaos`",
        ],
    ]
    newest = runs[-1]
    told = f"{newest['date']}, {newest['system']}, Python {newest['python']}"
    return f"{_table(rows)}\nRuns of `make bench`: {len(runs)}; the last on {told}.\n"
