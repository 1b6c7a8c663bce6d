# SPDX-License-Identifier: Apache-2.0
"""Tokens per second from OpenAI's APIs, through an agent to the reader of its events, next to a bare SDK loop.

A fake provider in another process sends an answer as fast as it can. Each sample is a fresh process that has made one
short request before; the two ways alternate. Also: how long after a cancel the provider sees the client disconnect.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import time
from typing import Any

from andon import Agent, RunEvent
from andon.models.openai import OpenAIChat, OpenAIResponses
from andon.testing.providers import FakeChat, silence, stall, text
from bench import fresh
from bench.provider import KEY, SHORT, provider
from bench.report import Figure, Goal, Progress, Row, percentile

MODEL = "gpt-5.2"
ADDRESSES = [("chat", False), ("chat", True), ("responses", False), ("responses", True)]


async def _bare(client: Any, api: str, model: str) -> int:
    """The SDK's own loop, as its documentation has it."""
    seen = 0
    if api == "chat":
        messages = [{"role": "user", "content": "Hello"}]
        async for chunk in await client.chat.completions.create(model=model, messages=messages, stream=True):
            if chunk.choices and chunk.choices[0].delta.content:
                seen += 1
    else:
        async for event in await client.responses.create(model=model, input="Hello", stream=True):
            if event.type == "response.output_text.delta":
                seen += 1
    return seen


async def _through(url: str, api: str, model: str) -> int:
    kind = OpenAIChat if api == "chat" else OpenAIResponses
    agent = Agent("Fast", kind(model, base_url=url, api_key=KEY))
    seen = 0
    async for event in agent.stream_async("Hello"):
        if event.event is RunEvent.run_content:
            seen += 1
    return seen


async def _sample(way: str, api: str, url: str, count: int) -> fresh.Values:
    if way == "bare":
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=url, api_key=KEY) as client:
            await _bare(client, api, SHORT)
            began = time.perf_counter()
            seen = await _bare(client, api, MODEL)
            took = time.perf_counter() - began
    else:
        await _through(url, api, SHORT)
        began = time.perf_counter()
        seen = await _through(url, api, MODEL)
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


async def _disconnects(at: str, rounds: int) -> list[float]:
    """Milliseconds from the cancel to the provider's noticing."""
    answer: dict[str, Any] = {
        "silent": [silence()],
        "stalled": [text("Half "), stall()],
        "text": [text("word " * 1000, pace=0.002)],
    }
    taken = []
    with FakeChat([answer[at]]) as fake:
        agent = Agent("Stopped", OpenAIChat(MODEL, base_url=fake.base_url, api_key=fake.api_key))
        for number in range(rounds):
            async with agent.start("Hello", session_id=str(number)) as run:
                await fake.wait_for_async(number, at=at)
                cancelled = time.monotonic()
                run.cancel()
                await run.result()
            served = await fake.wait_for_async(number, at="left")
            assert served.left_at is not None
            taken.append((served.left_at - cancelled) * 1000)
    return taken


def _cancels(quick: bool, progress: Progress, done: int, of: int) -> list[Row]:
    rows = []
    for number, at in enumerate(("silent", "text", "stalled"), 1):
        progress(done + number, of, f"cancelled while {at}")
        taken = asyncio.run(_disconnects(at, 5 if quick else 200))
        values = {"p50_ms": statistics.median(taken), "p99_ms": percentile(taken, 0.99)}
        rows.append(Row(f"cancel to disconnect: {at}", values, (Goal("p99_ms", 50),)))
    return rows


def measure(quick: bool, progress: Progress) -> Figure:
    count, repeats = (500, 1) if quick else (20_000, 5)
    figure = Figure("streaming", f"tokens per second of one process, {count:,} of them; medians of {repeats}")
    steps = len(ADDRESSES) * repeats * 2
    done = 0
    for api, apart in ADDRESSES:
        taken: dict[str, list[fresh.Values]] = {"bare": [], "andon": []}
        with provider(api, count, apart) as url:
            for _ in range(repeats):
                for way, samples in taken.items():
                    done += 1
                    progress(done, steps + 3, f"{api}, {way}")
                    samples.append(fresh.measure(sample, way, api, url, count))
        where = f"{api}{', a chunk per token' if apart else ''}"
        bare, ours = ({key: statistics.median(v[key] for v in each) for key in each[0]} for each in taken.values())
        ours["times_bare"] = ours["per_second"] / bare["per_second"]
        goals = (Goal("times_bare", 7, at_least=True), Goal("peak_mb", 65))
        figure.rows += [Row(f"{where}: bare SDK", bare), Row(f"{where}: through an agent", ours, goals)]
    figure.rows += _cancels(quick, progress, done, steps + 3)
    return figure
