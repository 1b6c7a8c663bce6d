# SPDX-License-Identifier: Apache-2.0
"""The portal: one daemon thread with an event loop, for work that has no loop of its own.

Blocking calls run there. Runs whose own loop is gone are settled there. The portal starts when it is first needed,
is closed at exit, and starts over after a fork. Nothing that runs on its loop can end it: a KeyboardInterrupt, a
SystemExit or a `loop.stop()` from a tool is logged, and the loop goes on. If the loop itself breaks, the callbacks
in `on_death` are called, and the next call gets a new loop.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from andon.core.waiters import Waiters, call_on
from andon.errors import PortalError, describe, show

T = TypeVar("T")
Make = Callable[[], Coroutine[Any, Any, T]]
Future = concurrent.futures.Future
log = logging.getLogger(__name__)

CANCEL_SECONDS = 0.4
"""How long tasks may take to end when the portal is closed. Tools that run longer are given up, and named."""
CLOSE_SECONDS = 0.4
"""How long `close` waits for a loop that may be blocked. An exit must not take longer than a second."""
TURN_SECONDS = 0.3
STORE_SECONDS = 5.0
"""How much longer `close` waits if the loop has a turn within TURN_SECONDS. Then the loop is not blocked, and is only
waiting for a slow store to keep the ends of runs.
"""

EXIT_ROUNDS = 3
"""How often the portal is closed at exit, at most: runs that it ends may submit more work."""


class Portal:
    """Runs coroutines on a thread of its own, for any other thread."""

    def __init__(self, name: str = "andon-portal") -> None:
        self._name = name
        self.on_death: list[Callable[[], object]] = []
        """Called after the loop broke, in the thread of that loop. All tasks of the loop are lost."""
        self.on_hurry: list[Callable[[], list[asyncio.Task[None]]]] = []
        """Called on the loop, CANCEL_SECONDS after its tasks were cancelled because the portal is closed. Gives up
        steps that do not end, and returns the tasks for which the portal still waits.
        """
        self._start_over()

    def forget(self) -> None:
        """Start over in a forked child: the thread is gone there, and the lock may be held for ever."""
        leave_pending(task for task in self._open.values() if task is not None)
        self._start_over()

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tells: dict[Future[Any], Callable[[], object]] = {}
        self._open: dict[Future[Any], asyncio.Task[Any] | None] = {}
        """The work that was submitted and has not ended, with its task if it has begun. Loops hold tasks weakly."""
        self.exited = False
        """The process is exiting, and `exit` was called: work that is submitted from now on may not be done."""
        self._soon: dict[object, Make[Any]] = {}
        """The work that was submitted without the lock, and has not begun."""

    def submit(self, make: Make[T], tell: Callable[[], object] | None = None) -> Future[T]:
        """Run a coroutine in a copy of the caller's context. When it has ended, `tell` is called, in any thread."""
        future: Future[T] = Future()
        context = contextvars.copy_context()
        if tell is not None:
            self._tells[future] = tell
        with self._lock:  # without it, a `close` in between would leave the work undone, and its caller waiting
            loop = self._started()
            self._open[future] = None
            loop.call_soon_threadsafe(context.run, self._begin, make, future)
        return future

    def wait(self, make: Make[T]) -> T:
        """Run a coroutine, and block this thread until it has ended. An interrupt (Ctrl-C) gets through.

        `future.result()` is not used: an interrupt in it may leave a lock held for which the portal would then wait.
        """
        waiters, over = Waiters(), list[bool]()

        def tell() -> None:
            over.append(True)
            waiters.wake()

        future = self.submit(make, tell)
        waiters.wait_blocking(lambda: bool(over))
        return future.result()

    def submit_soon(self, key: object, make: Make[Any]) -> None:
        """The same without a lock, so it is safe in a signal handler too. The coroutine runs in a context of its own.

        It begins before the process exits. A caller that was interrupted in this method may call it again with the same
        key. Then the coroutine may begin twice, and must do its work only once.
        """
        self._soon[key] = make
        loop = self._loop
        if loop is None or not call_on(loop, self._begin_soon):
            with _no_threads_at_exit():
                # A raw thread, because this may be a signal handler that interrupted the holder of the lock.
                _thread.start_new_thread(self._start_soon, ())

    def _start_soon(self) -> None:
        with self._lock, _no_threads_at_exit():
            self._started().call_soon_threadsafe(self._begin_soon)

    def _begin_soon(self) -> None:
        while self._soon:
            _, make = self._soon.popitem()
            self._begin(make, Future(), contextvars.Context())

    def _begin(self, make: Make[T], future: Future[T], context: contextvars.Context | None = None) -> None:
        try:
            task = self._open[future] = asyncio.get_running_loop().create_task(make(), context=context)
        except BaseException as error:  # noqa: BLE001 - the future delivers it
            # `make` raised it. Or the loop starts tasks at once (asyncio.eager_task_factory), and the work raised it.
            self._open.pop(future, None)
            future.set_exception(error)
            self._over(future)
            return
        task.add_done_callback(lambda task: self._deliver(task, future))

    def _deliver(self, task: asyncio.Task[T], future: Future[T]) -> None:
        self._open.pop(future, None)
        if task.cancelled():
            future.cancel()
        elif (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())
        self._over(future)

    def _over(self, future: Future[Any]) -> None:
        if (tell := self._tells.pop(future, None)) is not None:
            tell()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._serve, args=(loop,), name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                loop.close()
                raise
            # Last: if an exception interrupts the lines above, `_loop` is never a loop without a thread.
            self._loop, self._thread = loop, thread
        return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while not self._served(loop):
                pass
            loop.run_until_complete(self._end_all())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
        except BaseException as error:  # noqa: BLE001 - the thread's last boundary
            self._die(loop, error)

    def _serve_here(self) -> None:
        """Do the rest of the work in this thread: no other thread can be started any more."""
        loop = asyncio.new_event_loop()
        loop.call_soon(self._begin_soon)
        loop.call_soon(loop.call_soon, loop.stop)
        self._serve(loop)

    def _served(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Serve until the loop stops. True if `close` stopped it."""
        why = "loop.stop()"
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit) as error:  # raised by a task: no Ctrl-C reaches this thread
            why = show(error)
        with self._lock:
            closed = self._loop is not loop
        if not closed:
            log.error("%s: a task on its event loop raised or called %s; the loop goes on", self._name, why)
        return closed

    async def _end_all(self) -> None:
        """What `asyncio.run` does at its end, but bounded. Runs see it as a cancellation by their host, and settle."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, left = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        if left:
            worth = [task for hurry in self.on_hurry for task in hurry()]
            worth += [task for task in self._open.values() if task in left]
            if worth:
                await asyncio.wait(worth)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()  # mark it as retrieved: no other code reads it
        leave_pending(tasks)  # the tasks of tools that swallow their cancel; they were named when they were given up

    def _die(self, loop: asyncio.AbstractEventLoop, error: BaseException) -> None:
        """The loop broke. All calls that wait for it fail, and the next call gets a new loop."""
        with self._lock:
            waiting = self._loop is loop  # if not, calls that have not begun wait for another loop
            if waiting:
                self._loop = self._thread = None
            lost = [
                future for future, task in self._open.items() if (waiting if task is None else task.get_loop() is loop)
            ]
        log.critical("%s: its event loop broke: %s", self._name, describe(error), exc_info=error)
        leave_pending(asyncio.all_tasks(loop))
        try:
            loop.close()
        except Exception:  # noqa: BLE001 - the loop is broken
            if isinstance(loop, asyncio.BaseEventLoop):
                asyncio.BaseEventLoop.close(loop)  # it must at least be marked as closed
        failure = PortalError(f"the event loop of {self._name} broke ({describe(error)}): try again")
        for future in lost:
            self._open.pop(future, None)
            if not future.done():
                future.set_exception(failure)
            self._over(future)
        for tell in self.on_death:
            tell()

    def has_turns(self, seconds: float) -> bool:
        """True if its loop has a turn within `seconds`. False if a callback or a task blocks it."""
        return self._loop is not None and _has_turns(self._loop, seconds)

    def exit(self) -> None:
        """Close it at the end of the process, and end the work that was submitted during that too."""
        for _ in range(EXIT_ROUNDS):
            self.close()
            if self._loop is None and not self._soon:
                break
        self.exited = True

    def close(self) -> None:
        """End all tasks (each run is settled, in bounded time), and the thread. A later call starts a new thread."""
        with self._lock:
            if self._soon:
                with _no_threads_at_exit():
                    self._started().call_soon_threadsafe(self._begin_soon)
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            if self._soon:
                self._serve_here()
            return
        # One turn later, so that all submitted work has begun: a task that is cancelled before it begins does nothing.
        call_on(loop, loop.call_soon, loop.stop)
        thread.join(CLOSE_SECONDS)
        if thread.is_alive() and _has_turns(loop, TURN_SECONDS):
            thread.join(STORE_SECONDS)


@contextlib.contextmanager
def _no_threads_at_exit() -> Iterator[None]:
    """While the interpreter exits, some versions of Python start no thread. Then `exit` does the rest of the work."""
    try:
        yield
    except RecursionError:
        raise
    except RuntimeError:
        if threading.main_thread().is_alive():
            raise


def leave_pending(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Keep asyncio from logging that these tasks were destroyed while pending: that is intended."""
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def _has_turns(loop: asyncio.AbstractEventLoop, seconds: float) -> bool:
    turn = threading.Event()
    return call_on(loop, turn.set) and turn.wait(seconds)


portal = Portal()
atexit.register(portal.exit)
os.register_at_fork(after_in_child=portal.forget)
