# SPDX-License-Identifier: Apache-2.0
"""Says what a server that goes down waits for: which runs, how long still, and how to end it at once.

It only looks: whether and when runs are cancelled is the host's to decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from andon.core.run.run import Run
from andon.server.host import Host

REPORT_SECONDS = 5.0
NAMED = 5
"""So many runs are named; of the others, how many they are."""


def report_drain(host: Host, say: Callable[[str], object]) -> asyncio.Task[None] | None:
    """Say it now; and, by the task that is returned, every so often and when the time is up.

    None if nothing is waited for. Cancel the task when nothing is waited for any more.
    """
    if not (runs := _at_work(host)):
        return None
    wait = f"waiting up to {host.settings.drain:g} s for" if host.settings.drain else "cancelling"
    say(f"shutting down: {wait} {_names(runs)}. Another SIGTERM or Ctrl-C ends the server at once")
    return asyncio.get_running_loop().create_task(_keep_reporting(host, say, runs))


async def _keep_reporting(host: Host, say: Callable[[str], object], runs: Sequence[Run]) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + host.settings.drain
    while (left := until - loop.time()) > 0:
        await asyncio.sleep(min(left, REPORT_SECONDS))
        if not (runs := _at_work(host)):
            return
        if (left := until - loop.time()) > 0.5:
            say(f"waiting for {_names(runs)}, {left:.0f} s left")
    if host.settings.drain:
        say(f"time is up: cancelling {_names(runs)}")


def _at_work(host: Host) -> list[Run]:
    """A sub-agent's run belongs to its parent's, and a paused one holds nothing up."""
    return [run for run in host.live if not run.is_paused and run.parent_run_id is None]


def _names(runs: Sequence[Run]) -> str:
    names = [f"{ascii(run.run_id)[1:-1]} ({run.agent_id})" for run in runs[:NAMED]]  # an id may be of a client's making
    more = [f"{len(runs) - NAMED} more"] if len(runs) > NAMED else []
    return f"{len(runs)} run{'s' if len(runs) > 1 else ''}: {', '.join(names + more)}"
