# SPDX-License-Identifier: Apache-2.0
"""`@tool(on_cancel="finish")`: a call that has started is let finish, in bounded time, and then the run ends."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from andon import (
    Agent,
    CancelCause,
    CancelOutcome,
    Receipt,
    Run,
    RunEvent,
    RunResult,
    RunStatus,
    Runtime,
    ToolContext,
    ToolDefinitionError,
    ToolOutcome,
    ToolReceipt,
    tool,
)
from andon.agent.hooks import AfterTool
from andon.core.receipt import CancelRequest
from andon.models.scripted import Call, ScriptedModel
from andon.testing import probe
from tests.support import Flag, forever, make, play, until
from tests.support.clock import StoppedClock, time_is_up


class Desk:
    """A tool that is let finish, and says where it is."""

    def __init__(self, **options: Any) -> None:
        self.started, self.go = Flag(), Flag()
        self.cut = False
        self.context: ToolContext | None = None

        @tool(on_cancel="finish", **options)
        async def send(ctx: ToolContext) -> str:
            self.context = ctx
            ctx.on_cancel(self._note)
            self.started.set()
            await self.go.arrived()
            return "sent"

        @tool(on_cancel="finish", **options)
        def send_blocking(ctx: ToolContext) -> str:
            self.context = ctx
            self.started.set()
            self.go.wait()
            return "sent"

        @tool
        async def plain() -> str:
            await forever()

        self.tools = [send, send_blocking, plain]

    def _note(self) -> None:
        self.cut = True


def receipt_of(result: RunResult) -> Receipt:
    assert result.receipt is not None
    return result.receipt


def tools_of(result: RunResult) -> dict[str, ToolReceipt]:
    return {each.name: each for each in receipt_of(result).tools}


@pytest.mark.parametrize("name", ["send", "send_blocking"])
def test_its_real_result_is_kept_and_then_the_run_ends(name: str) -> None:
    async def main() -> None:
        desk = Desk()
        agent = make([Call(name, id="s"), Call("plain", id="p")], tools=desk.tools)
        async with agent.start("go") as run:
            await desk.started.arrived()
            assert run.cancel("enough") is CancelOutcome.requested
            assert run.cancel() is CancelOutcome.already_requested  # a second `now` does not shorten it
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert desk.context is not None
            assert not desk.context.cancelled
            assert run.status is RunStatus.cancelling
            desk.go.set()
            result = await run.result()
        assert result.status is RunStatus.cancelled
        tools = tools_of(result)
        assert (tools[name].outcome, tools[name].let_finish) == (ToolOutcome.completed, True)
        assert (tools["plain"].outcome, tools["plain"].let_finish) == (ToolOutcome.cut, False)
        told = {each.call_id: each for message in result.messages for each in message.tool_results}
        assert (told["s"].content, told["s"].status) == ("sent", "ok")
        assert receipt_of(result).leftovers == []
        assert receipt_of(result).to_dict()["tools"][0]["let_finish"] is True

    play(main)


def test_calls_that_have_not_started_do_not_start() -> None:
    async def main() -> None:
        desk = Desk()
        agent = make([Call("send", id="1"), Call("send", id="2")], tools=desk.tools, parallel_tools=False)
        async with agent.start("go") as run:
            await desk.started.arrived()
            run.cancel()
            desk.go.set()
            result = await run.result()
        assert [each.outcome for each in receipt_of(result).tools] == ["completed", "not_started"]

    play(main)


def _bounds(kind: str) -> tuple[Runtime, dict[str, Any], dict[str, Any]]:
    """A runtime, the tool's options and those of the cancel; one of them bounds the call."""
    long = 600.0
    if kind == "finish_within":
        return Runtime(finish_seconds=long), {"finish_within": 0}, {"grace": long}
    if kind == "grace":
        return Runtime(finish_seconds=long), {}, {"grace": 0}
    if kind == "finish_seconds":
        return Runtime(finish_seconds=0), {}, {}
    if kind == "timeout":
        return Runtime(finish_seconds=long), {"timeout": 0.01}, {}
    if kind == "after a grace":
        return Runtime(finish_seconds=0), {}, {"mode": "after_tools", "grace": 0}
    return Runtime(finish_seconds=long), {}, {"force": True}


