# SPDX-License-Identifier: Apache-2.0
"""The timers of steps that were cut: one for all of a loop, and none that outlives it."""

from __future__ import annotations

import asyncio
import gc
import weakref

from andon import RunStatus
from tests.support import Silence, make


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
        await run.open()
        await silence.reached.arrived()
        run.cancel()
        await asyncio.sleep(0)  # it is cut, and has not ended

    loop.run_until_complete(main())
    loop.close()
    assert agent.run("and now?", on_busy="queue").status is RunStatus.completed
    del loop
    gc.collect()
    assert gone() is None
