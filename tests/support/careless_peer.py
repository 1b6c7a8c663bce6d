# SPDX-License-Identifier: Apache-2.0
"""A system for the comparison of `bench/peers` that does on purpose what a cancel must not do.

It keeps tool calls without results, which the provider rejects, begins calls after the cancel, and ends a cancelled run
like a success.
"""

import asyncio
import json

from openai import AsyncOpenAI

CANCEL = "nothing that helps"
CHILD_CALL = ("child", {"input": "Go."})


class Conversation:
    def __init__(self, at, tools, child_tools):
        self._client = AsyncOpenAI(base_url=at.base_url, api_key=at.api_key)
        self._tools = {each.__name__: each for each in tools}
        self._messages = []
        self._cancelled = False

    def begin(self, text, heard):
        self._cancelled = False
        self._messages.append({"role": "user", "content": text})
        self._task = asyncio.create_task(self._run(heard))

    def cancel(self):
        self._cancelled = True

    async def end(self):
        await self._task
        return "completed", "it says nothing"

    async def _run(self, heard):
        calls = {}
        tools = [{"type": "function", "function": {"name": name}} for name in self._tools]
        stream = await self._client.chat.completions.create(
            model="parent-model", messages=self._messages, stream=True, **({"tools": tools} if tools else {})
        )
        text = ""
        async for chunk in stream:
            delta = chunk.choices[0].delta if chunk.choices else None
            if delta is None:
                continue
            if delta.content:
                text += delta.content
                heard(delta.content)
            for part in delta.tool_calls or ():
                call = calls.setdefault(part.index, {"id": part.id, "type": "function", "function": {"arguments": ""}})
                call["function"]["name"] = call["function"].get("name") or part.function.name
                call["function"]["arguments"] += part.function.arguments or ""
            if self._cancelled and not calls:
                return
        answer = {"role": "assistant", "content": text or None}
        self._messages.append(answer | {"tool_calls": list(calls.values())} if calls else answer)
        results = [await self._call(call) for call in calls.values()]
        if calls and not self._cancelled:
            self._messages += results
            await self._run(heard)

    async def _call(self, call):
        function = call["function"]
        answer = await self._tools[function["name"]](**json.loads(function["arguments"]))
        return {"role": "tool", "tool_call_id": call["id"], "content": answer}
