# SPDX-License-Identifier: Apache-2.0
"""How cancelling behaves in and between tools: a test per situation."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import selectors
import socket
import threading

import pytest

from andon import RunStatus, Runtime, ToolContext, tool
from andon.models.scripted import Call
from tests.support import (
    Flag,
    check_cancelled,
    check_goes_on,
    cut,
    eventually,
    forever,
    make,
    play,
    read_all,
)

# -- async tools ------------------------------------------------------------------------------------------------------


def test_an_async_tool_sees_one_cancel_and_may_await_in_except_and_finally() -> None:
    async def main() -> None:
        started, cleaning, clean = Flag(), Flag(), Flag()
        seen: list[str] = []

        @tool
        async def book(place: str) -> str:
            started.set()
            try:
                await forever()
            except asyncio.CancelledError:
                seen.append("cancelled")
                cleaning.set()
                await clean.arrived()
                seen.append("rolled back")
                raise
            finally:
                await asyncio.sleep(0)
                seen.append("closed")

        agent = make(["On it. ", Call("book", {"place": "Rome"}, id="c")], tools=[book])

        async def let_it_clean_up() -> None:
            await cleaning.arrived()
            assert agent.runtime.runs[0].status is RunStatus.cancelling
            clean.set()

        helper = asyncio.create_task(let_it_clean_up())
        ended = await cut(agent, started)
        await helper
        assert seen == ["cancelled", "rolled back", "closed"]
        check_cancelled(ended, phase="tools", tools={"c": "cut"})
        assert [message.role for message in agent.messages] == ["user", "assistant", "tool", "assistant"]
        await check_goes_on(agent, ended)

    play(main)


@pytest.mark.parametrize("how", ["returns", "raises", "raises BaseException"])
def test_whatever_a_cut_async_tool_still_does_its_call_was_cut(how: str) -> None:
    async def main() -> None:
        started = Flag()

        @tool
        async def stubborn() -> str:
            started.set()
            try:
                await forever()
            except asyncio.CancelledError:
                if how == "returns":
                    return "all is well"
                raise (ValueError if how == "raises" else SystemExit)("no") from None

        agent = make(Call("stubborn", id="c"), tools=[stubborn])
        ended = await cut(agent, started)
        check_cancelled(ended, phase="tools", tools={"c": "cut"})
        await check_goes_on(agent, ended)

    play(main)


def test_an_async_tool_that_got_over_an_earlier_cancellation_is_cut_now() -> None:
    """Whatever cancelled it before, and was caught: ours is a new one, and does not wait for the second attempt."""

    async def main() -> None:
        started = Flag()

        @tool
        async def tough() -> str:
            me = asyncio.current_task()
            assert me is not None
            me.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            started.set()
            await forever()

        agent = make(Call("tough", id="c"), tools=[tough], runtime=Runtime(cut_seconds=5, abandon_seconds=6))
        ended = await cut(agent, started)
        check_cancelled(ended, phase="tools", tools={"c": "cut"})
        assert ended.result.receipt is not None
        assert ended.result.receipt.latency < 5  # or it was the second attempt that ended it

    play(main)


class CountingSelector(selectors.DefaultSelector):
    """Counts how often the loop went round: one that spins is at no loss for work."""

    rounds = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.rounds += 1
        return super().select(timeout)


def test_an_async_tool_that_swallows_its_cancel() -> None:
    selector = CountingSelector()

    async def main() -> None:
        started, enough = Flag(), asyncio.Event()
        cancels = 0

        @tool
        async def deaf() -> str:
            nonlocal cancels
            started.set()
            while True:
                try:
                    await enough.wait()
                    return "late result"
                except asyncio.CancelledError:
                    cancels += 1

        agent = make(Call("deaf", id="c"), tools=[deaf], runtime=Runtime(cut_seconds=0.1, abandon_seconds=0.3))
        rounds = selector.rounds
        ended = await cut(agent, started)
        assert cancels == 2  # once, once more, and then it is left alone
        assert selector.rounds - rounds < 200
        check_cancelled(ended, phase="tools", tools={"c": "abandoned"}, leftovers=1)
        await check_goes_on(agent, ended)

        receipt = await ended.run.cancel_and_wait(timeout=0.02)
        assert receipt is not None
        assert len(receipt.leftovers) == 1
        assert "deaf" in receipt.leftovers[0]
        enough.set()
        receipt = await ended.run.cancel_and_wait()
        assert receipt is not None
        assert receipt.leftovers == []
        assert [each.outcome for each in receipt.tools] == ["abandoned"]
        assert ended.result.receipt is not None
        assert len(ended.result.receipt.leftovers) == 1  # frozen at the run's end
        assert "late result" not in str(agent.messages)
        assert cancels == 2

    async def guarded() -> None:
        async with asyncio.timeout(20):
            await main()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(guarded())


# -- sync tools -------------------------------------------------------------------------------------------------------


def test_a_sync_tool_that_looks_whether_it_was_cancelled() -> None:
    async def main() -> None:
        started, look = Flag(), Flag()
        seen: list[str] = []

        @tool
        def crunch(n: int, ctx: ToolContext) -> str:
            assert not ctx.cancelled
            ctx.check_cancelled()
            started.set()
            look.wait()
            assert ctx.cancelled
            try:
                ctx.check_cancelled()
            except Exception:  # noqa: BLE001 - a BaseException goes past this
                seen.append("swallowed")
            except BaseException:
                seen.append("told")
                raise
            seen.append("went on")
            return "late result"

        agent = make(Call("crunch", {"n": 1}, id="c"), tools=[crunch])
        ended = await cut(agent, started)  # the run ends now, though the thread has not looked yet
        assert seen == []
        check_cancelled(ended, phase="tools", tools={"c": "abandoned"}, leftovers=1)
        look.set()
        receipt = await ended.run.cancel_and_wait()
        assert receipt is not None
        assert receipt.leftovers == []
        assert seen == ["told"]
        await check_goes_on(agent, ended)

    play(main)


def test_a_sync_tool_whose_blocking_call_is_broken_by_on_cancel() -> None:
    async def main() -> None:
        started = Flag()
        ours, theirs = socket.socketpair()
        callers: list[int] = []

        def interrupt() -> None:
            callers.append(threading.get_ident())
            ours.shutdown(socket.SHUT_RDWR)

        @tool
        def fetch(ctx: ToolContext) -> str:
            ctx.on_cancel(interrupt)
            started.set()
            with ours:
                return ours.recv(1).decode() or "broken off"  # blocks until it is interrupted

        with theirs:
            agent = make(Call("fetch", id="c"), tools=[fetch])
            async with agent.start("go") as run:
                await started.arrived()
                receipt = await run.cancel_and_wait(reason="enough", by="ann")
                result = await run.result()
        assert receipt is not None
        assert receipt.leftovers == []  # the thread is gone
        assert callers == [threading.get_ident()]  # called once, from the run's loop
        assert result.receipt is not None
        assert result.receipt.tools[0].outcome in ("cut", "abandoned")
        assert "broken off" not in str(agent.messages)
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_a_sync_tool_that_lives_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        started, go_on = Flag(), Flag()

        @tool
        def block() -> str:
            started.set()
            go_on.wait()
            return "late result"

        agent = make(Call("block", id="c"), tools=[block])
        ended = await cut(agent, started)
        check_cancelled(ended, phase="tools", tools={"c": "abandoned"}, leftovers=1)
        assert ended.result.receipt is not None
        assert "block" in ended.result.receipt.leftovers[0]
        assert ended.run.leftovers == ended.result.receipt.leftovers
        after = await check_goes_on(agent, ended)  # while the thread is still there

        receipt = await ended.run.cancel_and_wait(timeout=0.02)
        assert receipt is not None
        assert len(receipt.leftovers) == 1
        waiting = asyncio.create_task(ended.run.cancel_and_wait())
        go_on.set()
        receipt = await waiting
        assert receipt is not None
        assert receipt.leftovers == []
        assert [each.outcome for each in receipt.tools] == ["abandoned"]
        await asyncio.to_thread(eventually, lambda: "late result of tool block" in caplog.text)
        assert agent.messages == after.messages
        assert "late result" not in str(agent.messages)
        assert await read_all(ended.run) == ended.events

    with caplog.at_level(logging.DEBUG, "andon"):
        play(main)


def test_cancel_and_wait_waits_for_a_threads_end() -> None:
    async def main() -> None:
        started, go_on = Flag(), Flag()
        last: list[str] = []

        @tool
        def block() -> str:
            started.set()
            go_on.wait()
            last.append("thread")
            return "late"

        agent = make(Call("block"), tools=[block])
        async with agent.start("go") as run:
            await started.arrived()
            waiting = asyncio.create_task(run.cancel_and_wait())
            assert (await run.result()).status is RunStatus.cancelled
            assert not waiting.done()  # the run is over; the thread is not
            go_on.set()
            await waiting
            assert last == ["thread"]

    play(main)


def test_callbacks_of_on_cancel() -> None:
    async def main() -> None:
        started, cancelled = Flag(), Flag()
        called: list[str] = []
        late = Flag()

        @tool
        def block(ctx: ToolContext) -> str:
            take_back = ctx.on_cancel(lambda: called.append("taken back"))
            ctx.on_cancel(lambda: 1 / 0)  # its failure is its own
            ctx.on_cancel(lambda: called.append("called"))
            take_back()
            started.set()
            cancelled.wait()
            ctx.on_cancel(late.set)  # at once, since it has happened
            return "late"

        agent = make(Call("block"), tools=[block])
        async with agent.start("go") as run:
            await started.arrived()
            run.cancel()
            assert (await run.result()).status is RunStatus.cancelled
            assert called == ["called"]
            cancelled.set()
            await late.arrived()
            receipt = await run.cancel_and_wait()
            assert receipt is not None
            assert receipt.leftovers == []
        assert called == ["called"]

    play(main)


def test_too_many_abandoned_threads() -> None:
    async def main() -> None:
        started, go_on = Flag(), Flag()

        @tool
        def block() -> str:
            started.set()
            go_on.wait()
            return "late"

        agent = make(Call("block"), Call("block", id="c"), tools=[block], runtime=Runtime(abandoned_threads=1))
        ended = await cut(agent, started)
        result = await agent.invoke_async("again")  # the limit is reached: an error result, and no thread
        assert result.status is RunStatus.completed
        assert [each.status for each in result.messages[-2].tool_results] == ["error"]
        go_on.set()
        await ended.run.cancel_and_wait()
        assert (await agent.invoke_async("once more")).status is RunStatus.completed

    play(main)
