# SPDX-License-Identifier: Apache-2.0
"""openai-agents: `result.cancel()` of a streamed run, by default `immediate`. A conversation is a `SQLiteSession`."""

from agents import Agent, OpenAIChatCompletionsModel, Runner, SQLiteSession, function_tool
from openai import AsyncOpenAI

CANCEL = "result.cancel()"
CHILD_CALL = ("child", {"input": "Go."})


class Conversation:
    def __init__(self, at, tools, child_tools):
        client = AsyncOpenAI(base_url=at.base_url, api_key=at.api_key)
        offered = [function_tool(each) for each in tools]
        if child_tools is not None:
            theirs = [function_tool(each) for each in child_tools]
            child = Agent("child", tools=theirs, model=OpenAIChatCompletionsModel("child-model", client))
            offered.append(child.as_tool("child", "A child agent."))
        self._agent = Agent("peer", tools=offered, model=OpenAIChatCompletionsModel("parent-model", client))
        self._session = SQLiteSession("bench")

    def begin(self, text, heard):
        self._heard = heard
        self._result = Runner.run_streamed(self._agent, text, session=self._session)

    def cancel(self):
        return self._result.cancel()

    async def end(self):
        async for event in self._result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                self._heard(event.data.delta)
        if self._result.final_output is None:
            return "unsaid", "nothing is raised or said; `final_output` is None"
        return "completed", "a `final_output`"

    def usage(self):
        return self._result.context_wrapper.usage.output_tokens
