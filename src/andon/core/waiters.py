# SPDX-License-Identifier: Apache-2.0
"""Tasks and threads that wait for a change, each woken where it waits: on its own event loop, or in its own thread.

Waiters register and *then* look again; who changes something does so and *then* wakes: no wake-up is lost, and no lock
is needed. A wake-up wakes those that were registered when it began. Those that register again meanwhile wait for the
next one: else many readers on other loops could keep it going for ever, and with it the run that writes.
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
"""The safety net under signals. Python runs their handlers in the main thread alone. A signal that comes in the moment
before that thread begins to wait for a lock, or that the system gives to another thread, does not wake it. So the main
thread wakes by itself, this often, while it waits.
"""


class Latch(Protocol):
    """What is released when it is woken: a thread's lock, say."""

    def release(self) -> None: ...


Entry = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"] | tuple[None, Latch]
"""A future on its loop; or a lock that its thread waits to get. A bare lock: an interrupt (Ctrl-C) can leave the inner
lock of a `threading.Event` or a `concurrent.futures.Future` taken, and then whoever wakes it waits for ever.
"""


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[*Ts], object], *args: *Ts) -> bool:
    """Have something called on a loop, from any thread. False if that loop is closed: it never will be.

    Anything else that goes wrong is raised. A RecursionError, which is a RuntimeError as well, is no closed loop.
    """
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True


class Waiters:
    """Wakes all who wait, each where it waits: a task on its own loop, or a blocked thread."""

    __slots__ = ("wakes",)

    def __init__(self) -> None:
        # A list, not a deque: an idle run must stay small. Its append, copy and remove are atomic.
        self.wakes: list[Entry] = []

    def wake(self) -> None:
        """Wake all that registered before this call. Safe from any thread."""
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
                call_on(loop, _resolve_all, futures)  # or it was closed, and its readers with it
        # Last: if an exception interrupts the lines above, the next wake-up finds whoever was not woken. The oldest
        # stand first, so that each is found at once.
        for entry in entries:
            self.forget(entry)

    async def wait(self, ready: Callable[[], bool]) -> None:
        """Return when `ready` holds. A cancelled wait leaves nothing behind."""
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
            except BaseException:  # it was cancelled, or closed
                self.forget(entry)
                raise

    def wait_blocking(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """The same for a thread; False if `timeout` passed first. An interrupt (Ctrl-C) gets through."""
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
        """It need not be woken any more."""
        try:
            self.wakes.remove(entry)
        except ValueError:  # woken at the same moment
            pass


def _acquire(lock: threading.Lock, deadline: float) -> bool:
    """False if the time was up first."""
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
