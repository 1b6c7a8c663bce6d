# SPDX-License-Identifier: Apache-2.0
"""strands-agents: `agent.cancel()`, which its documentation names for callers in the same process."""

import asyncio

from strands import Agent, tool
from strands.models.anthropic import AnthropicModel
from strands.models.openai import OpenAIModel

CANCEL = "agent.cancel()"
CHILD_CALL = ("child", {"input": "Go."})


class Conversation:
    def __init__(self, at, tools, child_tools):
        offered = [tool(each) for each in tools]
        if child_tools is not None:
            child = Agent(
                model_of(at, "child-model"), tools=[tool(each) for each in child_tools], callback_handler=None
            )
            offered.append(child.as_tool(name="child", description="A child agent."))
        self._agent = Agent(model_of(at, "parent-model"), tools=offered, callback_handler=None)
        self._before = 0

    def begin(self, text, heard):
        self._before = self._agent.event_loop_metrics.accumulated_usage["outputTokens"]
        self._task = asyncio.create_task(self._read(text, heard))

    async def _read(self, text, heard):
        result = None
        async for event in self._agent.stream_async(text):
            if "data" in event:
                heard(event["data"])
            elif "result" in event:
                result = event["result"]
        return result

    def cancel(self):
        return self._agent.cancel()

    async def end(self):
        result = await self._task
        told = {"cancelled": "cancelled", "end_turn": "completed"}.get(result.stop_reason, "failed")
        return told, f"`stop_reason` {result.stop_reason!r}"

    def usage(self):
        return self._agent.event_loop_metrics.accumulated_usage["outputTokens"] - self._before


def model_of(at, model_id):
    if at.api == "anthropic":
        arguments = {"api_key": at.api_key, "base_url": at.base_url}
        thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
        return AnthropicModel(client_args=arguments, model_id="claude-sonnet-4-5", max_tokens=2048, params=thinking)
    return OpenAIModel(client_args={"base_url": at.base_url, "api_key": at.api_key}, model_id=model_id)
