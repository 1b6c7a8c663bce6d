# SPDX-License-Identifier: Apache-2.0
"""Many streams at once, all of them cancelled over HTTP: every client sees the end, and nothing is left of any."""

from __future__ import annotations

import asyncio
import gc

import pytest

from andon import Agent, Run
from andon.server.sse import EventResponse
from bench import http
from tests.server.live import serving
from tests.support import eventually


@pytest.mark.parametrize("singly", [False, True], ids=["with one request", "with one request each"])
@pytest.mark.parametrize("message", ["wait", "talk"])
def test_a_crowd_is_cancelled_at_once(message: str, singly: bool) -> None:
    agent = Agent("Bench", http.agent.model)
    agent.runtime.keep_ended(seconds=0)
    with serving(agent) as live:
        for number in range(2):
            ends = asyncio.run(http.cancel_round(live.port, number, 60, message, singly=singly))
            assert len(ends) == 60
            eventually(lambda: live.connections == 0)
            assert agent.runtime.ended_counts == {"CANCELLED": 60 * (number + 1)}
        eventually(lambda: _left(agent) == [])  # the last of its requests may still be on their way out


def _left(agent: Agent) -> list[object]:
    gc.collect()
    left = [each for each in gc.get_objects() if isinstance(each, Run | EventResponse)]
    return [each for each in left if not isinstance(each, Run) or each.runtime is agent.runtime]
