# SPDX-License-Identifier: Apache-2.0
"""Children that ask a person: their parents pass it on, and an answer reaches the very question it was given to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from andon import (
    Agent,
    CancelCause,
    CancelOutcome,
    Deny,
    Run,
    RunEvent,
    RunResult,
    RunStatus,
    Runtime,
    ToolContext,
    tool,
)
from andon.core.budget import Budget
from andon.errors import AnswersError
from andon.messages import ToolResult
from andon.models.scripted import Call, ScriptedModel
from andon.store.sql import SQLStore
from andon.testing import probe
from tests.support import all_with, make, paused, play, results_of


class Desk:
    """What the children of these tests may do, if a person lets them."""

    def __init__(self) -> None:
        self.done: list[str] = []

        @tool(approval=True)
        async def delete(path: str) -> str:
            self.done.append(path)
            return f"deleted {path}"

        @tool
        async def paint(ctx: ToolContext) -> str:
            first, second = ctx.interrupt("colour"), ctx.interrupt("shade")
            return f"painted {first} {second}"

        self.tools = [delete, paint]

    def child(self, *calls: Call) -> Agent:
        return make(list(calls), name="Young", tools=self.tools)

    def parent(self, child: Agent, *calls: Call) -> Agent:
        asks = Call(child.id, {"prompt": "look"}, id="c")
        return make([asks, *calls], name="Old", tools=[child.as_tool(), *self.tools])


X, Y = Call("delete", {"path": "x"}, id="x"), Call("delete", {"path": "y"}, id="y")


def told(agent: Agent, call_id: str) -> ToolResult:
    return results_of(agent)[call_id]


def only(agent: Agent, caller: Agent) -> Run:
    """The agent's run, on the runtime of the agent that has called it."""
    (run,) = (run for run in caller.runtime.runs if run.agent_id == agent.id)
    return run


def by_payload(result: RunResult, path: str) -> str:
    (found,) = [each.id for each in result.interrupts if each.payload == {"path": path}]
    return found


def test_all_that_a_child_asks_is_asked_at_once() -> None:
    async def main() -> None:
        desk = Desk()
        young = desk.child(X, Y)
        old = desk.parent(young, Call("delete", {"path": "own"}, id="own"))
        _, result = await paused(old)
        assert [(each.name, each.payload, each.call_id) for each in result.interrupts] == [
            ("delete", {"path": "x"}, "c"),
            ("delete", {"path": "y"}, "c"),
            ("delete", {"path": "own"}, "own"),
        ]
        assert all(each.approval for each in result.interrupts)
        result = await old.continue_run(result.run_id, all_with(True, result))
        assert result.status is RunStatus.completed
        assert sorted(desk.done) == ["own", "x", "y"]
        assert young.runtime.runs == []

    play(main)


def test_questions_two_generations_below() -> None:
    async def main() -> None:
        desk = Desk()
        young = desk.child(X, Y, Call("paint", id="p"))
        middle = make([Call("young", {"prompt": "look"}, id="m"), Call("delete", {"path": "z"})], name="Middle",
                      tools=[young.as_tool(), *desk.tools])  # fmt: skip
        old = desk.parent(middle)
        _, result = await paused(old)
        assert [each.name for each in result.interrupts] == ["delete", "delete", "colour", "delete"]
        answers = {by_payload(result, "x"): True, by_payload(result, "y"): Deny("mine"), by_payload(result, "z"): True}
        answers |= {each.id: "red" for each in result.interrupts if each.name == "colour"}
        result = await old.continue_run(result.run_id, answers)
        assert [each.name for each in result.interrupts] == ["shade"]
        result = await old.continue_run(result.run_id, all_with("dark", result))
        assert result.status is RunStatus.completed
        assert desk.done == ["z", "x"]
        assert told(young, "y").content.endswith("A person refused this call. mine")
        assert told(young, "p").content == "painted red dark"

    play(main)


