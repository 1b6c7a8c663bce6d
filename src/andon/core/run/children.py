# SPDX-License-Identifier: Apache-2.0
"""The tree of runs: a run that is started inside a tool of another run is its child.

A cancel goes down the whole tree within the call that requests it. A child registers with its parent first and then
looks whether the parent was cancelled, so a child that is just starting is not missed. The ends come up the tree: a run
settles after its children, or after it has waited `child_seconds` for them and has named them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Protocol

from andon.core.budget import Budget, Meter
from andon.core.receipt import CancelRequest, Receipt
from andon.core.records import RunRecord, SessionKey
from andon.core.run.limits import Limits
from andon.core.selection import Selection
from andon.core.signal import CancelSignal
from andon.core.states import FORCE, CancelCause, CancelMode, CancelOutcome, Rank, RunStatus
from andon.core.steps import CutAloneError, StepRunner
from andon.errors import SessionBusyError, TooDeepError

NESTED_RECEIPTS = 10
"""So many levels of a tree have the receipts of their sub-agents inside their own. Runs further down have receipts too,
but JSON with hundreds of nested receipts can't be written.
"""


class TreeRun(Protocol):
    """A run, as the tree sees it."""

    @property
    def run_id(self) -> str: ...

    @property
    def children(self) -> ChildRuns: ...

    @property
    def status(self) -> RunStatus: ...

    @property
    def signal(self) -> CancelSignal: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def session_key(self) -> SessionKey: ...

    @property
    def store(self) -> object: ...

    def cancel_for(self, cause: CancelCause, reason: str | None = None) -> CancelOutcome: ...

    def request_cancel(self, request: CancelRequest) -> CancelOutcome: ...

    def request_cancel_alone(self, request: CancelRequest) -> CancelOutcome:
        """Cancel this run, and leave its children alone until it applies the cancel."""
        ...


class ParentCall(Protocol):
    """A tool call, as the runs see it that it starts."""

    children: dict[TreeRun, None]
    receipt: Receipt | None
    cancelled: bool
    cut_by: Rank

    @property
    def run(self) -> TreeRun: ...

    @property
    def call_id(self) -> str: ...

    def end_child(self, child: TreeRun) -> None: ...


class ChildRuns:
    """A run's place in the tree: its parent, its children that have not settled, and the budget that they share."""

    __slots__ = (
        "_called_by",
        "_live",
        "_run",
        "_spent_before",
        "_steps",
        "born_in",
        "budget",
        "depth",
        "detached",
        "meter",
        "parent",
        "run_id",
    )

    def __init__(self, run_id: str, steps: StepRunner, budget: Budget | None, detached: bool) -> None:
        self.run_id, self._steps, self.budget, self.detached = run_id, steps, budget, detached
        self._spent_before = (0, 0)
        """The tokens and tool calls that it spent before a pause in another process."""
        self._called_by: str | None = None
        """The id of its parent, if it was paused and its parent is not known to this process."""
        self.parent: ChildRuns | None = None
        self.born_in: ParentCall | None = None
        """The parent's tool call that started it."""
        self.depth = 1
        """The number of runs from the top of the tree down to this one."""
        self.meter: Meter | None = None
        self._run: TreeRun | None = None
        self._live: dict[ChildRuns, None] = {}  # made here: two threads may be adding the first child at once

    def __bool__(self) -> bool:
        """Does it have children that have not settled?"""
        return bool(self._live)

    @property
    def live(self) -> list[TreeRun]:
        """The children that have not settled."""
        runs = [child._run for child in self._live.copy()] if self._live else []
        return [run for run in runs if run is not None]

    @property
    def ancestors(self) -> Iterator[ChildRuns]:
        """The places above this one, the nearest first."""
        place = self.parent
        while place is not None:
            yield place
            place = place.parent

    @property
    def parent_run_id(self) -> str | None:
        return self._called_by if self.parent is None else self.parent.run_id

    @property
    def deadline(self) -> float | None:
        """When the time of this run is up, or of a run above it, in the terms of `time.time()`."""
        runs = [place._run for place in (self, *self.ancestors)]
        deadlines = (run.limits.deadline for run in runs if run is not None)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    @property
    def cut_rank(self) -> int:
        """The rank of the weakest cancel of its parent that cancels it too."""
        call = self.born_in
        return CancelMode.now.rank if call is None or call.cancelled else call.cut_by.rank

    @property
    def patience(self) -> float:
        """For how many seconds more this run, or one below it, may let something finish, or undo it. 0 if none does."""
        places, longest = [self], 0.0
        while places:
            place = places.pop()
            longest = max(longest, place._steps.patience)
            places += place._live.copy()
        return longest

    @property
    def budget_left(self) -> Budget | None:
        """What is left of the run's own budget, if it has one."""
        if self.budget is None or self.meter is None:
            return None if self.budget is None else self.budget.less(*self._spent_before)
        return self.meter.left

    def check_child(self, call_id: str, limit: int, key: SessionKey, store: object, waits: bool) -> None:
        """Raise if a run that this call starts would be too deep in the tree, or would wait for itself."""
        if self.depth >= limit:
            raise TooDeepError(
                f"no further agent can be called from here: {limit} runs are at work, each called by the one before it."
                " Answer with what is known. (Runtime(max_depth=…) allows more.)"
            )
        runs = [place._run for place in (self, *self.ancestors)]
        # The same key in another store is another session.
        if waits and any(run is not None and run.session_key == key and run.store is store for run in runs):
            raise SessionBusyError(
                f"session {key.session_id!r} is held by run {self.run_id!r}, or by one above it, and the tool call"
                f" {call_id!r} of that run would wait for itself. Use another session; or pass detached=True, and don't"
                " wait for the run in the tool.",
                run_id=self.run_id,
            )

    def restore(self, record: RunRecord) -> None:
        """The run was paused in another process, and goes on here from what the store has of it."""
        self._called_by = record.parent_run_id
        if (mark := record.bookmark) is not None and mark.budget is not None:
            self._spent_before = mark.spent

    # -- joining and leaving ------------------------------------------------------------------------------------------

    def join(self, run: TreeRun, call: ParentCall | None) -> None:
        """Register with the parent first. Then look whether the parent, or the call itself, was cancelled."""
        self._run = run
        parent = None if call is None else call.run
        if parent is not None and parent.status.final and parent.signal.request is None:
            parent = None  # it has completed or failed, and does not concern this run any more
        if parent is not None:
            place = parent.children
            self.parent, self.born_in, self.depth = place, call, place.depth + 1
            place._live[self] = None
            if call is not None:
                call.children[run] = None
            place.cascade()
            if parent.status.final:  # in any mode: it does not wait for children any more
                run.cancel_for(CancelCause.parent, f"run {parent.run_id} had ended")
        if call is not None and call.cancelled:
            call.end_child(run)
        above = None if self.parent is None else self.parent.meter
        if self.budget is None:
            self.meter = above
        else:
            self.meter = Meter(self._out_of_budget, self.budget, above, *self._spent_before)

    def _out_of_budget(self, why: str) -> None:
        if self._run is not None:
            self._run.cancel_for(CancelCause.budget, why)

    def leave(self, receipt: Receipt | None) -> None:
        """The run is over, or did not begin: forget it, so that it is freed without the garbage collector."""
        run, self._run = self._run, None
        if self.budget is not None and self.meter is not None:
            self.meter.release()
        if run is None or (parent := self.parent) is None:
            return
        parent._live.pop(self, None)
        if (call := self.born_in) is not None:
            call.children.pop(run, None)
            if self.depth <= NESTED_RECEIPTS and self.run_id == child_id(parent.run_id, call.call_id):
                call.receipt = receipt
            self.born_in = None
        parent._steps.picked_up(self)

    # -- cancelling and waiting ---------------------------------------------------------------------------------------

    def cascade(self) -> None:
        """Cancel the children, and theirs, if this run was cancelled. A softer mode than `now` lets them finish.

        Not by recursion: a tree may be deeper than the stack. Below a child that was cancelled before, everything was
        cancelled too, or will be when that child applies its own cancel. A child of a call that is let finish goes on;
        it is cancelled when that call is cut.
        """
        cancelled: list[ChildRuns] = [self]
        while cancelled:
            place = cancelled.pop()
            run = place._run
            if run is not None and place._live and run.signal.rank >= CancelMode.now.rank:
                rank = run.signal.rank
                why, force = f"run {run.run_id} was cancelled", rank >= FORCE.rank
                request = CancelRequest.make(CancelCause.parent, why, force=force)
                asked = [each for each in place.live if each.children.cut_rank <= rank]
                newly = [each for each in asked if each.request_cancel_alone(request) is CancelOutcome.requested]
                cancelled += [each.children for each in newly]

    async def wait(self) -> None:
        """Give runs that a tool started and did not wait for a while to end by themselves."""
        if not self._live:
            return
        for child in self.live:
            if child.status is RunStatus.paused:  # it does not end by itself, and its questions are asked by no run
                child.cancel_for(CancelCause.parent, f"run {self.run_id} ended")
        seconds = self._steps.bounds.child_seconds
        with contextlib.suppress(CutAloneError):
            await self._steps.start(self._childless, name="child runs", cut_by=CancelMode.now, timeout=seconds)

    async def end(self) -> None:
        """Cancel the children, and wait for their ends. A child that does not end in time is named."""
        for child in self.live:
            child.cancel_for(CancelCause.parent, f"run {self.run_id} ended")
        await self._wait_childless(max(self._steps.bounds.child_seconds, self.patience))
        while self._live and (more := self.patience) > 0:  # they undo something since
            await self._wait_childless(more)
        if self._live:
            self._steps.warn("child runs did not end in time")
        for child in self.live:
            self._steps.leave_behind(child.children, f"run {child.run_id} of {child.session_key.agent_id}")

    async def _wait_childless(self, seconds: float) -> None:
        async def wait() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._childless()

        await self._steps.bounded(wait, "waiting for child runs", seconds + self._steps.bounds.child_seconds + 1)

    async def _childless(self) -> None:
        await self._steps.waiters.wait(lambda: not self._live)


def child_id(run_id: str, call_id: str) -> str:
    """The id of the run of a sub-agent. It is made of the call's, so that a call that is entered again finds it."""
    return f"{run_id}.{call_id}"


def paused_below(paused: RunRecord) -> list[str]:
    """The children whose questions a paused run has passed on."""
    calls = [] if paused.bookmark is None else paused.bookmark.calls
    return [child_id(paused.run_id, call.call_id) for call in calls if any(call.sources.values())]


def orphaned_by(ended: RunRecord) -> Iterator[tuple[Selection, CancelRequest]]:
    """The children of a cancelled run that may wait for it in another process, or in an earlier one."""
    for call in ended.cut_calls:
        request = CancelRequest.make(CancelCause.parent, f"run {ended.run_id} was cancelled")
        yield Selection(child_id(ended.run_id, call.call_id)), request
