# SPDX-License-Identifier: Apache-2.0
"""trio, which has no asyncio loop: blocking calls in its threads, with and without passing its cancellation on."""

from __future__ import annotations

import threading
from functools import partial

import trio

from andon import Agent, RunResult, RunStatus
from andon.messages import Text
from andon.models.scripted import Stall
from tests.support import HANG, Flag, Reach, eventually, make


async def ask(agent: Agent, prompt: str) -> RunResult:
    """As docs/compatibility.md shows it: the run is cancelled with the scope, and has ended when this returns."""
    stop = threading.Event()

    async def pass_on() -> None:
        try:
            await trio.sleep_forever()
        finally:
            stop.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_on)
        result = await trio.to_thread.run_sync(partial(agent.run, prompt, cancel_on=stop))
        nursery.cancel_scope.cancel()
    return result


async def arrived(flag: Flag) -> None:
    await trio.to_thread.run_sync(flag.wait)


def test_a_run_in_a_thread() -> None:
    async def main() -> None:
        with trio.fail_after(HANG):
            agent = make("Fine.")
            assert (await ask(agent, "go")).content == "Fine."
            assert (await trio.to_thread.run_sync(agent.run, "go on")).content == "OK."

    trio.run(main)


def test_trios_cancellation_that_is_passed_on() -> None:
    async def main() -> None:
        said = Flag()
        agent = make(["Once ", Reach(said), Stall()])
        with trio.fail_after(HANG):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, agent, "go")
                await arrived(said)
                nursery.cancel_scope.cancel()
            # The run has ended: its session is free, and says so.
            assert agent.messages[-1].content == [Text("Once "), Text("Cancelled by user")]
            assert agent.runtime.runs == []
            assert (await ask(agent, "go on")).status is RunStatus.completed

    trio.run(main)


def test_a_scope_that_was_cancelled_before() -> None:
    async def main() -> None:
        agent = make()
        with trio.CancelScope() as scope:
            scope.cancel()
            await ask(agent, "go")
        assert scope.cancelled_caught
        assert agent.messages == []

    trio.run(main)


def test_without_it_trio_waits_for_the_run() -> None:
    """trio can't stop a thread. So its cancellation waits until the run ends, or someone else cancels that."""

    async def main() -> None:
        said = Flag()
        agent = make(["Once ", Reach(said), Stall()])

        async def cancel() -> None:
            with trio.CancelScope(shield=True):
                await arrived(said)
                nursery.cancel_scope.cancel()
                await trio.lowlevel.checkpoint_if_cancelled()
                assert [run.status for run in agent.runtime.runs] == [RunStatus.running]
                assert agent.cancel_run("r")

        with trio.fail_after(HANG):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel)
                result = await trio.to_thread.run_sync(partial(agent.run, "go", run_id="r"))
                assert result.status is RunStatus.cancelled

    trio.run(main)


def test_an_abandoned_thread_leaves_the_run_running() -> None:
    said = Flag()
    agent = make(["Once ", Reach(said), Stall()])

    async def main() -> None:
        with trio.fail_after(HANG):
            async with trio.open_nursery() as nursery:

                async def abandoned() -> None:
                    await trio.to_thread.run_sync(partial(agent.run, "go", run_id="r"), abandon_on_cancel=True)

                nursery.start_soon(abandoned)
                await arrived(said)
                nursery.cancel_scope.cancel()
            run = agent.runtime.run("r")
            assert run is not None
            assert run.status is RunStatus.running
            assert agent.cancel_run("r")

    trio.run(main)
    eventually(lambda: not agent.runtime.runs)
