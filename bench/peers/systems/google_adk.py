# SPDX-License-Identifier: Apache-2.0
"""google-adk: the `abort_signal` of `runner.run_async`, with its own models for OpenAI and Anthropic."""

import asyncio
import os

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.integrations.openai import OpenAILlm
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

CANCEL = "abort_signal.set()"
CHILD_CALL = ("child", {"request": "Go."})
STREAMING = RunConfig(streaming_mode=StreamingMode.SSE)

THINKING = types.GenerateContentConfig(thinking_config=types.ThinkingConfig(thinking_budget=1024))


class Conversation:
    def __init__(self, at, tools, child_tools):
        offered = list(tools)
        if child_tools is not None:
            child = LlmAgent(name="child", model=model_of(at, "child-model"), tools=child_tools)
            offered.append(AgentTool(child))
        agent = LlmAgent(
            name="peer",
            model=model_of(at, "parent-model"),
            tools=offered,
            generate_content_config=THINKING if at.api == "anthropic" else None,
        )
        self._runner = InMemoryRunner(agent, app_name="bench")
        self._session = None

    def begin(self, text, heard):
        self._abort = asyncio.Event()
        self._tokens = None
        self._task = asyncio.create_task(self._read(text, heard))

    async def _read(self, text, heard):
        if self._session is None:
            self._session = await self._runner.session_service.create_session(app_name="bench", user_id="u")
        message = types.Content(role="user", parts=[types.Part(text=text)])
        codes = []
        async for event in self._runner.run_async(
            user_id="u",
            session_id=self._session.id,
            new_message=message,
            run_config=STREAMING,
            abort_signal=self._abort,
        ):
            for part in event.content.parts if event.partial and event.content and event.content.parts else ():
                if part.text:
                    heard(part.text)
            if event.error_code:
                codes.append(event.error_code)
            if event.usage_metadata and not event.partial:
                self._tokens = (self._tokens or 0) + (event.usage_metadata.candidates_token_count or 0)
        return codes

    def cancel(self):
        return self._abort.set()

    async def end(self):
        codes = await self._task
        if "INVOCATION_ABORTED" in codes:
            return "cancelled", "an event with `error_code` 'INVOCATION_ABORTED'"
        return ("failed", f"`error_code` {codes[-1]!r}") if codes else ("completed", "the events end, no `error_code`")

    def usage(self):
        return self._tokens


def model_of(at, model_id):
    if at.api == "anthropic":
        from google.adk.models.anthropic_llm import AnthropicLlm

        os.environ |= {"ANTHROPIC_BASE_URL": at.base_url, "ANTHROPIC_API_KEY": at.api_key}
        return AnthropicLlm(model="claude-sonnet-4-5", max_tokens=2048)
    return OpenAILlm(model=model_id, base_url=at.base_url, api_key=at.api_key)
