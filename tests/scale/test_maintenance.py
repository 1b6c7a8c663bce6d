# SPDX-License-Identifier: Apache-2.0
"""All processes together sweep about twice a second, however many they are."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import psycopg
import pytest

from andon.core.shared.run_queue import CutOff
from andon.scale.maintenance import ASK_SECONDS, SWEEP_SECONDS, QueueMaintenance
from andon.store.sql import SQLStore
from tests.support import play
from tests.support.clock import StoppedClock

PROCESSES = 20
STEP = 0.05


def test_of_many_processes_one_sweeps(postgres_url: str) -> None:
    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            stores = [SQLStore(postgres_url) for _ in range(4)]
            for store in stores:
                stack.push_async_callback(store.close)
            queues = [store.run_queue() for store in stores]
            await queues[0].prepare()

            async def sweepers(every: float) -> int:
                return sum(await asyncio.gather(*(queue.begin_sweep(every) for queue in queues)))

            assert await sweepers(1000.0) == 1
            assert await sweepers(1000.0) == 0
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                for change in (-1000, +5000):  # later; and after the server's clock was set back
                    admin.execute("UPDATE andon_queue_meta SET swept = swept + %s", (change,))
                    assert await sweepers(1000.0) == 1
                    assert await sweepers(1000.0) == 0

    play(main)


class Shared:
    """What the processes share: a queue with no runs."""

    def __init__(self) -> None:
        self.swept: list[float] = []
        self.asked = self.decided = self.cleaned = 0

    async def begin_sweep(self, every: float) -> bool:
        self.asked += 1
        now = asyncio.get_running_loop().time()
        if self.swept and now - self.swept[-1] < every - 1e-6:  # steps of the clock are no exact numbers
            return False
        self.swept.append(now)
        return True

    async def sweep(self, stale_seconds: float) -> list[str]:
        return []

    async def cut_off(self) -> list[CutOff]:
        self.decided += 1
        return []

    async def clean(self, stale_seconds: float) -> None:
        assert stale_seconds == Link.seconds
        self.cleaned += 1


class Link:
    seconds = 6.0


class Process:
    """The part of a worker that the maintenance needs here."""

    link = Link()


@pytest.mark.parametrize("processes", [1, PROCESSES])
def test_the_number_of_sweeps_does_not_grow_with_the_processes(processes: int) -> None:
    async def main() -> None:
        loop, queue = asyncio.get_running_loop(), Shared()
        assert isinstance(loop, StoppedClock)

        async def let(seconds: float) -> None:
            for _ in range(round(seconds / STEP)):
                loop.move(STEP)
                for _ in range(3):
                    await asyncio.sleep(0)

        process: Any = Process()
        serving = [asyncio.ensure_future(QueueMaintenance(queue, process).serve()) for _ in range(processes)]  # type: ignore[arg-type]
        await let(10.0)
        assert 10.0 / (SWEEP_SECONDS + 2 * STEP) <= len(queue.swept) <= 10.0 / SWEEP_SECONDS + 1
        assert queue.decided == len(queue.swept)
        assert 10.0 / (Link.seconds / 2) <= queue.cleaned <= len(queue.swept) / 2
        assert queue.asked <= len(queue.swept) + (processes - 1) * (10.0 / ASK_SECONDS + 2)
        while len(serving) > 1:  # one after the other dies, among them the one that sweeps
            before = queue.swept[-1]
            serving.pop(0).cancel()
            await let(SWEEP_SECONDS + ASK_SECONDS)
            assert queue.swept[-1] > before
        for each in serving:
            each.cancel()
        await asyncio.wait(serving)

    play(main, loop=StoppedClock)
