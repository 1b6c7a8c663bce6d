# SPDX-License-Identifier: Apache-2.0
"""Tokens per second from each provider's API, through an agent to the reader of its events, next to a bare SDK loop.

A fake provider in another process sends an answer as fast as it can. Each sample is a fresh process that has made one
short request before; the ways alternate. "SDK alone" is a program with nothing of Andon. "SDK beside Andon" (in older
figures "bare SDK") is the same loop in a program that has imported Andon: Andon's own code takes 4 MB, once in a
process. Our peaks of memory are compared with this one, because those 4 MB do not depend on the answer. An agent also
keeps the text and the time of each token for its readers: 0.02 KB. Also: how long after a cancel the provider sees the
client leave.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from andon import Agent
from bench import fresh
from bench.bare_sdks import Way, sample, sdk
from bench.provider import KEY, LONG, fake_of, provider
from bench.report import Figure, Goal, Progress, Row, percentile
from bench.sdks import make_model, model_alone, sdk_beside_andon, through_agent

ADDRESSES = [
    ("chat", False),
    ("chat", True),
    ("responses", False),
    ("responses", True),
    ("anthropic", False),
    ("bedrock", False),
    ("gemini", False),
]
QUICK_ADDRESSES = [each for each in ADDRESSES if each not in (("chat", False), ("responses", True))]
"""Each API, and each way to send the chunks, once."""
WAYS = (sdk, sdk_beside_andon, model_alone, through_agent)
TIMES_BARE = {"chat": 7, "responses": 7, "anthropic": 5, "bedrock": 6, "gemini": 20}
"""How many times as many tokens per second as the SDK's own loop: the goals."""


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
    addresses = QUICK_ADDRESSES if quick else ADDRESSES
    steps = len(addresses) * repeats * len(WAYS) + len(CANCELS)
    done = 0
    for api, apart in addresses:
        taken: dict[Way, list[fresh.Values]] = {way: [] for way in WAYS}
        with provider(api, count, apart) as url:
            for _ in range(repeats):
                for way, samples in taken.items():
                    done += 1
                    progress(done, steps, f"{api}, {way.__name__}")
                    samples.append(fresh.measure(sample, way.__module__, way.__name__, api, url, count))
        where = f"{api}{', a chunk per token' if apart else ''}"
        alone, beside, model, agent = (
            {key: statistics.median(values[key] for values in each) for key in each[0]} for each in taken.values()
        )
        for ours in (model, agent):
            ours["times_bare"] = ours["per_second"] / alone["per_second"]
        no_more = Goal("peak_mb", beside["peak_mb"])
        figure.rows += [
            Row(f"{where}: SDK alone", alone),
            Row(f"{where}: SDK beside Andon", beside),
            Row(f"{where}: our model alone", model, (no_more,)),
            Row(f"{where}: through an agent", agent, (*_goals(api), no_more)),
        ]
    figure.rows += _cancels(quick, progress, done, steps)
    return figure
