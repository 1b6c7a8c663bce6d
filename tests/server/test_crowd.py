# SPDX-License-Identifier: Apache-2.0
"""Many streams at once, all of them cancelled over HTTP: every client sees the end, and nothing is left of any."""

from __future__ import annotations

import asyncio
import gc

import httpx
import pytest

from andon import Agent, Run
from andon.core.run.handle import local_run
from andon.server.sse import EventResponse
from bench import http
from tests.server.live import serving
from tests.support import HANG, eventually, play

pytestmark = [pytest.mark.no_cover, pytest.mark.timeout(300)]  # on a machine that does much else, it takes its time


@pytest.mark.parametrize(("message", "streams"), [("wait", 500), ("talk", 100)])
def test_many_streams_on_one_process(message: str, streams: int) -> None:
    async def main() -> None:
        async with http.serving() as (port, _):
            for number in range(2):
                ends = await http.cancel_round(port, number, streams, message, singly=False)
                assert len(ends) == streams
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=HANG, verify=False) as client:
                metrics = (await client.get("/metrics")).text.splitlines()
        assert f'andon_runs_ended_total{{status="cancelled"}} {2 * streams}' in metrics
        assert [line for line in metrics if line.startswith("andon_runs{") and not line.endswith(" 0")] == []

    play(main, seconds=4 * HANG)


@pytest.mark.parametrize(("message", "rounds", "singly"), [("wait", 20, False), ("wait", 2, True), ("talk", 2, True)])
def test_nothing_is_left_of_a_crowd(message: str, rounds: int, singly: bool) -> None:
    count = 120 // rounds + 20
    agent = Agent("Bench", http.agent.model)
    agent.runtime.keep_ended(seconds=0)
    with serving(agent) as live:
        for number in range(rounds):
            ends = asyncio.run(http.cancel_round(live.port, number, count, message, singly=singly))
            assert len(ends) == count
            eventually(lambda: live.connections == 0)
            assert agent.runtime.ended_counts == {"CANCELLED": count * (number + 1)}
        eventually(lambda: _left(agent) == [])  # the last of its requests may still be on their way out


def _left(agent: Agent) -> list[object]:
    gc.collect()
    left = [each for each in gc.get_objects() if isinstance(each, Run | EventResponse)]
    return [each for each in left if not isinstance(each, Run) or local_run(each).runtime is agent.runtime]