def test_a_refusal_is_told_to_the_model_that_asked() -> None:
    async def main() -> None:
        desk = Desk()
        young = desk.child(X)
        old = desk.parent(young)
        _, result = await paused(old)
        child = only(young, old)
        result = await old.continue_run(result.run_id, all_with(Deny("keep it"), result))
        assert (result.status, child.status) == (RunStatus.completed, RunStatus.completed)
        assert told(young, "x").content.endswith("A person refused this call. keep it")
        assert told(old, "c") == ToolResult("c", "young", "OK.", "ok")
        assert desk.done == []

    play(main)


def test_an_answer_never_reaches_another_question() -> None:
    """Between the question and the answer the child's first question is withdrawn: the second is still not approved."""

    async def main() -> None:
        desk = Desk()
        young = desk.child(X, Y)
        old = desk.parent(young)
        _, result = await paused(old)
        assert only(young, old).cancel_tool("x") is CancelOutcome.requested
        answers = {by_payload(result, "x"): True, by_payload(result, "y"): False}
        result = await old.continue_run(result.run_id, answers)
        assert result.status is RunStatus.completed
        assert desk.done == []
        assert "cancelled" in told(young, "x").content
        assert "A person refused this call." in told(young, "y").content

    play(main)


def test_an_approval_that_a_child_asks_for_stays_one() -> None:
    async def main() -> None:
        desk = Desk()
        old = desk.parent(desk.child(X))
        _, result = await paused(old)
        (question,) = result.interrupts
        assert question.approval
        with pytest.raises(AnswersError):
            await old.continue_run(result.run_id, {question.id: None})
        assert (await old.continue_run(result.run_id, {question.id: True})).status is RunStatus.completed

    play(main)


def test_a_child_that_others_have_answered() -> None:
    async def main() -> None:
        desk = Desk()
        young = desk.child(X)
        old = desk.parent(young)
        _, result = await paused(old)
        child = only(young, old)
        below = await young.continue_run(child.run_id, all_with(True, await child.result()))
        assert below.status is RunStatus.completed
        result = await old.continue_run(result.run_id, all_with(False, result))
        assert result.status is RunStatus.completed
        assert told(old, "c") == ToolResult("c", "young", "OK.", "ok")
        assert desk.done == ["x"]

    play(main)


def test_a_child_that_others_have_answered_and_that_asks_again() -> None:
    async def main() -> None:
        desk = Desk()
        young = desk.child(Call("paint", id="p"))
        old = desk.parent(young)
        _, result = await paused(old)
        child = only(young, old)
        below = await young.continue_run(child.run_id, all_with("red", await child.result()))
        assert below.status is RunStatus.paused
        result = await old.continue_run(result.run_id, all_with("too late", result))
        assert [each.name for each in result.interrupts] == ["shade"]
        result = await old.continue_run(result.run_id, all_with("dark", result))
        assert result.status is RunStatus.completed
        assert told(young, "p").content == "painted red dark"

    play(main)


def test_a_child_that_was_cancelled_while_it_asked() -> None:
    async def main() -> None:
        desk = Desk()
        young = desk.child(X)
        old = desk.parent(young)
        _, result = await paused(old)
        child = only(young, old)
        assert child.cancel("not needed")
        await probe(child).settled()
        result = await old.continue_run(result.run_id, all_with(True, result))
        assert result.status is RunStatus.completed
        assert told(old, "c").status == "error"
        assert "Young was cancelled (user)" in told(old, "c").content
        assert "not needed" not in told(old, "c").content, "a reason stays out of conversations"
        assert desk.done == []

    play(main)


def test_a_child_that_asks_ends_with_its_parent() -> None:
    async def main() -> None:
        desk = Desk()
        young = desk.child(X)
        old = desk.parent(young)
        await paused(old)
        child = only(young, old)
        assert old.cancel()
        await probe(child).settled()
        assert child.status is RunStatus.cancelled
        assert (await old.invoke_async("next")).status is RunStatus.completed

    play(main)


