# SPDX-License-Identifier: Apache-2.0
"""One tool call, as its run sees it: whether it was cut, the callbacks for that, and the resources that it holds.

Tools have no reference to the signal itself. `on_cancel` registers a callback and then looks at the flag. A cut sets
the flag and then calls the callbacks. So no callback is missed, and none is called twice. Held resources follow the
same rule.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import os
from collections.abc import Callable
from typing import Protocol

from andon.core.bounds import Bounds
from andon.core.events import Event, RunEvent
from andon.core.held import HeldResource
from andon.core.journal import Journal
from andon.core.receipt import CancelRequest, Receipt
from andon.core.run.children import TreeRun
from andon.core.states import CancelCause, CancelMode, Rank, Stopped
from andon.core.steps import StepRunner
from andon.errors import ToolError

log = logging.getLogger(__name__)


class CallHost(Protocol):
    """The runtime, as tool calls see it."""

    abandoned: dict[HeldResource, ToolCallScope]

    @property
    def bounds(self) -> Bounds: ...

    @property
    def max_result_bytes(self) -> int: ...

    @property
    def max_attachment_bytes(self) -> int: ...


class CallingRun(TreeRun, Protocol):
    """A run, as one of its tool calls sees it."""

    @property
    def runtime(self) -> CallHost: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def steps(self) -> StepRunner: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def agent_id(self) -> str: ...

    @property
    def user_id(self) -> str | None: ...


class ToolCallScope:
    """What a cancel has to reach in one tool call: callbacks, held resources, and runs that the tool started."""

    __slots__ = (
        "_callbacks",
        "_held",
        "_on_ended",
        "call_id",
        "cancelled",
        "children",
        "cut_by",
        "did_nothing",
        "entered",
        "name",
        "receipt",
        "run",
        "so_far",
        "stopped",
        "undo_steps",
        "watches_cancel",
    )

    def __init__(self, run: CallingRun, call_id: str, name: str) -> None:
        self.run, self.call_id, self.name = run, call_id, name
        self.cancelled = False
        self.watches_cancel = False
        """The tool has checked for a cancel, or has registered a callback. So it may stop by itself."""
        self.entered = False
        """The tool's coroutine is running."""
        self.did_nothing = False
        """What it held is gone, and was never given the call: the tool's own code has not begun."""
        self.children: dict[TreeRun, None] = {}
        """The runs that the tool started and that have not ended."""
        self.cut_by: Rank = CancelMode.now
        """The weakest cancel of the run that cuts the call, and the runs that it has started."""
        self.undo_steps: dict[object, Callable[[], object]] | None = {}
        """What the tool wants to be called to undo what it has done. None once that has begun, or is not needed."""
        self._on_ended: list[Callable[[], None]] | None = None
        """What `when_ended` was given. Empty once it was called."""
        self.receipt: Receipt | None = None
        """The receipt of the sub-agent's run that this call made, if that run was cancelled."""
        self.stopped: Stopped | None = None
        """How what the call held was ended, after a cut."""
        self.so_far = ""
        """What the call had done when its time was over, for the model. A tool that is cut sets it."""
        self._held: list[HeldResource] = []
        self._callbacks: dict[object, Callable[[], object]] = {}

    @property
    def is_open(self) -> bool:
        """The tool is at work, in its coroutine or a held resource. After a cancel too, until it has really ended."""
        return self.entered or bool(self._held)

    def fire(self) -> None:
        """Tell the tool, and all that it holds, that the call is cut. Called on the run's loop."""
        self.cancelled = True
        if self._held:
            for resource in self._held.copy():
                self._leave_behind(resource)
        self.end_children()
        if self._callbacks:
            for key in list(self._callbacks):
                self._call(key)

    def patience(self) -> float:
        """For how many seconds more a run that the tool has started may let something finish, or undo it."""
        return max((child.children.patience for child in self.children.copy()), default=0.0)

    def leave(self) -> None:
        """The tool's coroutine has ended."""
        self.entered = False
        self.check_ended()

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once, from any thread, when nothing of the call is left; now if nothing is."""
        self._on_ended = [callback]
        self.check_ended()

    @property
    def has_when_ended(self) -> bool:
        """`when_ended` was given a function, which was called, or will be."""
        return self._on_ended is not None

    def check_ended(self) -> None:
        """Call what `when_ended` was given, if nothing is left of the call. Two threads may do this at once."""
        if self._on_ended and not self.is_open:
            try:
                callback = self._on_ended.pop()  # in one step: only one thread gets it
            except IndexError:
                return
            callback()

    def on_undo(self, step: Callable[[], object]) -> Callable[[], object]:
        """Have `step` called if the call is undone. Returns a function that removes it. From any thread."""
        steps, key = self.undo_steps, object()
        if steps is not None:
            steps[key] = step
        if steps is None or self.undo_steps is None:  # it has ended, or is being undone, maybe since the line above
            raise ToolError(f"call {self.call_id} of {self.name} has ended: what it still does can't be undone by it")
        return functools.partial(steps.pop, key, None)

    def rest(self) -> None:
        """The tool asks a person, and will be called again later. Then it registers its callbacks again."""
        self._callbacks.clear()

    def end_children(self, force: bool = False) -> None:
        """Cancel the runs that the tool started. Safe from any thread."""
        for child in self.children.copy():
            self.end_child(child, force)

    def end_child(self, child: TreeRun, force: bool = False) -> None:
        why = f"call {self.call_id} of run {self.run.run_id} was cancelled"
        child.request_cancel(CancelRequest.make(CancelCause.parent, why, force=force))

    def relay(self, event: Event) -> None:
        """Show an event of another run in the stream of this one, unless the call was cut."""
        if not self.cancelled:
            self.run.journal.relay(event)

    def show_output(self, text: str) -> None:
        """Show what the tool has printed, unless the call was cut. Called on the run's loop."""
        if not self.cancelled and self.entered:
            self.run.journal.add(RunEvent.tool_output, text, call_id=self.call_id)

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], object]:
        """Call `callback` on a cut, or soon if the call was cut already. Returns a function that removes it."""
        key = object()
        self._callbacks[key] = callback
        if self.cancelled:
            try:
                self.run.loop.call_soon_threadsafe(self._call, key)
            except RuntimeError:  # the loop is closed, so it can only be called here
                self._call(key)
        return functools.partial(self._callbacks.pop, key, None)

    def _call(self, key: object) -> None:
        callback = self._callbacks.pop(key, None)
        if callback is None:
            return
        try:
            callback()
        except KeyboardInterrupt:
            raise
        except BaseException:
            log.exception("an on_cancel callback of %s (%s) failed", self.name, self.call_id)

    # -- held resources -----------------------------------------------------------------------------------------------

    @property
    def has_resources(self) -> bool:
        """A held resource is still running."""
        return bool(self._held)

    def hold(self, resource: HeldResource) -> None:
        """The tool is about to start this resource. Called on the run's loop."""
        self._held.append(resource)

    def release(self, resource: HeldResource) -> None:
        """The resource is gone, or never started. Safe from any thread."""
        self._held.remove(resource)
        self.check_ended()  # first: what is done then counts as left behind, so that no wait ends in between
        if self.cancelled:
            self._forget(resource)

    def _leave_behind(self, resource: HeldResource) -> None:
        """Add the resource to the leftovers until it is gone, and tell it about the cut."""
        self.run.runtime.abandoned[resource] = self
        self.run.steps.leave_behind(resource, resource.name)
        if resource not in self._held:  # it was released just now, maybe before it became a leftover
            self._forget(resource)
            return
        try:
            resource.on_cut()
        except Exception:
            log.exception("%s could not be told that its call was cut", resource.name)

    def _forget(self, resource: HeldResource) -> None:
        self.run.runtime.abandoned.pop(resource, None)
        self.run.steps.picked_up(resource)


current: contextvars.ContextVar[ToolCallScope | None] = contextvars.ContextVar("current", default=None)
"""The tool call that this code is part of. Threads of tools have it too."""


def open_call() -> ToolCallScope | None:
    """The tool call that this code is part of. None if the call has ended: its tasks may go on, but not start runs."""
    call = current.get()
    return call if call is not None and call.is_open else None


# A tool that forks is at work in the parent only. In the child there is no such call, and no run to start children in.
os.register_at_fork(after_in_child=lambda: current.set(None))