@pytest.mark.parametrize("kind", ["finish_within", "grace", "finish_seconds", "timeout", "after a grace", "force"])
def test_what_bounds_it(kind: str) -> None:
    async def main() -> None:
        runtime, options, cancel = _bounds(kind)
        desk = Desk(**options)
        agent = make(Call("send"), tools=desk.tools, runtime=runtime)
        async with agent.start("go") as run:
            await desk.started.arrived()
            run.cancel(**cancel)
            result = await run.result()
        [call] = receipt_of(result).tools
        assert call.outcome is (ToolOutcome.failed if kind == "timeout" else ToolOutcome.cut)
        assert not call.let_finish
        assert desk.cut, "ctx.on_cancel is called when it is really cut"
        assert desk.context is not None
        assert desk.context.cancelled

    play(main)


def test_a_thread_that_is_out_of_its_time_is_abandoned() -> None:
    async def main() -> None:
        desk = Desk(finish_within=0)
        agent = make(Call("send_blocking"), tools=desk.tools)
        async with agent.start("go") as run:
            await desk.started.arrived()
            run.cancel()
            result = await run.result()
            assert [each.outcome for each in receipt_of(result).tools] == [ToolOutcome.abandoned]
            desk.go.set()
            receipt = await run.cancel_and_wait()
            assert receipt is not None
            assert receipt.leftovers == []

    play(main)


def _by_run(run: Run, agent: Agent) -> CancelOutcome:
    return run.cancel(force=True)


def _by_agent(run: Run, agent: Agent) -> CancelOutcome:
    return agent.cancel(force=True)


def _by_id(run: Run, agent: Agent) -> CancelOutcome:
    return agent.cancel_run(run.run_id, force=True)


@pytest.mark.parametrize("force", [_by_run, _by_agent, _by_id])
def test_force_cuts_what_is_let_finish(force: Any) -> None:
    async def main() -> None:
        desk = Desk()
        agent = make(Call("send"), tools=desk.tools)
        async with agent.start("go") as run:
            await desk.started.arrived()
            run.cancel("first")
            await asyncio.sleep(0)
            assert force(run, agent) is CancelOutcome.already_requested
            result = await run.result()
        assert [each.outcome for each in receipt_of(result).tools] == [ToolOutcome.cut]
        assert (receipt_of(result).reason, receipt_of(result).mode) == ("first", "now")

    play(main)


def test_force_through_the_runtime_and_with_a_wait() -> None:
    async def main() -> None:
        desk = Desk()
        agent = make(Call("send"), tools=desk.tools)
        async with agent.start("go") as run:
            await desk.started.arrived()
            run.cancel()
            assert await agent.runtime.cancel(run_id=run.run_id, force=True)
            assert [each.outcome for each in receipt_of(await run.result()).tools] == [ToolOutcome.cut]
        desk = Desk()
        agent = make(Call("send"), tools=desk.tools)
        async with agent.start("go") as run:
            await desk.started.arrived()
            receipt = await run.cancel_and_wait(force=True)
            assert receipt is not None
            assert [each.outcome for each in receipt.tools] == [ToolOutcome.cut]

    play(main)


def test_force_with_a_mode_or_a_grace_is_refused() -> None:
    for more in ({"mode": "after_tools"}, {"grace": 1.0}):
        with pytest.raises(ValueError, match="leave out mode and grace"):
            CancelRequest.make(force=True, **more)


@pytest.mark.parametrize("how", ["deadline", "caller", "parent"])
def test_every_cause_follows_the_same_rule(how: str) -> None:
    async def main() -> None:
        desk = Desk()
        agent = make(Call("send"), tools=desk.tools)
        options: dict[str, Any] = {"timeout": 1.0} if how == "deadline" else {}
        if how == "parent":
            outer = make(Call("agent", {"prompt": "go"}), tools=[agent.as_tool(name="agent")])
            async with outer.start("go") as run:
                await desk.started.arrived()
                run.cancel()
                await asyncio.sleep(0.01)
                desk.go.set()
                result = await run.result()
            inner = receipt_of(result).tools[0].receipt
            assert inner is not None
            assert inner.cause is CancelCause.parent
            assert [(each.outcome, each.let_finish) for each in inner.tools] == [(ToolOutcome.completed, True)]
            assert receipt_of(result).tools[0].outcome is ToolOutcome.cut, "its parent waits for it"
            return
        task = asyncio.create_task(agent.invoke_async("go", **options))
        await desk.started.arrived()
        run = agent.runtime.runs[0]
        if how == "caller":
            task.cancel()
        else:
            await time_is_up(desk.started)
        await until(lambda: run.status is RunStatus.cancelling)
        desk.go.set()
        result = await run.result()
        assert receipt_of(result).cause.value == how
        assert [(each.outcome, each.let_finish) for each in receipt_of(result).tools] == [(ToolOutcome.completed, True)]
        if how == "caller":
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task

    play(main, loop=StoppedClock if how == "deadline" else None)


