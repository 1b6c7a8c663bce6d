# SPDX-License-Identifier: Apache-2.0
"""Doing something in the middle of something else: before any chosen line, or single instruction, of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal


@contextmanager
def interrupted(
    after: int, what: Literal["line", "opcode"], action: Callable[[], object], *, within: str = ""
) -> Iterator[list[bool]]:
    """Call `action` once, before the line or instruction of this number that this thread executes in the block.

    Only those count whose file's path contains `within`. Yields a list whose one item says whether it happened: it
    doesn't, if the block has fewer of them.
    """
    countdown, happened = after, [False]

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal countdown
        if within not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = what == "opcode"
        if event == what:
            countdown -= 1
            if countdown == 0:
                happened[0] = True
                action()
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = what == "opcode"  # Python 3.12 looks for this when the tracing begins
    sys.settrace(trace)
    try:
        yield happened
    finally:
        sys.settrace(before)
