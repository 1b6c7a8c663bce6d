# SPDX-License-Identifier: Apache-2.0
"""Tasks and threads that wait for a change, each woken where it waits: on its own event loop, or in its own thread.

A waiter registers and *then* looks again. A writer makes its change and *then* wakes. So no wake-up is lost, and no
lock is needed. A wake-up wakes the waiters that were registered when it began. Waiters that register again during it
wait for the next one: otherwise many readers on other loops could make it endless, and so block the run that writes.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVarTuple

Ts = TypeVarTuple("Ts")

SIGNAL_SECONDS = 0.25
"""The safety net for signals: how often the main thread wakes by itself while it waits. Python runs signal handlers in
the main thread only. A signal does not wake that thread if it comes in the moment before the thread begins to wait for
a lock, or if the system gives it to another thread.
"""


class Latch(Protocol):
    """Something that is released to wake its owner, for example a lock for which a thread waits."""

    def release(self) -> None: ...


class CallingLatch:
    """Calls a function when it is released, in the thread that releases it. The function must not block."""

    __slots__ = ("release",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.release = callback


Entry = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"] | tuple[None, Latch]
"""A future and its loop; or a lock that a thread waits to acquire. It is a bare lock, because an interrupt (Ctrl-C) can
leave the inner lock of a `threading.Event` or a `concurrent.futures.Future` taken. Then the waking thread would wait
for ever.
"""


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[*Ts], object], *args: *Ts) -> bool:
    """Call `callback` on a loop, from any thread. False if that loop is closed: then it is never called.

    All other errors are raised. A RecursionError is a RuntimeError too, but does not mean a closed loop.
    """
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True


class Waiters:
    """Wakes all waiters, each where it waits: a task on its own loop, or a blocked thread."""

    __slots__ = ("wakes",)

    def __init__(self) -> None:
        # A list, not a deque, because an idle run must stay small. Its append, copy and remove are atomic.
        self.wakes: list[Entry] = []

    def wake(self) -> None:
        """Wake all waiters that registered before this call. Safe from any thread."""
        here = asyncio._get_running_loop()
        entries = self.wakes.copy()
        elsewhere: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] | None = None
        for entry in entries:
            if entry[0] is None:
                _release(entry[1])
            elif entry[0] is here:
                _resolve(entry[1])
            else:
                if elsewhere is None:
                    elsewhere = {}
                elsewhere.setdefault(entry[0], []).append(entry[1])
        if elsewhere is not None:
            for loop, futures in elsewhere.items():
                call_on(loop, _resolve_all, futures)  # if that loop is closed, its readers are gone too
        # Last: if an exception interrupts the lines above, the next wake-up finds the waiters that were not woken. The
        # oldest entries are at the front of the list, so `remove` finds each at once.
        for entry in entries:
            self.forget(entry)

    async def wait(self, ready: Callable[[], bool]) -> None:
        """Return when `ready()` is true. A cancelled wait leaves no entry behind."""
        loop = asyncio.get_running_loop()
        while not ready():
            future = loop.create_future()
            entry = (loop, future)
            self.wakes.append(entry)
            if ready():
                self.forget(entry)
                return
            try:
                await future
            except BaseException:  # the wait was cancelled or closed
                self.forget(entry)
                raise

    def wait_blocking(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """The same for a thread. False if `timeout` passed first. An interrupt (Ctrl-C) gets through."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not ready():
            lock = threading.Lock()
            lock.acquire()
            entry = (None, lock)
            self.wakes.append(entry)
            try:
                if ready():
                    return True
                if not _acquire(lock, deadline):
                    return ready()
            finally:
                self.forget(entry)
        return True

    def forget(self, entry: Entry) -> None:
        """Remove an entry, so that it is not woken."""
        try:
            self.wakes.remove(entry)
        except ValueError:  # woken at the same moment
            pass


def _acquire(lock: threading.Lock, deadline: float) -> bool:
    """False if the deadline passed first."""
    longest = SIGNAL_SECONDS if threading.current_thread() is threading.main_thread() else math.inf
    while True:
        seconds = min(longest, max(0.0, deadline - time.monotonic()))
        if lock.acquire(timeout=-1 if seconds == math.inf else seconds):
            return True
        if time.monotonic() >= deadline:
            return False


def _release(lock: Latch) -> None:
    try:
        lock.release()
    except RuntimeError:  # woken at the same moment
        pass


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _resolve_all(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        _resolve(future)
