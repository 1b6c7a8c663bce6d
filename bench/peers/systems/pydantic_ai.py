# SPDX-License-Identifier: Apache-2.0
"""pydantic-ai: a `CancellationToken`. The caller keeps a conversation's messages, also those of a cancelled run."""

import asyncio

from pydantic_ai import Agent, CancellationToken, PartDeltaEvent, PartStartEvent, RunContext
from pydantic_ai import AgentRunResultEvent as ResultEvent
from pydantic_ai.exceptions import RunCancelled
from pydantic_ai.messages import TextPart, TextPartDelta
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

CANCEL = "token.cancel()"
CHILD_CALL = ("child", {"request": "Go."})


class Conversation:
    def __init__(self, at, tools, child_tools):
        self._agent = Agent(model_of(at, "parent-model"), tools=tools)
        if child_tools is not None:
            helper = Agent(model_of(at, "child-model"), tools=child_tools)

            @self._agent.tool
            async def child(ctx: RunContext, request: str) -> str:
                """A child agent."""
                return (await helper.run(request, usage=ctx.usage)).output

        self._messages = []

    def begin(self, text, heard):
        self._token = CancellationToken()
        self._used = None
        self._task = asyncio.create_task(self._read(text, heard))

    async def _read(self, text, heard):
        options = {"message_history": self._messages, "cancellation_token": self._token}
        try:
            async with self._agent.run_stream_events(text, **options) as events:
                async for event in events:
                    match event:
                        case PartStartEvent(part=TextPart(content=piece)) if piece:
                            heard(piece)
                        case PartDeltaEvent(delta=TextPartDelta(content_delta=piece)):
                            heard(piece)
                        case ResultEvent(result=result):
                            self._messages = result.all_messages()
                            self._used = result.usage
        except RunCancelled as cancelled:
            self._messages = cancelled.all_messages()
            self._used = cancelled.usage
            return "cancelled", "raises RunCancelled"
        return "completed", "an AgentRunResultEvent"

    def cancel(self):
        return self._token.cancel()

    async def end(self):
        return await self._task

    def usage(self):
        used = self._used() if callable(self._used) else self._used
        return None if used is None else used.output_tokens


def model_of(at, model_id):
    if at.api == "anthropic":
        settings = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}
        provider = AnthropicProvider(api_key=at.api_key, base_url=at.base_url)
        return AnthropicModel("claude-sonnet-4-5", provider=provider, settings=settings)
    return OpenAIChatModel(model_id, provider=OpenAIProvider(base_url=at.base_url, api_key=at.api_key))
