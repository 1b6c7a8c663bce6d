# SPDX-License-Identifier: Apache-2.0
"""Threads that do blocking work for any event loop. A job that has begun is finished, even if its caller is cancelled.

Nothing here belongs to a loop: runs live on many loops, and a loop may be closed while its runs are being stored. The
threads are daemons, so that a database that doesn't answer can't keep the interpreter from exiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from andon.errors import StoreError, describe

T = TypeVar("T")
Answer = Callable[[T], None]
Work = Callable[[Answer[T]], None]
"""Calls the answer as soon as it can. The caller does not wait for what it does after that."""
Job = tuple["Future[Any]", Work[Any]]

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
PRIORITIES = 3


class JobQueue:
    """Jobs by priority, the lowest number first; jobs of one priority in the order they came in. None ends it."""

    def __init__(self) -> None:
        self._tickets: SimpleQueue[bool] = SimpleQueue()
        """One for each job: a thread that got a ticket finds a job."""
        self._jobs: list[SimpleQueue[Job]] = [SimpleQueue() for _ in range(PRIORITIES)]

    def put(self, job: Job, priority: int) -> None:
        self._jobs[priority].put(job)
        self._tickets.put(True)

    def end(self) -> None:
        """End one thread, once all jobs that were put before are taken."""
        self._tickets.put(False)

    def get(self) -> Job | None:
        if not self._tickets.get():
            return None
        while True:
            for jobs in self._jobs:
                with contextlib.suppress(Empty):
                    return jobs.get_nowait()

    def __len__(self) -> int:
        return self._tickets.qsize()


class Pace:
    """How long the last jobs took."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.moved = time.monotonic()
        """When a job last began, ended, or was queued in an empty queue."""

    def begin(self) -> float:
        self.moved = time.monotonic()
        return self.moved

    def end(self, began: float) -> None:
        self.moved = time.monotonic()
        self.seconds += (self.moved - began - self.seconds) / 16


class ThreadPool:
    """Up to `size` threads, started when they are needed. With one thread, work is done in the order in which it came
    in. Only work with a lower `priority` number is done earlier.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size = name, size
        self._jobs, self._pace = JobQueue(), Pace()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._closed = False

    @property
    def lag(self) -> float:
        """How many seconds a new job would wait, by the number of waiting jobs and by how long the last ones took. If
        no job has begun or ended for longer than that, it is that time.
        """
        waiting = len(self._jobs)
        return max(waiting * self._pace.seconds / self._size, time.monotonic() - self._pace.moved) if waiting else 0.0

    async def run(self, work: Work[T], priority: int = PRIORITIES - 1) -> T:
        """Have it done. A cancel withdraws it if it has not begun, and else only ends the waiting."""
        job = self.submit(work, priority)
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def wake(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # that loop was closed: its tasks are gone
                loop.call_soon_threadsafe(_resolve, done)

        job.add_done_callback(wake)
        try:
            await done
        except asyncio.CancelledError:
            job.cancel()
            raise
        return job.result()

    def submit(self, work: Work[T], priority: int = PRIORITIES - 1) -> Future[T]:
        job: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed; open another one")
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._size:
                thread = threading.Thread(
                    target=_serve, args=(self._jobs, self._idle, self._pace), name=self._name, daemon=True
                )
                self._threads.append(thread)
                thread.start()
            if not len(self._jobs):  # no job was waiting
                self._pace.begin()
            self._jobs.put((job, work), priority)
        return job

    def close(self, *, wait: bool = True) -> None:
        """End the threads once all queued jobs are done."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
            for _ in threads:
                self._jobs.end()
        for thread in threads if wait else ():
            if thread is not threading.current_thread():
                thread.join(CLOSE_SECONDS)


def _serve(jobs: JobQueue, idle: threading.Semaphore, pace: Pace) -> None:
    while (entry := jobs.get()) is not None:
        job, work = entry
        if job.set_running_or_notify_cancel():
            began = pace.begin()
            try:
                work(job.set_result)
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                if job.done():
                    log.debug("what came after the answer failed: %s", describe(error))
                else:
                    job.set_exception(error)
            pace.end(began)
        del entry, job, work  # an idle thread keeps no references
        idle.release()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
