# SPDX-License-Identifier: Apache-2.0
"""An event loop with a virtual clock: where another loop would sleep, it advances the clock.

What must stay true: the same program takes the same steps every time, and no wait lasts for ever. A step is one
callback of the loop. Steps are counted, and an action can be done exactly before the k-th step. A program that can't
continue raises an error, and so does a program that does not end.

Only waits on this loop are in virtual time. Threads are real: while a thread works that started after the loop, the
clock waits for it for a short time. It moves only when the fakes of providers are at rest (`neighbours`). Callbacks of
sockets are called, but are not counted as steps.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
import os
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

from andon.core.source_lines import Line, inwards, users_line
from andon.errors import AndonError
from andon.testing import neighbours

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_STEPS = 100_000
THREAD_SECONDS = 0.05
"""How much real time a timer waits for working threads."""
STANDSTILL_SECONDS = 10.0
"""How much real time an idle loop waits for working threads, and any loop for a server of this process."""
QUIET_SECONDS = 0.25
"""How much real time it waits for threads that are older than the loop."""


class StandstillError(AndonError):
    """All tasks wait, and there is no timer that could end the waiting."""


class EndlessError(AndonError):
    """The program did not end within the allowed number of steps."""


def virtual_run(main: Coroutine[Any, Any, T], *, max_steps: int = MAX_STEPS) -> T:
    """Run a coroutine as `asyncio.run` does, in virtual time: an hour of `asyncio.sleep` takes no time at all.

    Raises `StandstillError` instead of hanging, and `EndlessError` after `max_steps`.

    >>> virtual_run(asyncio.sleep(3600, "done"))
    'done'
    """
    with asyncio.Runner(loop_factory=functools.partial(VirtualLoop, max_steps=max_steps)) as runner:
        return runner.run(main)


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. `steps` is the number of steps so far, `time()` the virtual time in seconds, from 0 on."""

    virtual = True
    """Watchdogs that use the real clock skip this loop: their callback would be one more step."""

    def __init__(self, max_steps: int = MAX_STEPS) -> None:
        self._virtual = _VirtualSelector()
        self._now = 0.0
        self._due: dict[int, list[Callable[[], object]]] = {}
        self._hashes = itertools.count(1)
        # An action before a step must not run in the context of that step.
        self._context = contextvars.Context()
        self._threads = set(threading.enumerate())
        self.steps = 0
        self.next: asyncio.Task[Any] | None = None
        """During an action before a step: the task that takes the step, if it is a task."""
        self.max_steps = self._limit = max_steps
        self.expects: Callable[[], bool] = lambda: False
        """Called at a standstill: will another thread call the loop soon?"""
        self.observer: Callable[[Callable[..., object]], object] | None = None
        """Called before every step, with the callback of the step."""
        super().__init__(self._virtual)
        self._virtual.loop = self
        self.set_task_factory(_make_task)  # type: ignore[arg-type]  # the stubs know the signature of later versions

    def time(self) -> float:
        return self._now

    def close(self) -> None:
        super().close()
        self._virtual.loop = None
        self._due.clear()
        self.observer = None

    def before(self, step: int, action: Callable[[], object]) -> None:
        """Call `action` exactly before this step, or at a standstill that comes earlier."""
        self._due.setdefault(step, []).append(action)

    def forget(self) -> None:
        """Drop the actions for later steps."""
        self._due.clear()

    # -- counting -----------------------------------------------------------------------------------------------------

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        return super().call_soon(self._step, callback, *args, context=context)

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(self._step, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return super().call_at(when, self._step, callback, *args, context=context)

    def _step(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        self.steps += 1
        if self.observer is not None:
            self._context.run(self.observer, callback)
        if self.steps in self._due:
            self._act(self.steps, callback)
        callback(*args)

    def _act(self, step: int, callback: Callable[..., object] | None = None) -> None:
        owner = getattr(callback, "__self__", None)
        self.next = owner if isinstance(owner, asyncio.Task) else None
        for action in self._due.pop(step):
            self._context.run(action)

    # -- what the selector asks ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Called between two rounds. An error of a callback would not stop the loop; an error of the selector does."""
        if self.steps > self._limit:
            self._limit += self.max_steps  # cleaning up needs some steps too
            raise EndlessError(f"no end after {self.steps} steps and {self._now:g} virtual s; {describe_tasks(self)}")

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def has_threads(self) -> bool:
        """Are there threads that did not exist when the loop was made?"""
        return not self._threads.issuperset(threading.enumerate())

    def act_at_standstill(self) -> bool:
        """Do the next action that was meant for a later step. False if there is none."""
        if not self._due:
            return False
        self._act(min(self._due))
        return True


class _VirtualSelector(selectors.DefaultSelector):
    """Looks at the real files, but advances the clock where a real selector would wait."""

    loop: VirtualLoop | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self.loop
        events = super().select(0)
        if loop is None:
            return events
        loop.check()
        if events or (timeout is not None and timeout <= 0):
            return events
        if events := self._select_neighbours(timeout):
            return events
        if timeout is None:
            return self._stand_still(loop)
        if (loop.has_threads() or loop.expects()) and (events := super().select(min(timeout, THREAD_SECONDS))):
            return events
        loop.advance(timeout)
        return events

    def _select_neighbours(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """What the servers of this process send before the clock moves. Their pauses take real time."""
        patience = STANDSTILL_SECONDS if timeout is None else min(timeout, STANDSTILL_SECONDS)
        until = time.monotonic() + patience
        while True:
            pause = neighbours.look_at_all(STANDSTILL_SECONDS)
            left = until - time.monotonic()
            events = super().select(0 if pause is None else max(0.0, min(pause, left)))
            if events or pause is None or pause >= left:
                return events

    def _stand_still(self, loop: VirtualLoop) -> list[tuple[selectors.SelectorKey, int]]:
        busy = loop.has_threads() or loop.expects()
        if busy and (events := super().select(STANDSTILL_SECONDS)):
            return events
        if loop.act_at_standstill():
            return []
        # Threads that are older than the loop may call it too, and even a thread that Python does not list.
        patience = QUIET_SECONDS if threading.active_count() > 1 else THREAD_SECONDS
        if not busy and (events := super().select(patience)):
            return events
        raise StandstillError(f"nothing is left to do at {loop.time():g} virtual s; {describe_tasks(loop)}")


# -- tasks ------------------------------------------------------------------------------------------------------------


class _Task(asyncio.Task[Any]):
    """A task whose hash is a number. Otherwise a set of tasks would have a different order every time."""

    __slots__ = ("_number",)

    def __init__(self, *args: Any, loop: VirtualLoop, **options: Any) -> None:
        self._number = next(loop._hashes)
        super().__init__(*args, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


def _make_task(loop: VirtualLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
    return _Task(coroutine, loop=loop, **options)


def tasks_of(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    """The tasks of a loop that have not ended, oldest first."""
    return sorted(asyncio.all_tasks(loop), key=hash)


def describe_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """The tasks that wait, and where, newest first: the others often wait for the newest."""
    waiting = [f"{name_of(task)} in {where(task)}" for task in reversed(tasks_of(loop))]
    return f"waiting: {', '.join(waiting)}" if waiting else "no task is waiting"


def name_of(task: asyncio.Task[Any]) -> str:
    """The name of a task, the same every time."""
    name = task.get_name()
    if name.startswith("andon run"):
        return "andon run"
    if name.startswith("Task-") or name == "None":  # Python 3.13 makes "None" of no name if there is a task factory
        return str(getattr(task.get_coro(), "__qualname__", name))
    return name


def where(task: asyncio.Task[Any]) -> str:
    """The innermost line of Python in which a task waits, and the line of the user's code that led there."""
    frames = list(inwards(task.get_coro()))
    if not frames:
        return "no frame"
    code = frames[-1].f_code
    innermost, own = Line(code.co_filename, frames[-1].f_lineno, code.co_name), users_line(reversed(frames))
    return _briefly(innermost) if own in (None, innermost) else f"{_briefly(innermost)} called by {_briefly(own)}"


def _briefly(line: Line) -> str:
    return f"{line.function} ({os.path.basename(line.file)}:{line.number})"
