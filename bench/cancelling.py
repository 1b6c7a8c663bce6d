# SPDX-License-Identifier: Apache-2.0
"""How one cancel is timed, ours and the bare one beside it.

What must stay true: the canceller is told by an event that what it shall cancel really waits; and ours and the bare
one wait in the same rhythm and are called by the same thread in the same way, so that the difference is Andon's alone.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from types import TracebackType

from andon import Event, Run, RunEvent

ASLEEP_SECONDS = 0.0003
"""What the canceller waits after it was told: by then the loop sleeps in its selector, as it does for a real model."""


class Canceller:
    """A thread that blocks until there is something to cancel, and notes when it calls."""

    def __init__(self) -> None:
        self.called_at = 0
        self._orders: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="canceller", daemon=True)

    def __enter__(self) -> Canceller:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._orders.put(None)
        self._thread.join()

    def call(self, cancel: Callable[[], object]) -> None:
        self._orders.put(cancel)

    def _serve(self) -> None:
        while (cancel := self._orders.get()) is not None:
            time.sleep(ASLEEP_SECONDS)
            self.called_at = time.perf_counter_ns()
            cancel()


class Cue:
    """How the code in which a run waits says that it does."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._future: asyncio.Future[None]
        self._missing = 0

    def expect(self, parties: int = 1) -> asyncio.Future[None]:
        """Done when so many wait."""
        self._loop, self._missing = asyncio.get_running_loop(), parties
        self._future = self._loop.create_future()
        return self._future

    def give(self) -> None:
        """Call this, on the loop, just before waiting: two passes of the loop later it is true."""
        self._loop.call_soon(self._loop.call_soon, self._count)

    def give_from_thread(self) -> None:
        self._loop.call_soon_threadsafe(self.give)

    def _count(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            self._future.set_result(None)


async def time_bare(canceller: Canceller, pace: float = 0.0, pauses: int = 0) -> float:
    """Microseconds from `call_soon_threadsafe(task.cancel)` in another thread to the task's own `except`.

    With a `pace`, the task has slept and woken so many times before: a processor that was idle is slower to start.
    """
    loop, cue = asyncio.get_running_loop(), Cue()

    async def wait() -> int:
        for _ in range(pauses):
            await asyncio.sleep(pace)
        cue.give()
        try:
            while True:
                await (asyncio.sleep(pace) if pauses else loop.create_future())
        except asyncio.CancelledError:
            return time.perf_counter_ns()

    waiting = cue.expect()
    task = asyncio.create_task(wait())
    await waiting
    canceller.call(partial(loop.call_soon_threadsafe, task.cancel))
    return (await task - canceller.called_at) / 1000


async def time_run(canceller: Canceller, run: Run, waiting: asyncio.Future[None]) -> tuple[float, Event]:
    """Microseconds from `run.cancel()` in another thread to the terminal event at its reader, and that event."""
    reader = asyncio.create_task(_read(run))
    await waiting
    canceller.call(run.cancel)
    at, event = await reader
    return (at - canceller.called_at) / 1000, event


async def _read(run: Run) -> tuple[int, Event]:
    async for event in run:
        if event.event is RunEvent.run_cancelled:
            return time.perf_counter_ns(), event
    raise AssertionError("the run was not cancelled")
