# SPDX-License-Identifier: Apache-2.0
"""The modes: how much may still finish, in each state in which they differ; their grace; and escalation."""

from __future__ import annotations

import asyncio

import pytest

from andon import Agent, CancelOutcome, Run, RunEvent, RunStatus, ToolContext, tool
from andon.errors import ModelError
from andon.messages import Text, ToolCall, assistant, user
from andon.models.scripted import Call, Fail
from tests.support import (
    Flag,
    Hold,
    Reach,
    Silence,
    asked,
    check_cancelled,
    check_goes_on,
    cut,
    forever,
    make,
    play,
    read_all,
)

MODES = ["after_tools", "after_turn"]
LONG = 3600.0
"""A grace that no test lives to see the end of."""


class Pair:
    """An async and a sync tool that wait for a word, and tell what they saw of a cancel meanwhile."""

    def __init__(self) -> None:
        self.go_on = Flag()
        self.started = {"wait": Flag(), "block": Flag()}
        self.seen: list[str] = []

    def agent(self, *names: str, **options: object) -> Agent:
        @tool
        async def wait(ctx: ToolContext) -> str:
            ctx.on_cancel(lambda: self.seen.append("wait called back"))
            self.started["wait"].set()
            try:
                await self.go_on.arrived()
            except asyncio.CancelledError:
                self.seen.append("wait cut")
                raise
            ctx.check_cancelled()
            self.seen.append(f"wait {ctx.cancelled}")
            return "waited"

        @tool
        def block(ctx: ToolContext) -> str:
            ctx.on_cancel(lambda: self.seen.append("block called back"))
            ctx.on_cancel(self.go_on.set)
            self.started["block"].set()
            self.go_on.wait()
            ctx.check_cancelled()
            self.seen.append(f"block {ctx.cancelled}")
            return "blocked"

        return make(["Working. ", *(Call(name, id=name) for name in names)], tools=[wait, block], **options)


async def cancel_softly(run: Run, mode: str, grace: float | None = None) -> None:
    """Cancel, and wait until the run has heard of it: it goes on all the same."""
    assert run.cancel("enough", "ann", mode, grace) is CancelOutcome.requested
    async for event in run:
        if event.event is RunEvent.cancel_requested:
            break
    assert run.status is RunStatus.cancelling


# -- where no mode lets anything finish -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("grace", [None, LONG])
def test_a_pending_run_ends_at_once(mode: str, grace: float | None) -> None:
    async def main() -> None:
        agent = make()
        ended = await cut(agent, None, mode=mode, grace=grace)
        check_cancelled(ended, phase="pending", mode=mode)
        assert asked(agent) == []
        await check_goes_on(agent, ended)

    play(main)


@pytest.mark.parametrize("mode", MODES)
def test_a_queued_run_ends_at_once(mode: str) -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        async with agent.start("first") as first:
            await silence.reached.arrived()
            ended = await cut(agent, lambda run: run.phase == "queued", on_busy="queue", mode=mode, grace=LONG)
            check_cancelled(ended, phase="queued", mode=mode)
            assert first.status is RunStatus.running

    play(main)


@pytest.mark.parametrize("mode", MODES)
def test_a_back_off_ends_at_once(mode: str) -> None:
    async def main() -> None:
        agent = make(Fail(ModelError("overloaded", retryable=True, retry_after=60)))
        ended = await cut(agent, lambda run: run.phase == "backoff", mode=mode, grace=LONG)
        check_cancelled(ended, phase="backoff", mode=mode)
        await check_goes_on(agent, ended)

    play(main)


@pytest.mark.parametrize("mode", MODES)
def test_an_armed_cancel_sends_nothing_in_any_mode(mode: str) -> None:
    async def main() -> None:
        agent = make()
        assert agent.cancel(mode=mode) is CancelOutcome.armed
        result = await agent.invoke_async("go")
        assert (result.status, asked(agent)) == (RunStatus.cancelled, [])
        assert result.receipt is not None
        assert result.receipt.mode == mode

    play(main)


