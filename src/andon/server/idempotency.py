# SPDX-License-Identifier: Apache-2.0
"""What is done once, however often it is asked for: a request with an idempotency key sets one run going.

Here, the same requests wait for one another. On another server, the store has one of the two wait, and refuses it then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from andon.agent.agent import Agent
from andon.core.records import RequestKey, RunRecord
from andon.core.run.run import Run
from andon.errors import KeyUsedError
from andon.server.authorized_host import AuthorizedHost
from andon.server.problems import Problem, problem_of


class StartedRun(NamedTuple):
    """The run that a request has set going."""

    run: Run | RunRecord
    after: int
    """The number of the last event that was there before."""
    fresh: bool
    """It was this very request, and not the same one before."""


async def start_once(
    host: AuthorizedHost,
    agent: Agent,
    user_id: str | None,
    key: RequestKey | None,
    begin: Callable[[], Awaitable[tuple[Run, int]]],
) -> StartedRun:
    """Set a run going, unless the key has done so before. `begin` returns the run, and the number of the last event
    that was there before.
    """
    if key is None:
        return StartedRun(*await begin(), fresh=True)
    async with host.key_lock(agent, user_id, key.key):
        known = await host.find_by_key(agent, user_id, key)
        if known is None:
            try:
                run, after = await begin()
            except (KeyUsedError, Problem) as error:
                # Another server may have been quicker with the same request: then the session is busy by it, the run
                # that it answers is not paused any more, or its id is taken. A failure of ours says nothing of that.
                if isinstance(error, Problem) and error.status_code >= 500:
                    raise
                known = await host.find_by_key(agent, user_id, key)
                if known is None:
                    raise (problem_of(error) if isinstance(error, KeyUsedError) else error) from None
            else:
                host.remember(agent, user_id, key, run.run_id, after)
                return StartedRun(run, after, fresh=True)
    return StartedRun(*known, fresh=False)
