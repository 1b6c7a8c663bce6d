# SPDX-License-Identifier: Apache-2.0
"""The surface that users see, as API.md fixes it: names, wire values, truthiness."""

from __future__ import annotations

import inspect
import subprocess
import sys
from enum import Enum
from pathlib import Path

import pytest

import andon
import andon.run.agent
import andon.run.base
from andon import (
    Agent,
    CancelCause,
    CancelMode,
    CancelOutcome,
    Deny,
    Event,
    Interrupt,
    Message,
    Receipt,
    Run,
    RunEvent,
    RunResult,
    RunStatus,
    Runtime,
    ToolContext,
    ToolOutcome,
    Usage,
    errors,
    tool,
)
from andon.messages import Text
from andon.models.scripted import Call, ScriptedModel
from tests.support import HANG, Flag, cut, forever, make, play

ROOT = Path(__file__).parents[2]


# -- names and values -------------------------------------------------------------------------------------------------


def values(kind: type[Enum]) -> dict[str, str]:
    return {member.name: str(member.value) for member in kind}


def test_the_import_line() -> None:
    named = [Agent, Runtime, Run, RunResult, RunStatus, RunEvent, CancelMode, CancelCause, CancelOutcome, Receipt]
    named += [ToolOutcome, ToolContext, Interrupt, Deny, Message, Usage]
    assert all(inspect.isclass(name) for name in named)
    assert callable(tool)
    assert {name.__name__ for name in named} | {"tool"} <= set(andon.__all__)
    assert all(hasattr(andon, name) for name in andon.__all__)


def test_every_error_that_a_user_may_see_can_be_imported() -> None:
    """A lost lease is told to the library's own parts alone: they make an end with cause `lost` of it."""
    ours = [each for each in vars(errors).values() if inspect.isclass(each) and each.__module__ == errors.__name__]
    tree = {each.__name__ for each in ours if issubclass(each, BaseException)}
    assert tree - {"LeaseLostError"} <= set(andon.__all__)


def test_run_status() -> None:
    assert values(RunStatus) == {
        "pending": "PENDING",
        "running": "RUNNING",
        "paused": "PAUSED",
        "cancelling": "CANCELLING",
        "completed": "COMPLETED",
        "cancelled": "CANCELLED",
        "error": "ERROR",
    }


def test_run_event() -> None:
    assert values(RunEvent) == {
        "run_started": "RunStarted",
        "run_content": "RunContent",
        "reasoning": "ReasoningContentDelta",
        "tool_call_started": "ToolCallStarted",
        "tool_output": "ToolCallOutput",
        "tool_call_completed": "ToolCallCompleted",
        "tool_call_error": "ToolCallError",
        "tool_call_cancelled": "ToolCallCancelled",
        "tool_undo_started": "ToolUndoStarted",
        "tool_progress": "ToolCallProgress",
        "run_paused": "RunPaused",
        "run_continued": "RunContinued",
        "cancel_requested": "CancelRequested",
        "model_retry": "ModelRetry",
        "context_reduced": "ContextReduced",
        "store_waiting": "StoreWaiting",
        "run_completed": "RunCompleted",
        "run_cancelled": "RunCancelled",
        "run_error": "RunError",
    }


def test_modes_causes_and_outcomes() -> None:
    assert set(values(CancelMode)) == {"now", "after_tools", "after_turn"}
    assert set(values(CancelCause)) == {
        *("user", "caller", "disconnect", "deadline", "budget", "superseded", "parent", "shutdown", "lost")
    }
    assert set(values(CancelOutcome)) == {"requested", "already_requested", "armed", "already_finished", "unknown"}
    by_itself, by_a_cancel = {"completed", "failed", "refused"}, {"cut", "abandoned", "not_started", "compensated"}
    assert set(values(ToolOutcome)) == by_itself | by_a_cancel
    for kind in (CancelMode, CancelCause, CancelOutcome, ToolOutcome):
        assert all(name == value for name, value in values(kind).items())


@pytest.mark.parametrize(
    ("outcome", "truth"),
    [
        ("requested", True),
        ("already_requested", True),
        ("armed", True),
        ("already_finished", False),
        ("unknown", False),
    ],
)
def test_an_outcome_reads_as_it_should(outcome: str, truth: bool) -> None:
    assert bool(CancelOutcome[outcome]) is truth


