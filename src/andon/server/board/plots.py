# SPDX-License-Identifier: Apache-2.0
"""Counts runs for the plots of a board, step by step."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate

from msgspec import Struct

from andon.core.archive import Latencies
from andon.core.states import CancelCause, RunStatus
from andon.server.board.history import end_of
from andon.server.board.lines import Line

STEPS = 60
"""Into how many steps the hours are divided. For one hour, a step is a minute."""


class LatencyPlot(Struct):
    """How long cancels took, in seconds."""

    bounds: Sequence[float]
    counts: list[int]
    """There is one more count than there are bounds: the last one counts cancels that took longer."""
    count: int
    p50: float | None
    p99: float | None


class Plots(Struct, rename={"begin": "from"}):
    """The last hours, in steps of `step` seconds."""

    now: float
    begin: float
    step: int
    complete_from: float
    """Before this time, runs may be missing."""
    started: list[int]
    ended: dict[RunStatus, list[int]]
    causes: dict[CancelCause, list[int]]
    tokens: list[int]
    """The output tokens. The tokens of a run are spread evenly over its time."""
    latency: LatencyPlot


class TokenSpread:
    """Spreads the tokens of runs over steps, each run's evenly over its time."""

    def __init__(self, begin: float, step: int) -> None:
        self._begin, self._step = begin, step
        self._inside = [0.0] * STEPS
        """The tokens of runs in the steps in which they begin or end."""
        self._through = [0.0] * (STEPS + 1)
        """For runs that last through whole steps: by how much their tokens per step change at this step."""

    def add(self, tokens: int, since: float, until: float) -> None:
        step, rate = self._step, tokens / max(until - since, 1e-6)
        since, until = max(since, self._begin), min(until, self._begin + STEPS * step)
        if since >= until:
            return
        first, last = int((since - self._begin) / step), min(STEPS - 1, int((until - self._begin) / step))
        if first == last:
            self._inside[first] += rate * (until - since)
            return
        self._inside[first] += rate * (self._begin + (first + 1) * step - since)
        self._inside[last] += rate * (until - self._begin - last * step)
        self._through[first + 1] += rate * step
        self._through[last] -= rate * step

    def counts(self) -> list[int]:
        whole = accumulate(self._through[:STEPS])
        return [round(inside + through) for inside, through in zip(self._inside, whole, strict=True)]


def make_plots(ended: Iterable[Line], live: Iterable[Line], now: float, hours: int, complete_from: float) -> Plots:
    step = hours * 3600 // STEPS
    begin = (now // step - STEPS + 1) * step
    started, spread = [0] * STEPS, TokenSpread(begin, step)
    ends: dict[RunStatus, list[int]] = {each: [0] * STEPS for each in RunStatus if each.final}
    causes: dict[CancelCause, list[int]] = defaultdict(lambda: [0] * STEPS)
    latencies: list[float] = []

    def add(line: Line, until: float) -> None:
        if 0 <= (first := int((line.created_at - begin) // step)) < STEPS:
            started[first] += 1
        if line.tokens:
            spread.add(line.tokens, min(line.created_at, until - 1e-6), until)

    for line in ended:
        place = int((end_of(line) - begin) // step)
        if not 0 <= place < STEPS:
            continue
        ends[line.status][place] += 1
        if line.cause is not None:
            causes[line.cause][place] += 1
            latencies.append(line.latency or 0.0)
        add(line, end_of(line))
    for line in live:
        add(line, now)
    plot = _plot(latencies)
    return Plots(now, begin, step, max(begin, complete_from), started, ends, causes, spread.counts(), plot)


def _plot(latencies: list[float]) -> LatencyPlot:
    counts = [0] * (len(Latencies.BOUNDS) + 1)
    for each in latencies:
        counts[bisect_left(Latencies.BOUNDS, each)] += 1
    latencies.sort()
    return LatencyPlot(Latencies.BOUNDS, counts, len(latencies), _quantile(latencies, 0.5), _quantile(latencies, 0.99))


def _quantile(ordered: list[float], part: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else None
