# SPDX-License-Identifier: Apache-2.0
"""Asking a person: what pauses a run, what it holds meanwhile, and how it goes on with the answers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from andon import (
    Deny,
    Interrupt,
    RunEvent,
    RunStatus,
    ToolContext,
    Usage,
    tool,
)
from andon.errors import AnswersError, NotContinuableError, UnknownRunError
from andon.messages import ToolCall, ToolResult
from andon.models.scripted import Call, Item, Spend
from andon.testing import probe
from andon.testing.validators import validate
from tests.support import (
    Flag,
    Silence,
    Worker,
    all_with,
    check_events,
    check_paused,
    make,
    paused,
    play,
    record_of,
    results_of,
)
from tests.support.till import DELETE, LOOK, PAY, Till

# -- asking and answering ---------------------------------------------------------------------------------------------


def test_an_approval_asks_before_the_call_runs() -> None:
    async def main() -> None:
        till = Till()
        agent = make(["Well, ", DELETE, Spend(input_tokens=3, output_tokens=2)], tools=till.tools)
        run, result = await paused(agent, metadata={"for": "ann"})
        assert till.did == []
        [question] = result.interrupts
        call = ToolCall("d", "delete", {"name": "all"})
        assert question == Interrupt(question.id, "delete", {"name": "all"}, "d", approval=True, call=call)
        assert result.content == "Well, "
        assert result.usage == Usage(3, 2, None, None)
        assert result.metadata == {"for": "ann"}
        assert [event.event for event in probe(run).events] == [
            RunEvent.run_started,
            RunEvent.run_content,
            RunEvent.run_paused,
        ]
        record = await record_of(agent, run.run_id)
        assert (record.status, record.stop_reason) == (RunStatus.paused, "interrupt")
        assert record.interrupts == result.interrupts

        final = await agent.continue_run(run.run_id, answers={question.id: True})
        assert till.did == ["all"]
        assert (final.run_id, final.status, final.stop_reason) == (run.run_id, RunStatus.completed, "end_turn")
        assert final.content == "Well, OK."
        assert final.interrupts == []
        assert results_of(agent)["d"] == ToolResult("d", "delete", "deleted all", "ok")
        assert [event.event for event in probe(run).events][2:] == [
            RunEvent.run_paused,
            RunEvent.run_continued,
            RunEvent.tool_call_started,
            RunEvent.tool_call_completed,
            RunEvent.run_content,
            RunEvent.run_completed,
        ]
        check_events(probe(run).events)
        assert (await record_of(agent, run.run_id)).status is RunStatus.completed
        assert validate(agent.messages) == []

    play(main)


def test_a_tool_that_asks_is_entered_again_and_gets_the_answer() -> None:
    async def main() -> None:
        entered: list[str] = []

        @tool
        async def order(ctx: ToolContext) -> str:
            entered.append(ctx.call_id)
            return f"ordered {ctx.interrupt('which one?', ['red', 'blue'])}"

        agent = make(Call("order", id="c"), tools=[order])
        run, result = await paused(agent)
        [question] = result.interrupts
        assert (question.name, question.payload, question.call_id) == ("which one?", ["red", "blue"], "c")
        assert entered == ["c"]
        final = await agent.continue_run(run.run_id, answers={question.id: "blue"})
        assert entered == ["c", "c"]
        assert final.status is RunStatus.completed
        assert results_of(agent)["c"].content == "ordered blue"
        check_events(probe(run).events)

    play(main)


def test_a_tool_may_ask_one_question_after_the_other() -> None:
    async def main() -> None:
        got: list[list[str]] = []

        @tool
        async def order(ctx: ToolContext) -> str:
            got.append([])
            for question in ("what?", "where?", "when?"):
                got[-1].append(ctx.interrupt(question))
            return " ".join(got[-1])

        agent = make(Call("order", id="c"), tools=[order])
        run, result = await paused(agent)
        ids = set()
        for question, answer in (("what?", "tea"), ("where?", "here"), ("when?", "now")):
            check_paused(run, result)
            assert [open.name for open in result.interrupts] == [question]
            ids |= {open.id for open in result.interrupts}
            result = await agent.continue_run(run.run_id, answers=all_with(answer, result))
        assert result.status is RunStatus.completed
        assert len(ids) == 3
        assert got == [[], ["tea"], ["tea", "here"], ["tea", "here", "now"]]
        assert results_of(agent)["c"].content == "tea here now"
        kinds = [event.event for event in probe(run).events]
        assert kinds.count(RunEvent.run_paused) == kinds.count(RunEvent.run_continued) == 3
        assert kinds.count(RunEvent.tool_call_completed) == 1
        check_events(probe(run).events)

    play(main)


def test_an_approved_tool_may_ask_as_well() -> None:
    async def main() -> None:
        @tool(approval=True)
        async def order(ctx: ToolContext) -> str:
            return f"ordered {ctx.interrupt('which one?')}"

        agent = make(Call("order", id="c"), tools=[order])
        run, result = await paused(agent)
        assert [question.name for question in result.interrupts] == ["order"]
        result = await agent.continue_run(run.run_id, answers=all_with(True, result))
        check_paused(run, result)
        assert [question.name for question in result.interrupts] == ["which one?"]
        result = await agent.continue_run(run.run_id, answers=all_with("red", result))
        assert results_of(agent)["c"].content == "ordered red"

    play(main)


def test_each_turn_may_ask() -> None:
    async def main() -> None:
        till = Till()
        agent = make(DELETE, Call("delete", {"name": "more"}, id="e"), "Done.", tools=till.tools)
        run, result = await paused(agent)
        result = await agent.continue_run(run.run_id, answers=all_with(True, result))
        check_paused(run, result)
        assert [question.call_id for question in result.interrupts] == ["e"]
        result = await agent.continue_run(run.run_id, answers=all_with(True, result))
        assert (result.status, result.content) == (RunStatus.completed, "Done.")
        assert till.did == ["all", "more"]

    play(main)


@pytest.mark.parametrize("answer", [0, "", None, [], {"deep": [1, None]}])
def test_only_false_and_deny_refuse(answer: object) -> None:
    async def main() -> None:
        till = Till()
        agent = make(PAY, tools=till.tools)
        run, result = await paused(agent)
        await agent.continue_run(run.run_id, answers=all_with(answer, result))
        assert till.did == [answer]

    play(main)


# -- several calls ----------------------------------------------------------------------------------------------------


def test_several_at_once_and_the_other_calls_finish_first() -> None:
    async def main() -> None:
        till, working, go = Till(), Flag(), Flag()

        @tool
        async def work() -> str:
            working.set()
            await go.arrived()
            till.did.append("worked")
            return "worked"

        agent = make([DELETE, Call("work", id="w"), PAY, LOOK], tools=[*till.tools, work])
        async with agent.start("go") as run:
            await working.arrived()
            for _ in range(20):
                await asyncio.sleep(0)
            assert run.status is RunStatus.running  # the questions wait until nothing works any more
            go.set()
            result = await run.result()
        check_paused(run, result)
        assert till.did == ["looked", "worked"]
        assert [question.call_id for question in result.interrupts] == ["d", "p"]
        answers = {question.id: question.call_id for question in result.interrupts}
        final = await agent.continue_run(run.run_id, answers=answers)
        assert final.status is RunStatus.completed
        assert till.did == ["looked", "worked", "all", "p"]  # what had finished is not repeated
        told = results_of(agent)
        assert list(told) == ["d", "w", "p", "l"]
        assert [each.content for each in told.values()] == ["deleted all", "worked", "paid 9, p", "seen"]
        check_events(probe(run).events)

    play(main)


def test_one_refused_and_one_granted() -> None:
    async def main() -> None:
        till = Till()
        agent = make([DELETE, PAY], tools=till.tools)
        run, result = await paused(agent)
        answers = {question.id: question.call_id == "p" for question in result.interrupts}
        assert (await agent.continue_run(run.run_id, answers=answers)).status is RunStatus.completed
        assert till.did == [True]
        assert {call_id: each.status for call_id, each in results_of(agent).items()} == {"d": "error", "p": "ok"}

    play(main)


@pytest.mark.parametrize("first", [DELETE, PAY])
def test_sequential_tools_pause_at_once_and_later_calls_do_not_start(first: Call) -> None:
    async def main() -> None:
        till = Till()
        calls: list[str | Item] = [LOOK, first, Call("look", id="m"), Call("delete", {"name": "more"}, id="e")]
        agent = make(calls, tools=till.tools, parallel_tools=False)
        run, result = await paused(agent)
        assert till.did == ["looked"]
        assert [question.call_id for question in result.interrupts] == [first.id]
        result = await agent.continue_run(run.run_id, answers=all_with(True, result))
        check_paused(run, result)
        assert till.did == ["looked", "all" if first is DELETE else True, "looked"]
        assert [question.call_id for question in result.interrupts] == ["e"]
        result = await agent.continue_run(run.run_id, answers=all_with(True, result))
        assert result.status is RunStatus.completed
        assert till.did[3:] == ["more"]
        check_events(probe(run).events)
        assert validate(result.messages) == []

    play(main)


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "did"), [(DELETE, []), (PAY, [])])
@pytest.mark.parametrize("refusal", [False, Deny(), Deny("not on a Friday")], ids=["False", "Deny()", "Deny(why)"])
def test_a_refusal_goes_to_the_model_as_an_error_result(refusal: object, call: Call, did: list[Any]) -> None:
    async def main() -> None:
        till, told = Till(), list[str]()

        class Hook:
            def after_tool(self, event: Any) -> None:
                told.append(event.result.status)

        agent = make(call, "As you wish.", tools=till.tools, hooks=[Hook()])
        run, result = await paused(agent)
        final = await agent.continue_run(run.run_id, answers=all_with(refusal, result))
        assert (final.status, final.content) == (RunStatus.completed, "As you wish.")
        assert till.did == did
        assert call.id is not None
        sent = results_of(agent)[call.id]
        assert sent.status == "error"
        assert "refused" in sent.content
        if isinstance(refusal, Deny):
            assert refusal.reason in sent.content
        errors = [event for event in probe(run).events if event.event is RunEvent.tool_call_error]
        assert [event.tool.result for event in errors if event.tool is not None] == [sent.content]
        assert told == ["error"]
        check_events(probe(run).events)
        assert validate(final.messages) == []

    play(main)


# -- answers that are none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["none", "nothing", "one of two", "one too many", "another's", "call ids"])
def test_wrong_answers_list_what_is_open_and_change_nothing(wrong: str) -> None:
    async def main() -> None:
        till = Till()
        agent = make([DELETE, PAY], tools=till.tools)
        run, result = await paused(agent)
        one, other = (question.id for question in result.interrupts)
        given: dict[str, dict[str, Any] | None] = {
            "none": None,
            "nothing": {},
            "one of two": {one: True},
            "one too many": {one: True, other: True, "third": True},
            "another's": {one: True, "third": True},
            "call ids": {"d": True, "p": True},
        }
        before, stored = list(probe(run).events), await record_of(agent, run.run_id)
        with pytest.raises(AnswersError) as raised:
            await agent.continue_run(run.run_id, answers=given[wrong])
        for word in (one, other, "delete", "pay?", run.run_id):
            assert word in str(raised.value)
        assert raised.value.interrupts == result.interrupts
        assert probe(run).events == before
        assert await record_of(agent, run.run_id) == stored
        check_paused(run, await run.result())
        assert till.did == []
        final = await agent.continue_run(run.run_id, answers={one: True, other: "yes"})
        assert final.status is RunStatus.completed
        assert till.did == ["all", "yes"]

    play(main)


def test_an_answered_question_is_not_open_any_more() -> None:
    async def main() -> None:
        till = Till()
        agent = make(DELETE, PAY, tools=till.tools)
        run, first = await paused(agent)
        second = await agent.continue_run(run.run_id, answers=all_with(True, first))
        with pytest.raises(AnswersError, match=second.interrupts[0].id):
            await agent.continue_run(run.run_id, answers=all_with(True, first))
        await agent.continue_run(run.run_id, answers=all_with(True, second))
        assert till.did == ["all", True]

    play(main)


def test_only_a_paused_run_has_questions() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        async with agent.start("go") as run:
            await silence.reached.arrived()
            with pytest.raises(NotContinuableError, match="running"):
                await agent.continue_run(run.run_id, answers={"x": True})
            assert run.status is RunStatus.running
        with pytest.raises(UnknownRunError, match="no-such-run"):
            await agent.continue_run("no-such-run", answers={})
        other = make(name="Other", runtime=agent.runtime)
        till = Till()
        agent = make(DELETE, tools=till.tools, runtime=agent.runtime)
        run, result = await paused(agent)
        with pytest.raises(UnknownRunError):
            await other.continue_run(run.run_id, answers=all_with(True, result))
        assert run.status is RunStatus.paused
        run.cancel()
        await probe(run).settled()

    play(main)


def test_of_two_that_answer_at_once_one_goes_on() -> None:
    async def main() -> None:
        till = Till()
        agent = make(DELETE, tools=till.tools)
        run, result = await paused(agent)
        answers = all_with(True, result)
        one, other = await asyncio.gather(
            agent.continue_run(run.run_id, answers=answers),
            agent.continue_run(run.run_id, answers=answers),
            return_exceptions=True,
        )
        assert not isinstance(one, BaseException)
        assert one.status is RunStatus.completed
        assert isinstance(other, NotContinuableError)
        assert till.did == ["all"]
        check_events(probe(run).events)

    play(main)


def test_of_many_threads_that_answer_at_once_one_goes_on() -> None:
    def race() -> None:
        till, together = Till(), threading.Barrier(8)
        agent = make(DELETE, tools=till.tools)
        result = agent.run("go")
        answers, ended = all_with(True, result), list[RunStatus]()
        run = agent.runtime.run(result.run_id)
        assert run is not None

        def answer() -> None:
            together.wait(20)
            with contextlib.suppress(NotContinuableError):
                ended.append(asyncio.run(agent.continue_run(result.run_id, answers=answers)).status)

        for worker in [Worker(answer) for _ in range(8)]:
            worker.done()
        assert ended == [RunStatus.completed]
        assert till.did == ["all"]
        check_events(probe(run).events)

    for _ in range(30):
        race()
