# SPDX-License-Identifier: Apache-2.0
"""Tokens per second from each provider's API, through an agent to the reader of its events, next to a bare SDK loop.

A fake provider in another process sends an answer as fast as it can. Each sample is a fresh process that has made one
short request before; the ways alternate. The peak of memory of our model alone is compared with that of its SDK. An
agent also keeps all events of the run for its readers: about 0.3 KB for each token. Also: how long after a cancel the
provider sees the client leave.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import time
from typing import Any

from andon import Agent
from bench import fresh
from bench.provider import KEY, LONG, SHORT, fake_of, provider
from bench.report import Figure, Goal, Progress, Row, percentile
from bench.sdks import bare, make_model, model_alone, through_agent

ADDRESSES = [
    ("chat", False),
    ("chat", True),
    ("responses", False),
    ("responses", True),
    ("anthropic", False),
    ("bedrock", False),
    ("gemini", False),
]
WAYS = {"bare": bare, "model": model_alone, "agent": through_agent}
TIMES_BARE = {"chat": 7, "responses": 7, "anthropic": 5, "bedrock": 6, "gemini": 20}
"""How many times as many tokens per second as the SDK's own loop: the goals."""


async def _sample(way: str, api: str, url: str, count: int) -> fresh.Values:
    async with WAYS[way](api, url) as ask:
        await ask(SHORT)
        began = time.perf_counter()
        seen = await ask(LONG)
        took = time.perf_counter() - began
    assert seen == count, "every token is an event of its own"
    return {"per_second": count / took, "peak_mb": _peak_mb()}


def _peak_mb() -> float:
    """The most that this process has held. On Linux not by getrusage, which counts what started it as well."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def sample(way: str, api: str, url: str, count: int) -> fresh.Values:
    return asyncio.run(_sample(way, api, url, count))


# -- a cancel ---------------------------------------------------------------------------------------------------------


async def _disconnects(api: str, at: str, rounds: int) -> list[float]:
    """Milliseconds from the cancel to the provider's noticing."""
    from andon.testing.providers import silence, stall, text

    answer: dict[str, Any] = {
        "silent": [silence()],
        "stalled": [text("Half "), stall()],
        "text": [text("word " * 1000, pace=0.002)],
    }
    taken = []
    with fake_of(api)([answer[at]], api_key=KEY) as fake:
        agent = Agent("Stopped", make_model(api, fake.base_url))
        for number in range(rounds):
            async with agent.start(LONG, session_id=str(number)) as run:
                await fake.wait_for_async(number, at=at)
                cancelled = time.monotonic()
                run.cancel()
                await run.result()
            served = await fake.wait_for_async(number, at="left")
            assert served.left_at is not None
            taken.append((served.left_at - cancelled) * 1000)
    return taken


CANCELS = [("chat", "silent"), ("chat", "text"), *((api, "stalled") for api in TIMES_BARE)]


def _cancels(quick: bool, progress: Progress, done: int, of: int) -> list[Row]:
    rows = []
    for number, (api, at) in enumerate(CANCELS, 1):
        progress(done + number, of, f"{api}, cancelled while {at}")
        taken = asyncio.run(_disconnects(api, at, 5 if quick else 200))
        values = {"p50_ms": statistics.median(taken), "p99_ms": percentile(taken, 0.99)}
        goals = (Goal("p50_ms", 2), Goal("p99_ms", 50))
        rows.append(Row(f"cancel to disconnect: {api}, {at}", values, goals))
    return rows


def _goals(api: str) -> tuple[Goal, ...]:
    speed = Goal("times_bare", TIMES_BARE[api], at_least=True)
    return (speed, Goal("peak_mb", 65)) if api in ("chat", "responses") else (speed,)


def measure(quick: bool, progress: Progress) -> Figure:
    count, repeats = (500, 1) if quick else (20_000, 5)
    figure = Figure("streaming", f"tokens per second of one process, {count:,} of them; medians of {repeats}")
    steps = len(ADDRESSES) * repeats * len(WAYS) + len(CANCELS)
    done = 0
    for api, apart in ADDRESSES:
        taken: dict[str, list[fresh.Values]] = {way: [] for way in WAYS}
        with provider(api, count, apart) as url:
            for _ in range(repeats):
                for way, samples in taken.items():
                    done += 1
                    progress(done, steps, f"{api}, {way}")
                    samples.append(fresh.measure(sample, way, api, url, count))
        where = f"{api}{', a chunk per token' if apart else ''}"
        sdk, model, agent = (
            {key: statistics.median(values[key] for values in each) for key in each[0]} for each in taken.values()
        )
        for ours in (model, agent):
            ours["times_bare"] = ours["per_second"] / sdk["per_second"]
        figure.rows += [
            Row(f"{where}: bare SDK", sdk),
            Row(f"{where}: our model alone", model, (Goal("peak_mb", sdk["peak_mb"]),)),
            Row(f"{where}: through an agent", agent, _goals(api)),
        ]
    figure.rows += _cancels(quick, progress, done, steps)
    return figure
