# SPDX-License-Identifier: Apache-2.0
"""langgraph, by langchain's `create_agent`: no cancel of its own in the library, so that of the task that runs it."""

import asyncio
import uuid

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

CANCEL = "task.cancel()"
CHILD_CALL = ("child", {"request": "Go."})


class Conversation:
    def __init__(self, at, tools, child_tools):
        offered = [tool(each) for each in tools]
        if child_tools is not None:
            helper = create_agent(model_of(at, "child-model"), [tool(each) for each in child_tools])

            @tool
            async def child(request: str) -> str:
                """A child agent."""
                answer = await helper.ainvoke({"messages": [{"role": "user", "content": request}]})
                return answer["messages"][-1].content

            offered.append(child)
        self._graph = create_agent(model_of(at, "parent-model"), offered, checkpointer=InMemorySaver())
        self._config = {"configurable": {"thread_id": str(uuid.uuid4())}}

    def begin(self, text, heard):
        self._tokens = None
        self._task = asyncio.create_task(self._read(text, heard))

    async def _read(self, text, heard):
        question = {"messages": [{"role": "user", "content": text}]}
        async for chunk, _ in self._graph.astream(question, self._config, stream_mode="messages"):
            if isinstance(chunk, AIMessageChunk | AIMessage):
                if isinstance(chunk.content, str) and chunk.content:
                    heard(chunk.content)
                if chunk.usage_metadata:
                    self._tokens = (self._tokens or 0) + chunk.usage_metadata["output_tokens"]

    def cancel(self):
        return self._task.cancel()

    async def end(self):
        try:
            await self._task
        except asyncio.CancelledError:
            return "cancelled", "raises CancelledError"
        return "completed", "the stream ends"

    def usage(self):
        return self._tokens


def model_of(at, model_id):
    if at.api == "anthropic":
        from langchain_anthropic import ChatAnthropic

        thinking = {"type": "enabled", "budget_tokens": 1024}
        options = {"model": "claude-sonnet-4-5", "max_tokens": 2048, "thinking": thinking}
        return ChatAnthropic(api_key=at.api_key, base_url=at.base_url, **options)
    return ChatOpenAI(model=model_id, base_url=at.base_url, api_key=at.api_key)
