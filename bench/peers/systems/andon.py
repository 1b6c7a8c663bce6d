# SPDX-License-Identifier: Apache-2.0
"""Andon: `run.cancel()`."""

import asyncio

from andon import Agent, RunEvent, tool
from andon.models.anthropic import Anthropic
from andon.models.openai import OpenAIChat

CANCEL = "run.cancel()"
CHILD_CALL = ("child", {"prompt": "Go."})


class Conversation:
    def __init__(self, at, tools, child_tools):
        offered = [tool(each) for each in tools]
        if child_tools is not None:
            child = Agent("child", model_of(at, "child-model"), tools=[tool(each) for each in child_tools])
            offered.append(child.as_tool())
        self._agent = Agent("peer", model_of(at, "parent-model"), tools=offered)

    def begin(self, text, heard):
        self._run = self._agent.start(text)
        self._result = None
        self._task = asyncio.create_task(self._read(heard))

    async def _read(self, heard):
        async with self._run as run:
            async for event in run:
                if event.event == RunEvent.run_content:
                    heard(event.content)
            self._result = await run.result()

    def cancel(self):
        return self._run.cancel()

    def cancel_unknown(self):
        return self._agent.cancel_run("nobody-has-this-id")

    async def end(self):
        await self._task
        status = self._result.status.name
        return (status if status in ("cancelled", "completed") else "failed"), f"`status` {status!r}, and a receipt"

    def usage(self):
        return None if self._result is None else self._result.usage.output_tokens

    def left(self):
        receipt = self._result.receipt if self._result else None
        return [] if receipt is None else [str(each) for each in receipt.leftovers]


def model_of(at, model_id):
    if at.api == "anthropic":
        thinking = {"type": "enabled", "budget_tokens": 1024}
        options = {"max_tokens": 2048, "thinking": thinking}
        return Anthropic("claude-sonnet-4-5", api_key=at.api_key, base_url=at.base_url, **options)
    return OpenAIChat(model_id, base_url=at.base_url, api_key=at.api_key)
