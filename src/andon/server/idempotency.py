# SPDX-License-Identifier: Apache-2.0
"""Idempotent requests: several copies of a request with the same key start or continue one run only.

On one server, copies wait for each other. On two servers, the store makes one of them wait, and then refuses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from andon.agent.agent import Agent
from andon.core.records import RequestKey, RunRecord
from andon.core.run.run import LocalRun
from andon.errors import KeyUsedError
from andon.server.authorized_host import AuthorizedHost
from andon.server.problems import Problem, problem_of
from andon.server.queued_runs import AcceptedRun


class StartedRun(NamedTuple):
    """The run that a request has started or continued."""

    run: LocalRun | AcceptedRun | RunRecord
    after: int
    """The number of its last event before that."""
    fresh: bool
    """Whether this request started it, and not an earlier copy."""


async def start_once(
    host: AuthorizedHost,
    agent: Agent,
    user_id: str | None,
    key: RequestKey | None,
    begin: Callable[[], Awaitable[tuple[LocalRun | AcceptedRun, int]]],
) -> StartedRun:
    """Call `begin` to start or continue a run, unless the key was used before. It returns the run, and the number of
    its last event before that.
    """
    if key is None:
        return StartedRun(*await begin(), fresh=True)
    async with host.key_lock(agent, user_id, key.key):
        known = await host.find_by_key(agent, user_id, key)
        if known is None:
            try:
                run, after = await begin()
            except (KeyUsedError, Problem) as error:
                # Another server may have handled a copy of this request first. Then the session is busy, the run is no
                # longer paused, or the id is taken. A 5xx has another reason.
                if isinstance(error, Problem) and error.status_code >= 500:
                    raise
                known = await host.find_by_key(agent, user_id, key)
                if known is None:
                    raise (problem_of(error) if isinstance(error, KeyUsedError) else error) from None
            else:
                host.remember(agent, user_id, key, run.run_id, after)
                return StartedRun(run, after, fresh=True)
    return StartedRun(*known, fresh=False)
