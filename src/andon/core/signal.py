# SPDX-License-Identifier: Apache-2.0
"""A run's fate: one atomic slot that cancel, completion and failure race for. The first one wins.

There is no lock, because a signal handler may interrupt the call that holds it. `cancel` does only two things: a
`setdefault`, which the interpreter does in one step, and `call_soon_threadsafe`. Everything else happens later, on
the run's own loop. An exception may come between the two (a signal handler that raises, a stack with no room left).
Then the run has not been told of its cancel. The signal knows that, and the next call of `cancel` or `deliver_again`
wakes the run.
"""

from __future__ import annotations

import _thread
import asyncio
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, cast

from msgspec import Struct

from andon.core.receipt import CancelRequest
from andon.core.states import FORCE, CancelMode, CancelOutcome, StopReason
from andon.core.waiters import call_on

Deliver = Callable[[CancelRequest], None]
Batch = dict[asyncio.AbstractEventLoop, list[Deliver]]
"""Many runs to be woken by one request, with one wake-up per loop."""

MANY, AT_ONCE = 1_000, 20
"""If a batch has more than `MANY` runs on one loop, `AT_ONCE` of them are woken per turn of that loop."""


class Completed(Struct, frozen=True, gc=False):
    """The run ended by itself."""

    stop_reason: StopReason


class Failed(Struct, frozen=True):
    """The run failed with an error."""

    error: Exception


Asked = tuple[int, int]
"""The rank of the strongest mode, and how many requests with a grace came after the first."""
NOTHING: Asked = (0, 0)

_STRONGER = ("after_tools", "now")
"""The keys under which later, stronger requests are kept: the names of their modes. With `force` it is that word."""

Fate = CancelRequest | Completed | Failed


def stop_reason_of(fate: Fate | None) -> StopReason:
    if isinstance(fate, Completed):
        return fate.stop_reason
    return StopReason.error if isinstance(fate, Failed) else StopReason.cancelled


