# SPDX-License-Identifier: Apache-2.0
"""Threads that do blocking work for any event loop. What has begun is done to its end, whoever has stopped waiting.

Nothing here belongs to a loop: runs live on many, and some of those are closed while their runs are being stored. The
threads are daemons, so that a database that doesn't answer can't keep the interpreter from exiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from andon.errors import StoreError, describe

T = TypeVar("T")
Answer = Callable[[T], None]
Work = Callable[[Answer[T]], None]
"""Answers as soon as it can; for what it does after that, nobody waits."""
Job = tuple["Future[Any]", Work[Any]]

log = logging.getLogger("andon")

CLOSE_SECONDS = 5.0


class Lane:
    """Up to so many threads, started when they are needed. With one of them, work is done in the order it came in."""

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size = name, size
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._closed = False

    async def run(self, work: Work[T]) -> T:
        """Have it done. A cancel takes it back if it has not begun, and else only stops the waiting."""
        job = self.submit(work)
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def wake(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # that loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_resolve, done)

        job.add_done_callback(wake)
        try:
            await done
        except asyncio.CancelledError:
            job.cancel()
            raise
        return job.result()

    def submit(self, work: Work[T]) -> Future[T]:
        job: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed; open another one")
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._size:
                thread = threading.Thread(target=_serve, args=(self._jobs, self._idle), name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._jobs.put((job, work))
        return job

    def close(self, *, wait: bool = True) -> None:
        """End the threads once what was asked for is done."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
            for _ in threads:
                self._jobs.put(None)
        for thread in threads if wait else ():
            if thread is not threading.current_thread():
                thread.join(CLOSE_SECONDS)


def _serve(jobs: SimpleQueue[Job | None], idle: threading.Semaphore) -> None:
    while (entry := jobs.get()) is not None:
        job, work = entry
        if job.set_running_or_notify_cancel():
            try:
                work(job.set_result)
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                if job.done():
                    log.debug("what came after the answer failed: %s", describe(error))
                else:
                    job.set_exception(error)
        del entry, job, work  # an idle thread holds on to nothing
        idle.release()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
