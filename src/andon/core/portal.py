# SPDX-License-Identifier: Apache-2.0
"""The portal: one daemon thread with an event loop, for what has no loop of its own.

Blocking calls run there, and so does the settling of runs whose own loop is gone: the portal is their caretaker. It is
started when it is first needed, closed at exit, and made anew after a fork.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextvars
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger("andon")

CLOSE_SECONDS = 5.0


class Portal:
    """Runs coroutines on a thread of its own, for any other thread."""

    def __init__(self, name: str = "andon-portal") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Run a coroutine in a copy of the caller's context."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        context = contextvars.copy_context()
        with self._lock:  # or a `close` in between would leave it undone, and its caller waiting
            self._started().call_soon_threadsafe(context.run, self._begin, make, future)
        return future

    def _begin(self, make: Callable[[], Coroutine[Any, Any, T]], future: concurrent.futures.Future[T]) -> None:
        task = asyncio.get_running_loop().create_task(make())
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._deliver(task, future))

    def _deliver(self, task: asyncio.Task[T], future: concurrent.futures.Future[T]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            future.cancel()
        elif (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            self._tasks: set[asyncio.Task[Any]] = set()  # a loop holds its tasks weakly
            self._thread = threading.Thread(target=self._serve, args=(loop,), name=self._name, daemon=True)
            self._thread.start()
            self._loop = loop  # last: whatever interrupts the lines above leaves no loop that nobody serves
        return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            _cancel_all(loop)
            loop.close()

    def close(self) -> None:
        """End what runs there (each run is settled, bounded) and the thread with it. A later call starts a new one."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(CLOSE_SECONDS)

    def forget(self) -> None:
        """In a forked child the thread is gone and its lock may be held for ever: start over."""
        self.__init__(self._name)  # type: ignore[misc]


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """What `asyncio.run` does at its end: runs see it as their host's cancellation, and settle."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())


portal = Portal()
atexit.register(portal.close)
os.register_at_fork(after_in_child=portal.forget)
