# SPDX-License-Identifier: Apache-2.0
"""Around a paused run: who may go on with it, its readers, its session, hooks, and tools that make it difficult."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest

from andon import (
    Agent,
    CancelCause,
    RunEvent,
    RunStatus,
    ToolContext,
    tool,
)
from andon.errors import AnswersError, SessionPausedError
from andon.models.scripted import Call
from andon.testing import probe
from andon.testing.validators import validate
from tests.support import (
    Flag,
    Silence,
    Worker,
    all_with,
    asked,
    check_events,
    check_paused,
    forever,
    interrupted,
    make,
    paused,
    play,
    read_all,
    results_of,
)
from tests.support.till import DELETE, LOOK, PAY, Till

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
    check_events(probe(run).events)
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
        check_events(probe(run).events)
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


@pytest.mark.parametrize("sees", ["event", "status"])
def test_the_question_may_be_answered_as_soon_as_it_is_seen(sees: str) -> None:
    """Another thread looks before each line of the pause, and answers as soon as it sees the question."""
    for line in itertools.count(1):
        agent = make(PAY, tools=Till().tools)
        answering: list[Worker] = []
        with interrupted(line, "line", lambda: _look(agent, sees, answering), within="core/run/pause.py") as happened:  # noqa: B023
            asyncio.run(_ask(agent))
        for worker in answering:
            worker.done()
        if not happened[0]:
            break
    assert line > 20


async def _ask(agent: Agent) -> None:
    await agent.invoke_async("go")


def _look(agent: Agent, sees: str, answering: list[Worker]) -> None:
    for run in agent.runtime.runs:
        asks = [event for event in probe(run).events if event.event is RunEvent.run_paused]
        if asks if sees == "event" else probe(run).is_paused:
            answering.append(Worker(lambda: asyncio.run(_go_on(agent, run.run_id, {"p-1": True}))))  # noqa: B023
    for worker in answering:
        worker.join(0.1)  # it may have to wait until the pause is complete; to be refused takes it no time


async def _go_on(agent: Agent, run_id: str, answers: dict[str, Any]) -> None:
    assert (await agent.continue_run(run_id, answers)).status is RunStatus.completed


def test_a_host_that_cancels_the_task_that_continues_cancels_the_run() -> None:
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
        check_events(probe(run).events)

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
        check_events(probe(run).events)

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
            def before_model(self, event: Any) -> None:
                told.append(("before_model", len(event.request.messages)))

            async def before_tool(self, event: Any) -> None:
                told.append(("before_tool", event.call.id))

            def after_tool(self, event: Any) -> None:
                told.append(("after_tool", event.call.id))

            async def message_added(self, event: Any) -> None:
                told.append(("message_added", event.message.role))

            def run_ended(self, event: Any) -> None:
                told.append(("run_ended", event.result.status))

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
            def before_tool(self, event: Any) -> None:
                event.cancel("the disk is busy")

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
        check_events(probe(run).events)

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


def test_a_call_that_can_not_run_asks_no_question() -> None:
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
        kinds = [event.event for event in probe(run).events]
        assert kinds.count(RunEvent.tool_call_error) == 1

    play(main)


@pytest.mark.parametrize("answer", [None, 0, "", {}])
def test_an_approval_takes_no_answer_that_says_nothing(answer: Any) -> None:
    """A slip of whoever writes the answers must not let a call through."""

    async def main() -> None:
        ran: list[str] = []

        @tool(approval=True)
        async def delete() -> str:
            ran.append("delete")
            return "deleted"

        agent = make(Call("delete"), tools=[delete])
        result = await agent.invoke_async("go")
        (question,) = result.interrupts
        assert question.approval
        with pytest.raises(AnswersError, match="neither a yes"):
            await agent.continue_run(result.run_id, {question.id: answer})
        assert ran == []
        assert (await agent.continue_run(result.run_id, {question.id: True})).status is RunStatus.completed
        assert ran == ["delete"]

    play(main)


def test_answers_that_are_no_dict() -> None:
    async def main() -> None:
        @tool(approval=True)
        async def delete() -> str:
            return "deleted"

        agent = make(Call("delete"), tools=[delete])
        result = await agent.invoke_async("go")
        with pytest.raises(TypeError, match="must be a dict"):
            await agent.continue_run(result.run_id, ["yes"])  # type: ignore[call-overload]
        agent.cancel()

    play(main)


def test_a_question_out_of_a_task_group() -> None:
    async def main() -> None:
        @tool
        async def ask(ctx: ToolContext) -> str:
            async def inner() -> str:
                return str(ctx.interrupt("colour"))

            async with asyncio.TaskGroup() as group:
                task = group.create_task(inner())
            return task.result()

        agent = make(Call("ask"), tools=[ask])
        result = await agent.invoke_async("go")
        (question,) = result.interrupts
        result = await agent.continue_run(result.run_id, {question.id: "red"})
        assert result.messages[2].tool_results[0].content == "red"

    play(main)


def test_what_a_tool_wants_to_have_called_is_called_for_the_attempt_that_is_cut() -> None:
    async def main() -> None:
        entered: list[int] = []
        called: list[int] = []
        reached = Flag()

        @tool
        async def work(ctx: ToolContext) -> str:
            attempt = len(entered)
            entered.append(attempt)
            ctx.on_cancel(lambda: called.append(attempt))
            ctx.interrupt("well?")
            reached.set()
            await forever()

        agent = make(Call("work"), tools=[work])
        _, result = await paused(agent)
        run = await agent.resume_run(result.run_id, all_with("yes", result))
        await reached.arrived()
        run.cancel()
        await probe(run).settled()
        assert (entered, called) == ([0, 1], [1])

    play(main)
