# SPDX-License-Identifier: Apache-2.0
"""What is true of every cancelled run, as functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from andon import Agent, CancelOutcome, Event, Run, RunEvent, RunResult, RunStatus
from andon.agent.agent import RunOptions
from andon.core.records import RunRecord
from andon.messages import Text, ToolResult, user
from andon.models.base import ModelRequest
from andon.models.scripted import ScriptedModel, Turn
from andon.testing import probe
from andon.testing.validators import next_prompt_accepted, validate
from tests.support.flags import Flag, until

TERMINAL = (RunEvent.run_completed, RunEvent.run_cancelled, RunEvent.run_error)

MARKERS = {  # as DESIGN.md has them
    "user": "Cancelled by user",
    "caller": "Cancelled by the caller",
    "deadline": "Cancelled: out of time",
    "superseded": "Cancelled: superseded by a newer request",
    "lost": "Cancelled: the worker was lost",
}


def make(*turns: Turn, **agent: Any) -> Agent:
    """An agent that plays these turns, one per model call, and then answers `OK.`"""
    return Agent(name=agent.pop("name", "Tester"), model=ScriptedModel(*turns), **agent)


def asked(agent: Agent) -> list[ModelRequest]:
    """What the agent's model was sent."""
    assert isinstance(agent.model, ScriptedModel)
    return list(agent.model.requests)


def results_of(agent: Agent) -> dict[str, ToolResult]:
    """What the model was told last of each call."""
    return {each.call_id: each for message in asked(agent)[-1].messages for each in message.tool_results}


async def read_all(run: Run) -> list[Event]:
    return [event async for event in run]


async def record_of(agent: Agent, run_id: str) -> RunRecord:
    """What the store has of a run."""
    assert agent.runtime.store is not None
    record = await agent.runtime.store.find(run_id)
    assert record is not None
    return record


@dataclass
class Ended:
    """A run that is over, the events that a live reader saw, and its result."""

    run: Run
    events: list[Event]
    result: RunResult

    @property
    def kinds(self) -> list[RunEvent]:
        return [event.event for event in self.events]


async def cut(
    agent: Agent,
    when: Flag | Callable[[Run], bool] | None = None,
    *,
    prompt: str = "go",
    mode: str = "now",
    grace: float | None = None,
    output_type: Any = None,
    **options: Unpack[RunOptions],
) -> Ended:
    """Start a run, cancel it when it has come so far (None: before its first step), and wait for its end."""
    async with agent.start(prompt, output_type=output_type, **options) as run:
        reader = asyncio.create_task(read_all(run))
        if isinstance(when, Flag):
            await when.arrived()
        elif when is not None:
            await until(lambda: when(run))
        assert run.cancel("enough", "ann", mode, grace) is CancelOutcome.requested
        result = await run.result()
        return Ended(run, await reader, result)


async def paused(agent: Agent, prompt: str = "go", **options: Unpack[RunOptions]) -> tuple[Run, RunResult]:
    """Begin a run that comes to ask a person, and wait for that; leaving it does not cancel it."""
    async with agent.start(prompt, **options) as run:
        result = await run.result()
    check_paused(run, result)
    return run, result


def check_paused(run: Run, result: RunResult) -> None:
    """Everything that holds for every run that waits for a person."""
    assert run.status is RunStatus.paused is result.status
    assert result.stop_reason == "interrupt"
    assert result.run_id == run.run_id
    assert (result.receipt, result.error) == (None, None)
    events = list(probe(run).events)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert not [event for event in events if event.event in TERMINAL]
    assert events[-1].event is RunEvent.run_paused
    assert events[-1].interrupts == result.interrupts
    calls = [call.id for message in result.messages for call in message.tool_calls]
    assert {question.call_id for question in result.interrupts} <= set(calls)
    assert len({question.id for question in result.interrupts}) == len(result.interrupts)


def all_with(value: Any, result: RunResult) -> dict[str, Any]:
    """The same answer to all that is asked."""
    return {question.id: value for question in result.interrupts}


def check_events(events: list[Event]) -> None:
    """One beginning, one end, no gaps."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[0].event is RunEvent.run_started
    assert [event.event for event in events if event.event in TERMINAL] == [events[-1].event]
    assert len({(event.run_id, event.session_id, event.agent_id) for event in events}) == 1
    assert sorted(event.created_at for event in events) == [event.created_at for event in events]


def outcomes(result: RunResult) -> dict[str, str]:
    """What became of each tool, by its call's id."""
    assert result.receipt is not None
    return {tool.call_id: tool.outcome.value for tool in result.receipt.tools}


def check_cancelled(
    ended: Ended,
    *,
    phase: str | Collection[str],
    tools: Mapping[str, str] | None = None,
    cause: str = "user",
    reason: str | None = "enough",
    by: str | None = "ann",
    mode: str = "now",
    leftovers: int = 0,
) -> None:
    """Everything that holds for every run that was cancelled, wherever it was."""
    events, result, last = ended.events, ended.result, ended.events[-1]
    check_events(events)
    assert last.event is RunEvent.run_cancelled
    assert last.status is RunStatus.cancelled is result.status is ended.run.status
    assert result.stop_reason == "cancelled"
    assert ended.kinds.count(RunEvent.cancel_requested) == 1
    assert result.content == last.content == "".join(e.content for e in events if e.event is RunEvent.run_content)
    assert result.error is None

    receipt = result.receipt
    assert receipt is not None
    assert (receipt.cause, receipt.reason, receipt.by, receipt.mode) == (cause, reason, by, mode)
    assert receipt.phase in ({phase} if isinstance(phase, str) else phase)
    assert outcomes(result) == (tools or {})
    assert receipt.usage == result.usage == last.usage
    assert receipt.stopped_at >= receipt.requested_at
    assert receipt.latency >= 0
    assert len(receipt.leftovers) == leftovers, receipt.leftovers

    own_ends = ("completed", "failed", "refused")
    untold = {call_id: outcome for call_id, outcome in outcomes(result).items() if outcome not in own_ends}
    told = [event.tool for event in events if event.event is RunEvent.tool_call_cancelled]
    assert len(told) == len(untold)
    assert {tool.call_id: tool.outcome for tool in told if tool is not None} == untold

    assert result.message is result.messages[-1]
    assert result.message.role == "assistant"
    assert result.message.content[-1] == Text(MARKERS[cause])
    assert validate(result.messages) == []
    assert next_prompt_accepted(result.messages) == []
    results = {each.call_id: each for message in result.messages for each in message.tool_results}
    for call_id, outcome in untold.items():
        assert results[call_id].status == "error"
        assert "cancelled" in results[call_id].content
        assert ("before it started" if outcome == "not_started" else "unknown") in results[call_id].content


async def check_goes_on(agent: Agent, ended: Ended, prompt: str = "and now?") -> RunResult:
    """The end is stored and known, and the same agent goes on from there at once."""
    record = await record_of(agent, ended.run.run_id)
    assert record.status is RunStatus.cancelled
    assert record.receipt == ended.result.receipt
    assert agent.cancel_run(ended.run.run_id) is CancelOutcome.already_finished
    user_id, session_id = ended.run.user_id, ended.run.session_id
    before = ended.result.messages
    result = await agent.invoke_async(prompt, session_id=session_id, user_id=user_id)
    assert result.status is RunStatus.completed, result
    assert result.messages[: len(before) + 1] == [*before, user(prompt)]
    assert validate(result.messages) == []
    assert asked(agent)[-1].messages[: len(before) + 1] == [*before, user(prompt)]
    return result
