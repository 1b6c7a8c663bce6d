# SPDX-License-Identifier: Apache-2.0
"""Waiting for things that happen on other threads and loops, without sleeping."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Callable
from typing import NoReturn

HANG = 60.0
"""No test takes this long unless something hangs."""


class Flag:
    """An event that any thread may set, and any thread or event loop may wait for."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._wakes: list[Callable[[], object]] = []

    def set(self) -> None:
        with self._lock:
            self._event.set()
            wakes, self._wakes = self._wakes, []
        for wake in wakes:
            with contextlib.suppress(RuntimeError):  # that loop is closed
                wake()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self) -> None:
        """Block this thread; to wait for too long is a failure."""
        assert self._event.wait(HANG), "a flag was never set"

    async def arrived(self) -> None:
        """Suspend this task, which may be cancelled here."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._event.is_set():
                return
            self._wakes.append(functools.partial(loop.call_soon_threadsafe, _resolve, future))
        await future


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Worker(threading.Thread):
    """A thread whose failure is the test's: `done()` joins it and raises what it raised."""

    def __init__(self, target: Callable[[], object]) -> None:
        super().__init__(daemon=True, name="test-worker")
        self._work = target
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised again by `done`
            self._error = error

    def done(self) -> None:
        self.join(HANG)
        assert not self.is_alive(), "a worker hangs"
        if self._error is not None:
            raise self._error


async def forever() -> NoReturn:
    """Wait for nothing; only a cancellation ends it."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a future that nobody knows was resolved")


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop go on until something holds that has no event of its own."""
    deadline = time.monotonic() + HANG
    while not holds():
        assert time.monotonic() < deadline, "what was waited for never came"
        await asyncio.sleep(0)


def eventually(holds: Callable[[], bool], every: float = 0.001) -> None:
    """The same for a thread. `every`: more, if to look makes other processes work."""
    deadline = time.monotonic() + HANG
    while not holds():
        assert time.monotonic() < deadline, "what was waited for never came"
        time.sleep(every)
