# SPDX-License-Identifier: Apache-2.0
"""The cord of one agent: what `agent.cancel()` pulls.

It cancels every run of the agent in flight. Pulled when there is none, it stays armed for a moment, so that a cancel
that raced ahead of its run is not lost. Only a run of the agent's own conversation takes an arm: a run of another
session may be another user's. A pull arms first and then looks for runs; a run registers first and then looks at the
arm: so no run is missed. Like the signal it has no lock: each dictionary is changed in single steps.
"""

from __future__ import annotations

import time
from typing import Protocol

from msgspec import Struct

from andon.core.fork import start_over_after_fork
from andon.core.receipt import CancelRequest
from andon.core.signal import Batch, wake_all
from andon.core.states import CancelOutcome


class CancellableRun(Protocol):
    """A run, as the cord sees it."""

    def request_cancel(self, request: CancelRequest, batch: Batch | None = None) -> CancelOutcome: ...


class Arm(Struct, gc=False):
    """A cancel that waits for a run to begin."""

    request: CancelRequest
    at: float
    armed: bool = False
    """The caller was told `armed`. Runs of other sessions may end after that: the arm stays."""


class Cord:
    """Every run of one agent in flight, and the cancel that came before the next one."""

    __slots__ = ("__weakref__", "_arms", "_ended_at", "live")

    def __init__(self) -> None:
        self.live: dict[CancellableRun, None] = {}  # not by id: on two runtimes two runs may have the same
        self._ended_at: float | None = None
        self._arms: dict[int, Arm] = {}
        start_over_after_fork(self)

    def start_over(self) -> None:
        """In a forked child the runs are the parent's."""
        self.live, self._arms = {}, {}

    def pull(self, request: CancelRequest, arm_seconds: float) -> CancelOutcome:
        arm = Arm(request, time.monotonic())
        for key, earlier in self._arms.copy().items():
            if arm.at - earlier.at >= arm_seconds:
                self._arms.pop(key, None)
        try:
            return self._pull(arm, arm_seconds)
        except BaseException:  # the caller knows that it went wrong: the next prompt must not be cancelled
            self._arms.pop(id(arm), None)
            raise

    def _pull(self, arm: Arm, arm_seconds: float) -> CancelOutcome:
        self._arms[id(arm)] = arm
        outcomes = self._ask_all(arm.request)
        for outcome in (CancelOutcome.requested, CancelOutcome.already_requested, CancelOutcome.unknown):
            if outcome in outcomes:
                self._arms.pop(id(arm), None)
                return outcome
        if CancelOutcome.already_finished not in outcomes and self._is_valid(arm, arm_seconds):
            arm.armed = True
            return CancelOutcome.armed
        if self._arms.pop(id(arm), None) is None:  # a run took it meanwhile
            return CancelOutcome.armed
        never_ran = self._ended_at is None and not outcomes
        return CancelOutcome.unknown if never_ran else CancelOutcome.already_finished

    def _ask_all(self, request: CancelRequest) -> set[CancelOutcome]:
        batch: Batch = {}
        try:
            return {run.request_cancel(request, batch) for run in self.live.copy()}
        finally:  # runs that were asked are woken, even if a Ctrl-C comes in between
            wake_all(batch, request)

    def add(self, run: CancellableRun, arm_seconds: float) -> None:
        """Register a run. It is cancelled at once if the cord was pulled within `arm_seconds` before."""
        self.live[run] = None
        for key, arm in self._arms.copy().items():
            if self._is_valid(arm, arm_seconds) and self._arms.pop(key, None) is not None:
                run.request_cancel(arm.request)

    def remove(self, run: CancellableRun) -> None:
        self._ended_at = time.monotonic()
        self.live.pop(run, None)

    def _is_valid(self, arm: Arm, arm_seconds: float) -> bool:
        """Fresh, and no run had ended just before it: such a cancel was meant for that run, not for the next one."""
        if time.monotonic() - arm.at >= arm_seconds:
            return False
        return arm.armed or self._ended_at is None or arm.at - self._ended_at > arm_seconds
