# SPDX-License-Identifier: Apache-2.0
"""Runs that were started inside another run's tools: its children.

A cancel goes down the whole tree in the call that asks for it, and a child registers with its parent before it looks
for the parent's cancel: so none is missed, not even one that is just starting. The ends come up the tree: a run
settles after its children have, or after it has waited long enough and has named them.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
from typing import TYPE_CHECKING, Any

from andon.core.budget import Budget, Meter
from andon.core.receipt import CancelRequest
from andon.core.run.ending import Estate
from andon.core.selection import Selection
from andon.core.states import CancelCause, CancelMode, CancelOutcome, RunStatus
from andon.core.steps import CutAloneError
from andon.errors import SessionBusyError, TooDeepError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from andon.core.records import RunRecord
    from andon.core.run.limits import Limits
    from andon.core.run.tool_call import CallScope
    from andon.core.runtime import Runtime
    from andon.core.session import Session

current: contextvars.ContextVar[CallScope | None] = contextvars.ContextVar("current", default=None)
"""The tool call that this code is part of. Threads of tools have it too."""

NESTED_RECEIPTS = 10
"""So many levels of a tree have the receipts of their sub-agents in their own. Runs below have receipts too; but JSON
with hundreds of them inside each other can't be written.
"""

# A tool that forks is at work in the parent. In the child there is no such call, and no run whose children could begin.
os.register_at_fork(after_in_child=lambda: current.set(None))


class Kin(Estate):
    """A run's place in the tree: its parent, its children that are not settled yet, and the budget that they share."""

    limits: Limits

    __slots__ = (
        "_children",
        "_detached",
        "born_in",
        "budget",
        "depth",
        "meter",
        "parent",
        "spent_before",
        "was_called_by",
    )

    def __init__(
        self,
        runtime: Runtime,
        session: Session,
        run_id: str,
        metadata: dict[str, Any],
        budget: Budget | None,
        detached: bool,
    ) -> None:
        super().__init__(runtime, session, run_id, metadata)
        self.budget, self._detached = budget, detached
        self.spent_before = (0, 0)
        """The tokens and tool calls that it has spent before it was paused, if that was in another process."""
        self.parent: Kin | None = None
        self.was_called_by: str | None = None
        """The run that had started it, if that was in another process, or in an earlier one."""
        self.depth = 1
        """How many runs there are from the top of the tree down to this one."""
        self.born_in: CallScope | None = None
        """The call of its parent's that started it."""
        self.meter: Meter | None = None
        self._children: dict[Kin, None] = {}  # made here: two threads may both be about to add the first one

    @property
    def status(self) -> RunStatus:
        raise NotImplementedError

    def cancel_for(self, cause: CancelCause, reason: str | None = None) -> CancelOutcome:
        raise NotImplementedError

    def ask_alone(self, request: CancelRequest) -> CancelOutcome:
        """Cancel this run, and leave its children to themselves until it hears of that."""
        raise NotImplementedError

    @property
    def deadline(self) -> float | None:
        """When its time is up, or that of a run above it, in the terms of `time.time()`."""
        deadlines = (run.limits.deadline for run in (self, *self.ancestors))
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    @property
    def ancestors(self) -> Iterator[Kin]:
        """The runs above it, the nearest first."""
        run = self.parent
        while run is not None:
            yield run
            run = run.parent

    @property
    def children(self) -> list[Kin]:
        return list(self._children.copy()) if self._children else []

    @property
    def parent_run_id(self) -> str | None:
        return self.was_called_by if self.parent is None else self.parent.run_id

    def _call_above(self) -> CallScope | None:
        """The tool call that starts this run. A call that has ended starts nothing, though tasks of its making may."""
        call = None if self._detached else current.get()
        return call if call is not None and call.is_open else None

    def _check_ancestors(self, call: CallScope | None, waits: bool) -> None:
        """Raise if a run that is started by this call would be too deep in the tree, or would wait for itself."""
        if call is None:
            return
        parent, limit = call.run, call.run.runtime.max_depth
        if parent.depth >= limit:
            raise TooDeepError(
                f"no further agent can be called from here: {limit} runs are at work, each called by the one before it."
                " Answer with what is known. (Runtime(max_depth=…) allows more.)"
            )
        if waits and any(self._shares_session(run) for run in (parent, *parent.ancestors)):
            raise SessionBusyError(
                f"session {self.session.key.session_id!r} is held by run {parent.run_id!r}, or by one above it, and the"
                f" tool call {call.call_id!r} of that run would wait for itself. Use another session; or pass"
                " detached=True, and don't wait for the run in the tool.",
                run_id=parent.run_id,
            )

    def _shares_session(self, other: Kin) -> bool:
        """Are they in the same line? The same key in another store is another session."""
        return other.session.key == self.session.key and other.runtime.store is self.runtime.store

    def _join_family(self, scope: CallScope | None) -> None:
        """Register with the parent, and then look whether that, or the call itself, was cancelled."""
        parent = None if scope is None else scope.run
        if parent is not None and parent.status.final and parent.signal.request is None:
            parent = None  # it came to its own end, and has no say any more
        if parent is not None:
            self.parent, self.born_in, self.depth = parent, scope, parent.depth + 1
            parent._children[self] = None
            if scope is not None:
                scope.children[self] = None
            parent._cascade()
            if parent.status.final:  # whatever its mode was, it waits for nobody any more
                self.cancel_for(CancelCause.parent, f"run {parent.run_id} had ended")
        if scope is not None and scope.cancelled:
            scope.end_child(self)
        above = None if parent is None else parent.meter
        self.meter = above if self.budget is None else Meter(self, self.budget, above, *self.spent_before)

    def budget_left(self) -> Budget | None:
        """What is left of its own budget, if it has one."""
        if self.budget is None or self.meter is None:
            return None if self.budget is None else self.budget.less(*self.spent_before)
        return self.meter.left

    def _leave_family(self) -> None:
        if self.parent is not None:
            self.parent._children.pop(self, None)
            if self.born_in is not None:
                self.born_in.children.pop(self, None)
                if self.depth <= NESTED_RECEIPTS and self.run_id == child_id(self.parent.run_id, self.born_in.call_id):
                    self.born_in.receipt = self._receipt
            self.parent.picked_up(self)

    def _cascade(self) -> None:
        """Cancel the children, and theirs, if this run was cancelled. A softer mode than `now` lets them finish.

        Not by recursion: a tree may be deeper than the stack. Below a child that was cancelled before, all was told, or
        is told when that child hears of its own cancel.
        """
        cancelled: list[Kin] = [self]
        while cancelled:
            run = cancelled.pop()
            if run._children and run.signal.rank >= CancelMode.now.rank:
                request = CancelRequest.make(CancelCause.parent, f"run {run.run_id} was cancelled")
                cancelled += [child for child in run.children if child.ask_alone(request) is CancelOutcome.requested]

    async def _outlast_children(self) -> None:
        """Give runs that a tool started and did not wait for a while to end by themselves."""
        if self._children:
            for child in self.children:
                if child.status is RunStatus.paused:  # it won't end by itself, and whom it would ask is not here
                    child.cancel_for(CancelCause.parent, f"run {self.run_id} ended")
            with contextlib.suppress(CutAloneError):
                await self.step(
                    self._childless, name="child runs", cut_by=CancelMode.now, timeout=self.bounds.child_seconds
                )

    async def _end_children(self) -> None:
        """No child outlives its parent, unless it can't be ended; then it is named."""
        for child in self.children:
            child.cancel_for(CancelCause.parent, f"run {self.run_id} ended")
        await self.bounded(self._childless, "waiting for child runs", self.bounds.child_seconds)
        for child in self.children:
            self.leave_behind(child, f"run {child.run_id} of {child.session.key.agent_id}")

    async def _childless(self) -> None:
        await self._waiters.wait(lambda: not self._children)


def child_id(run_id: str, call_id: str) -> str:
    """The id of the run that an agent makes of a call, if it is used as a tool: whoever enters it again finds it."""
    return f"{run_id}.{call_id}"


def paused_below(paused: RunRecord) -> list[str]:
    """The children whose questions a paused run has passed on."""
    calls = [] if paused.bookmark is None else paused.bookmark.calls
    return [child_id(paused.run_id, call.call_id) for call in calls if any(call.sources.values())]


def orphaned_by(ended: RunRecord) -> Iterator[tuple[Selection, CancelRequest]]:
    """The children that may be waiting, in another process or an earlier one, for a run that was cancelled."""
    for call in ended.cut_calls:
        request = CancelRequest.make(CancelCause.parent, f"run {ended.run_id} was cancelled")
        yield Selection(child_id(ended.run_id, call.call_id)), request