def test_the_two_re_exports() -> None:
    assert andon.run.agent.RunEvent is RunEvent
    assert andon.run.base.RunStatus is RunStatus


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("StorytellerAgent", "storyteller-agent"),
        ("Storyteller Agent", "storyteller-agent"),
        ("storyteller", "storyteller"),
        ("Lighthouse Keeper", "lighthouse-keeper"),
        ("  The  2nd Agent! ", "the-2nd-agent"),
    ],
)
def test_agent_id_is_a_slug_of_the_name(name: str, slug: str) -> None:
    assert Agent(name=name).id == slug
    assert Agent(name=name, id="given").id == "given"


def test_the_signatures() -> None:
    made = inspect.signature(Agent).parameters
    assert {"name", "model", "description", "instructions", "tools", "hooks", "runtime", "parallel_tools"} <= set(made)
    how = ["reason", "by", "mode", "grace", "force"]
    for method in (Agent.cancel, Run.cancel):
        assert list(inspect.signature(method).parameters)[1:] == how
    assert list(inspect.signature(Agent.cancel_run).parameters)[1:] == ["run_id", *how]
    assert {"timeout", *how} <= set(inspect.signature(Run.cancel_and_wait).parameters)
    selectors = {"run_id", "session_id", "user_id", "agent_id", "all"}
    assert selectors <= set(inspect.signature(Runtime.cancel).parameters)


def test_the_fields() -> None:
    def fields(kind: type) -> set[str]:
        return set(kind.__struct_fields__)  # type: ignore[attr-defined]

    common = {"event", "run_id", "session_id", "agent_id", "seq", "created_at"}
    assert common | {"content", "status", "usage", "error"} <= fields(Event)
    assert fields(RunResult) >= {
        *("run_id", "session_id", "status", "stop_reason", "message", "content", "messages", "usage"),
        *("interrupts", "receipt", "error"),
    }
    assert fields(Receipt) == {
        *("cause", "reason", "by", "mode", "requested_at", "stopped_at", "latency", "phase", "tools", "usage"),
        "leftovers",
    }
    assert fields(Usage) == {"input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "estimated"}
    assert fields(Message) == {"role", "content"}


def test_records_are_frozen() -> None:
    async def main() -> None:
        ended = await cut(make(), None)
        for record, field in ((ended.result, "status"), (ended.result.receipt, "cause"), (ended.events[0], "seq")):
            with pytest.raises(AttributeError):
                setattr(record, field, None)

    play(main)


# -- what a tool can ask ----------------------------------------------------------------------------------------------


def test_the_context_of_a_tool() -> None:
    seen: dict[str, object] = {}

    @tool
    async def look(x: int, ctx: ToolContext) -> str:
        """Look around."""
        for name in ("cancelled", "call_id", "run_id", "session_id", "user_id", "deadline"):
            seen[name] = getattr(ctx, name)
        ctx.check_cancelled()
        return "x"

    agent = make(Call("look", {"x": 1}, id="c"), tools=[look])
    agent.run("go", run_id="r", session_id="s", user_id="ann")
    assert seen == {
        "cancelled": False,
        "call_id": "c",
        "run_id": "r",
        "session_id": "s",
        "user_id": "ann",
        "deadline": None,
    }
    assert isinstance(agent.model, ScriptedModel)
    (shown,) = agent.model.requests[0].tools
    assert (shown.name, shown.description) == ("look", "Look around.")
    assert list(shown.parameters["properties"]) == ["x"]  # the model never sees the context


# -- what a result says -----------------------------------------------------------------------------------------------


def test_the_marker_is_in_the_message_and_not_in_the_content() -> None:
    async def main() -> None:
        started = Flag()

        @tool
        async def slow() -> str:
            started.set()
            await forever()

        agent = make(["I'll see. ", Call("slow")], tools=[slow])
        ended = await cut(agent, started)
        assert ended.result.message.content[-1] == Text("Cancelled by user")
        assert ended.result.content == "I'll see. "
        assert "enough" not in str(ended.result.messages)  # the free-text reason goes to the receipt only
        assert ended.result.interrupts == []

    play(main)


# -- the package ------------------------------------------------------------------------------------------------------


def run_python(*arguments: str) -> str:
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_example_runs_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    lines = run_python(str(ROOT / "examples" / "cancel_from_thread.py")).splitlines()
    assert "-- asked to stop --" in lines
    assert any(line.startswith("ended as cancelled, ") for line in lines)
    assert lines[-1] == "the same agent goes on: completed"
