# SPDX-License-Identifier: Apache-2.0
"""What ends a run from its own side: a deadline, an event that the caller watches for, a grace that runs out.

Each of them ends in the run's own cancel. All timers are taken down before the run's terminal event.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from andon.core.receipt import CancelRequest, is_seconds
from andon.core.states import CancelCause, CancelMode
from andon.core.steps import Step, StepRunner
from andon.errors import ConfigurationError, say

EVENT_POLL_SECONDS = 0.02
"""How often a `threading.Event` is looked at. It can't wake a task, so this is the one poll there is."""

RequestCancel = Callable[[CancelRequest], object]


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
        self._due = 0.0  # the same by the loop's clock, which can't be set
        self._timers: list[asyncio.TimerHandle] | None = None
        self._graces: Sequence[CancelRequest] = ()
        self._watch: Step[None] | None = None

    def begin(self, steps: StepRunner, cancel: RequestCancel) -> None:
        """The run begins, or goes on: set the timer, and watch `cancel_on`."""
        if self.timeout is not None:
            self.deadline, self._due = time.time() + self.timeout, steps.loop.time() + self.timeout
            self._later(steps, self.timeout, functools.partial(_cancel_for, cancel, CancelCause.deadline))
        if self.cancel_on is not None:
            if self.cancel_on.is_set():
                _cancel_for(cancel, CancelCause.user, "cancel_on was set")
            else:
                self._watch = Step(steps, functools.partial(_watch, steps, cancel, self.cancel_on), "cancel_on")

    def escalate(self, steps: StepRunner, cancel: RequestCancel, request: CancelRequest) -> None:
        """When the request's grace is over, ask again, with mode `now`."""
        assert request.grace is not None
        if any(known is request for known in self._graces):
            return
        self._graces = [*self._graces, request]
        stronger = msgspec.structs.replace(request, mode=CancelMode.now, grace=None)
        self._later(steps, request.grace, functools.partial(cancel, stronger))

    def end(self) -> Step[None] | None:
        """Take all timers down. Returns the watch, if there is one, which has to be waited for."""
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
        """The loop of the timers and of the watch is closed."""
        self._watch = None

    def _later(self, steps: StepRunner, seconds: float, action: Callable[[], object]) -> None:
        if self._timers is None:
            self._timers = []
        self._timers.append(steps.loop.call_later(seconds, action))


def _cancel_for(cancel: RequestCancel, cause: CancelCause, reason: str | None = None) -> None:
    cancel(CancelRequest.make(cause, reason))


async def _watch(steps: StepRunner, cancel: RequestCancel, event: asyncio.Event | threading.Event) -> None:
    if isinstance(event, asyncio.Event):
        try:
            await event.wait()
        except RuntimeError as error:  # it belongs to another loop
            advice = "use an asyncio.Event of this loop, or threading.Event"
            steps.warn(f"cancel_on can't be watched: {say(error)}; {advice}")
            return
    else:
        while not event.is_set():  # noqa: ASYNC110 - another thread's event can't wake a task
            await asyncio.sleep(EVENT_POLL_SECONDS)
    _cancel_for(cancel, CancelCause.user, "cancel_on was set")
