# SPDX-License-Identifier: Apache-2.0
"""Interrupt a call: by an exception at one of its lines, or because the stack has no frames left.

A signal handler that raises does the first, as Python's own does at Ctrl-C. The second is a `RecursionError`. What must
stay true: this affects only the calling thread, and only during the call. An earlier tracer (coverage, a debugger) and
the recursion limit are restored, also if the call raises.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

PACKAGE = __name__.partition(".")[0]
OWN = f"{PACKAGE}.testing"
"""The code of the explorer and its loop is never interrupted."""
C_FRAMES = 2
"""Before Python 3.12, functions in C need stack frames too, but a tracer does not see them."""


class BrokenOff(BaseException):
    """What the explorer raises in the middle of a call. It stands for a `KeyboardInterrupt`."""


@dataclass(frozen=True)
class Trace:
    """The lines of the library that a call executed, in order, and the number of stack frames that it needed."""

    lines: tuple[str, ...]
    frames: int

    def breaks(self) -> Iterator[Break]:
        """Every way to interrupt such a call."""
        for number, where in enumerate(self.lines, 1):
            yield AtLine(number, where)
        for left in range(1, self.frames + C_FRAMES + 1):
            yield FramesLeft(left)


def trace_call(call: Callable[[], object]) -> Trace:
    """Make a call without interrupting it, and count its lines."""
    tracer = _Tracer(None)
    tracer.run(call)
    return Trace(tuple(tracer.lines), tracer.frames)


@dataclass(frozen=True)
class AtLine:
    """An exception before the n-th line of the library that the call executes."""

    number: int
    where: str = field(compare=False)

    def __str__(self) -> str:
        return f"at its line {self.number} ({self.where})"

    def make(self, call: Callable[[], object]) -> bool:
        """Make the call. False if it ended before that line."""
        tracer = _Tracer(self.number)
        with contextlib.suppress(BrokenOff):
            tracer.run(call)
        return tracer.raised


@dataclass(frozen=True)
class FramesLeft:
    """Few stack frames are left: an inner call that needs more gets a `RecursionError`."""

    left: int

    def __str__(self) -> str:
        return f"with {self.left} frames left"

    def make(self, call: Callable[[], object]) -> bool:
        limit, tracer = sys.getrecursionlimit(), sys.gettrace()
        sys.settrace(None)  # it would need stack frames too
        try:
            _limit_frames(self.left)
            call()
        except RecursionError:
            pass
        finally:  # by calls that need no frame
            sys.setrecursionlimit(limit)
            sys.settrace(tracer)
        return True


Break = AtLine | FramesLeft


def _limit_frames(left: int) -> None:
    """Leave the caller so many frames. The limit holds for other threads too, but their stacks are less deep."""
    depth = 1
    while True:  # Python refuses a limit below the current depth; there is no other way to get that
        try:
            sys.setrecursionlimit(depth)
        except RecursionError:
            depth += 1
        else:
            break
    sys.setrecursionlimit(depth + left)


class _Tracer:
    """Counts the lines of the library that a call executes, and raises at one of them."""

    def __init__(self, stop_at: int | None) -> None:
        self._stop_at, self._base = stop_at, 0
        self.lines: list[str] = []
        self.frames = 0
        self.raised = False

    def run(self, call: Callable[[], object]) -> None:
        before = sys.gettrace()
        self._base = _depth(sys._getframe())
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        if self._stop_at is None:
            self.frames = max(self.frames, _depth(frame) - self._base)
        return self._line if _is_ours(frame) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            self.lines.append(_where(frame))
            if len(self.lines) == self._stop_at:
                self.raised = True  # Python stops tracing here, so cleanup code is not interrupted
                raise BrokenOff
        return self._line


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__"))
    return _within(module, PACKAGE) and not _within(module, OWN)


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _where(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def _depth(frame: FrameType | None) -> int:
    depth = 0
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth
