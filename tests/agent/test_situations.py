# SPDX-License-Identifier: Apache-2.0
"""How cancelling behaves while nothing runs yet, while the model is asked, and between: a test per situation.

Those with tools, and of runs that are over, are in the files beside this one. `check_cancelled` holds what is
true of every one of them.
"""

from __future__ import annotations

import asyncio

import pytest

from andon import CancelOutcome, RunEvent, RunStatus, Usage, tool
from andon.agent.hooks import AfterModel, HookEvent
from andon.errors import ModelError
from andon.messages import Reasoning, Text, ToolCall, assistant, user
from andon.models.scripted import Call, Fail, ScriptedModel, Think
from tests.support import (
    Flag,
    Hold,
    Piece,
    Reach,
    Silence,
    asked,
    check_cancelled,
    check_events,
    check_goes_on,
    cut,
    forever,
    make,
    play,
    read_all,
)

NOTHING_DONE = [user("go"), assistant(Text("Cancelled by user"))]
BARE = [RunEvent.run_started, RunEvent.cancel_requested, RunEvent.run_cancelled]


@tool
async def echo(text: str) -> str:
    return text


# -- not started ------------------------------------------------------------------------------------------------------


def test_pending() -> None:
    async def main() -> None:
        agent = make()
        ended = await cut(agent, None)
        check_cancelled(ended, phase="pending")
        assert ended.kinds == BARE
        assert asked(agent) == []
        assert ended.result.usage == Usage()
        assert ended.result.messages == agent.messages == NOTHING_DONE
        await check_goes_on(agent, ended)

    play(main)


def test_a_handle_that_has_not_begun() -> None:
    async def main() -> None:
        agent = make()
        handle = agent.start("go")
        assert handle.cancel("enough", "ann")  # acknowledged, so it is not lost
        async with handle as run:
            result = await run.result()
        assert (result.status, asked(agent), result.messages) == (RunStatus.cancelled, [], NOTHING_DONE)
        assert result.receipt is not None
        assert (result.receipt.reason, result.receipt.by) == ("enough", "ann")

    play(main)


def test_queued_behind_a_busy_session() -> None:
    async def main() -> None:
        working, go_on = Flag(), Flag()
        agent = make([Reach(working), Hold(go_on), "The first answer."])
        async with agent.start("first") as first:
            await working.arrived()
            ended = await cut(agent, lambda run: run.phase == "queued", on_busy="queue")
            assert first.status is RunStatus.running  # it ended at once, not when the holder did
            check_cancelled(ended, phase="queued")
            assert ended.kinds == BARE
            assert ended.result.usage == Usage()
            assert len(asked(agent)) == 1
            go_on.set()
            assert (await first.result()).status is RunStatus.completed
        assert agent.messages == [user("first"), assistant(Text("The first answer.")), *NOTHING_DONE]
        answer = await agent.invoke_async("and now?")
        assert answer.status is RunStatus.completed
        assert asked(agent)[-1].messages == [*agent.messages[:-2], user("and now?")]

    play(main)


def test_waiting_for_a_session_whose_run_is_being_cancelled() -> None:
    async def main() -> None:
        started, cleaned_up = Flag(), Flag()

        @tool
        async def slow() -> str:
            started.set()
            try:
                await forever()
            finally:
                await cleaned_up.arrived()

        agent = make(Call("slow"), tools=[slow])
        async with agent.start("first") as first:
            await started.arrived()
            assert first.cancel() is CancelOutcome.requested
            ended = await cut(agent, lambda run: run.phase == "queued")  # not busy, so it may wait without on_busy
            assert first.status is RunStatus.cancelling
            check_cancelled(ended, phase="queued")
            assert len(asked(agent)) == 1
            cleaned_up.set()
            await first.result()
        assert agent.messages[-2:] == NOTHING_DONE
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_armed() -> None:
    async def main() -> None:
        agent = make()
        assert agent.cancel("enough", "ann") is CancelOutcome.armed
        async with agent.start("go") as run:
            events = await read_all(run)
            result = await run.result()
        check_events(events)
        assert [event.event for event in events] == BARE
        assert (result.status, result.usage, result.messages) == (RunStatus.cancelled, Usage(), NOTHING_DONE)
        assert result.receipt is not None
        assert (result.receipt.cause, result.receipt.reason, result.receipt.by) == ("user", "enough", "ann")
        assert asked(agent) == []
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


