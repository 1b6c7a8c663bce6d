# SPDX-License-Identifier: Apache-2.0
"""Asking a person: what pauses a run, what it holds meanwhile, and how it goes on with the answers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from andon import (
    Agent,
    CancelCause,
    Deny,
    Interrupt,
    RunEvent,
    RunStatus,
    ToolContext,
    Usage,
    tool,
)
from andon.errors import AnswersError, NotContinuableError, SessionPausedError, UnknownRunError
from andon.messages import ToolResult
from andon.models.scripted import Call, Item, Spend
from andon.testing.validators import validate
from tests.support import (
    Flag,
    Silence,
    Worker,
    all_with,
    asked,
    check_events,
    check_paused,
    make,
    paused,
    play,
    read_all,
    record_of,
)


class Till:
    """Tools that note what they do: one that needs an approval, one that asks by itself, one that does neither."""

    def __init__(self) -> None:
        self.did: list[Any] = []

        @tool(approval=True)
        async def delete(name: str) -> str:
            self.did.append(name)
            return f"deleted {name}"

        @tool
        async def pay(ctx: ToolContext, amount: int = 7) -> str:
            answer = ctx.interrupt("pay?", {"amount": amount})
            self.did.append(answer)
            return f"paid {amount}, {answer}"

        @tool
        async def look() -> str:
            self.did.append("looked")
            return "seen"

        self.delete, self.pay, self.look = delete, pay, look
        self.tools = [delete, pay, look]


DELETE, PAY, LOOK = Call("delete", {"name": "all"}, id="d"), Call("pay", {"amount": 9}, id="p"), Call("look", id="l")


def results_of(agent: Agent) -> dict[str, ToolResult]:
    """What the model was told last of each call."""
    return {each.call_id: each for message in asked(agent)[-1].messages for each in message.tool_results}


# -- asking and answering ---------------------------------------------------------------------------------------------


def test_an_approval_asks_before_the_call_runs() -> None:
    async def main() -> None:
        till = Till()
        agent = make(["Well, ", DELETE, Spend(input_tokens=3, output_tokens=2)], tools=till.tools)
        run, result = await paused(agent, metadata={"for": "ann"})
        assert till.did == []
        [question] = result.interrupts
        assert question == Interrupt(question.id, "delete", {"name": "all"}, "d")
        assert result.content == "Well, "
        assert result.usage == Usage(3, 2, None, None)
        assert result.metadata == {"for": "ann"}
        assert [event.event for event in run.journal.events] == [
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
        assert [event.event for event in run.journal.events][2:] == [
            RunEvent.run_paused,
            RunEvent.run_continued,
            RunEvent.tool_call_started,
            RunEvent.tool_call_completed,
            RunEvent.run_content,
            RunEvent.run_completed,
        ]
        check_events(run.journal.events)
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
        check_events(run.journal.events)

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
        kinds = [event.event for event in run.journal.events]
        assert kinds.count(RunEvent.run_paused) == kinds.count(RunEvent.run_continued) == 3
        assert kinds.count(RunEvent.tool_call_completed) == 1
        check_events(run.journal.events)

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
        check_events(run.journal.events)

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
        check_events(run.journal.events)
        assert validate(result.messages) == []

    play(main)


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "did"), [(DELETE, []), (PAY, [])])
@pytest.mark.parametrize("refusal", [False, Deny(), Deny("not on a Friday")], ids=["False", "Deny()", "Deny(why)"])
def test_a_refusal_goes_to_the_model_as_an_error_result(refusal: object, call: Call, did: list[Any]) -> None:
    async def main() -> None:
        till, told = Till(), list[str]()

        class Hook:
            def after_tool(self, happening: Any) -> None:
                told.append(happening.result.status)

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
        errors = [event for event in run.journal.events if event.event is RunEvent.tool_call_error]
        assert [event.tool.result for event in errors if event.tool is not None] == [sent.content]
        assert told == ["error"]
        check_events(run.journal.events)
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
        before, stored = list(run.journal.events), await record_of(agent, run.run_id)
        with pytest.raises(AnswersError) as raised:
            await agent.continue_run(run.run_id, answers=given[wrong])
        for word in (one, other, "delete", "pay?", run.run_id):
            assert word in str(raised.value)
        assert raised.value.interrupts == result.interrupts
        assert run.journal.events == before
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
        await run.attend()

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
        check_events(run.journal.events)

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
        check_events(run.journal.events)

    for _ in range(30):
        race()


# -- from anywhere ----------------------------------------------------------------------------------------------------


def test_the_blocking_call_returns_the_paused_result() -> None:
    till = Till()
    agent = make(["Well, ", PAY], tools=till.tools)
    result = agent.run("go")
    assert (result.status, result.stop_reason, result.content) == (RunStatus.paused, "interrupt", "Well, ")
    final = asyncio.run(agent.continue_run(result.run_id, answers=all_with(1, result)))
    assert (final.status, final.content) == (RunStatus.completed, "Well, OK.")
    assert agent.run("and now?").status is RunStatus.completed


@pytest.mark.parametrize("call", [DELETE, PAY])
def test_it_goes_on_after_the_loop_that_began_it_was_closed(call: Call) -> None:
    till = Till()
    agent = make([call, LOOK], tools=till.tools)
    result = asyncio.run(agent.invoke_async("go", timeout=60))
    run = agent.runtime.run(result.run_id)
    assert run is not None
    check_paused(run, result)
    final = asyncio.run(agent.continue_run(result.run_id, answers=all_with(True, result)))
    assert final.status is RunStatus.completed
    assert till.did == ["looked", "all" if call is DELETE else True]
    check_events(run.journal.events)
    assert asyncio.run(agent.invoke_async("and now?")).status is RunStatus.completed


def test_it_goes_on_in_another_thread_while_the_first_loop_is_busy() -> None:
    async def main() -> None:
        entered: list[threading.Thread] = []

        @tool
        async def order(ctx: ToolContext) -> str:
            entered.append(threading.current_thread())
            return str(ctx.interrupt("which one?"))

        agent = make(Call("order", id="c"), tools=[order])
        run, result = await paused(agent)
        answers = all_with("red", result)
        final: list[Any] = []
        worker = Worker(lambda: final.append(asyncio.run(agent.continue_run(run.run_id, answers=answers))))
        assert (await run.result()).status in (RunStatus.paused, RunStatus.completed)
        worker.done()  # this loop stands still meanwhile
        assert final[0].status is RunStatus.completed
        assert entered == [threading.current_thread(), worker]
        assert await run.result() == final[0]
        check_events(run.journal.events)
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_a_reader_on_another_thread_may_answer_as_soon_as_it_sees_the_question() -> None:
    for _ in range(50):
        till = Till()
        agent = make([LOOK, DELETE], tools=till.tools)
        for event in agent.run("go", stream=True):
            if event.event is RunEvent.run_paused:
                assert event.interrupts is not None
                answers = {question.id: True for question in event.interrupts}
                final = asyncio.run(agent.continue_run(event.run_id, answers=answers))
                assert final.status is RunStatus.completed
        assert till.did == ["looked", "all"]


def test_a_host_that_cancels_whoever_continues_cancels_the_run() -> None:
    async def main() -> None:
        silence, till = Silence(), Till()
        agent = make(DELETE, [silence], tools=till.tools)
        run, result = await paused(agent)
        task = asyncio.create_task(agent.continue_run(run.run_id, answers=all_with(True, result)))
        await silence.reached.arrived()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        final = await run.result()
        assert final.status is RunStatus.cancelled
        assert final.receipt is not None
        assert final.receipt.cause is CancelCause.caller
        assert validate(final.messages) == []
        check_events(run.journal.events)

    play(main)


# -- what it holds ----------------------------------------------------------------------------------------------------


def test_a_paused_run_holds_no_task_and_no_thread() -> None:
    async def main() -> None:
        @tool
        def sign(ctx: ToolContext) -> str:
            return str(ctx.interrupt("sign?"))

        till, stop = Till(), threading.Event()
        agent = make([DELETE, Call("sign", id="s"), PAY, LOOK], tools=[*till.tools, sign])
        tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
        run, result = await paused(agent, timeout=60, cancel_on=stop)
        await asyncio.sleep(0)  # the task that has paused it ends
        assert asyncio.all_tasks() == tasks
        assert set(threading.enumerate()) <= threads
        assert len(result.interrupts) == 3
        assert (await agent.continue_run(run.run_id, answers=all_with("yes", result))).status is RunStatus.completed

    play(main)


def test_a_prompt_to_a_paused_session_says_what_is_open_and_what_to_do() -> None:
    async def main() -> None:
        till = Till()
        agent = make([DELETE, PAY], tools=till.tools)
        run, result = await paused(agent)
        before = list(agent.messages)
        with pytest.raises(SessionPausedError) as raised:
            await agent.invoke_async("hello?")
        for word in (run.run_id, "delete", "pay?", *all_with(True, result), "continue_run", "cancel"):
            assert word in str(raised.value)
        assert raised.value.run_id == run.run_id
        assert agent.messages == before
        assert agent.runtime.runs == [run]
        assert len(asked(agent)) == 1
        # Another session is not concerned.
        assert (await agent.invoke_async("hello", session_id="another")).status is RunStatus.completed
        await agent.continue_run(run.run_id, answers=all_with(True, result))
        assert (await agent.invoke_async("hello!")).status is RunStatus.completed

    play(main)


def test_a_session_stays_paused_when_its_loop_is_closed() -> None:
    till = Till()
    agent = make(DELETE, tools=till.tools)
    result = asyncio.run(agent.invoke_async("go"))
    with pytest.raises(SessionPausedError, match=result.run_id):
        asyncio.run(asyncio.wait_for(agent.invoke_async("hello?"), 10))
    with pytest.raises(SessionPausedError, match=result.run_id):
        agent.run("hello?", timeout=10)
    assert asyncio.run(agent.continue_run(result.run_id, answers=all_with(True, result))).stop_reason == "end_turn"


# -- readers ----------------------------------------------------------------------------------------------------------


def test_readers_end_at_the_pause_and_later_ones_see_all() -> None:
    async def main() -> None:
        till = Till()
        agent = make(["Well, ", DELETE], PAY, "Done.", tools=till.tools)
        async with agent.start("go") as run:
            parts = [await read_all(run)]
        assert parts[0][-1].event is RunEvent.run_paused
        assert await read_all(run) == parts[0]  # also a reader that comes while it is paused
        result = await run.result()
        while result.status is RunStatus.paused:
            task = asyncio.create_task(agent.continue_run(run.run_id, answers=all_with(True, result)))
            await asyncio.sleep(0)
            parts.append([event async for event in run.events(after=parts[-1][-1].seq)])
            result = await task
        first, second, third = parts
        assert [part[0].event for part in parts] == [
            RunEvent.run_started,
            RunEvent.run_continued,
            RunEvent.run_continued,
        ]
        assert second[-1].event is RunEvent.run_paused
        assert third[-1].event is RunEvent.run_completed
        assert [*first, *second, *third] == await read_all(run)
        check_events(await read_all(run))

    play(main)


def test_a_stream_ends_at_the_pause_and_leaving_does_not_cancel() -> None:
    async def main() -> None:
        for leave in ("end", "break", "aclose"):
            till = Till()
            agent = make(["Well, ", PAY], tools=till.tools)
            stream = agent.stream_async("go")
            run = stream.run
            async for event in stream:
                if event.event is RunEvent.run_paused and leave != "end":
                    break
            if leave == "aclose":
                await stream.aclose()
            del stream
            result = await run.result()
            check_paused(run, result)
            final = await agent.continue_run(run.run_id, answers=all_with("yes", result))
            assert final.status is RunStatus.completed
            assert till.did == ["yes"]

    play(main)


def test_a_blocking_stream_ends_at_the_pause_and_leaving_does_not_cancel() -> None:
    for leave in ("end", "break", "close"):
        till = Till()
        agent = make(PAY, tools=till.tools)
        stream = agent.run("go", stream=True)
        run = stream.run
        for event in stream:
            if event.event is RunEvent.run_paused and leave != "end":
                break
        if leave == "close":
            stream.close()
        del stream
        assert run.status is RunStatus.paused
        answers = {question.id: "yes" for question in run.interrupts}
        assert asyncio.run(agent.continue_run(run.run_id, answers=answers)).status is RunStatus.completed
        assert till.did == ["yes"]


def test_an_error_in_the_block_leaves_a_paused_run_paused() -> None:
    async def main() -> None:
        till = Till()
        agent = make(DELETE, tools=till.tools)
        with pytest.raises(ZeroDivisionError):
            async with agent.start("go") as run:
                await run.result()
                raise ZeroDivisionError
        check_paused(run, result := await run.result())
        await agent.continue_run(run.run_id, answers=all_with(False, result))

    play(main)


def test_the_block_may_be_where_it_is_continued() -> None:
    async def main() -> None:
        till = Till()
        agent = make(DELETE, tools=till.tools)
        async with agent.start("go") as run:
            result = await run.result()
            await agent.continue_run(run.run_id, answers=all_with(True, result))
            assert (await run.result()).status is RunStatus.completed

    play(main)


# -- the next in line -------------------------------------------------------------------------------------------------


def test_a_newer_request_supersedes_a_paused_run() -> None:
    async def main() -> None:
        till = Till()
        agent = make([DELETE, LOOK], tools=till.tools)
        run, _ = await paused(agent)
        newer = await agent.invoke_async("hello", on_busy="cancel")
        assert newer.status is RunStatus.completed
        older = await run.result()
        assert older.status is RunStatus.cancelled
        assert older.receipt is not None
        assert older.receipt.cause is CancelCause.superseded
        assert newer.messages[: len(older.messages)] == older.messages
        assert till.did == ["looked"]
        assert validate(newer.messages) == []
        check_events(run.journal.events)

    play(main)


def test_a_queued_run_waits_behind_a_paused_one_and_goes_on_after_the_answer() -> None:
    async def main() -> None:
        till = Till()
        agent = make(DELETE, "Deleted.", "Hello.", tools=till.tools)
        run, result = await paused(agent)
        async with agent.start("hello", on_busy="queue") as queued:
            for _ in range(20):
                await asyncio.sleep(0)
            assert queued.status is RunStatus.pending
            final = await agent.continue_run(run.run_id, answers=all_with(True, result))
            assert (await queued.result()).content == "Hello."
            assert (await queued.result()).messages[: len(final.messages)] == final.messages

    play(main)


def test_a_queued_run_goes_on_after_the_paused_one_was_continued_elsewhere() -> None:
    async def main() -> None:
        till = Till()
        agent = make(DELETE, tools=till.tools)
        run, result = await paused(agent)
        answers = all_with(True, result)
        async with agent.start("hello", on_busy="queue") as queued:
            worker = Worker(lambda: asyncio.run(agent.continue_run(run.run_id, answers=answers)))
            assert (await queued.result()).status is RunStatus.completed
            worker.done()

    play(main)


def test_a_queued_run_can_be_cancelled_behind_a_paused_one() -> None:
    async def main() -> None:
        till = Till()
        agent = make(DELETE, "Deleted.", tools=till.tools)
        run, result = await paused(agent)
        async with agent.start("hello", on_busy="queue") as queued:
            assert queued.cancel()
            assert (await queued.result()).status is RunStatus.cancelled
        check_paused(run, await run.result())
        final = await agent.continue_run(run.run_id, answers=all_with(True, result))
        assert final.status is RunStatus.completed
        assert validate(agent.messages) == []
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


# -- hooks ------------------------------------------------------------------------------------------------------------


def test_hooks_are_told_of_each_thing_once() -> None:
    async def main() -> None:
        till, told = Till(), list[tuple[str, Any]]()

        class Hook:
            def before_model(self, happening: Any) -> None:
                told.append(("before_model", len(happening.request.messages)))

            async def before_tool(self, happening: Any) -> None:
                told.append(("before_tool", happening.call.id))

            def after_tool(self, happening: Any) -> None:
                told.append(("after_tool", happening.call.id))

            async def message_added(self, happening: Any) -> None:
                told.append(("message_added", happening.message.role))

            def run_ended(self, happening: Any) -> None:
                told.append(("run_ended", happening.result.status))

        agent = make([DELETE, PAY, LOOK], "Done.", tools=till.tools, hooks=[Hook()])
        run, result = await paused(agent)
        assert told == [
            ("message_added", "user"),
            ("before_model", 1),
            ("message_added", "assistant"),
            ("before_tool", "p"),  # the approval is asked for first, and the guard then
            ("before_tool", "l"),
            ("after_tool", "l"),
        ]
        told.clear()
        await agent.continue_run(run.run_id, answers=all_with("yes", result))
        assert told == [
            ("before_tool", "d"),
            ("before_tool", "p"),  # another attempt
            ("after_tool", "d"),
            ("after_tool", "p"),
            ("message_added", "tool"),
            ("before_model", 3),
            ("message_added", "assistant"),
            ("run_ended", RunStatus.completed),
        ]

    play(main)


def test_a_guard_may_still_refuse_what_a_person_approved() -> None:
    async def main() -> None:
        till = Till()

        class Guard:
            def before_tool(self, happening: Any) -> None:
                happening.cancel("the disk is busy")

        agent = make(DELETE, tools=till.tools, hooks=[Guard()])
        run, result = await paused(agent)
        assert (await agent.continue_run(run.run_id, answers=all_with(True, result))).status is RunStatus.completed
        assert till.did == []
        assert "the disk is busy" in results_of(agent)["d"].content

    play(main)


# -- awkward tools ----------------------------------------------------------------------------------------------------


def test_a_tool_that_catches_every_exception_still_asks() -> None:
    async def main() -> None:
        closed: list[str] = []

        @tool
        async def order(ctx: ToolContext) -> str:
            try:
                return f"ordered {ctx.interrupt('which one?')}"
            except Exception:  # noqa: BLE001 - what this is about
                return "never mind"
            finally:
                await asyncio.sleep(0)
                closed.append("closed")

        agent = make(Call("order", id="c"), tools=[order])
        run, result = await paused(agent)
        assert closed == ["closed"]
        await agent.continue_run(run.run_id, answers=all_with("red", result))
        assert results_of(agent)["c"].content == "ordered red"

    play(main)


def test_a_sync_tool_asks_from_its_thread() -> None:
    async def main() -> None:
        entered: list[str] = []

        @tool
        def order(ctx: ToolContext) -> str:
            entered.append(threading.current_thread().name)
            try:
                return f"ordered {ctx.interrupt('which one?', {'of': 2})}"
            except Exception:  # noqa: BLE001 - what this is about
                return "never mind"

        agent = make([Call("order", id="c"), Call("order", id="e")], tools=[order])
        run, result = await paused(agent)
        assert [question.call_id for question in result.interrupts] == ["c", "e"]
        one, other = all_with(None, result)
        await agent.continue_run(run.run_id, answers={one: "red", other: "blue"})
        assert entered == ["andon-tool-order"] * 4
        assert [each.content for each in results_of(agent).values()] == ["ordered red", "ordered blue"]
        check_events(run.journal.events)

    play(main)


@pytest.mark.parametrize("name", ["which one?", 5, ""])
def test_a_question_that_can_not_be_written_down_is_the_tools_error(name: Any) -> None:
    async def main() -> None:
        payload = object() if name == "which one?" else None

        @tool
        async def order(ctx: ToolContext) -> str:
            return str(ctx.interrupt(name, payload))

        agent = make(Call("order", id="c"), "Sorry.", tools=[order])
        result = await agent.invoke_async("go")
        assert (result.status, result.content) == (RunStatus.completed, "Sorry.")
        sent = results_of(agent)["c"]
        assert sent.status == "error"
        assert ("JSON" if payload is not None else "name") in sent.content

    play(main)


def test_a_payload_is_what_it_was_when_it_was_asked() -> None:
    async def main() -> None:
        goods = ["red"]

        @tool
        async def order(ctx: ToolContext) -> str:
            answer = ctx.interrupt("which one?", {"of": goods})
            return str(answer)

        agent = make(Call("order", id="c"), tools=[order])
        run, result = await paused(agent)
        goods.append("blue")
        assert result.interrupts[0].payload == {"of": ["red"]}
        assert run.interrupts == result.interrupts
        await agent.continue_run(run.run_id, answers=all_with("red", result))

    play(main)


def test_changing_a_payload_does_not_change_the_conversation() -> None:
    async def main() -> None:
        till = Till()
        agent = make(DELETE, tools=till.tools)
        run, result = await paused(agent)
        result.interrupts[0].payload["name"] = "nothing"
        await agent.continue_run(run.run_id, answers=all_with(True, result))
        assert till.did == ["all"]
        assert agent.messages[1].tool_calls[0].arguments == {"name": "all"}

    play(main)


def test_a_call_that_can_not_run_asks_nobody() -> None:
    async def main() -> None:
        till = Till()
        agent = make([Call("delete", {"wrong": 1}, id="c"), Call("delete", "{broken", id="e")], tools=till.tools)
        result = await agent.invoke_async("go")
        assert result.status is RunStatus.completed
        assert {each.status for each in results_of(agent).values()} == {"error"}

    play(main)


def test_a_tool_that_fails_beside_a_question_has_failed() -> None:
    async def main() -> None:
        @tool
        async def fail() -> str:
            raise ValueError("no such file")

        till = Till()
        agent = make([Call("fail", id="f"), DELETE], tools=[*till.tools, fail])
        run, result = await paused(agent)
        await agent.continue_run(run.run_id, answers=all_with(True, result))
        assert "no such file" in results_of(agent)["f"].content
        kinds = [event.event for event in run.journal.events]
        assert kinds.count(RunEvent.tool_call_error) == 1

    play(main)
