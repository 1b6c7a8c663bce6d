# SPDX-License-Identifier: Apache-2.0
"""An agent as another agent's tool.

Each call is a run of its own, a child of the run that called it, in a session of its own. It is cancelled with its
parent; cancelled alone, it gives its parent an error result. What it asks a person, its parent asks.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from andon.core.events import RunEvent
from andon.core.family import child_id
from andon.core.run import Run
from andon.core.states import RunStatus
from andon.core.stream import EventStream
from andon.errors import BadArgumentsError, ToolError, describe
from andon.tools.base import ToolContext

if TYPE_CHECKING:
    from andon.agent.agent import Agent


class AgentTool:
    """Made by `agent.as_tool()`."""

    def __init__(self, agent: Agent, name: str | None, description: str | None, events: bool) -> None:
        self._agent, self._events = agent, events
        self.name = name or re.sub(r"[^a-zA-Z0-9_-]", "_", agent.id)[:64]
        self.description = description or agent.description or f"Ask {agent.name}."
        self.parameters: dict[str, Any] = {
            "type": "object",
            "properties": {
                "prompt": {"type": "string", "description": "What it shall do, with all that it must know."}
            },
            "required": ["prompt"],
            "additionalProperties": False,
        }

    def __repr__(self) -> str:
        return f"<tool {self.name}: {self._agent!r}>"

    def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
        prompt = arguments.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip() or len(arguments) != 1:
            raise BadArgumentsError(f'{self.name} takes {{"prompt": "…"}}, some text, and nothing else')
        return {"prompt": prompt}

    async def invoke(self, bound: dict[str, Any], ctx: ToolContext) -> str:
        run_id = child_id(ctx.run_id, ctx.call_id)
        questions = await self._agent.open_questions(run_id)
        if questions:
            answers = {each.id: ctx.pass_on(each) for each in questions}
            run = await self._agent.resume_run(run_id, answers)
        else:
            run = self._agent.start(
                bound["prompt"], run_id=run_id, user_id=ctx.user_id, session_id=os.urandom(16).hex()
            )
            await run.open()
        await self._follow(run, ctx)
        return await self._answer(run, ctx)

    async def _follow(self, run: Run, ctx: ToolContext) -> None:
        """Wait for its end or its next question. If this is cut, the run is ended first."""
        if self._events:
            shown = max((event.seq for event in run.journal.events if event.event is RunEvent.run_paused), default=0)
            async for event in EventStream.of_begun(run, shown):
                ctx.relay(event)
        await run.attend()

    async def _answer(self, run: Run, ctx: ToolContext) -> str:
        result = await run.result()
        if result.status is RunStatus.paused:
            ctx.pass_on(result.interrupts[0])
        if result.status is RunStatus.completed:
            return result.content
        if result.receipt is not None:
            why = f": {result.receipt.reason}" if result.receipt.reason else ""
            raise ToolError(
                f"{self._agent.name} was cancelled ({result.receipt.cause}){why}; it had said: {result.content!r}"
            )
        assert result.error is not None
        raise ToolError(f"{self._agent.name} failed: {describe(result.error)}")
