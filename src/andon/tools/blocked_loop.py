# SPDX-License-Identifier: Apache-2.0
"""Detects an async tool that blocks its event loop, by `time.sleep` for example, and logs the line that does it.

While a tool blocks, no other run on that loop goes on, and no cancel is heard. One thread checks at short intervals
which task each loop is running. If it is a tool's task, the thread schedules a callback on that loop. Until that is
called, the tool has not returned control. So a loop gets a callback only when a check finds a tool's code running,
which is rare unless the tool blocks. While no tool runs, the thread sleeps. A call costs one entry in a dictionary.

Nothing here may keep a loop alive: of a call only its names are kept, and its task by a weak reference.
"""

from __future__ import annotations

import _thread
import asyncio
import logging
import os
import sys
import threading
import weakref
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from andon.core.run.tool_call import ToolCallScope, current
from andon.core.source_lines import Line, is_ours, outwards, users_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.1
"""The time between two checks."""
BLOCKED_SECONDS = 0.2
"""How long a tool may run between two awaits before it is logged, counted from the first check that finds it."""
STILL_SECONDS = 5.0
"""A tool that blocks for this time is logged while it blocks: it may never return."""
EMPTY_CHECKS = 20
"""After how many checks without a running tool the thread sleeps until a tool begins."""


class _Call:
    """A running call of an async tool. It holds only names: a reference to the run would keep the loop alive."""

    __slots__ = ("agent_id", "run_id", "task", "thread", "tool")

    def __init__(self, scope: ToolCallScope, task: asyncio.Task[Any], thread: int) -> None:
        self.tool, self.run_id, self.agent_id = scope.name, scope.run.run_id, scope.run.agent_id
        self.task, self.thread = weakref.ref(task), thread


class _Block:
    """A loop that a check found in a tool's code, until its next iteration."""

    __slots__ = ("_watch", "call", "line", "logged", "over", "since")

    def __init__(self, watch: BlockedLoopWatch, call: _Call) -> None:
        self._watch, self.call = watch, call
        self.since = monotonic()
        self.line: Line | None = None
        """Where it was at the last check."""
        self.over = self.logged = False

    def end(self) -> None:
        """Called by the loop, so it is no longer blocked."""
        self.over = True
        self.report("blocked")

    def report(self, verb: str, still: str = "") -> None:
        seconds = monotonic() - self.since
        if self.line is None or seconds < BLOCKED_SECONDS or not self._watch.is_first(self.call):
            return
        log.warning(
            "tool %s of run %s %s its event loop for %.1f s%s, and with it every other run and every cancel: %s. "
            "Make it a plain `def`, which runs in a thread of its own, or use an async library and await it.",
            self.call.tool,
            self.call.run_id,
            verb,
            seconds,
            still,
            self.line,
            extra={"facts": {"run_id": self.call.run_id, "agent_id": self.call.agent_id}},
        )


class BlockedLoopWatch:
    """The thread, and the calls that it watches."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Set the initial state. Also called in a forked child, where the thread does not exist."""
        self._calls: dict[int, _Call] = {}
        self._blocks: dict[int, _Block] = {}
        self._logged: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._started, self._asleep = False, True

    def enter(self, scope: ToolCallScope) -> int:
        """A tool begins, in the task that calls this. Returns the key for `leave`."""
        task = asyncio.current_task()
        key = id(task)
        if task is None or getattr(task.get_loop(), "virtual", False):  # a virtual clock is not the real one
            return key
        self._calls[key] = _Call(scope, task, _thread.get_ident())
        if self._asleep:
            self._wake_up()
        return key

    def leave(self, key: int) -> None:
        """The tool has ended. Its loop may be closed by now, so the current task can't be asked for the key here."""
        self._calls.pop(key, None)

    def is_first(self, call: _Call) -> bool:
        """Whether this tool was never logged before. From now on it counts as logged."""
        key = call.agent_id, call.tool
        with self._lock:
            first = key not in self._logged
            self._logged.add(key)
        return first

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _wake_up(self) -> None:
        with self._lock:
            if not self._started:
                try:
                    # Not a threading.Thread: it belongs to no run, and must not show up in `threading.enumerate()`.
                    _thread.start_new_thread(self._serve, ())
                except RuntimeError:  # no more threads can be started: go on without the watch
                    return
                self._started = True
        self._wake.set()

    def _serve(self) -> None:
        empty, self._asleep = 0, False
        while True:
            if empty >= EMPTY_CHECKS:
                self._sleep()
                empty = 0
            sleep(CHECK_SECONDS)
            empty = 0 if self._calls else empty + 1
            try:
                self._check()
            except Exception:
                log.exception("the check for tools that block their event loop failed")

    def _sleep(self) -> None:
        self._wake.clear()
        self._asleep = True  # first: from here on `enter` wakes the thread
        if not self._calls:
            self._wake.wait()
        self._asleep = False

    def _check(self) -> None:
        threads: dict[int, asyncio.AbstractEventLoop] = {}
        for key in list(self._calls):  # only the keys: to make pairs may run the garbage collector, and so other code
            if (call := self._calls.get(key)) is None:  # it has ended meanwhile
                continue
            if (task := call.task()) is not None:
                threads[call.thread] = task.get_loop()
            elif self._calls.get(key) is call:  # the task is gone with its loop, and `leave` was never called
                self._calls.pop(key, None)
        for thread, block in list(self._blocks.items()):
            if block.over or thread not in threads:
                del self._blocks[thread]
        for thread, loop in threads.items():
            if thread in self._blocks:
                self._follow(self._blocks[thread])
            elif (found := self._find(loop, thread)) is not None:
                self._suspect(loop, thread, found)

    def _find(self, loop: asyncio.AbstractEventLoop, thread: int) -> _Call | None:
        """The call whose code that loop is running, unless its tool was logged before."""
        task = asyncio.current_task(loop)
        if task is None:
            return None
        call = self._calls.get(id(task))
        if call is None and hasattr(task, "get_context"):  # Python 3.12: a task that the tool has created
            scope = task.get_context().get(current)
            call = None if scope is None else _Call(scope, task, thread)
        return None if call is None or (call.agent_id, call.tool) in self._logged else call

    def _suspect(self, loop: asyncio.AbstractEventLoop, thread: int, call: _Call) -> None:
        block = _Block(self, call)
        try:
            loop.call_soon_threadsafe(block.end)
        except RuntimeError:  # the loop was closed meanwhile
            return
        self._blocks[thread] = block

    def _follow(self, block: _Block) -> None:
        line = users_line(_of_the_tool(sys._current_frames().get(block.call.thread)))
        if block.over:  # these frames may be of other code by now
            return
        block.line = line or block.line
        if monotonic() - block.since >= STILL_SECONDS and not block.logged:
            block.logged = True
            # In a thread of its own: Python adds a raw thread that logs to `threading.enumerate()`.
            words = "has blocked", " and still does"
            threading.Thread(target=block.report, args=words, name="andon-blocked-loop", daemon=True).start()


def _of_the_tool(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the tool's code: up to the step of the run that called it."""
    for each in outwards(frame):
        if is_ours(each.f_code.co_filename) and each.f_globals.get("__name__") == "andon.core.steps":
            return
        yield each


watch = BlockedLoopWatch()
os.register_at_fork(after_in_child=watch.start_over)
