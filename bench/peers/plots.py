# SPDX-License-Identifier: Apache-2.0
"""The plots of docs/peers.md, each for a light and for a dark page: docs/img/peers-*.svg.

    python -m bench.peers.plots

What must stay true: the same records make the same files.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

from bench.peers.environments import SYSTEMS
from bench.peers.record import ROOT, Records
from bench.peers.situations import SITUATIONS
from bench.peers.tables import attempts, median_of

IMAGES = ROOT / "docs" / "img"
MARKS = "oDsv^<P"
THEMES = {
    "light": ("#1f2328", "#d0d7de", ("#0a7d33", "#b3261e", "#8250df", "#9a6700", "#0969da", "#bf3989", "#57606a")),
    "dark": ("#e6edf3", "#3d444d", ("#3fb950", "#ff7b72", "#bc8cff", "#d29922", "#58a6ff", "#f778ba", "#9198a1")),
}
"""The text, the lines, and a color for each system. Each system has a mark of its own too."""


@contextmanager
def drawn(name: str, theme: str, width: float, height: float) -> Iterator[tuple[Any, tuple[str, ...]]]:
    ink, lines, colors = THEMES[theme]
    settings: dict[Any, Any] = {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": lines,
        "xtick.color": ink,
        "ytick.color": ink,
        "grid.color": lines,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(settings):
        figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
        yield axes, colors
        figure.savefig(IMAGES / f"{name}-{theme}.svg", transparent=True, metadata={"Date": None})
        plt.close(figure)


def latency(records: Records, systems: Sequence[str], theme: str) -> None:
    """Cancel latency by situation, one mark for each system."""
    shown = [each for each in SITUATIONS if each.moment.beside != "late"]
    with drawn("peers-latency", theme, 8.5, 5.2) as (axes, colors):
        for number, system in enumerate(systems):
            found = [(row, attempts(records, system, each.name)) for row, each in enumerate(shown)]
            points = [(median_of(each, "seconds"), row) for row, each in found if each]
            # Systems of the same latency would hide each other.
            apart = (number - (len(systems) - 1) / 2) * 0.1
            xs, ys = [x for x, _ in points], [row + apart for _, row in points]
            axes.scatter(xs, ys, marker=MARKS[number], color=colors[number], s=34, label=system, zorder=3)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_yticks(range(len(shown)), [each.title for each in shown])
        axes.invert_yaxis()
        axes.grid(axis="x", linewidth=0.6)
        axes.set_xlabel("seconds from the cancel to the end of the run (log scale; median of 3)")
        axes.figure.legend(loc="outside upper center", ncols=4, frameon=False)


def throughput(records: Records, systems: Sequence[str], theme: str) -> None:
    """Tokens per second against memory."""
    with drawn("peers-throughput", theme, 7.5, 4.4) as (axes, colors):
        for number, system in enumerate(systems):
            values = records.values("fast", system, "all") or {}
            if "tokens_per_s" in values:
                x, y = (statistics.median(values[key]) for key in ("peak_mb", "tokens_per_s"))
                axes.scatter([x], [y], marker=MARKS[number], color=colors[number], s=60, label=system, zorder=3)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=1000, top=1_000_000)
        axes.grid(linewidth=0.6)
        axes.figure.legend(loc="outside upper center", ncols=4, frameon=False)
        axes.set_xlabel("peak memory of the process, MB")
        axes.set_ylabel("tokens per second through a run")


def draw(records: Records) -> None:
    systems = [system.name for system in SYSTEMS]
    for theme in THEMES:
        latency(records, systems, theme)
        throughput(records, systems, theme)


if __name__ == "__main__":
    draw(Records())