class CancelSignal:
    """Decides how a run ends, and wakes it when that is by a cancel."""

    __slots__ = ("_deliver", "_heard", "_loop", "_slot")

    def __init__(self) -> None:
        self._slot: dict[str, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deliver: Deliver | None = None
        self._heard = NOTHING
        """The requests on which the run has acted."""

    @property
    def fate(self) -> Fate | None:
        return cast("Fate | None", self._slot.get("fate"))

    @property
    def request(self) -> CancelRequest | None:
        """The cancel that won, if one did."""
        fate = self._slot.get("fate")
        return fate if isinstance(fate, CancelRequest) else None

    @property
    def mode(self) -> CancelMode | None:
        """The strongest mode that was requested so far. None without a cancel."""
        request = self.request
        if request is None:
            return None
        if len(self._slot) == 1 or request.mode is CancelMode.now:
            return request.mode
        if "force" in self._slot:
            return CancelMode.now
        asked = [request.mode, *(CancelMode(mode) for mode in _STRONGER if mode in self._slot)]
        return max(asked, key=lambda mode: mode.rank)

    @property
    def rank(self) -> int:
        """How much to stop: 0 without a cancel, else the rank of its mode, or that of `FORCE`."""
        if not self._slot:  # by far the most frequent case
            return 0
        request = self.request
        if request is not None and (request.force or "force" in self._slot):
            return FORCE.rank
        mode = self.mode
        return 0 if mode is None else mode.rank

    @property
    def finish_grace(self) -> float | None:
        """The grace of the request that brought the mode `now`: how long calls are let finish, if it says so."""
        request = self.request
        if request is None or request.mode is not CancelMode.now:
            request = self._slot.get("now")
        return None if request is None else request.grace

    def claim(self, end: Completed | Failed) -> Fate:
        """Try to end the run by completion or failure. Returns the fate that won."""
        return cast(Fate, self._slot.setdefault("fate", end))

    def overrule(self, fate: Fate) -> None:
        """Replace the fate by the one that was decided in a store that several processes share."""
        self._slot["fate"] = fate

    def cancel(self, request: CancelRequest, batch: Batch | None = None) -> CancelOutcome:
        """Request a cancel. Safe from any thread, loop or signal handler; never waits, never raises.

        With a `batch`, the run is only added to it. The caller wakes all runs of the batch together (`wake_all`).
        """
        winner = self._slot.setdefault("fate", request)
        if winner is request:
            self._notify(request, batch)
            return CancelOutcome.requested
        if not isinstance(winner, CancelRequest):
            return CancelOutcome.already_finished
        # A stronger mode escalates at once, and a grace when its time is over.
        stronger = request.rank > self.rank
        key = "force" if request.force else request.mode.value
        entered = stronger and self._slot.setdefault(key, request) is request
        if not entered and _end_of_grace(request) < min(map(_end_of_grace, self.graces), default=math.inf):
            self._slot.setdefault("graces", []).append(request)
        self.deliver_again(batch)
        return CancelOutcome.already_requested

    @property
    def asked(self) -> Asked:
        """How much was requested so far. It only grows."""
        return self.rank, len(self._slot.get("graces", ()))

    @property
    def graces(self) -> list[CancelRequest]:
        """The requests with a grace, which become stronger later. One that came later is kept if it ends earlier."""
        requests = [self.request, *map(self._slot.get, _STRONGER), *self._slot.get("graces", ())]
        return [each for each in requests if each and each.grace is not None and each.mode is not CancelMode.now]

    def heard(self, asked: Asked) -> None:
        """The run has acted on these requests."""
        self._heard = asked

    def deliver_again(self, batch: Batch | None = None) -> None:
        """Wake the run if it has not acted on all requests: an earlier call of `cancel` may have been interrupted."""
        if (request := self.request) is not None and self._heard != self.asked:
            self._notify(request, batch)

    def bind(self, loop: asyncio.AbstractEventLoop, deliver: Deliver) -> None:
        """Set the run's loop. `deliver` is called on that loop for every cancel that changes something."""
        self._deliver, self._loop = deliver, loop
        # Look for a cancel only after the loop is set: an earlier cancel found no loop to wake.
        if (request := self.request) is not None:
            loop.call_soon(deliver, request)

    def unbind(self) -> None:
        """The run is over: drop the reference to it, so that it is freed without the garbage collector."""
        self._deliver = None

    def adopt(self) -> bool:
        """True for the first caller only, which may then end the run in place of the run's own task."""
        token = object()
        return self._slot.setdefault("adopted", token) is token

    @property
    def adopted(self) -> bool:
        """The portal ends the run, on another thread. The run's own loop, if it goes on, must leave the run alone."""
        return "adopted" in self._slot

    def _notify(self, request: CancelRequest, batch: Batch | None) -> None:
        loop, deliver = self._loop, self._deliver
        if loop is None or deliver is None:
            return
        if batch is not None:
            batch.setdefault(loop, []).append(deliver)
            return
        try:
            call_on(loop, deliver, request)  # if the loop is closed, the caller finds the run lost
        except RecursionError:  # this stack has no room left: a new thread has a stack of its own
            _thread.start_new_thread(call_on, (loop, deliver, request))


def _end_of_grace(request: CancelRequest) -> float:
    """When the request becomes stronger: never (`inf`) if it has no grace, or has the strongest mode already."""
    soft = request.grace is not None and request.mode is not CancelMode.now
    return request.requested_at + (request.grace or 0.0) if soft else math.inf


def wake_all(batch: Batch, request: CancelRequest) -> None:
    """Deliver one request to many runs."""
    for loop, delivers in batch.items():
        count = len(delivers) if len(delivers) <= MANY else AT_ONCE
        call_on(loop, _deliver_to_some, loop, iter(delivers), count, request)


def _deliver_to_some(
    loop: asyncio.AbstractEventLoop, delivers: Iterator[Deliver], count: int, request: CancelRequest
) -> None:
    """Deliver the request to the next `count` runs, and to the others in later turns.

    So other tasks of the loop have a turn in between; and a run ends while its data is still in the CPU's caches.
    """
    try:
        for deliver in itertools.islice(delivers, count):
            deliver(request)
    finally:  # also if a Ctrl-C interrupts one of the calls
        if operator.length_hint(delivers):
            loop.call_soon(_deliver_to_some, loop, delivers, count, request)
