# SPDX-License-Identifier: Apache-2.0
"""Says during a shutdown which runs the server waits for, for how long, and how to end it at once.

It only reports. `Host.shut_down` cancels the runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from andon.core.run.run import LocalRun
from andon.server.host import Host

REPORT_SECONDS = 5.0
NAMED = 5
"""How many runs are named; the others are counted."""


def report_drain(host: Host, say: Callable[[str], object]) -> asyncio.Task[None] | None:
    """Report now. The returned task reports again from time to time, and when the time is up; cancel it at the end.

    None if there are no runs to wait for.
    """
    if not (runs := _at_work(host)):
        return None
    wait = f"waiting up to {host.settings.drain:g} s for" if host.settings.drain else "cancelling"
    say(f"shutting down: {wait} {_names(runs)}. Another SIGTERM or Ctrl-C ends the server at once")
    return asyncio.get_running_loop().create_task(_keep_reporting(host, say, runs))


async def _keep_reporting(host: Host, say: Callable[[str], object], runs: Sequence[LocalRun]) -> None:
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


def _at_work(host: Host) -> list[LocalRun]:
    """The runs that a shutdown waits for: not those of sub-agents, and not paused ones."""
    return [run for run in host.live if not run.is_paused and run.parent_run_id is None]


def _names(runs: Sequence[LocalRun]) -> str:
    names = [f"{ascii(run.run_id)[1:-1]} ({run.agent_id})" for run in runs[:NAMED]]  # a client may have chosen the id
    more = [f"{len(runs) - NAMED} more"] if len(runs) > NAMED else []
    return f"{len(runs)} run{'s' if len(runs) > 1 else ''}: {', '.join(names + more)}"
