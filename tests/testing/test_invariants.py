# SPDX-License-Identifier: Apache-2.0
"""Every invariant can fail: a sound run is tampered with in one place, and exactly that is found."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from andon import (
    Agent,
    CancelMode,
    Event,
    Interrupt,
    Message,
    Run,
    RunEvent,
    RunResult,
    RunStatus,
    StopReason,
    ToolOutcome,
    Usage,
    tool,
)
from andon.core.receipt import ToolReceipt
from andon.core.run.handle import local_run
from andon.core.run.waits import make_result
from andon.messages import Text, ToolResult
from andon.models.scripted import Call, Say, ScriptedModel
from andon.testing import probe, virtual_run
from andon.testing.invariants import (
    check_calls,
    check_cancelled,
    check_conversation,
    check_events,
    check_paused,
    check_result,
    check_run,
)


@tool
async def quick() -> str:
    return "done"


@tool
async def slow() -> str:
    await asyncio.sleep(10)
    return "done"


async def _perform(cancel: bool) -> Run:
    calls = [Say("Let me see."), Call("quick"), Call("slow"), Call("quick")]
    agent = Agent("A", ScriptedModel(calls), tools=[quick, slow], parallel_tools=False)
    async with agent.start("Go") as run:
        if cancel:
            await asyncio.sleep(5)
            run.cancel()
        await run.result()
    return run


@pytest.fixture
def cancelled() -> Run:
    """One call completed, one was cut, one never started: call_1, call_2, call_3."""
    return virtual_run(_perform(cancel=True))


@pytest.fixture
def completed() -> Run:
    return virtual_run(_perform(cancel=False))


@pytest.fixture
def paused() -> Run:
    """One call completed, and one asks."""
    return virtual_run(_pause())


async def _pause() -> Run:
    @tool(approval=True)
    async def risky() -> str:
        return "done"

    agent = Agent("A", ScriptedModel([Call("quick", id="q"), Call("risky", id="r")]), tools=[quick, risky])
    async with agent.start("Go") as run:
        await run.result()
    return run


def own(run: Run) -> list[Message]:
    return local_run(run).settlement.messages


def only(problems: Iterator[str], pattern: str) -> None:
    """This was found, and nothing that does not fit."""
    listed = list(problems)
    assert listed
    assert all(re.search(pattern, problem) for problem in listed), listed


def index(run: Run, kind: RunEvent, call_id: str | None = None) -> int:
    return next(
        n
        for n, event in enumerate(probe(run).events)
        if event.event is kind and (call_id is None or (event.tool is not None and event.tool.call_id == call_id))
    )


def test_sound_runs_are_sound(cancelled: Run, completed: Run) -> None:
    assert [*check_run(local_run(cancelled)), *check_run(local_run(completed))] == []
    assert (cancelled.status, completed.status) == (RunStatus.cancelled, RunStatus.completed)


def test_a_sound_pause_is_sound(paused: Run) -> None:
    assert list(check_run(local_run(paused))) == []
    assert paused.status is RunStatus.paused


def test_a_run_that_has_not_ended() -> None:
    async def main() -> list[str]:
        async with Agent("A", ScriptedModel(Say("Hello there.", pace=1))).start("Go") as run:
            await asyncio.sleep(0.5)
            return list(check_run(local_run(run)))

    assert virtual_run(main()) == ["the run has not ended: it is running, in phase streaming"]


def test_a_run_without_a_result(cancelled: Run) -> None:
    ending = local_run(cancelled).ending
    assert ending is not None
    ending.settlement = None
    only(check_run(local_run(cancelled)), "the run has no result: AssertionError")


def test_a_receipt_without_a_cancel(completed: Run, cancelled: Run) -> None:
    ending = local_run(completed).ending
    assert ending is not None
    ending.receipt = local_run(cancelled).receipt
    only(check_run(local_run(completed)), "the run is completed and has a receipt of a cancel|different receipts")


# -- a pause ----------------------------------------------------------------------------------------------------------


def asking(event: Event, call_id: str) -> Event:
    return replace(event, interrupts=[Interrupt("x", "x", None, call_id)])


@pytest.mark.parametrize(
    ("tamper", "pattern"),
    [
        (lambda events: events[:-1], "its last event is tool_call_completed|run_paused asks None"),
        (
            lambda events: [*events[:-1], replace(events[-1], event=RunEvent.run_completed)],
            "the run is paused, but there is run_completed|its last event is run_completed",
        ),
        (lambda events: [*events[:-1], replace(events[-1], interrupts=[])], r"run_paused asks \[\], but open are"),
        (lambda events: [*events[:-1], asking(events[-1], "q")], "asks for the calls .'q'|but open are"),
        (lambda events: [*events[:-1], asking(events[-1], "z")], "asks for the calls .'z'|but open are"),
    ],
)
def test_pauses(paused: Run, tamper: Callable[[list[Event]], list[Event]], pattern: str) -> None:
    only(check_paused(local_run(paused), probe(paused).result, tamper(probe(paused).events)), pattern)


def test_a_pause_whose_readers_are_not_told(paused: Run) -> None:
    local_run(paused).journal.resting = False
    only(check_run(local_run(paused)), "its readers don't end there")


def test_a_pause_whose_readers_are_told_of_an_end(paused: Run) -> None:
    local_run(paused).journal.closed = True
    only(check_run(local_run(paused)), "the run is paused, but its readers are not told so")


def test_a_pause_with_the_result_of_something_else(paused: Run) -> None:
    result = replace(probe(paused).result, stop_reason=StopReason.end_turn)
    only(check_paused(local_run(paused), result, probe(paused).events), "its result says")


def test_two_pauses_without_an_answer_in_between(paused: Run) -> None:
    events = probe(paused).events
    only(
        check_events(local_run(paused), [*events, events[-1]]),
        "pauses and continuations must take turns|sequence numbers",
    )


def test_a_call_that_was_not_asked_about_starts_once(completed: Run) -> None:
    start = probe(completed).events[index(completed, RunEvent.tool_call_started)]
    only(check_calls(own(completed), [start, *probe(completed).events]), "started 2 times")


# -- events -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tamper", "pattern"),
    [
        (lambda events: [*events[:2], *events[3:]], r"the sequence numbers are \[1, 2, 4, "),
        (lambda events: [events[0], *events], "run_started is not the first event, or not the only|sequence numbers"),
        (lambda events: [*events, events[-1]], "there must be one terminal event, the last one|sequence numbers"),
        (lambda events: events[:-1], r"there must be one terminal event, the last one; there are \[\]"),
        (lambda events: [*events[:-1], replace(events[-1], run_id="other")], "the events name other runs"),
    ],
)
def test_events(completed: Run, tamper: Callable[[list[Event]], list[Event]], pattern: str) -> None:
    only(check_events(local_run(completed), tamper(probe(completed).events)), pattern)


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"event": RunEvent.run_error}, "the run is completed, but its last event is run_error"),
        ({"status": RunStatus.error}, "the run is completed, its result completed, its last event says ERROR"),
        ({"content": "!"}, "the last event '!'"),
        ({"usage": Usage(9, 9)}, "the result counts .*, the last event Usage"),
    ],
)
def test_terminal_events(completed: Run, change: dict[str, Any], pattern: str) -> None:
    events = probe(completed).events
    only(
        check_result(
            local_run(completed), make_result(local_run(completed)), [*events[:-1], replace(events[-1], **change)]
        ),
        pattern,
    )


def test_readers_that_are_not_told(completed: Run) -> None:
    local_run(completed).journal.closed = False
    only(check_run(local_run(completed)), "the run has ended, but its readers are not told so")


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"status": RunStatus.error}, "the run is cancelled, its result error"),
        ({"stop_reason": StopReason.end_turn}, "the run is cancelled with stop reason 'end_turn'"),
        ({"content": "Something else"}, "shown was 'Let me see.', the result has 'Something else'"),
        ({"usage": Usage(1, 2)}, "the result counts Usage"),
        ({"receipt": None}, "the result and the last event have different receipts"),
        ({"error": ValueError("odd")}, r"the run is cancelled and its error is ValueError\('odd'\)"),
        ({"message": Message("assistant", [Text("Hm")])}, "result.message is not the conversation's last message"),
    ],
)
def test_results(cancelled: Run, change: dict[str, Any], pattern: str) -> None:
    result = replace(probe(cancelled).result, **change)
    only(check_result(local_run(cancelled), result, probe(cancelled).events), pattern)


# -- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "call_id", "change", "pattern"),
    [
        (
            RunEvent.tool_call_completed,
            "call_1",
            {"result": "else"},
            "ended with 'else', but the conversation has 'done'",
        ),
        (
            RunEvent.tool_call_completed,
            "call_1",
            {"call_id": "call_9"},
            "'call_9', which the .* not have|must have one end",
        ),
        (
            RunEvent.tool_call_completed,
            "call_1",
            {"outcome": ToolOutcome.cut},
            "ended with tool_call_completed and the out",
        ),
        (
            RunEvent.tool_call_cancelled,
            "call_2",
            {"outcome": ToolOutcome.not_started},
            "the outcome not_started, but did st",
        ),
        (RunEvent.tool_call_cancelled, "call_3", {"outcome": ToolOutcome.cut}, "the outcome cut, but did not start"),
        (
            RunEvent.tool_call_started,
            "call_1",
            {"call_id": "call_3"},
            "though it never started|not_started, but did start",
        ),
    ],
)
def test_tool_events(cancelled: Run, kind: RunEvent, call_id: str, change: dict[str, Any], pattern: str) -> None:
    events = list(probe(cancelled).events)
    at = index(cancelled, kind, call_id)
    view = events[at].tool
    assert view is not None
    events[at] = replace(events[at], tool=replace(view, **change))
    only(check_calls(own(cancelled), events), pattern)


def test_a_tool_event_of_the_wrong_kind(cancelled: Run) -> None:
    events = list(probe(cancelled).events)
    at = index(cancelled, RunEvent.tool_call_completed)
    events[at] = replace(events[at], event=RunEvent.tool_call_error)
    found = list(check_calls(own(cancelled), events))
    only(iter(found[:1]), "ended with tool_call_error, but its result has status ok")
    only(iter(found[1:]), "ended with tool_call_error and the outcome completed")


def test_a_call_that_failed_though_it_never_began(cancelled: Run) -> None:
    end = probe(cancelled).events[index(cancelled, RunEvent.tool_call_completed)]
    assert end.tool is not None
    failed = replace(end, event=RunEvent.tool_call_error, tool=replace(end.tool, outcome=ToolOutcome.failed))
    told = [failed if event is end else event for event in probe(cancelled).events]
    events = [event for event in told if event.event is not RunEvent.tool_call_started]
    found = list(check_calls(own(cancelled), events))
    assert any("failed, though it never started" in problem for problem in found), found


def test_a_call_that_starts_or_ends_twice(cancelled: Run) -> None:
    for kind in (RunEvent.tool_call_started, RunEvent.tool_call_completed):
        events = list(probe(cancelled).events)
        events.append(events[index(cancelled, kind)])
        only(
            check_calls(own(cancelled), events),
            "started 2 times|must have one end; it has .*completed', 'tool_call_compl",
        )


@pytest.mark.parametrize(
    ("call_id", "times", "outcome", "pattern"),
    [
        ("call_1", 1, None, "was undone and kept"),
        ("call_2", 2, None, "was undone 2 times"),
        ("call_2", 0, ToolOutcome.compensated, "but nothing was undone"),
    ],
)
def test_a_call_that_was_undone(
    cancelled: Run, call_id: str, times: int, outcome: ToolOutcome | None, pattern: str
) -> None:
    events = list(probe(cancelled).events)
    begun = events[index(cancelled, RunEvent.tool_call_started, call_id)]
    events[-1:] = [*[replace(begun, event=RunEvent.tool_undo_started)] * times, events[-1]]
    if outcome is not None:
        at = index(cancelled, RunEvent.tool_call_cancelled, call_id)
        view = events[at].tool
        assert view is not None
        events[at] = replace(events[at], tool=replace(view, outcome=outcome))
    only(check_calls(own(cancelled), events), pattern)


def test_a_cancelled_call_whose_result_does_not_say_so(cancelled: Run) -> None:
    events = list(probe(cancelled).events)
    at = index(cancelled, RunEvent.tool_call_cancelled)
    view = events[at].tool
    assert view is not None
    events[at] = replace(events[at], tool=replace(view, result="Hm"))
    messages = [replace(message, content=[_quiet(block) for block in message.content]) for message in own(cancelled)]
    only(check_calls(messages, events), "was cancelled, which its result does not say: 'Hm'")


def _quiet(block: Any) -> Any:
    return replace(block, content="Hm") if isinstance(block, ToolResult) and block.call_id == "call_2" else block


# -- a cancel ---------------------------------------------------------------------------------------------------------


def changed_receipt(run: Run, **change: Any) -> RunResult:
    result = probe(run).result
    assert result.receipt is not None
    return replace(result, receipt=replace(result.receipt, **change))


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"by": "nobody"}, "is not of the cancel that won"),
        ({"usage": Usage(1, 1)}, "the receipt counts Usage"),
        ({"mode": CancelMode.after_tools}, "mode after_tools lets calls finish, but 'call_2' is cut"),
        ({"mode": CancelMode.after_turn}, "mode after_turn lets calls finish, but 'call_[23]' is (cut|not_started)"),
        ({"latency": -1.0}, "the receipt's latency is -1.0"),
        ({"tools": []}, r"the receipt names the calls \[\], the conversation has \['call_1', 'call_2', 'call_3'\]"),
        (
            {"tools": [ToolReceipt(f"call_{n}", "quick", ToolOutcome.completed) for n in (1, 2, 3)]},
            "the receipt says completed of call 'call_[23]', its event (cut|not_started)",
        ),
    ],
)
def test_receipts(cancelled: Run, change: dict[str, Any], pattern: str) -> None:
    result = changed_receipt(cancelled, **change)
    only(check_cancelled(local_run(cancelled), result, own(cancelled), probe(cancelled).events), pattern)


def test_no_receipt(cancelled: Run) -> None:
    result = replace(probe(cancelled).result, receipt=None)
    only(check_cancelled(local_run(cancelled), result, own(cancelled), probe(cancelled).events), "and has no receipt")


def test_no_marker(cancelled: Run) -> None:
    result = replace(probe(cancelled).result, message=Message("assistant", [Text("Hm")]))
    only(
        check_cancelled(local_run(cancelled), result, own(cancelled), probe(cancelled).events),
        "must end with 'Cancelled by user'",
    )


def test_no_cancel_requested(cancelled: Run) -> None:
    events = [event for event in probe(cancelled).events if event.event is not RunEvent.cancel_requested]
    only(
        check_cancelled(local_run(cancelled), probe(cancelled).result, own(cancelled), events),
        "must be one cancel_requested",
    )


def test_news_after_the_cancel(cancelled: Run) -> None:
    events = [*probe(cancelled).events, probe(cancelled).events[index(cancelled, RunEvent.run_content)]]
    only(
        check_cancelled(local_run(cancelled), probe(cancelled).result, own(cancelled), events),
        "after a cancel with mode now there still came run_content",
    )


def test_conversations_that_are_not_valid(cancelled: Run) -> None:
    only(check_conversation(own(cancelled)[1:]), "the conversation is not valid: .*; it is assistant")
