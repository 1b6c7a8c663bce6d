# SPDX-License-Identifier: Apache-2.0
"""Three ways to an answer of each provider: its SDK's own loop, as the SDK's documentation has it; our model alone; and
our model through an agent.

Each makes what it needs, and gives a function that asks for one answer and counts its pieces of text.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from andon import Agent, RunEvent, Usage
from andon.messages import user
from andon.models.base import FinishReason, Model, ModelRequest
from bench.provider import KEY

Ask = Callable[[str], Awaitable[int]]
"""Asks for an answer to a prompt, and counts its pieces of text."""

IDS = {
    "chat": "gpt-5.2",
    "responses": "gpt-5.2",
    "anthropic": "claude-opus-5-5",
    "bedrock": "anthropic.claude-sonnet-4-5-20250929-v1:0",
    "gemini": "gemini-3.8-flash",
}


def bare(api: str, url: str) -> contextlib.AbstractAsyncContextManager[Ask]:
    """The SDK alone."""
    return _BARE[api](url)


class _Count:
    """A sink that counts the pieces of text, and keeps nothing."""

    def __init__(self) -> None:
        self.pieces = 0

    def text(self, text: str) -> None:
        self.pieces += bool(text)

    def reasoning(self, text: str, signature: str | None = None) -> None:
        pass

    def tool_call(
        self, call_id: str, name: str = "", arguments: str | dict[str, Any] = "", *, done: bool = False
    ) -> None:
        pass

    def usage(self, usage: Usage | None = None, **numbers: int | None) -> None:
        pass

    def finish(self, reason: FinishReason, detail: str | None = None) -> None:
        pass

    def warn(self, text: str) -> None:
        pass


@contextlib.asynccontextmanager
async def model_alone(api: str, url: str) -> AsyncIterator[Ask]:
    """Our model, without an agent."""

    async def ask(prompt: str) -> int:
        sink = _Count()
        await make_model(api, url).stream(ModelRequest([user(prompt)], None, []), sink)
        return sink.pieces

    yield ask


@contextlib.asynccontextmanager
async def through_agent(api: str, url: str) -> AsyncIterator[Ask]:
    """An agent with our model, and a reader of its events."""

    async def ask(prompt: str) -> int:
        seen = 0
        async for event in Agent("Fast", make_model(api, url)).stream_async(prompt):
            if event.event is RunEvent.run_content:
                seen += 1
        return seen

    yield ask


def make_model(api: str, url: str) -> Model:
    """Our model. Only the package of its provider is imported."""
    id = IDS[api]
    if api == "anthropic":
        from andon.models.anthropic import Anthropic

        return Anthropic(id, KEY, url, max_tokens=64_000)
    if api == "bedrock":
        from andon.models.bedrock import Bedrock

        return Bedrock(id, region="us-east-1", base_url=url, api_key=KEY)
    if api == "gemini":
        from andon.models.google import Gemini

        return Gemini(id, KEY, url)
    from andon.models.openai import OpenAIChat, OpenAIResponses

    return (OpenAIChat if api == "chat" else OpenAIResponses)(id, KEY, url)


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


_BARE: dict[str, Callable[[str], contextlib.AbstractAsyncContextManager[Ask]]] = {
    "chat": _chat,
    "responses": _responses,
    "anthropic": _anthropic,
    "bedrock": _bedrock,
    "gemini": _gemini,
}
