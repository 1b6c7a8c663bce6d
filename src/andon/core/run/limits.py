# SPDX-License-Identifier: Apache-2.0
"""What ends a run from its own side: a deadline, an event that the caller watches for, a grace that runs out.

Each of them ends in the run's own cancel. Whatever is set up here is taken down before the run's terminal event.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from andon.core.receipt import is_seconds
from andon.core.states import CancelCause, CancelMode
from andon.core.steps import Step
from andon.errors import ConfigurationError, say

if TYPE_CHECKING:
    from andon.core.receipt import CancelRequest
    from andon.core.run.life import Life

EVENT_POLL_SECONDS = 0.02
"""How often a `threading.Event` is looked at. It can't wake a task, so this is the one poll there is."""


class Limits:
    """The timers and the watch of one run."""

    __slots__ = ("_due", "_graces", "_timers", "_watch", "cancel_on", "deadline", "timeout")

    def __init__(self, timeout: float | None, cancel_on: asyncio.Event | threading.Event | None) -> None:
        if not is_seconds(timeout):
            raise ConfigurationError(f"timeout is {timeout!r}; it is a number of seconds, 0 or more")
        if cancel_on is not None and not isinstance(cancel_on, asyncio.Event | threading.Event):
            raise ConfigurationError(f"cancel_on is {cancel_on!r}; it takes an asyncio.Event or a threading.Event")
        self.timeout, self.cancel_on = timeout, cancel_on
        self.deadline: float | None = None
        """When the run's time is up, in the terms of `time.time()`."""
        self._due = 0.0  # the same as its loop counts: a clock that is set must not give or take time
        self._timers: list[asyncio.TimerHandle] | None = None
        self._graces: list[CancelRequest] = []
        self._watch: Step[None] | None = None

    def begin(self, run: Life) -> None:
        if self.timeout is not None:
            self.deadline, self._due = time.time() + self.timeout, run.loop.time() + self.timeout
            self._later(run, self.timeout, functools.partial(run.cancel_for, CancelCause.deadline))
        if self.cancel_on is not None:
            if self.cancel_on.is_set():
                run.cancel_for(CancelCause.user, "cancel_on was set")
            else:
                self._watch = Step(run, functools.partial(_watch, run, self.cancel_on), "cancel_on")

    def escalate(self, run: Life, request: CancelRequest) -> None:
        """When the request's grace is over, ask again, with mode `now`."""
        assert request.grace is not None
        if any(known is request for known in self._graces):
            return
        self._graces = [*self._graces, request]
        stronger = msgspec.structs.replace(request, mode=CancelMode.now, grace=None)
        self._later(run, request.grace, functools.partial(run.ask, stronger))

    def end(self) -> Step[None] | None:
        """Take all of it down. Returns what is left to wait for."""
        for timer in self._timers or ():
            timer.cancel()
        if self._watch is not None:
            self._watch.cut_alone()
        return self._watch

    def pause(self) -> Step[None] | None:
        """The same for a while: what is left of the time counts on when the run goes on."""
        if self.timeout is not None:
            self.timeout = max(0.0, self._due - asyncio.get_running_loop().time())
        watch = self.end()
        self._timers = self._watch = None
        return watch

    def abandon(self) -> None:
        """The loop on which all of this lived is closed."""
        self._watch = None

    def _later(self, run: Life, seconds: float, action: Callable[[], object]) -> None:
        if self._timers is None:
            self._timers = []
        self._timers.append(run.loop.call_later(seconds, action))


async def _watch(run: Life, event: asyncio.Event | threading.Event) -> None:
    if isinstance(event, asyncio.Event):
        try:
            await event.wait()
        except RuntimeError as error:  # it belongs to another loop
            run.warn(f"cancel_on can't be watched: {say(error)}; use an asyncio.Event of this loop, or threading.Event")
            return
    else:
        while not event.is_set():  # noqa: ASYNC110 - another thread's event can't wake a task
            await asyncio.sleep(EVENT_POLL_SECONDS)
    run.cancel_for(CancelCause.user, "cancel_on was set")
