# SPDX-License-Identifier: Apache-2.0
"""Notices an async tool that holds up its event loop, by `time.sleep` say, and says which line does it.

While such a tool blocks, no other run of that loop goes on and no cancel is heard, and nothing says why. One thread
looks every so often which task each loop is in. If it is a tool's, a callback is sent to that loop: as long as it is
not called, the tool has not let go. So a loop is sent something only where a look finds a tool's code at work, which is
rare unless it blocks. While no tool is at work the thread sleeps, and a call costs one entry in a dictionary.

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

from andon.core.run.children import current
from andon.core.source_lines import Line, is_ours, outwards, users_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from andon.core.run.tool_call import CallScope

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
HELD_SECONDS = 0.2
"""What a tool may take between two awaits before it is told of; seen from the first look that finds it."""
STILL_SECONDS = 5.0
"""A tool that has not let go after so long is told of at once: it may never do so."""
EMPTY_LOOKS = 20
"""After so many looks that find no tool at work, the thread sleeps until there is one."""


class _Call:
    """An async tool call at work. It holds words alone: the run would hold its loop."""

    __slots__ = ("agent_id", "run_id", "task", "thread", "tool")

    def __init__(self, scope: CallScope, task: asyncio.Task[Any], thread: int) -> None:
        self.tool, self.run_id, self.agent_id = scope.name, scope.run.run_id, scope.run.agent_id
        self.task, self.thread = weakref.ref(task), thread


class _Hold:
    """A loop that was found in a tool's code, until it has another turn."""

    __slots__ = ("_watch", "call", "line", "over", "since", "told")

    def __init__(self, watch: Watch, call: _Call) -> None:
        self._watch, self.call = watch, call
        self.since = monotonic()
        self.line: Line | None = None
        """Where it was when it was last looked at."""
        self.over = self.told = False

    def end(self) -> None:
        """Called by the loop: so it has a turn again."""
        self.over = True
        self.tell("held up")

    def tell(self, verb: str, still: str = "") -> None:
        seconds = monotonic() - self.since
        if self.line is None or seconds < HELD_SECONDS or not self._watch.is_news(self.call):
            return
        log.warning(
            "tool %s of run %s %s its event loop for %.1f s%s, and with it every other run and every cancel: %s. "
            "Make it a plain `def`, which runs in a thread of its own, or await what it waits for.",
            self.call.tool,
            self.call.run_id,
            verb,
            seconds,
            still,
            self.line,
            extra={"facts": {"run_id": self.call.run_id, "agent_id": self.call.agent_id}},
        )


class Watch:
    """The thread, and the calls that it watches."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Be as new. In a forked child the thread is gone."""
        self._calls: dict[int, _Call] = {}
        self._holds: dict[int, _Hold] = {}
        self._told: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._started, self._asleep = False, True

    def enter(self, scope: CallScope) -> int:
        """A tool begins, in the task that calls this. What is returned is for `leave`."""
        task = asyncio.current_task()
        key = id(task)
        if task is None or getattr(task.get_loop(), "virtual", False):  # its time is not ours
            return key
        self._calls[key] = _Call(scope, task, _thread.get_ident())
        if self._asleep:
            self._rouse()
        return key

    def leave(self, key: int) -> None:
        """The tool has ended; maybe with its loop, so that there is no task any more that could be asked for."""
        self._calls.pop(key, None)

    def is_news(self, call: _Call) -> bool:
        """Whether this tool has not been told of before: then it counts as told."""
        key = call.agent_id, call.tool
        with self._lock:
            new = key not in self._told
            self._told.add(key)
        return new

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _rouse(self) -> None:
        with self._lock:
            if not self._started:
                try:
                    # A raw one: it belongs to no run, and who counts a program's threads has not to know of it.
                    _thread.start_new_thread(self._serve, ())
                except RuntimeError:  # no more threads: then nobody watches
                    return
                self._started = True
        self._wake.set()

    def _serve(self) -> None:
        empty, self._asleep = 0, False
        while True:
            if empty >= EMPTY_LOOKS:
                self._sleep()
                empty = 0
            sleep(LOOK_SECONDS)
            empty = 0 if self._calls else empty + 1
            try:
                self._look()
            except Exception:
                log.exception("the watch over tools that hold up their loops failed")

    def _sleep(self) -> None:
        self._wake.clear()
        self._asleep = True  # first: who enters a call from here on wakes it
        if not self._calls:
            self._wake.wait()
        self._asleep = False

    def _look(self) -> None:
        threads: dict[int, asyncio.AbstractEventLoop] = {}
        for key, call in list(self._calls.items()):
            if (task := call.task()) is not None:
                threads[call.thread] = task.get_loop()
            elif self._calls.get(key) is call:  # it went with its loop, and was never told to end
                self._calls.pop(key, None)
        for thread, hold in list(self._holds.items()):
            if hold.over or thread not in threads:
                del self._holds[thread]
        for thread, loop in threads.items():
            if thread in self._holds:
                self._follow(self._holds[thread])
            elif (found := self._find(loop, thread)) is not None:
                self._suspect(loop, thread, found)

    def _find(self, loop: asyncio.AbstractEventLoop, thread: int) -> _Call | None:
        """The tool in whose code that loop is, if it is in one that has not been told of."""
        task = asyncio.current_task(loop)
        if task is None:
            return None
        call = self._calls.get(id(task))
        if call is None and hasattr(task, "get_context"):  # of Python 3.12: a task that the tool has made
            scope = task.get_context().get(current)
            call = None if scope is None else _Call(scope, task, thread)
        return None if call is None or (call.agent_id, call.tool) in self._told else call

    def _suspect(self, loop: asyncio.AbstractEventLoop, thread: int, call: _Call) -> None:
        hold = _Hold(self, call)
        try:
            loop.call_soon_threadsafe(hold.end)
        except RuntimeError:  # it was closed meanwhile
            return
        self._holds[thread] = hold

    def _follow(self, hold: _Hold) -> None:
        line = users_line(_of_the_tool(sys._current_frames().get(hold.call.thread)))
        if hold.over:  # what was seen may be of someone else
            return
        hold.line = line or hold.line
        if monotonic() - hold.since >= STILL_SECONDS and not hold.told:
            hold.told = True
            # In a thread of its own: who logs is listed among the threads from then on.
            words = "has blocked", " and still does"
            threading.Thread(target=hold.tell, args=words, name="andon-holdup", daemon=True).start()


def _of_the_tool(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of a tool's own work: up to the step that it is."""
    for each in outwards(frame):
        if is_ours(each.f_code.co_filename) and each.f_globals.get("__name__") == "andon.core.steps":
            return
        yield each


watch = Watch()
os.register_at_fork(after_in_child=watch.start_over)