def test_a_child_ends_with_the_call_that_asks_for_it() -> None:
    async def main() -> None:
        desk = Desk()
        young = desk.child(X)
        old = desk.parent(young)
        run, _ = await paused(old)
        child = only(young, old)
        assert run.cancel_tool("c", "never mind") is CancelOutcome.requested
        await probe(child).settled()
        assert child.receipt is not None
        assert child.receipt.cause is CancelCause.parent
        result = await old.continue_run(run.run_id)
        assert result.status is RunStatus.completed
        assert "cancelled" in told(old, "c").content

    play(main)


def test_a_paused_child_whose_question_is_not_passed_on_does_not_hold_its_parent_up() -> None:
    async def main() -> None:
        desk = Desk()
        young = desk.child(X)
        children: list[Run] = []

        @tool
        async def start_it() -> str:
            result = await young.invoke_async("look")
            children.append(only(young, young))
            return result.status.name

        # Were it waited for, this would take an hour.
        old = make(Call("start_it"), name="Old", tools=[start_it], runtime=Runtime(child_seconds=3600))
        result = await old.invoke_async("go")
        assert result.status is RunStatus.completed
        assert [child.status for child in children] == [RunStatus.cancelled]

    play(main)


def test_a_call_that_asks_for_its_child_counts_once() -> None:
    async def main() -> None:
        desk = Desk()
        old = desk.parent(desk.child(Call("paint")))
        _, result = await paused(old, budget=Budget(tool_calls=2))
        while result.status is RunStatus.paused:
            result = await old.continue_run(result.run_id, all_with("red", result))
        assert result.status is RunStatus.completed

    play(main)


def test_the_events_of_a_child_that_asks_are_shown_once() -> None:
    async def main() -> None:
        desk = Desk()
        young = desk.child(X, Y)
        old = make(Call("young", {"prompt": "look"}), name="Old", tools=[young.as_tool(events=True)])
        run, result = await paused(old)
        child = only(young, old)
        result = await old.continue_run(result.run_id, all_with(True, result))
        assert result.status is RunStatus.completed
        shown = [event.event for event in probe(run).events if event.run_id == child.run_id]
        assert shown == [event.event for event in probe(child).events]
        assert shown.count(RunEvent.run_paused) == shown.count(RunEvent.run_continued) == 1

    play(main)


def test_the_questions_of_a_child_are_answered_in_another_process(tmp_path: Path) -> None:
    """Another runtime, that is, on the same database: nothing but the store knows of either run."""
    desk = Desk()

    async def with_family(work: Callable[[Agent, Agent], Awaitable[RunResult]]) -> RunResult:
        runtime = Runtime(SQLStore(f"sqlite:///{tmp_path / 'andon.db'}"))
        young = desk.child(X, Y, Call("paint", id="p"))
        old = make(Call("young", {"prompt": "look"}, id="c"), name="Old", tools=[young.as_tool()], runtime=runtime)
        young.move_to(runtime)
        try:
            return await work(old, young)
        finally:
            await runtime.close()

    async def ask(old: Agent, young: Agent) -> RunResult:
        return await old.invoke_async("go", run_id="r")

    async def answer(old: Agent, young: Agent) -> RunResult:
        young.model, old.model = ScriptedModel("OK."), ScriptedModel("So.")
        answers: dict[str, object] = {by_payload(first, "x"): True, by_payload(first, "y"): False}
        answers |= {each.id: "red" for each in first.interrupts if each.name == "colour"}
        result = await old.continue_run("r", answers)
        assert [each.name for each in result.interrupts] == ["shade"]
        result = await old.continue_run("r", all_with("dark", result))
        assert "A person refused this call." in told(young, "y").content
        assert told(young, "p").content == "painted red dark"
        return result

    first = asyncio.run(with_family(ask))
    assert first.status is RunStatus.paused
    last = asyncio.run(with_family(answer))
    assert (last.status, last.content) == (RunStatus.completed, "So.")
    assert desk.done == ["x"]
