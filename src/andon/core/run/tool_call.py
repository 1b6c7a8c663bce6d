# SPDX-License-Identifier: Apache-2.0
"""What one tool call may know of its run's cancel: a flag, callbacks, and a place to name a thread that lives on.

Tools never hold the signal itself. Callbacks register and then look at the flag, and a cancel sets the flag and then
calls them, so none is missed and none is called twice.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from andon.core.crowd import crowd
from andon.core.states import CancelCause

if TYPE_CHECKING:
    from andon.core.events import Event
    from andon.core.receipt import Receipt
    from andon.core.run.children import Kin
    from andon.core.run.life import Life

log = logging.getLogger(__name__)


class CallScope:
    """The cancel of one tool call."""

    __slots__ = (
        "_callbacks",
        "call_id",
        "cancelled",
        "children",
        "entered",
        "heeding",
        "name",
        "receipt",
        "run",
        "thread_running",
    )

    def __init__(self, run: Life, call_id: str, name: str) -> None:
        self.run, self.call_id, self.name = run, call_id, name
        self.cancelled = False
        self.heeding = False
        """The tool has looked for a cancel at least once, so it may be about to heed one."""
        self.entered = False
        """The tool's coroutine is being run."""
        self.thread_running = False
        self.children: dict[Kin, None] = {}
        """The runs that the tool has started, and that have not ended."""
        self.receipt: Receipt | None = None
        """Of the sub-agent's run that the call was, if that was cancelled."""
        self._callbacks: dict[object, Callable[[], object]] = {}

    @property
    def is_open(self) -> bool:
        """The tool is at work, in its coroutine or in a thread; after a cancel too, until it has really ended."""
        return self.entered or self.thread_running

    def fire(self) -> None:
        """Tell the tool. Called on the run's loop."""
        self.cancelled = True
        if self.thread_running:
            self._leave_behind()
        self.end_children()
        if self._callbacks:
            for key in list(self._callbacks):
                self._call(key)

    def rest(self) -> None:
        """The tool has ended, to be entered again: what it wants to have called then, it will say again."""
        self._callbacks.clear()

    def end_children(self) -> None:
        """Cancel the runs that the call has started: it may be cut alone, and they with it. Safe from any thread."""
        for child in self.children.copy():
            self.end_child(child)

    def end_child(self, child: Kin) -> None:
        child.cancel_for(CancelCause.parent, f"call {self.call_id} of run {self.run.run_id} was cancelled")

    def relay(self, event: Event) -> None:
        if not self.cancelled:
            self.run.journal.relay(event)

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], object]:
        """Have `callback` called on a cancel, at once if that has happened. Returns what takes it back."""
        key = object()
        self._callbacks[key] = callback
        if self.cancelled:
            try:
                self.run.loop.call_soon_threadsafe(self._call, key)
            except RuntimeError:  # the loop is closed: better here than never
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

    # -- the thread of a sync tool ----------------------------------------------------------------------------------

    def crowded(self) -> tuple[int, str]:
        """How many abandoned threads are running, if they are too many for another one, else 0; and what bounds it."""
        abandoned = self.run.runtime.abandoned
        return crowd(abandoned.copy(), self.run.user_id, self.run.bounds) if abandoned else (0, "")

    def thread_began(self) -> None:
        self.thread_running = True

    def thread_ended(self) -> None:
        """Called by the thread itself, as the last thing that it does."""
        self.thread_running = False
        if self.cancelled:
            self.run.runtime.abandoned.pop(self, None)
            self.run.picked_up(self)

    def _leave_behind(self) -> None:
        name = f"thread of {self.name} ({self.call_id})"
        self.run.runtime.abandoned[self] = name
        self.run.leave_behind(self, name)
        if not self.thread_running:  # it ended just now, and may have looked before it was named
            self.thread_ended()
