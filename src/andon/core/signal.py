# SPDX-License-Identifier: Apache-2.0
"""A run's fate: one atomic slot that cancel, completion and failure race for. The first one wins.

There is no lock, because a signal handler may interrupt the very call that would hold it: `cancel` does nothing but a
`setdefault`, which the interpreter does in one step, and `call_soon_threadsafe`. Everything else happens later, on
the run's own loop. An exception may come between the two (a signal handler that raises, a stack with no room left).
Then the run has not heard of its cancel; the signal knows that, and whoever comes next wakes the run.
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
from andon.core.states import CancelMode, CancelOutcome, StopReason
from andon.core.waiters import call_on

Deliver = Callable[[CancelRequest], None]
Batch = dict[asyncio.AbstractEventLoop, list[Deliver]]
"""Many runs to be woken by one request, with one wake-up per loop."""

MANY, AT_ONCE = 1_000, 20
"""If they are more than many, so many of them are woken in one turn of their loop."""


class Completed(Struct, frozen=True, gc=False):
    """The run came to its own end."""

    stop_reason: StopReason


class Failed(Struct, frozen=True):
    """The run broke."""

    error: Exception


Asked = tuple[int, int]
"""The rank of the strongest mode, and how many requests with a grace came after the first."""
NOTHING: Asked = (0, 0)

_STRONGER = ("after_tools", "now")
"""The keys under which later, stronger requests are kept: the names of their modes."""

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
        """What the run has acted on."""

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
        """The strongest mode that was asked for so far, None without a cancel."""
        request = self.request
        if request is None:
            return None
        if len(self._slot) == 1 or request.mode is CancelMode.now:
            return request.mode
        asked = [request.mode, *(CancelMode(mode) for mode in _STRONGER if mode in self._slot)]
        return max(asked, key=lambda mode: mode.rank)

    @property
    def rank(self) -> int:
        """How much is to be stopped: 0 without a cancel, else the rank of its mode."""
        if not self._slot:  # by far the most frequent case
            return 0
        mode = self.mode
        return 0 if mode is None else mode.rank

    def claim(self, end: Completed | Failed) -> Fate:
        """Try to end the run otherwise than by a cancel; returns what it really ends by."""
        return cast(Fate, self._slot.setdefault("fate", end))

    def overrule(self, fate: Fate) -> None:
        """Put another fate in place: the one that a store, which several processes share, has decided on."""
        self._slot["fate"] = fate

    def cancel(self, request: CancelRequest, batch: Batch | None = None) -> CancelOutcome:
        """Ask. Safe from any thread, loop or signal handler; never waits, never raises.

        With a `batch`, the wake-up is left to whoever asks many runs at once.
        """
        winner = self._slot.setdefault("fate", request)
        if winner is request:
            self._notify(request, batch)
            return CancelOutcome.requested
        if not isinstance(winner, CancelRequest):
            return CancelOutcome.already_finished
        # A stronger mode escalates; so does a grace, when its time comes.
        stronger = request.mode.rank > self.rank
        entered = stronger and self._slot.setdefault(request.mode.value, request) is request
        if not entered and _end_of_grace(request) < min(map(_end_of_grace, self.graces), default=math.inf):
            self._slot.setdefault("graces", []).append(request)
        self.deliver_again(batch)
        return CancelOutcome.already_requested

    @property
    def asked(self) -> Asked:
        """How much was asked for so far; it only ever grows."""
        return self.rank, len(self._slot.get("graces", ()))

    @property
    def graces(self) -> list[CancelRequest]:
        """The requests that become stronger after a while; of those that came later, each ends before the others."""
        requests = [self.request, *map(self._slot.get, _STRONGER), *self._slot.get("graces", ())]
        return [each for each in requests if each and each.grace is not None and each.mode is not CancelMode.now]

    def heard(self, asked: Asked) -> None:
        """The run has acted on so much."""
        self._heard = asked

    def deliver_again(self, batch: Batch | None = None) -> None:
        """Wake the run if it has not heard of all that was asked. Whoever asked may have been interrupted."""
        if (request := self.request) is not None and self._heard != self.asked:
            self._notify(request, batch)

    def bind(self, loop: asyncio.AbstractEventLoop, deliver: Deliver) -> None:
        """Say where the run lives: `deliver` is called there, on the loop, for every cancel that changes something."""
        self._deliver, self._loop = deliver, loop
        # Registered; now look: a cancel that came before saw no loop to wake.
        if (request := self.request) is not None:
            loop.call_soon(deliver, request)

    def unbind(self) -> None:
        """The run is over: let go of it, so that it is freed without the garbage collector."""
        self._deliver = None

    def adopt(self) -> bool:
        """True for the first caller only: who may end the run in place of its own task."""
        token = object()
        return self._slot.setdefault("adopted", token) is token

    @property
    def adopted(self) -> bool:
        """Someone else ends the run, on another thread: its own loop, if it goes on, has no part in it any more."""
        return "adopted" in self._slot

    def _notify(self, request: CancelRequest, batch: Batch | None) -> None:
        loop, deliver = self._loop, self._deliver
        if loop is None or deliver is None:
            return
        if batch is not None:
            batch.setdefault(loop, []).append(deliver)
            return
        try:
            call_on(loop, deliver, request)  # if the loop is closed, whoever asked finds the run lost
        except RecursionError:  # there is no room left on this stack: another one has all that it takes
            _thread.start_new_thread(call_on, (loop, deliver, request))


def _end_of_grace(request: CancelRequest) -> float:
    """When the request becomes stronger; never, if it has no grace or is the strongest already."""
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
    """Deliver it to the next ones, and to the others in later turns.

    So whatever else lives on the loop has its turn in between; and a run ends while it is still in the caches.
    """
    try:
        for deliver in itertools.islice(delivers, count):
            deliver(request)
    finally:  # also after a Ctrl-C, of which one of them was the victim
        if operator.length_hint(delivers):
            loop.call_soon(_deliver_to_some, loop, delivers, count, request)
