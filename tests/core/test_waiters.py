# SPDX-License-Identifier: Apache-2.0
"""Wake-ups end, reach every loop once, and lose nobody if an exception interrupts them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

from andon import Agent, RunStatus
from andon.core.waiters import Waiters, call_on
from andon.models.scripted import Say, ScriptedModel
from andon.testing import probe
from tests.support import HANG, Worker, eventually, play

LOOPS, READERS = 3, 60


class Again:
    """A lock whose thread registers again the moment that it is woken, as a reader on another loop may."""

    def __init__(self, waiters: Waiters) -> None:
        self.waiters, self.woken = waiters, 0

    def release(self) -> None:
        self.woken += 1
        assert self.woken < 100, "the wake-up never ends"
        self.waiters.wakes.append((None, self))


def test_a_wake_up_wakes_those_that_were_there_when_it_began() -> None:
    waiters = Waiters()
    again: Any = Again(waiters)
    waiters.wakes.append((None, again))
    waiters.wake()
    assert again.woken == 1
    assert waiters.wakes == [(None, again)]  # for the next one


def test_a_wake_up_that_is_interrupted_loses_no_waiter() -> None:
    class Interrupted:
        def release(self) -> None:
            raise KeyboardInterrupt

    waiters, bad = Waiters(), Interrupted()
    first, last = threading.Lock(), threading.Lock()
    for lock in (first, last):
        lock.acquire()
    waiters.wakes += [(None, first), (None, bad), (None, last)]
    with pytest.raises(KeyboardInterrupt):
        waiters.wake()
    assert last.locked()
    del waiters.wakes[1]
    waiters.wake()
    assert not last.locked()
    assert not waiters.wakes


INTERRUPTED = """
import signal, threading
from andon.core.waiters import Waiters

class Interrupted(BaseException):
    pass

def interrupt(*_):
    raise Interrupted

waiters, interrupts = Waiters(), 0
signal.signal(signal.SIGALRM, interrupt)
for n in range(500):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.00002 * (n % 30 + 1))
        waiters.wait_blocking(lambda: False, timeout=0.1)
    except Interrupted:
        interrupts += 1
waker = threading.Thread(target=waiters.wake, daemon=True)
waker.start()
waker.join(30)
print(interrupts > 400, waker.is_alive(), waiters.wakes)
"""


@pytest.mark.no_cover  # the tracer would be interrupted, too
def test_a_thread_that_is_interrupted_while_it_waits_does_not_hold_others_up() -> None:
    """A real signal interrupts the waiting, wherever it is. If that left a lock held, the next wake-up would hang."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=90, check=True)
    assert done.stdout == "True False []\n"


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often other threads call it."""

    calls = 0

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
        self.calls += 1
        return super().call_soon_threadsafe(*args, **options)


def test_many_waiters_of_another_loop_are_woken_by_one_call() -> None:
    waiters, ready = Waiters(), False
    loop = CountingLoop()

    async def wait_all() -> None:
        await asyncio.gather(*(waiters.wait(lambda: ready) for _ in range(READERS)))

    worker = Worker(lambda: loop.run_until_complete(wait_all()))
    eventually(lambda: len(waiters.wakes) == READERS)
    before, ready = loop.calls, True
    waiters.wake()
    worker.done()
    assert loop.calls - before == 1
    loop.close()


def test_a_stack_without_room_is_not_taken_for_a_closed_loop() -> None:
    class Full(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, *args: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
            raise RecursionError

    loop = Full()
    with pytest.raises(RecursionError):
        call_on(loop, print)
    loop.close()
    closed = asyncio.new_event_loop()
    closed.close()
    assert call_on(closed, print) is False


def test_readers_on_other_loops_read_everything_and_hold_nothing_up() -> None:
    """Each of them waits for each event, so every event wakes all of them, and all of them register again."""

    async def main() -> None:
        agent = Agent("A", ScriptedModel(then=Say("w " * 100, pace=0.001)))
        async with agent.start("go") as run:

            async def read() -> list[int]:
                return [event.seq async for event in run]

            async def read_all() -> list[list[int]]:
                return await asyncio.gather(*(read() for _ in range(READERS)))

            readers = [asyncio.to_thread(asyncio.run, read_all()) for _ in range(LOOPS)]
            seen = await asyncio.wait_for(asyncio.gather(*readers), HANG)
            assert run.status is RunStatus.completed
            whole = [event.seq for event in probe(run).events]
            assert all(each == whole for group in seen for each in group)

    play(main)