# -- in a model call --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grace", [None, LONG])
def test_after_tools_cuts_a_model_call(grace: float | None) -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", Call("echo", id="c"), silence])
        ended = await cut(agent, silence.reached, mode="after_tools", grace=grace)
        check_cancelled(ended, phase="streaming", mode="after_tools", tools={"c": "not_started"})
        assert silence.cuts == 1
        await check_goes_on(agent, ended)

    play(main)


@pytest.mark.parametrize("grace", [None, LONG])
def test_after_turn_lets_the_model_call_and_its_tools_finish(grace: float | None) -> None:
    async def main() -> None:
        pair = Pair()
        reached, go_on = Flag(), Flag()
        pair.go_on.set()
        agent = pair.agent()
        agent = make(
            ["Half a ", Reach(reached), Hold(go_on), "sentence. ", Call("wait", id="w"), Call("block", id="b")],
            tools=agent.tools,
        )
        async with agent.start("go") as run:
            reader = asyncio.create_task(read_all(run))
            await reached.arrived()
            await cancel_softly(run, "after_turn", grace)
            go_on.set()
            result = await run.result()
            events = await reader
        assert sorted(pair.seen) == ["block False", "wait False"]
        assert result.status is RunStatus.cancelled
        assert result.content == "Half a sentence. "
        assert result.receipt is not None
        assert result.receipt.mode == "after_turn"
        assert {each.call_id: each.outcome for each in result.receipt.tools} == {"w": "completed", "b": "completed"}
        assert [each.content for each in result.messages[2].tool_results] == ["waited", "blocked"]
        assert result.messages[3:] == [assistant(Text("Cancelled by user"))]
        assert RunEvent.tool_call_cancelled not in [event.event for event in events]
        assert len(asked(agent)) == 1  # the next turn never began
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_after_turn_in_the_last_turn_keeps_all_of_it_and_still_ends_as_cancelled() -> None:
    async def main() -> None:
        reached, go_on = Flag(), Flag()
        agent = make(["The whole ", Reach(reached), Hold(go_on), "answer."])
        async with agent.start("go") as run:
            await reached.arrived()
            await cancel_softly(run, "after_turn")
            go_on.set()
            result = await run.result()
            events = await read_all(run)
        assert events[-1].event is RunEvent.run_cancelled
        assert result.status is RunStatus.cancelled
        assert result.messages == [user("go"), assistant(Text("The whole answer."), Text("Cancelled by user"))]

    play(main)


@pytest.mark.parametrize("grace", [0.0, 0.02])
def test_after_turn_becomes_now_for_a_model_that_outlasts_the_grace(grace: float) -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", silence])
        async with agent.start("go") as run:
            await silence.reached.arrived()
            assert run.cancel("enough", "ann", "after_turn", grace) is CancelOutcome.requested
            result = await run.result()
        assert silence.cuts == 1
        assert result.message.content == [Text("Half a "), Text("Cancelled by user")]
        assert result.receipt is not None
        assert (result.receipt.cause, result.receipt.reason, result.receipt.by) == ("user", "enough", "ann")

    play(main)


# -- in tools ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("grace", [None, LONG])
def test_running_tools_finish_and_are_told_nothing(mode: str, grace: float | None) -> None:
    async def main() -> None:
        pair = Pair()
        agent = pair.agent("wait", "block")
        async with agent.start("go") as run:
            await pair.started["wait"].arrived()
            await pair.started["block"].arrived()
            await cancel_softly(run, mode, grace)
            assert pair.seen == []
            pair.go_on.set()
            result = await run.result()
        assert sorted(pair.seen) == ["block False", "wait False"]
        assert result.status is RunStatus.cancelled
        assert [each.content for each in result.messages[2].tool_results] == ["waited", "blocked"]
        assert result.receipt is not None
        assert [each.outcome for each in result.receipt.tools] == ["completed", "completed"]
        assert (result.receipt.mode, result.receipt.phase) == (mode, "tools")
        assert len(asked(agent)) == 1
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


