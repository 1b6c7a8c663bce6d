# SPDX-License-Identifier: Apache-2.0
"""Each SDK's own loop to an answer, as the SDK's documentation has it, and how a way to an answer is timed.

What must stay true: this imports nothing of Andon, so that a program with an SDK alone has none of it in its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from bench.provider import KEY, LONG, SHORT

Ask = Callable[[str], Awaitable[int]]
"""Asks for an answer to a prompt, and counts its pieces of text."""

Way = Callable[[str, str], contextlib.AbstractAsyncContextManager[Ask]]
"""Makes what it needs for an API at an address, and gives a function that asks."""

IDS = {
    "chat": "gpt-5.2",
    "responses": "gpt-5.2",
    "anthropic": "claude-opus-5-5",
    "bedrock": "anthropic.claude-sonnet-4-5-20250929-v1:0",
    "gemini": "gemini-3.8-flash",
}


def sample(module: str, way: str, api: str, url: str, count: int) -> dict[str, float]:
    """Tokens per second of a long answer, and the most memory that this process has held."""
    return asyncio.run(_sample(getattr(importlib.import_module(module), way), api, url, count))


async def _sample(way: Way, api: str, url: str, count: int) -> dict[str, float]:
    async with way(api, url) as ask:
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


def sdk(api: str, url: str) -> contextlib.AbstractAsyncContextManager[Ask]:
    """The SDK alone."""
    return _SDKS[api](url)


@contextlib.asynccontextmanager
async def _chat(url: str) -> AsyncIterator[Ask]:
    from openai import AsyncOpenAI

    async def ask(prompt: str) -> int:
        seen = 0
        messages: Any = [{"role": "user", "content": prompt}]
        async for chunk in await client.chat.completions.create(model=IDS["chat"], messages=messages, stream=True):
            if chunk.choices and chunk.choices[0].delta.content:
                seen += 1
        return seen

    async with AsyncOpenAI(base_url=url, api_key=KEY) as client:
        yield ask


@contextlib.asynccontextmanager
async def _responses(url: str) -> AsyncIterator[Ask]:
    from openai import AsyncOpenAI

    async def ask(prompt: str) -> int:
        seen = 0
        async for event in await client.responses.create(model=IDS["responses"], input=prompt, stream=True):
            if event.type == "response.output_text.delta":
                seen += 1
        return seen

    async with AsyncOpenAI(base_url=url, api_key=KEY) as client:
        yield ask


@contextlib.asynccontextmanager
async def _anthropic(url: str) -> AsyncIterator[Ask]:
    from anthropic import AsyncAnthropic

    async def ask(prompt: str) -> int:
        seen = 0
        messages: Any = [{"role": "user", "content": prompt}]
        stream = await client.messages.create(model=IDS["anthropic"], messages=messages, max_tokens=64_000, stream=True)
        async for event in stream:
            if event.type == "content_block_delta" and event.delta.type == "text_delta":
                seen += 1
        return seen

    async with AsyncAnthropic(base_url=url, api_key=KEY) as client:
        yield ask


@contextlib.asynccontextmanager
async def _bedrock(url: str) -> AsyncIterator[Ask]:
    import os

    from aiobotocore.session import AioSession

    async def ask(prompt: str) -> int:
        seen = 0
        messages = [{"role": "user", "content": [{"text": prompt}]}]
        answer = await client.converse_stream(modelId=IDS["bedrock"], messages=messages)
        async for event in answer["stream"]:
            if "text" in event.get("contentBlockDelta", {}).get("delta", {}):
                seen += 1
        return seen

    os.environ["AWS_BEARER_TOKEN_BEDROCK"] = KEY
    async with AioSession().create_client("bedrock-runtime", region_name="us-east-1", endpoint_url=url) as client:
        yield ask


@contextlib.asynccontextmanager
async def _gemini(url: str) -> AsyncIterator[Ask]:
    from google import genai

    async def ask(prompt: str) -> int:
        seen = 0
        async for chunk in await client.aio.models.generate_content_stream(model=IDS["gemini"], contents=prompt):
            if chunk.text:
                seen += 1
        return seen

    client = genai.Client(api_key=KEY, http_options=genai.types.HttpOptions(base_url=url))
    try:
        yield ask
    finally:
        await client.aio.aclose()


_SDKS: dict[str, Callable[[str], contextlib.AbstractAsyncContextManager[Ask]]] = {
    "chat": _chat,
    "responses": _responses,
    "anthropic": _anthropic,
    "bedrock": _bedrock,
    "gemini": _gemini,
}
