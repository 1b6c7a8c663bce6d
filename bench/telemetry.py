# SPDX-License-Identifier: Apache-2.0
"""The cost of telemetry for a run without a tracer or meter provider, next to the same run with telemetry switched off.

The two alternate in small rounds, so that a slow moment of the machine affects both. Only CPU time counts, because
nothing here waits. A token costs nothing in either case: both runs use the same loop.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from andon import Agent, Telemetry
from andon.models.scripted import ScriptedModel
from bench.report import Figure, Goal, Progress, Row

ROUND = 50


async def _round(agent: Agent, name: str) -> float:
    began = time.process_time()
    for number in range(ROUND):
        await agent.invoke_async("Hello", session_id=f"{name}-{number}")
    return (time.process_time() - began) / ROUND * 1e6


async def _measure(rounds: int, progress: Progress) -> tuple[list[float], list[float]]:
    off = Agent("Off", ScriptedModel(then="Hello."), telemetry=Telemetry(enabled=False))
    automatic = Agent("Automatic", ScriptedModel(then="Hello."))
    taken: tuple[list[float], list[float]] = [], []
    for number in range(rounds):
        progress(number + 1, rounds, "rounds")
        for agent, them in zip((off, automatic), taken, strict=True):
            them.append(await _round(agent, str(number)))
    return taken


def measure(quick: bool, progress: Progress) -> Figure:
    rounds = 5 if quick else 100
    off, automatic = asyncio.run(_measure(rounds, progress))
    figure = Figure("telemetry", f"processor time of a whole run, medians of {rounds} rounds of {ROUND}")
    figure.rows.append(Row("switched off", {"run_us": statistics.median(off)}))
    ratio = statistics.median(ours / bare for ours, bare in zip(automatic, off, strict=True))
    values = {"run_us": statistics.median(automatic), "ratio": ratio}
    figure.rows.append(Row("nobody listens", values, (Goal("ratio", 1.05),)))
    return figure