@pytest.mark.parametrize(("mode", "second"), [("after_tools", "not_started"), ("after_turn", "completed")])
def test_of_sequential_tools_only_after_turn_starts_the_next(mode: str, second: str) -> None:
    async def main() -> None:
        pair = Pair()
        agent = pair.agent("wait", "block", parallel_tools=False)
        async with agent.start("go") as run:
            await pair.started["wait"].arrived()
            await cancel_softly(run, mode)
            pair.go_on.set()
            result = await run.result()
            events = await read_all(run)
        assert result.receipt is not None
        assert {each.call_id: each.outcome for each in result.receipt.tools} == {"wait": "completed", "block": second}
        assert pair.started["block"].is_set() is (second == "completed")
        kinds = [event.event for event in events]
        assert kinds.count(RunEvent.tool_call_cancelled) == (second == "not_started")
        assert len(asked(agent)) == 1
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


@pytest.mark.parametrize("mode", MODES)
def test_tools_that_outlast_the_grace_are_cut(mode: str) -> None:
    async def main() -> None:
        pair = Pair()
        agent = pair.agent("wait", "block")
        async with agent.start("go") as run:
            await pair.started["wait"].arrived()
            await pair.started["block"].arrived()
            assert run.cancel("enough", "ann", mode, 0.02) is CancelOutcome.requested
            result = await run.result()
            receipt = await run.cancel_and_wait()
        assert "wait called back" in pair.seen
        assert "block called back" in pair.seen
        assert "wait cut" in pair.seen
        assert result.receipt is not None
        assert result.receipt.tools[0].outcome == "cut"
        assert result.receipt.tools[1].outcome in ("cut", "abandoned")
        assert receipt is not None
        assert receipt.leftovers == []
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


# -- a second, stronger cancel ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stronger", ["after_tools", "now"])
def test_after_turn_is_escalated_in_a_model_call(stronger: str) -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", silence])
        async with agent.start("go") as run:
            reader = asyncio.create_task(read_all(run))
            await silence.reached.arrived()
            await cancel_softly(run, "after_turn")
            assert silence.cuts == 0
            assert run.cancel("really", "bob", stronger) is CancelOutcome.already_requested
            result = await run.result()
            events = await reader
        assert silence.cuts == 1
        assert result.receipt is not None
        assert (result.receipt.reason, result.receipt.by) == ("enough", "ann")  # whoever was told `requested`
        assert [event.event for event in events].count(RunEvent.cancel_requested) == 1
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


@pytest.mark.parametrize("mode", MODES)
def test_now_escalates_in_tools(mode: str) -> None:
    async def main() -> None:
        pair = Pair()
        agent = pair.agent("wait", "block")
        async with agent.start("go") as run:
            await pair.started["wait"].arrived()
            await pair.started["block"].arrived()
            await cancel_softly(run, mode)
            assert pair.seen == []
            assert agent.cancel_run(run.run_id, mode="now") is CancelOutcome.already_requested
            result = await run.result()
            await run.cancel_and_wait()
        assert {"wait called back", "block called back", "wait cut"} <= set(pair.seen)
        assert result.receipt is not None
        assert result.receipt.tools[0].outcome == "cut"

    play(main)


def test_after_turn_is_escalated_to_after_tools_in_sequential_tools() -> None:
    async def main() -> None:
        pair = Pair()
        agent = pair.agent("wait", "block", parallel_tools=False)
        async with agent.start("go") as run:
            await pair.started["wait"].arrived()
            await cancel_softly(run, "after_turn")
            assert run.cancel(mode="after_tools") is CancelOutcome.already_requested
            pair.go_on.set()
            result = await run.result()
        assert pair.seen == ["wait False"]  # what ran has finished; the next one never started
        assert result.receipt is not None
        assert [each.outcome for each in result.receipt.tools] == ["completed", "not_started"]

    play(main)


