# SPDX-License-Identifier: Apache-2.0
"""agno: `agent.acancel_run(run_id)`. A conversation needs a database, here the one in memory; a child is a member."""

import asyncio
import uuid

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.openai import OpenAIChat
from agno.team import Team

CANCEL = "agent.acancel_run(run_id)"
CHILD_CALL = ("delegate_task_to_member", {"member_id": "child", "task": "Go."})


class Conversation:
    def __init__(self, at, tools, child_tools):
        shared = {"db": InMemoryDb(), "add_history_to_context": True, "model": model_of(at, "parent-model")}
        if child_tools is None:
            self._agent = Agent(tools=tools, **shared)
        else:
            child = Agent(id="child", name="child", model=model_of(at, "child-model"), tools=child_tools)
            self._agent = Team(members=[child], tools=tools, **shared)
        self._session_id = str(uuid.uuid4())

    def begin(self, text, heard):
        self._run_id = str(uuid.uuid4())
        self._output = None
        self._task = asyncio.create_task(self._read(text, heard))

    async def _read(self, text, heard):
        events = []
        options = {"stream": True, "stream_events": True, "yield_run_output": True}
        async for event in self._agent.arun(text, run_id=self._run_id, session_id=self._session_id, **options):
            name = getattr(event, "event", None)
            if name in ("RunContent", "TeamRunContent"):
                if event.content:
                    heard(str(event.content))
            elif name is None:
                self._output = event
            else:
                events.append(name.removeprefix("Team"))
        return events

    async def cancel(self):
        return await self._agent.acancel_run(self._run_id)

    async def cancel_unknown(self):
        return await self._agent.acancel_run("nobody-has-this-id")

    async def end(self):
        events = await self._task
        ends = [name for name in events if name in ("RunCompleted", "RunCancelled", "RunError")]
        told = {"RunCompleted": "completed", "RunCancelled": "cancelled"}.get(ends[0] if ends else "", "failed")
        return told, f"events {', '.join(ends)}"

    def usage(self):
        metrics = getattr(self._output, "metrics", None)
        return None if metrics is None else metrics.output_tokens


def model_of(at, model_id):
    if at.api == "anthropic":
        from agno.models.anthropic import Claude

        thinking = {"type": "enabled", "budget_tokens": 1024}
        options = {"id": "claude-sonnet-4-5", "max_tokens": 2048, "thinking": thinking}
        return Claude(api_key=at.api_key, client_params={"base_url": at.base_url}, **options)
    return OpenAIChat(id=model_id, base_url=at.base_url, api_key=at.api_key)