def test_a_parent_waits_for_a_child_that_lets_a_call_finish() -> None:
    """Longer than a cut task has to stop: else it would be abandoned."""

    async def main() -> None:
        desk = Desk()
        runtime = Runtime(cut_seconds=0.01, abandon_seconds=0.02, child_seconds=0.02)
        agent = make(Call("send"), tools=desk.tools, runtime=runtime)
        outer = make(Call("agent", {"prompt": "go"}), tools=[agent.as_tool(name="agent")], runtime=runtime)
        async with outer.start("go") as run:
            await desk.started.arrived()
            run.cancel()
            await asyncio.sleep(0.1)  # the time of the parent's step is over: nothing else tells that
            assert not run.status.final
            desk.go.set()
            result = await run.result()
        assert receipt_of(result).tools[0].outcome is ToolOutcome.cut
        assert receipt_of(result).leftovers == []

    play(main)


def test_runs_that_it_has_started_go_on_until_it_is_cut() -> None:
    async def main(force: bool, outcome: ToolOutcome) -> None:
        at_work, go = Flag(), Flag()

        @tool
        async def look() -> str:
            at_work.set()
            await go.arrived()
            return "seen"

        inner = make(Call("look"), tools=[look])

        @tool(on_cancel="finish")
        async def delegate() -> str:
            return (await inner.invoke_async("look")).content

        agent = make(Call("delegate"), tools=[delegate])
        async with agent.start("go") as run:
            await at_work.arrived()
            run.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert inner.runtime.runs[0].status is RunStatus.running
            if force:
                run.cancel(force=True)
            go.set()
            result = await run.result()
            assert [each.outcome for each in receipt_of(result).tools] == [outcome]

    play(lambda: main(False, ToolOutcome.completed))
    play(lambda: main(True, ToolOutcome.cut))


def test_a_cancel_of_the_call_alone_lets_it_finish_too() -> None:
    async def main() -> None:
        for force in (False, True):
            desk = Desk()
            agent = make(Call("send", id="s"), "Done.", tools=desk.tools)
            async with agent.start("go") as run:
                await desk.started.arrived()
                assert run.cancel_tool("s") is CancelOutcome.requested
                assert run.cancel_tool("s") is CancelOutcome.already_requested
                if force:
                    assert run.cancel_tool("s", force=True) is CancelOutcome.already_requested
                else:
                    desk.go.set()
                result = await run.result()
            assert result.status is RunStatus.completed
            [told] = result.messages[2].tool_results
            assert ("cancelled" in told.content) is force
            assert (told.content == "sent") is not force

    play(main)


def test_a_cancel_of_the_call_alone_is_bounded() -> None:
    async def main() -> None:
        desk = Desk(finish_within=0)
        agent = make(Call("send", id="s"), "Done.", tools=desk.tools)
        async with agent.start("go") as run:
            await desk.started.arrived()
            run.cancel_tool("s", "too slow")
            result = await run.result()
            kinds = [event.event for event in probe(run).events]
        assert result.status is RunStatus.completed
        assert RunEvent.tool_call_cancelled in kinds

    play(main)


def test_the_hooks_are_told_of_a_call_that_was_let_finish() -> None:
    told: list[tuple[str, str]] = []

    class Hook:
        async def after_tool(self, event: AfterTool) -> None:
            await asyncio.sleep(0)
            told.append((event.call.name, event.outcome.value))

    async def main() -> None:
        desk = Desk()
        agent = make([Call("plain"), Call("send")], tools=desk.tools, hooks=[Hook()])
        async with agent.start("go") as run:
            await desk.started.arrived()
            run.cancel()
            desk.go.set()
            await run.result()

    play(main)
    assert told == [("send", "completed")]


def test_the_bounds_are_checked() -> None:
    with pytest.raises(Exception, match="finish_seconds"):
        Runtime(finish_seconds=-1)
    with pytest.raises(Exception, match="undo_seconds"):
        Runtime(undo_seconds=-1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"on_cancel": "finsh"}, 'use "finish", or a function'),
        ({"on_cancel": 7}, 'use "finish", or a function'),
        ({"on_cancel": int}, 'use "finish", or a function'),
        ({"on_cancel": None}, 'use "finish", or a function'),
        ({"finish_within": 3}, 'for on_cancel="finish"'),
        ({"on_cancel": print, "finish_within": 3}, 'for on_cancel="finish"'),
        ({"on_cancel": "finish", "finish_within": -1}, "a number of seconds"),
        ({"on_cancel": "finish", "finish_within": "3"}, "a number of seconds"),
    ],
)
def test_options_that_are_wrong_are_refused_at_the_definition(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ToolDefinitionError, match=problem):
        tool(**options)