# -- asking the model -------------------------------------------------------------------------------------------------


def test_waiting_for_the_first_event() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        ended = await cut(agent, silence.reached)
        check_cancelled(ended, phase="waiting")
        assert silence.cuts == 1
        assert ended.result.messages == agent.messages == NOTHING_DONE
        assert ended.result.usage.estimated
        assert ended.result.usage.input_tokens
        await check_goes_on(agent, ended)

    play(main)


def test_a_stalled_stream() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Once upon a ", silence])
        ended = await cut(agent, silence.reached)
        check_cancelled(ended, phase="streaming")
        assert silence.cuts == 1
        assert ended.result.content == "Once upon a "
        assert agent.messages == [user("go"), assistant(Text("Once upon a "), Text("Cancelled by user"))]
        await check_goes_on(agent, ended)

    play(main)


def test_streaming_text() -> None:
    async def main() -> None:
        agent = make()
        agent.model = ScriptedModel.story(pace=0)  # endless: only a cancel can end it
        async with agent.start("go") as run:
            seen = ""
            async for event in run:
                seen += event.content if event.event is RunEvent.run_content else ""
                if len(seen) > 500:
                    assert run.cancel("enough", "ann") is CancelOutcome.requested
                    break
            result = await run.result()
            events = await read_all(run)
        check_events(events)
        assert events[-1].event is RunEvent.run_cancelled
        assert result.content.startswith(seen)
        assert result.message.content == [Text(result.content), Text("Cancelled by user")]
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed
        assert asked(agent)[-1].messages[1] == result.message

    play(main)


def test_open_reasoning_is_dropped_and_complete_reasoning_kept() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([Think("All of it.", "seal"), "Well, ", Think("Only half of", None), silence])
        ended = await cut(agent, silence.reached)
        check_cancelled(ended, phase="streaming")
        kept = [Reasoning("All of it.", "seal"), Text("Well, "), Text("Cancelled by user")]
        assert ended.result.message.content == kept
        assert RunEvent.reasoning in ended.kinds
        await check_goes_on(agent, ended)

    play(main)


def test_nothing_but_open_reasoning() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([Think("Only half of", None), silence])
        ended = await cut(agent, silence.reached)
        check_cancelled(ended, phase="streaming")
        assert ended.result.messages == NOTHING_DONE
        await check_goes_on(agent, ended)

    play(main)


def test_streaming_the_arguments_of_a_tool_call() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(
            ["Let me see. ", Call("echo", {"text": "all"}, id="whole"), Piece("half", "echo", '{"text": "al'), silence],
            tools=[echo],
        )
        ended = await cut(agent, silence.reached)
        check_cancelled(ended, phase="streaming", tools={"whole": "not_started"})
        said, answered, last = ended.result.messages[1:]
        assert [call.id for call in said.tool_calls] == ["whole"]
        assert [result.call_id for result in answered.tool_results] == ["whole"]
        assert last.content == [Text("Cancelled by user")]
        assert RunEvent.tool_call_started not in ended.kinds
        await check_goes_on(agent, ended)

    play(main)


def test_open_reasoning_beside_a_finished_tool_call() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([Think("Only half of", None), Call("echo", {"text": "all"}, id="whole"), silence], tools=[echo])
        ended = await cut(agent, silence.reached)
        check_cancelled(ended, phase="streaming", tools={"whole": "not_started"})
        assert ended.result.messages[1] == assistant(ToolCall("whole", "echo", {"text": "all"}))
        await check_goes_on(agent, ended)

    play(main)


def test_nothing_but_an_unfinished_tool_call() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([Piece("half", "echo", '{"text": "al'), silence], tools=[echo])
        ended = await cut(agent, silence.reached)
        check_cancelled(ended, phase="streaming")
        assert ended.result.messages == NOTHING_DONE
        await check_goes_on(agent, ended)

    play(main)


