# SPDX-License-Identifier: Apache-2.0
"""Our ways to an answer of each provider: our model alone, and our model through an agent. The SDKs' own: bare_sdks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from andon import Agent, RunEvent, Usage
from andon.messages import user
from andon.models.base import FinishReason, Model, ModelRequest
from bench.bare_sdks import IDS, Ask, sdk
from bench.provider import KEY


def sdk_beside_andon(api: str, url: str) -> contextlib.AbstractAsyncContextManager[Ask]:
    """The SDK's own loop, in a program that holds Andon's code as well."""
    make_model(api, url)
    return sdk(api, url)


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
