# SPDX-License-Identifier: Apache-2.0
"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import inspect
import json
import platform
import shutil
import sys
from collections.abc import Callable

from bench import (
    across,
    boards,
    events,
    growth,
    http,
    idle,
    latency,
    neighbour,
    page,
    processes,
    queue,
    readers,
    startup,
    store,
    streaming,
    telemetry,
    throughput,
)
from bench.chaos import figure as chaos
from bench.report import Figure, Progress
from bench.stolen import Stolen

FIGURES: dict[str, Callable[[bool, Progress], Figure]] = {
    "latency": latency.measure,
    "throughput": throughput.measure,
    "readers": readers.measure,
    "streaming": streaming.measure,
    "idle": idle.measure,
    "growth": growth.measure,
    "startup": startup.measure,
    "telemetry": telemetry.measure,
    "http": http.measure,
    "boards": boards.measure,
    "across": across.measure,
    "queue": queue.measure,
    "store": store.measure,
    "events": events.measure,
    "neighbour": neighbour.measure,
    "processes": processes.measure,
    "chaos": chaos.measure,
}
METHODS = {name: inspect.getdoc(sys.modules[measure.__module__]) or "" for name, measure in FIGURES.items()}
"""How each is taken: what its module says of itself."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Every figure of docs/figures.md.")
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"{', '.join(FIGURES)}; all of them by default")
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--record",
        action="store_true",
        help="add the run to docs/figures.json; write docs/figures.md and the README's table. With names: replace these"
        " figures in the last run",
    )
    options = parser.parse_args()
    if options.record and options.quick:
        parser.error("--record is for real numbers: not --quick")
    if unknown := [name for name in options.figures if name not in FIGURES]:
        parser.error(f"there is no figure {unknown[0]!r}; there are: {', '.join(FIGURES)}")
    if "boards" in (options.figures or FIGURES) and shutil.which(boards.BROWSER) is None:
        parser.error("the figure boards needs a browser: `make browser` installs it")
    if "events" in (options.figures or FIGURES) and shutil.which(events.PROGRAM) is None:
        parser.error("the figure events needs a Redis: `make redis` installs it")
    figures = []
    for name in options.figures or FIGURES:
        progress, stolen = Progress(name), Stolen()
        figures.append(FIGURES[name](options.quick, progress))
        figures[-1].stolen = stolen.share()
        progress.close()
        if not options.json:
            print(figures[-1].as_table(), end="\n\n", flush=True)
    if options.record:
        page.record(figures, METHODS, alone=bool(options.figures))
    if options.json:
        answer = {"python": platform.python_version(), "figures": [figure.as_json() for figure in figures]}
        print(json.dumps(answer, indent=2))


if __name__ == "__main__":
    main()
