# SPDX-License-Identifier: Apache-2.0
"""An agent as another agent's tool.

Each call is a run of its own, a child of the run that called it, in a session of its own. It is cancelled with its
parent; cancelled alone, it gives its parent an error result. What it asks a person, its parent asks, and an answer
reaches the very question that it was given to, or none: the child may have been answered or ended by others meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any

from andon.core.events import RunEvent
from andon.core.family import child_id
from andon.core.receipt import RunResult
from andon.core.run import Run
from andon.core.states import RunStatus
from andon.core.store import RunRecord
from andon.core.stream import EventStream
from andon.errors import AnswersError, BadArgumentsError, NotContinuableError, ToolError, describe
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
        # The id is made of the call's, so that a tool that is entered again finds the run that waits for the answer.
        run_id = child_id(ctx.run_id, ctx.call_id)
        if not ctx.passed_on:
            run = self._agent.start(
                bound["prompt"], run_id=run_id, user_id=ctx.user_id, session_id=os.urandom(16).hex()
            )
            await run.open()
        elif isinstance(found := await self._go_on(run_id, ctx), Run):
            run = found
        else:
            return self._told(found)
        await self._follow(run, ctx)
        result = await run.result()
        if result.status is RunStatus.paused:
            ctx.pass_on(result.interrupts)
        return self._told(result)

    async def _go_on(self, run_id: str, ctx: ToolContext) -> Run | RunRecord:
        """The run that has asked, with its answers; or what became of it meanwhile."""
        runtime = self._agent.runtime
        assert runtime.store is not None
        found = runtime.run(run_id) or await runtime.store.find(run_id)
        if found is None:
            raise ToolError(f"{self._agent.name} has asked, and is gone: run {run_id!r} is not known any more")
        if found.status is RunStatus.paused:
            with contextlib.suppress(NotContinuableError, AnswersError):  # others have answered it, or ended it
                return await self._agent.resume_run(run_id, ctx.pass_on(found.interrupts))
        return found

    async def _follow(self, run: Run, ctx: ToolContext) -> None:
        """Wait for its end or its next question. If this is cut, the run is ended first."""
        if self._events:
            shown = max((event.seq for event in run.journal.events if event.event is RunEvent.run_paused), default=0)
            async for event in EventStream.of_begun(run, shown):
                ctx.relay(event)
        await run.attend()

    def _told(self, ended: RunResult | RunRecord) -> str:
        """What its parent's model is told of its end."""
        if ended.status is RunStatus.completed:
            return ended.content
        if ended.status is RunStatus.paused:
            raise ToolError(f"{self._agent.name} has asked, and can't be gone on with here")
        if (receipt := ended.receipt) is not None:  # its reason is for people, and stays out of conversations
            raise ToolError(f"{self._agent.name} was cancelled ({receipt.cause}); it had said: {ended.content!r}")
        error = describe(ended.error) if isinstance(ended.error, Exception) else ended.error
        raise ToolError(f"{self._agent.name} failed: {error}")
