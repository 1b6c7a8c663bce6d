# SPDX-License-Identifier: Apache-2.0
"""The virtual loop: time that takes no time, counted steps that are always the same, and no hanging."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import time
from collections.abc import Callable

import pytest

from andon.testing import EndlessError, StandstillError, VirtualLoop, virtual_run
from andon.testing.virtual import tasks_of


def test_an_hour_takes_no_time() -> None:
    async def main() -> list[float]:
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        times = []
        for seconds in (3600.0, 0.25, 86400.0 * 30):
            await asyncio.sleep(seconds)
            times.append(loop.time() - began)
        return times

    began = time.monotonic()
    assert virtual_run(main()) == pytest.approx([3600, 3600.25, 3600.25 + 86400 * 30])
    assert time.monotonic() - began < 60


def test_timers_come_in_the_order_of_their_times() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(2, seen.append, "second")
        loop.call_later(3, seen.append, "third").cancel()
        loop.call_later(1, seen.append, "first")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(10)
        assert loop.time() == pytest.approx(5)
        return seen

    assert virtual_run(main()) == ["first", "second"]


def test_a_standstill_is_an_error_that_says_who_waits() -> None:
    async def wait_for_nothing() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StandstillError, match=r"at 0 virtual s; waiting: .* in wait_for_nothing \(test_virtual.py:"):
        virtual_run(wait_for_nothing())


def test_no_end_is_an_error_and_the_tasks_are_cleared_away() -> None:
    ended = []

    async def go_round() -> None:
        try:
            while True:  # noqa: ASYNC110
                await asyncio.sleep(1)
        finally:
            await asyncio.sleep(1)
            ended.append(True)

    with pytest.raises(EndlessError, match=r"no end after \d+ steps and \d+ virtual s; waiting: .* in sleep"):
        virtual_run(go_round(), max_steps=500)
    assert ended == [True]


def test_threads_are_real_and_are_waited_for() -> None:
    release = threading.Event()

    async def main() -> str:
        asyncio.get_running_loop().call_soon(release.set)
        return await asyncio.to_thread(lambda: "from a thread" if release.wait(20) else "")

    assert virtual_run(main()) == "from a thread"


def test_a_timer_waits_a_moment_for_a_thread_and_no_longer() -> None:
    release = threading.Event()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.to_thread(release.wait, 20)
        release.set()

    began = time.monotonic()
    virtual_run(main())
    assert time.monotonic() - began < 15


def test_a_quick_thread_is_faster_than_any_timer() -> None:
    async def main() -> str:
        async with asyncio.timeout(0.001):
            return await asyncio.to_thread(lambda: "in time")

    assert virtual_run(main()) == "in time"


def test_a_thread_that_is_older_than_the_loop_can_call() -> None:
    waiting, futures = threading.Event(), list[asyncio.Future[str]]()

    def call() -> None:
        waiting.wait(20)
        future = futures[0]
        time.sleep(0.01)  # until the loop has come to rest; too short a sleep makes the test easier, not wrong
        future.get_loop().call_soon_threadsafe(future.set_result, "called")

    async def main() -> str:
        futures.append(asyncio.get_running_loop().create_future())
        waiting.set()
        return await futures[0]

    thread = threading.Thread(target=call)
    thread.start()
    assert virtual_run(main()) == "called"
    thread.join()


def test_another_thread_can_call() -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(future.set_result, "called"))
        thread.start()
        answer = await future
        thread.join()
        return answer

    assert virtual_run(main()) == "called"


def trace(scenario: Callable[[VirtualLoop], object]) -> list[str]:
    loop = VirtualLoop()
    seen: list[str] = []
    loop.observer = lambda callback: seen.append(str(getattr(callback, "__qualname__", type(callback).__name__)))
    try:
        scenario(loop)
    finally:
        loop.close()
    return seen


async def _wait(number: int, order: list[int]) -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        order.append(number)


async def _cancel_many(order: list[int]) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(_wait(number, order))
        await asyncio.sleep(1)
        raise ValueError


def test_sets_of_tasks_are_in_the_same_order_every_time() -> None:
    """A task group cancels its tasks in the order of a set, which is one of addresses otherwise."""

    def perform(loop: VirtualLoop) -> None:
        with pytest.raises(ExceptionGroup):
            loop.run_until_complete(_cancel_many(orders[-1]))

    orders: list[list[int]] = []
    traces = []
    clutter: list[object] = []
    for _ in range(5):
        orders.append([])
        traces.append(trace(perform))
        clutter.extend(bytearray(random.randrange(5000)) for _ in range(100))  # so that addresses differ
    assert all(order == orders[0] for order in orders)
    assert all(each == traces[0] for each in traces)


def test_something_can_be_done_before_each_step() -> None:
    async def main() -> None:
        for _ in range(3):
            await asyncio.sleep(1)

    def count(loop: VirtualLoop) -> None:
        loop.run_until_complete(main())

    total = len(trace(count))
    for step in range(1, total + 1):
        loop, seen = VirtualLoop(), list[int]()

        def look(loop: VirtualLoop = loop, seen: list[int] = seen) -> None:
            seen.append(loop.steps)

        loop.before(step, look)
        loop.run_until_complete(main())
        loop.close()
        assert seen == [step]


def test_what_comes_too_late_is_done_at_a_standstill() -> None:
    loop = VirtualLoop()
    future = loop.create_future()
    loop.before(1000, lambda: future.set_result("done"))
    assert loop.run_until_complete(future) == "done"
    loop.close()


def test_what_was_to_be_done_can_be_forgotten() -> None:
    loop = VirtualLoop()
    loop.before(1, lambda: pytest.fail("forgotten"))
    loop.forget()
    loop.run_until_complete(asyncio.sleep(1))
    assert tasks_of(loop) == []
    loop.close()


def test_nothing_is_left_of_a_loop() -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    virtual_run(asyncio.sleep(1))
    gc.collect()
    before = files()
    for _ in range(50):
        virtual_run(asyncio.sleep(1))
    assert files() <= before
