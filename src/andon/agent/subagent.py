# SPDX-License-Identifier: Apache-2.0
"""An agent as another agent's tool.

Each call is a run of its own: a child of the run that called it, in a session of its own, on its parent's runtime, so
both are stored in the same place. It is cancelled with its parent. If it is cancelled alone, its parent gets an error
result. When it asks a person, its parent pauses and asks the same question. An answer reaches only the question that it
was given for: meanwhile the child may have been answered or ended directly. If the child can't be found, its parent
fails, and so do the runs above, through which it had asked.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Self, Unpack

import msgspec

from andon.agent.context import ContextPolicy
from andon.agent.options import ContinueOptions, RunOptions
from andon.agent.prompt import Prompt
from andon.core.events import RunEvent
from andon.core.receipt import Interrupt, RunResult
from andon.core.records import RunRecord
from andon.core.run.children import child_id
from andon.core.run.handle import Run, local_run
from andon.core.run.run import LocalRun
from andon.core.run.stream import EventStream
from andon.core.run.tool_call import current
from andon.core.run.waits import begin_and_wait, wait_result, wait_settled
from andon.core.runtime import Runtime
from andon.core.states import RunStatus, StopReason
from andon.errors import (
    AndonError,
    AnswersError,
    BadArgumentsError,
    NotContinuableError,
    SubAgentLostError,
    ToolError,
    describe,
)
from andon.models.base import Model, check_setup
from andon.tools.base import Tool, ToolContext, internals_of

TRIES = 3
"""How often an answer is given to a child run that others may answer at the same moment."""


class SubAgent(Protocol):
    """An agent, as the tool that calls it needs it."""

    id: str
    name: str
    description: str | None
    model: Model | None
    context: ContextPolicy | None
    tools: list[Tool]
    deps: Any
    runtime: Runtime
    brought_runtime: bool

    def on(self, runtime: Runtime) -> Self: ...

    def be_used_on(self, runtime: Runtime) -> None: ...

    def start(self, prompt: Prompt, **options: Unpack[RunOptions]) -> Run[Any]: ...

    async def resume_run(
        self, run_id: str, answers: Mapping[str, Any] | None = None, **options: Unpack[ContinueOptions]
    ) -> Run[Any]: ...


class AgentTool:
    """Made by `agent.as_tool()`."""

    def __init__(self, agent: SubAgent, name: str | None, description: str | None, events: bool) -> None:
        self.agent, self._events = agent, events
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
        return f"<tool {self.name}: {self.agent!r}>"

    def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
        prompt = arguments.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip() or len(arguments) != 1:
            raise BadArgumentsError(f'{self.name} takes {{"prompt": "…"}}, some text, and nothing else')
        return {"prompt": prompt}

    async def invoke(self, bound: dict[str, Any], ctx: ToolContext) -> str:
        agent, internals = self._on_the_callers_runtime(), internals_of(ctx)
        # The id follows from the call's id, so a tool that is entered again finds the run that waits for the answer.
        run_id = child_id(ctx.run_id, ctx.call_id)
        if not internals.child_answers:
            handle = agent.start(
                bound["prompt"],
                run_id=run_id,
                user_id=ctx.user_id,
                session_id=os.urandom(16).hex(),
                deps=self._deps(ctx),
            )
            run = local_run(handle)
            await begin_and_wait(run)
        elif isinstance(found := await self._resume(agent, run_id, ctx), LocalRun):
            run = found
        else:
            return self._result_text(found)
        await self._follow(run, ctx)
        result = await wait_result(run)
        if result.status is RunStatus.paused:
            internals.ask_for_child(result.interrupts)
        return self._result_text(result)

    def _on_the_callers_runtime(self) -> SubAgent:
        """The agent on the runtime of the calling run; or on its own, if it was made with `runtime=`."""
        if (call := current.get()) is None:
            return self.agent
        runtime = call.run.runtime
        assert isinstance(runtime, Runtime)
        self.agent.be_used_on(runtime)
        return self.agent_on(runtime)

    def agent_on(self, runtime: Runtime) -> SubAgent:
        """The agent, as a run on this runtime calls it."""
        return self.agent if self.agent.brought_runtime else self.agent.on(runtime)

    async def _resume(self, agent: SubAgent, run_id: str, ctx: ToolContext) -> LocalRun | RunRecord:
        """The run that has asked, resumed with its answers; or its end, if it has ended meanwhile."""
        store, worker = agent.runtime.store, agent.runtime.worker
        assert store is not None
        failure: Exception | None = None
        for _ in range(TRIES):
            here = agent.runtime.find(run_id)
            found: LocalRun | RunRecord | None = here
            if worker is None:
                found = here or await store.find(run_id)
            elif here is None or (failure is not None and here.is_paused):  # another process may run it by now
                from andon.core.shared.remote import follow  # only shared stores need it

                found = await follow(worker.link, run_id, to_pause=True)
            if found is None or _agent_id(found) != agent.id:
                raise self._lost(run_id, "is not known any more")
            if found.status is not RunStatus.paused:
                return found
            answers = internals_of(ctx).ask_for_child(found.interrupts)
            resume = functools.partial(agent.resume_run, run_id, answers, deps=self._deps(ctx))
            try:
                run = await (resume() if worker is None else worker.link.retry(resume))
            except (NotContinuableError, AnswersError) as error:  # it was answered or ended directly
                failure = error
            except AndonError as error:
                raise self._lost(run_id, f"can't be continued: {describe(error)}") from None
            else:
                internals_of(ctx).delivered(answers)
                return local_run(run)
        raise self._lost(run_id, f"can't be continued: {failure}")

    def _lost(self, run_id: str, why: str) -> SubAgentLostError:
        asked = f"{self.agent.name} had asked a person, but its run {run_id!r} {why}."
        return SubAgentLostError(f"{asked} What it had done until then is unknown.")

    def _deps(self, ctx: ToolContext) -> Any:
        """Its own, or those of the calling run: both serve the same user."""
        return ctx.deps if self.agent.deps is None else self.agent.deps

    async def _follow(self, run: LocalRun, ctx: ToolContext) -> None:
        """Wait for its end or its next question. If this call is cut, the child run is ended first."""
        if self._events:
            shown = max((event.seq for event in run.journal.events if event.event is RunEvent.run_paused), default=0)
            async for event in EventStream.of_begun(Run(run), shown):
                internals_of(ctx).show_event(event)
        await wait_settled(run)

    def _result_text(self, ended: RunResult | RunRecord) -> str:
        """The result for the parent's model. Raises if the run did not complete."""
        if ended.stop_reason is StopReason.max_turns:
            raise ToolError(f"{self.agent.name} was not done when it had no turns left; it had said: {ended.content!r}")
        if ended.status is RunStatus.completed:
            if ended.output is None:
                return ended.content
            # Not the content: that has all text, also answers that did not fit the `output_type`.
            return ended.message.text if isinstance(ended, RunResult) else msgspec.json.encode(ended.output).decode()
        if (receipt := ended.receipt) is not None:  # its reason is for people, and must not be in the conversation
            raise ToolError(f"{self.agent.name} was cancelled ({receipt.cause}); it had said: {ended.content!r}")
        error = describe(ended.error) if isinstance(ended.error, Exception) else ended.error or "it is not known why"
        # If it has lost its own sub-agent, the runs above don't know the outcome either, and fail in the same way.
        lost = error.startswith(f"{SubAgentLostError.__name__}: ")
        raise (SubAgentLostError if lost else ToolError)(f"{self.agent.name} failed: {error}")


def _agent_id(found: LocalRun | RunRecord) -> str:
    return found.agent_id if isinstance(found, LocalRun) else found.session.agent_id


def sub_agents(tools: Iterable[Tool]) -> list[SubAgent]:
    """The agents among these tools."""
    return [tool.agent for tool in tools if isinstance(tool, AgentTool)]


async def check_can_continue(agent: SubAgent, run_id: str, interrupts: Sequence[Interrupt]) -> None:
    """Raise if the agent is not set up, or a sub-agent below it whose question is among these interrupts.

    This is checked before a run goes on. Later the answers would be used up, and would not reach the sub-agent.
    """
    check_setup(agent.model)
    check_setup(agent.context)
    tools = {tool.name: tool for tool in agent.tools}
    for call in {each.call.id: each.call for each in interrupts if each.call is not None}.values():
        if not isinstance(tool := tools.get(call.name), AgentTool):
            continue
        child, child_run_id = tool.agent_on(agent.runtime), child_id(run_id, call.id)
        assert child.runtime.store is not None
        found = child.runtime.run(child_run_id) or await child.runtime.store.find(child_run_id)
        if found is not None and found.status is RunStatus.paused:
            await check_can_continue(child, child_run_id, found.interrupts)
