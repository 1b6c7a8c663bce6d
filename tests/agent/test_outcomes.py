# SPDX-License-Identifier: Apache-2.0
"""What became of a call is told as it was: completed, failed or refused; by its event, its receipt, and its hooks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from andon import (
    AfterTool,
    BeforeTool,
    Deny,
    Event,
    Receipt,
    RunEvent,
    RunStatus,
    ToolContext,
    ToolOutcome,
    ToolReceipt,
    tool,
)
from andon.agent.continuation import outcome_of
from andon.agent.orphan_end import outcomes_in
from andon.core.events import ToolView
from andon.core.run.handle import local_run
from andon.errors import ModelError
from andon.messages import ToolResult
from andon.models.scripted import Call, Fail, Think
from andon.testing import probe
from andon.testing.invariants import check_run
from tests.support import Piece, Silence, cut, forever, make, paused, play, results_of


@tool
async def fine(text: str) -> str:
    return text


@tool
async def broken() -> str:
    raise ValueError("it broke")


@tool
async def leaves() -> str:
    raise SystemExit(3)


@tool
async def unusable() -> object:
    return object()


@tool(timeout=0.01)
async def slow() -> str:
    await forever()
    return "never"


@tool
async def forbidden() -> str:
    return "done all the same"


@tool(approval=True)
async def asks() -> str:
    return "approved"


@tool
async def asks_inside(ctx: ToolContext) -> str:
    return f"it was {ctx.interrupt('really?')}"


class Guard:
    def __init__(self) -> None:
        self.told: list[AfterTool] = []

    def before_tool(self, event: BeforeTool) -> None:
        if event.call.name == "forbidden":
            event.cancel("not here")

    def after_tool(self, event: AfterTool) -> None:
        self.told.append(event)


TOOLS = [fine, broken, leaves, unusable, slow, forbidden, asks, asks_inside]


def ends(events: list[Event], call_id: str) -> Iterator[tuple[RunEvent, ToolOutcome | None]]:
    kinds = (RunEvent.tool_call_completed, RunEvent.tool_call_error, RunEvent.tool_call_cancelled)
    for event in events:
        if event.tool is not None and event.event in kinds and event.tool.call_id == call_id:
            yield event.event, event.tool.outcome


def outcomes(receipt: Receipt | None) -> dict[str, str]:
    assert receipt is not None
    return {each.call_id: each.outcome.value for each in receipt.tools}


@pytest.mark.parametrize(
    ("call", "outcome", "error"),
    [
        (Call("fine", {"text": "yes"}, id="c"), "completed", None),
        (Call("broken", id="c"), "failed", "ValueError"),
        (Call("leaves", id="c"), "failed", "StrayError"),
        (Call("unusable", id="c"), "failed", "BadResultError"),
        (Call("slow", id="c"), "failed", "ToolTimeoutError"),
        (Call("unknown", id="c"), "refused", "UnknownToolError"),
        (Call("fine", {"txt": "yes"}, id="c"), "refused", "BadArgumentsError"),
        (Call("fine", '{"text": ', id="c"), "refused", "BadArgumentsError"),
        (Call("forbidden", id="c"), "refused", "ToolBlockedError"),
    ],
)
def test_a_call_is_told_as_it_was(call: Call, outcome: str, error: str | None) -> None:
    async def main() -> None:
        silence, guard = Silence(), Guard()
        agent = make(call, [silence], tools=TOOLS, hooks=[guard])
        ended = await cut(agent, silence.reached)
        kind = RunEvent.tool_call_completed if outcome == "completed" else RunEvent.tool_call_error
        assert list(ends(ended.events, "c")) == [(kind, outcome)]
        assert outcomes(ended.result.receipt) == {"c": outcome}
        assert list(check_run(local_run(ended.run))) == []
        started = RunEvent.tool_call_started in ended.kinds
        assert started is (outcome != "refused")
        [told] = guard.told
        assert told.outcome == outcome
        assert (None if told.error is None else type(told.error).__name__) == error
        assert told.result.status == ("ok" if error is None else "error")

    play(main)


@pytest.mark.parametrize("answer", [False, Deny("not today")])
@pytest.mark.parametrize("name", ["asks", "asks_inside"])
def test_what_a_person_refuses_is_refused(name: str, answer: Any) -> None:
    """Also for a tool that had begun, and asked in the middle."""

    async def main() -> None:
        silence, guard = Silence(), Guard()
        agent = make([Call("broken", id="b"), Call(name, id="c")], [silence], tools=TOOLS, hooks=[guard])
        run, result = await paused(agent)
        again = await agent.resume_run(run.run_id, {result.interrupts[0].id: answer})
        await silence.reached.arrived()
        again.cancel()
        result = await again.result()
        assert outcomes(result.receipt) == {"b": "failed", "c": "refused"}
        assert list(check_run(local_run(again))) == []
        assert [(each.call.id, each.outcome) for each in guard.told] == [("b", "failed"), ("c", "refused")]
        assert "refused" in results_of(agent)["c"].content

    play(main)


def test_a_thread_that_is_out_of_time_and_still_runs_is_abandoned() -> None:
    go = threading.Event()

    @tool(timeout=0.05)
    def stuck() -> str:
        go.wait()
        return "late"

    async def main() -> None:
        silence, guard = Silence(), Guard()
        agent = make(Call("stuck", id="c"), [silence], tools=[stuck], hooks=[guard])
        try:
            ended = await cut(agent, silence.reached)
        finally:
            go.set()
        assert list(ends(ended.events, "c")) == [(RunEvent.tool_call_error, ToolOutcome.abandoned)]
        assert outcomes(ended.result.receipt) == {"c": "abandoned"}
        assert guard.told[0].outcome is ToolOutcome.abandoned
        await probe(ended.run).gone()

    play(main)


def test_a_run_that_completes_has_the_same_words_in_its_events() -> None:
    async def main() -> None:
        calls = [Call("fine", {"text": "a"}, id="a"), Call("broken", id="b"), Call("unknown", id="u")]
        agent = make(calls, "Done.", tools=TOOLS)
        async with agent.start("go") as run:
            assert (await run.result()).status is RunStatus.completed
        told = {call_id: dict(ends(probe(run).events, call_id)).popitem()[1] for call_id in "abu"}
        assert told == {"a": "completed", "b": "failed", "u": "refused"}

    play(main)


def test_a_run_that_fails_tells_the_ends_of_the_calls_that_it_never_started() -> None:
    """The model had sent two whole calls, and half of a third one, when it failed."""

    async def main() -> None:
        calls = [Call("fine", {"text": "a"}, id="a"), Call("broken", id="b"), Piece("c", "fine", '{"te')]
        agent = make([Think("Hm."), "I look.", *calls, Fail(ModelError("gone"))], tools=TOOLS)
        async with agent.start("go") as run:
            result = await run.result()
        assert result.status is RunStatus.error
        told = {result.call_id: result for message in result.messages for result in message.tool_results}
        events = [event for event in probe(run).events if event.event is RunEvent.tool_call_cancelled]
        assert [(event.tool.call_id, event.tool.outcome) for event in events if event.tool] == [
            ("a", ToolOutcome.not_started),
            ("b", ToolOutcome.not_started),
        ]
        assert [event.tool.result for event in events if event.tool] == [told["a"].content, told["b"].content]
        assert told.keys() == {"a", "b"}
        assert list(check_run(local_run(run))) == []
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_what_an_older_version_wrote_is_read_as_what_it_must_have_meant() -> None:
    assert outcome_of(ToolResult("c", "t", "fine")) is ToolOutcome.completed
    assert outcome_of(ToolResult("c", "t", "ValueError: no", "error")) is ToolOutcome.failed

    def event(kind: RunEvent, call_id: str, outcome: ToolOutcome | None, run_id: str = "r") -> Event:
        return Event(kind, run_id, "s", "a", 1, 0.0, tool=ToolView(call_id, "t", {}, "", outcome))

    events = [
        event(RunEvent.tool_call_started, "a", None),
        event(RunEvent.tool_call_completed, "a", ToolOutcome.completed),
        event(RunEvent.tool_call_error, "b", ToolOutcome.completed),  # there was no other word for it
        event(RunEvent.tool_call_error, "c", ToolOutcome.refused),
        event(RunEvent.tool_call_cancelled, "d", ToolOutcome.cut),
        event(RunEvent.tool_call_error, "a", ToolOutcome.failed, "of a sub-agent"),
    ]
    assert outcomes_in("r", events) == {"a": "completed", "b": "failed", "c": "refused", "d": "cut"}
    assert ToolReceipt("c", "t", ToolOutcome("refused")).outcome is ToolOutcome.refused
