# SPDX-License-Identifier: Apache-2.0
"""The timers of steps that were cut: one for all of a loop, and none that outlives it."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from andon import RunStatus, tool
from andon.core.run.handle import local_run
from andon.core.steps import Step
from andon.core.watchdog import Watchdog
from andon.models.scripted import Call
from tests.support import Flag, Silence, eventually, make, play


def test_a_loop_in_which_something_was_cut_is_not_kept_alive() -> None:
    silence = Silence()
    agent = make([silence])
    loop = asyncio.new_event_loop()
    gone = weakref.ref(loop)

    async def main() -> None:
        async with agent.start("go") as run:
            await silence.reached.arrived()
            run.cancel()
        assert run.status is RunStatus.cancelled

    loop.run_until_complete(main())
    loop.close()
    del loop
    gc.collect()
    assert gone() is None


def test_a_loop_that_was_closed_under_a_cut_run_is_freed_with_it() -> None:
    silence = Silence()
    agent = make([silence], "And on.")
    loop = asyncio.new_event_loop()
    gone = weakref.ref(loop)

    async def main() -> None:
        run = agent.start("go")
        await run.begin()
        await silence.reached.arrived()
        run.cancel()
        await asyncio.sleep(0)  # it is cut, and has not ended

    loop.run_until_complete(main())
    loop.close()
    assert agent.run("and now?", on_busy="queue").status is RunStatus.completed
    del loop
    eventually(lambda: gc.collect() >= 0 and gone() is None)  # the portal, which has ended it, lets go a moment later


def test_a_ctrl_c_between_two_cuts_leaves_no_timer_once_all_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of a step that was cut, nor of one that was about to be, and has ended by itself."""
    begun, go_on = Flag(), Flag()

    @tool
    async def wait() -> str:
        begun.set()
        await go_on.arrived()
        return "done"

    def interrupt(step: Step[None]) -> None:
        raise KeyboardInterrupt

    def is_idle(watchdog: Watchdog) -> bool:
        return not watchdog._open and not watchdog._queue and watchdog._timer is None

    async def main() -> None:
        agent = make([Call("wait", id="a"), Call("wait", id="b")], "Done.", tools=[wait])
        async with agent.start("go") as run:
            await begun.arrived()
            steps = local_run(run).steps.live
            watchdog = steps[0].watchdog
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(Step, "cut", interrupt)
                local_run(run).steps.cut(steps)
            assert not is_idle(watchdog), "it rings for both"
            go_on.set()
            assert (await run.result()).content == "Done."
            assert is_idle(watchdog)

    play(main)
