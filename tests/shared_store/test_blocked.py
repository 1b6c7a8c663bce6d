# SPDX-License-Identifier: Apache-2.0
"""A user, or an agent, that is blocked: what waits for a person can't go on either."""

from __future__ import annotations

import pytest

from andon import RunStatus, Runtime
from andon.core.selection import BlockKind
from andon.errors import BlockedError
from andon.store import open_store
from tests.shared_store.helpers import on, runtimes
from tests.support import paused, play
from tests.support.till import DELETE, Till

either = pytest.mark.parametrize(("kind", "id"), [("user", "ada"), ("agent", "keeper")])


async def check_refused(here: Runtime, there: Runtime, kind: BlockKind, id: str) -> None:
    """A run that is paused here is not answered there until it may be."""
    till = Till()
    run, result = await paused(on(here, DELETE, tools=till.tools), session_id="s", user_id="ada")
    agent, answers = on(there, "Done.", tools=till.tools), {result.interrupts[0].id: True}
    await here.block(kind, id, reason="too eager")
    with pytest.raises(BlockedError, match=r"blocked \(too eager\)"):
        await agent.continue_run(run.run_id, answers)
    assert (run.status, till.did) == (RunStatus.paused, [])
    await here.unblock(kind, id)
    assert (await agent.continue_run(run.run_id, answers)).status is RunStatus.completed
    assert till.did == ["all"]


@either
def test_a_paused_run_is_not_answered_for_a_blocked_user_or_agent(any_url: str, kind: BlockKind, id: str) -> None:
    async def main() -> None:
        runtime = Runtime(open_store(any_url))
        try:
            await check_refused(runtime, runtime, kind, id)
        finally:
            await runtime.close()

    play(main)


@either
def test_nor_is_it_elsewhere(url: str, kind: BlockKind, id: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            await check_refused(here, there, kind, id)

    play(main)