def test_what_a_cut_model_still_says_is_not_heard() -> None:
    async def main() -> None:
        class Chatty:
            id = "chatty"
            reached = Flag()

            async def stream(self, request: object, sink: object) -> None:
                sink.text("heard")  # type: ignore[attr-defined]
                self.reached.set()
                try:
                    await forever()
                finally:
                    sink.text("not heard")  # type: ignore[attr-defined]
                    sink.tool_call("c", "echo", {"text": "x"})  # type: ignore[attr-defined]

        agent = make(tools=[echo])
        agent.model = Chatty()
        ended = await cut(agent, Chatty.reached)
        check_cancelled(ended, phase="streaming")
        assert ended.result.message.content == [Text("heard"), Text("Cancelled by user")]

    play(main)


def test_a_retrys_back_off() -> None:
    async def main() -> None:
        agent = make(Fail(ModelError("overloaded", retryable=True, retry_after=60)))
        ended = await cut(agent, lambda run: run.phase == "backoff")
        check_cancelled(ended, phase="backoff")
        assert len(asked(agent)) == 1
        assert ended.result.messages == NOTHING_DONE
        await check_goes_on(agent, ended)

    play(main)


# -- in a hook --------------------------------------------------------------------------------------------------------


class Stuck:
    """A hook that doesn't come back by itself, the first time."""

    def __init__(self, point: str) -> None:
        self.reached = Flag()
        self.cuts = 0
        setattr(self, point, self._stick)

    async def _stick(self, event: HookEvent) -> None:
        if self.reached.is_set():
            return
        self.reached.set()
        try:
            await forever()
        except asyncio.CancelledError:
            self.cuts += 1
            raise


@pytest.mark.parametrize(
    ("point", "requests", "tools"),
    [
        ("message_added", 0, {}),
        ("before_model", 0, {}),
        ("after_model", 1, {"c": "not_started"}),
        ("before_tool", 1, {"c": "not_started"}),
        ("after_tool", 1, {"c": "completed"}),
    ],
)
def test_in_a_hook(point: str, requests: int, tools: dict[str, str]) -> None:
    async def main() -> None:
        hook = Stuck(point)
        agent = make(Call("echo", {"text": "x"}, id="c"), tools=[echo], hooks=[hook])
        ended = await cut(agent, hook.reached)
        check_cancelled(ended, phase="hook" if not point.endswith("tool") else ("hook", "tools"), tools=tools)
        assert hook.cuts == 1
        assert len(asked(agent)) == requests
        assert requests or ended.result.usage == Usage()
        assert ended.result.warnings == []  # it was cut by us, and did nothing wrong
        await check_goes_on(agent, ended)

    play(main)


def test_in_a_run_ended_hook_the_run_is_over() -> None:
    async def main() -> None:
        told = Flag()

        class Late:
            async def run_ended(self, event: HookEvent) -> None:
                outcomes.append(agent.cancel_run(event.run_id))
                told.set()

        outcomes: list[CancelOutcome] = []
        agent = make("Hello.", hooks=[Late()])
        async with agent.start("go") as run:
            events = await read_all(run)  # the terminal event comes first
            await told.arrived()
        assert outcomes == [CancelOutcome.already_finished]
        assert events[-1].event is RunEvent.run_completed
        assert (await run.result()).warnings == []

    play(main)


def test_about_to_run_tools() -> None:
    async def main() -> None:
        class Guard:
            def after_model(self, event: AfterModel) -> None:
                if event.message.tool_calls:
                    outcomes.append(agent.cancel_run(event.run_id, "enough", "ann"))

        outcomes: list[CancelOutcome] = []
        calls = [Call("echo", {"text": "x"}, id=name) for name in ("a", "b")]
        agent = make(["I'll look. ", *calls], tools=[echo], hooks=[Guard()])
        async with agent.start("go") as run:
            events = await read_all(run)
            result = await run.result()
        assert outcomes == [CancelOutcome.requested]
        kinds = [event.event for event in events]
        assert kinds.count(RunEvent.tool_call_cancelled) == 2
        assert RunEvent.tool_call_started not in kinds
        assert [each.content for each in result.messages[2].tool_results] == [
            "This call was cancelled before it started."
        ] * 2
        assert result.receipt is not None
        assert [each.outcome for each in result.receipt.tools] == ["not_started", "not_started"]
        assert result.message.content == [Text("Cancelled by user")]
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)
