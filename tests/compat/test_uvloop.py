# SPDX-License-Identifier: Apache-2.0
"""uvloop: a run on it, and the blocking calls, whose loop the policy makes.

`make test` also runs the core part of all tests on uvloop, and the OpenAI models against their fakes.
"""

from __future__ import annotations

import asyncio
import threading

import pytest
import uvloop

from andon import Agent, CancelCause, RunStatus, ToolContext, tool
from andon.models.openai import OpenAIChat
from andon.models.scripted import Call, Stall
from andon.testing import probe
from andon.testing.providers import FakeChat, silence, text
from tests.compat.programs import run_program
from tests.support import HANG, Flag, check_cancelled, cut, make, play


@pytest.fixture(autouse=True, scope="module")
def warm_up() -> None:
    """The first loop opens files that libuv keeps for the process; `play` would take them for ours."""
    uvloop.new_event_loop().close()


def test_cancels_and_the_hosts_cancellation() -> None:
    async def main() -> None:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        agent = make(["Once ", Stall()], ["Again ", Stall()])
        check_cancelled(await cut(agent, lambda run: len(probe(run).events) > 1), phase="streaming")
        host = asyncio.create_task(agent.invoke_async("go", run_id="r"))
        await asyncio.sleep(0)
        run = agent.runtime.run("r")
        assert run is not None
        async for event in run:
            if event.content == "Again ":
                break
        host.cancel()
        with pytest.raises(asyncio.CancelledError):
            await host
        assert run.receipt is not None
        assert run.receipt.cause is CancelCause.caller
        assert (await agent.invoke_async("go on")).content == "OK."

    play(main, loop=uvloop.new_event_loop)


def test_a_blocking_tool_is_cut_from_another_thread() -> None:
    started = Flag()

    @tool
    def crunch(ctx: ToolContext) -> str:
        stop = threading.Event()
        ctx.on_cancel(stop.set)
        started.set()
        assert stop.wait(HANG)
        ctx.check_cancelled()
        return "never"

    async def main() -> None:
        agent = make(Call("crunch"), tools=[crunch])

        def cancel() -> None:
            started.wait()
            agent.cancel_run("r")

        canceller = threading.Thread(target=cancel)
        canceller.start()
        result = await agent.invoke_async("go", run_id="r")
        canceller.join()
        assert result.status is RunStatus.cancelled
        assert result.receipt is not None
        assert result.receipt.leftovers == []

    play(main, loop=uvloop.new_event_loop)


def test_a_silent_provider() -> None:
    async def main() -> None:
        with FakeChat([[silence()], [text("Fine.")]]) as fake:
            agent = Agent("Tester", OpenAIChat("gpt-5.2", base_url=fake.base_url, api_key=fake.api_key))
            check_cancelled(await cut(agent, lambda run: bool(fake.served)), phase="waiting")
            assert (await agent.invoke_async("go on")).content == "Fine."

    play(main, loop=uvloop.new_event_loop)


def test_blocking_calls_where_uvloop_makes_all_loops() -> None:
    assert run_program("uvloop_everywhere.py") == "completed cancelled completed uvloop.Loop\n"