def test_a_weaker_cancel_weakens_nothing() -> None:
    async def main() -> None:
        pair = Pair()
        agent = pair.agent("wait", "block", parallel_tools=False)
        async with agent.start("go") as run:
            await pair.started["wait"].arrived()
            await cancel_softly(run, "after_tools")
            assert run.cancel(mode="after_turn") is CancelOutcome.already_requested
            pair.go_on.set()
            result = await run.result()
        assert result.receipt is not None
        assert [each.outcome for each in result.receipt.tools] == ["completed", "not_started"]

    play(main)


def test_the_host_outranks_a_soft_cancel() -> None:
    """A caller that is cancelled itself can't wait for the rest of a turn."""

    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        task = asyncio.create_task(agent.invoke_async("go", run_id="r"))
        await silence.reached.arrived()
        assert agent.cancel_run("r", "enough", mode="after_turn") is CancelOutcome.requested
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert silence.cuts == 1
        assert agent.messages[-1].content == [Text("Cancelled by user")]

    play(main)


def test_every_way_to_cancel_takes_a_mode() -> None:
    async def main() -> None:
        for way in ("agent", "agent run", "handle", "runtime", "wait"):
            reached, go_on = Flag(), Flag()
            agent = make(["All of ", Reach(reached), Hold(go_on), "it."])
            async with agent.start("go") as run:
                await reached.arrived()
                waiting = None
                if way == "agent":
                    agent.cancel(mode="after_turn")
                elif way == "agent run":
                    agent.cancel_run(run.run_id, mode="after_turn")
                elif way == "handle":
                    run.cancel(mode="after_turn")
                elif way == "runtime":
                    await agent.runtime.cancel(run_id=run.run_id, mode="after_turn")
                else:
                    waiting = asyncio.create_task(run.cancel_and_wait(mode="after_turn"))
                    await asyncio.sleep(0)
                go_on.set()
                result = await run.result()
                if waiting is not None:
                    await waiting
            assert (result.status, result.content) == (RunStatus.cancelled, "All of it."), way

    play(main)


def test_a_call_whose_turn_was_cut_softly_is_never_started_later() -> None:
    async def main() -> None:
        started: list[str] = []

        @tool
        async def echo() -> str:
            started.append("echo")
            await forever()

        silence = Silence()
        agent = make([Call("echo", id="c"), silence], tools=[echo])
        ended = await cut(agent, silence.reached, mode="after_tools")
        check_cancelled(ended, phase="streaming", mode="after_tools", tools={"c": "not_started"})
        assert started == []
        assert ended.result.messages[1].content == [ToolCall("c", "echo", {})]
        await check_goes_on(agent, ended)

    play(main)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("point", "requests", "tools"),
    [
        ("before_model", 0, {}),
        ("after_model", 1, {"c": "not_started"}),
        ("before_tool", 1, {"c": "not_started"}),
        ("after_tool", 1, {"c": "completed"}),
    ],
)
def test_in_a_hook_a_softer_mode_lets_it_finish(mode: str, point: str, requests: int, tools: dict[str, str]) -> None:
    async def main() -> None:
        reached, go_on, finished = Flag(), Flag(), Flag()

        async def hook(_event: object) -> None:
            reached.set()
            await go_on.arrived()
            finished.set()

        @tool
        async def echo() -> str:
            return "echo"

        holder = type("Hook", (), {})()
        setattr(holder, point, hook)
        agent = make(Call("echo", id="c"), tools=[echo], hooks=[holder])
        async with agent.start("go") as run:
            await reached.arrived()
            assert run.cancel(mode=mode) is CancelOutcome.requested
            await asyncio.sleep(0)
            assert not finished.is_set()
            go_on.set()
            result = await run.result()
        assert finished.is_set()
        assert result.status is RunStatus.cancelled
        assert result.receipt is not None
        # With `after_turn` the turn's tools finish, so a call that had not begun yet begins.
        ends = {each.call_id: str(each.outcome) for each in result.receipt.tools}
        expected = {"c": "completed"} if tools and mode == "after_turn" else tools
        assert ends == expected
        assert len(asked(agent)) == requests

    play(main)
