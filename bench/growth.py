# SPDX-License-Identifier: Apache-2.0
"""How the cost of a cancel grows with the number of runs in flight: of one of them, and of all of them.

Every size is measured in fresh interpreters, several times, and the sizes alternate; the figures are medians. Small
numbers of runs are cancelled many times, so that every size cancels as many runs. The baseline is bare tasks.
"""

from __future__ import annotations

import asyncio
import statistics

from andon.core.states import Phase
from bench import fresh
from bench.idle import WARM_UP, Crowd, Tasks
from bench.latency import State, take
from bench.report import Figure, Goal, Progress, Row

GROWTH = 1.5


async def _one_of(count: int, samples: int) -> fresh.Values:
    crowd = Crowd()
    await crowd.gather(count)
    state = State("model silent", Phase.waiting, crowd.agent, crowd.cue)
    await take([state], WARM_UP, lambda done, of: None)
    (taken,) = await take([state], samples, lambda done, of: None)
    await crowd.cancel()
    return {"ours": statistics.median(taken.ours), "bare": statistics.median(taken.bare)}


async def _all_of(kind: str, count: int, runs: int) -> fresh.Values:
    crowd = Tasks() if kind == "bare" else Crowd()
    await crowd.gather(WARM_UP)
    await crowd.cancel()
    times = []
    for _ in range(runs // count):
        await crowd.gather(count)
        times.append(await crowd.cancel())
    return {kind: statistics.median(times) / count * 1e6}


def cancel_one(count: int, samples: int) -> fresh.Values:
    return asyncio.run(_one_of(count, samples))


def cancel_all(count: int, runs: int) -> fresh.Values:
    return asyncio.run(_all_of("bare", count, runs)) | asyncio.run(_all_of("ours", count, runs))


def measure(quick: bool, progress: Progress) -> Figure:
    sizes, samples, repeats = ([10, 100], 50, 1) if quick else ([10, 100, 1000, 10_000], 400, 7)
    taken: dict[tuple[str, int], list[fresh.Values]] = {}
    for repeat in range(repeats):
        # To and fro, so that no size is always the first.
        for number, size in enumerate(sizes if repeat % 2 == 0 else reversed(sizes), 1):
            progress(repeat * len(sizes) + number, repeats * len(sizes), f"{size:,} runs in flight")
            taken.setdefault(("one", size), []).append(fresh.measure(cancel_one, size, samples))
            taken.setdefault(("all", size), []).append(fresh.measure(cancel_all, size, sizes[-1]))
    figure = Figure("growth", f"as the runs in flight become more; medians of {repeats} fresh processes")
    for which, name in (("one", "cancel one of"), ("all", "cancel all of")):
        for size in sizes:
            values = {f"{whose}_us": _median(taken[which, size], whose) for whose in ("ours", "bare")}
            for whose in ("ours", "bare"):
                values[f"{whose}_growth"] = values[f"{whose}_us"] / _median(taken[which, sizes[0]], whose)
            figure.rows.append(Row(f"{name} {size:,}", values, (Goal("ours_growth", GROWTH),)))
    return figure


def _median(taken: list[fresh.Values], whose: str) -> float:
    return statistics.median(each[whose] for each in taken)
