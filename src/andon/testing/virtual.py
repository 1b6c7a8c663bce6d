# SPDX-License-Identifier: Apache-2.0
"""An event loop with a clock of its own: where others would sleep, it moves the clock on.

What must stay true: the same program takes the same steps every time, and no wait lasts for ever. A step is one
callback of the loop; the steps are counted, and something can be done exactly before the k-th of them. A program that
can't go on is an error, and so is one that does not come to an end.

Only what waits on this loop lives in virtual time. Threads are real: while one is at work that began after the loop,
the clock waits for it a moment, and no longer. Callbacks of sockets are served, but are not counted as steps.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
import os
import selectors
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

from andon.core.source_lines import Line, inwards, users_line
from andon.errors import AndonError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_STEPS = 100_000
THREAD_SECONDS = 0.05
"""How long, in real time, a timer waits for threads that are at work."""
STANDSTILL_SECONDS = 10.0
"""How long a loop that has nothing to do waits, in real time, for threads that are at work."""
QUIET_SECONDS = 0.25
"""How long it waits for threads of which it knows nothing."""


class StandstillError(AndonError):
    """Everything waits, and nothing is left that could end the waiting."""


class EndlessError(AndonError):
    """There was no end after as many steps as are allowed."""


def virtual_run(main: Coroutine[Any, Any, T], *, max_steps: int = MAX_STEPS) -> T:
    """Run a coroutine as `asyncio.run` does, in virtual time: an hour of `asyncio.sleep` takes no time at all.

    Raises `StandstillError` instead of hanging, and `EndlessError` after `max_steps`.

    >>> virtual_run(asyncio.sleep(3600, "done"))
    'done'
    """
    with asyncio.Runner(loop_factory=functools.partial(VirtualLoop, max_steps=max_steps)) as runner:
        return runner.run(main)


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. `steps` says how many it has taken, `time()` what its clock shows: seconds, from 0 on."""

    virtual = True
    """Whoever watches loops by the real clock leaves this one alone: a callback from outside would be one step more."""

    def __init__(self, max_steps: int = MAX_STEPS) -> None:
        self._virtual = _VirtualSelector()
        self._now = 0.0
        self._due: dict[int, list[Callable[[], object]]] = {}
        self._hashes = itertools.count(1)
        # What is done before a step must not run in the context of whoever takes that step.
        self._context = contextvars.Context()
        self._threads = set(threading.enumerate())
        self.steps = 0
        self.next: asyncio.Task[Any] | None = None
        """While something is done before a step: the task that takes it, if it is one."""
        self.max_steps = self._limit = max_steps
        self.expects: Callable[[], bool] = lambda: False
        """Asked at a standstill: is something about to come from another thread?"""
        self.observer: Callable[[Callable[..., object]], object] | None = None
        """Is called before every step, with the callback that is about to be called."""
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
        """Have `action` called exactly before this step; or, if the loop comes to a standstill earlier, there."""
        self._due.setdefault(step, []).append(action)

    def forget(self) -> None:
        """Drop what was to be done before later steps."""
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
        """Between two rounds: a callback could not stop the loop by an error, the selector can."""
        if self.steps > self._limit:
            self._limit += self.max_steps  # whoever cleans up needs some, too
            raise EndlessError(f"no end after {self.steps} steps and {self._now:g} virtual s; {describe_tasks(self)}")

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def has_threads(self) -> bool:
        """Are there threads at work that were not there when the loop was made?"""
        return not self._threads.issuperset(threading.enumerate())

    def act_at_standstill(self) -> bool:
        """Nothing is left to do: whatever was to come before a later step comes now."""
        if not self._due:
            return False
        self._act(min(self._due))
        return True


class _VirtualSelector(selectors.DefaultSelector):
    """Looks at the real files, but moves the clock on where a real selector would wait."""

    loop: VirtualLoop | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self.loop
        events = super().select(0)
        if loop is None:
            return events
        loop.check()
        if events or (timeout is not None and timeout <= 0):
            return events
        if timeout is None:
            return self._stand_still(loop)
        if (loop.has_threads() or loop.expects()) and (events := super().select(min(timeout, THREAD_SECONDS))):
            return events
        loop.advance(timeout)
        return events

    def _stand_still(self, loop: VirtualLoop) -> list[tuple[selectors.SelectorKey, int]]:
        busy = loop.has_threads() or loop.expects()
        if busy and (events := super().select(STANDSTILL_SECONDS)):
            return events
        if loop.act_at_standstill():
            return []
        # Threads that are older than the loop may call it too, and even one that Python does not list.
        patience = QUIET_SECONDS if threading.active_count() > 1 else THREAD_SECONDS
        if not busy and (events := super().select(patience)):
            return events
        raise StandstillError(f"nothing is left to do at {loop.time():g} virtual s; {describe_tasks(loop)}")


# -- tasks ------------------------------------------------------------------------------------------------------------


class _Task(asyncio.Task[Any]):
    """A task with a number for its hash: a set of tasks would otherwise be in a different order every time."""

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
    """Who waits, and where, newest first: the others often wait for that one."""
    waiting = [f"{name_of(task)} in {where(task)}" for task in reversed(tasks_of(loop))]
    return f"waiting: {', '.join(waiting)}" if waiting else "no task is waiting"


def name_of(task: asyncio.Task[Any]) -> str:
    """What a task is called, in words that are the same every time."""
    name = task.get_name()
    if name.startswith("andon run"):
        return "andon run"
    if name.startswith("Task-") or name == "None":  # which Python 3.13 makes of no name, where there is a factory
        return str(getattr(task.get_coro(), "__qualname__", name))
    return name


def where(task: asyncio.Task[Any]) -> str:
    """The innermost line of Python in which a task waits, and the line of the user's own that has led there."""
    frames = list(inwards(task.get_coro()))
    if not frames:
        return "no frame"
    code = frames[-1].f_code
    innermost, own = Line(code.co_filename, frames[-1].f_lineno, code.co_name), users_line(reversed(frames))
    return _briefly(innermost) if own in (None, innermost) else f"{_briefly(innermost)} called by {_briefly(own)}"


def _briefly(line: Line) -> str:
    return f"{line.function} ({os.path.basename(line.file)}:{line.number})"