def test_a_stored_request_of_an_older_version_has_no_force() -> None:
    old = b'{"cause":"user","reason":null,"by":null,"mode":"now","grace":null,"requested_at":1.0}'
    request = msgspec.json.decode(old, type=CancelRequest)
    assert not request.force
    assert msgspec.json.encode(request) == old, "and what has no force is written as before"
    assert b'"force":true' in msgspec.json.encode(CancelRequest.make(force=True))


def test_asyncio_run_ends_it_like_any_other_call() -> None:
    """At the end of `asyncio.run` every task is cancelled, so nothing can be let finish."""
    seen: list[Run] = []
    started = Flag()

    @tool(on_cancel="finish")
    async def wait() -> str:
        started.set()
        await forever()

    async def main() -> None:
        agent = Agent("A", ScriptedModel(Call("wait")), tools=[wait])
        run = agent.start("go")
        await run.begin()
        seen.append(run)
        await started.arrived()

    asyncio.run(main())
    assert seen[0].status is RunStatus.cancelled
    receipt = probe(seen[0]).events[-1].receipt
    assert receipt is not None
    assert [each.outcome for each in receipt.tools] == [ToolOutcome.cut]


@pytest.mark.parametrize("first", ["nothing", "cancel"])
def test_force_for_one_call_reaches_the_runs_that_it_has_started(first: str) -> None:
    async def main() -> None:
        desk = Desk(finish_within=600)
        inner = make(Call("send"), tools=desk.tools)
        agent = make(Call("agent", {"prompt": "go"}, id="a"), "Done.", tools=[inner.as_tool(name="agent")])
        async with agent.start("go") as run:
            await desk.started.arrived()
            if first == "cancel":
                run.cancel_tool("a")
                await until(lambda: RunStatus.cancelling in [each.status for each in agent.runtime.runs])
            run.cancel_tool("a", force=True)
            result = await run.result()
        assert result.status is RunStatus.completed
        assert desk.cut

    play(main)


def test_a_call_that_was_cancelled_alone_and_then_asks_a_person_is_not_asked_for() -> None:
    async def main() -> None:
        started, go = Flag(), Flag()

        @tool(on_cancel="finish")
        async def send(ctx: ToolContext) -> str:
            started.set()
            await go.arrived()
            return str(ctx.interrupt("sure?"))

        agent = make(Call("send", id="s"), "Done.", tools=[send])
        async with agent.start("go") as run:
            await started.arrived()
            assert run.cancel_tool("s", "not needed") is CancelOutcome.requested
            go.set()
            result = await run.result()
            [event] = [each for each in probe(run).events if each.event is RunEvent.tool_call_cancelled]
        assert (result.status, result.interrupts) == (RunStatus.completed, [])
        assert "cancelled" in result.messages[2].tool_results[0].content
        assert event.reason == "not needed"

    play(main)


def test_a_run_waits_for_a_child_that_undoes_a_call_after_it_was_let_finish() -> None:
    async def main() -> None:
        started, at_work, undone = Flag(), Flag(), Flag()

        async def undo() -> None:
            await asyncio.sleep(0.15)  # longer than the run had to wait, as things stood when it was cancelled
            undone.set()

        @tool(on_cancel=undo)
        async def pay() -> str:
            started.set()
            try:
                await forever()
            finally:
                await asyncio.sleep(0.03)

        runtime = Runtime(child_seconds=0.01, cut_seconds=0.04, abandon_seconds=0.08, undo_seconds=10)
        inner = make(Call("pay"), tools=[pay], runtime=runtime)

        @tool
        async def launch() -> str:
            await inner.start("go").begin()
            await started.arrived()
            at_work.set()
            await forever()

        @tool(on_cancel="finish", finish_within=0)
        async def other() -> str:
            await forever()

        agent = make([Call("launch"), Call("other")], tools=[launch, other], runtime=runtime)
        async with agent.start("go") as run:
            await at_work.arrived()
            run.cancel()
            result = await run.result()
        assert undone.is_set()
        assert receipt_of(result).leftovers == []
        assert result.warnings == []

    play(main)
