# SPDX-License-Identifier: Apache-2.0
"""Where in the user's own code a scenario was when it was disturbed.

The step alone names a task, and often one of ours. What a user can look at is a line of their own: the innermost one,
outside of Andon and of libraries, in which the task waits that the injection hits.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from andon.core.source_lines import Line, inwards, outwards, users_line
from andon.testing.virtual import VirtualLoop, tasks_of


def users_place(loop: VirtualLoop, first: asyncio.Task[Any] | None = None) -> Line | None:
    """The line at which `first` waits; or if that has none, another task, the newest first: the others wait for it."""
    tasks = [] if first is None else [first]
    for task in [*tasks, *reversed(tasks_of(loop))]:
        if (line := users_line(reversed(list(inwards(task.get_coro()))))) is not None:
            return line
    return None


def users_place_here() -> Line | None:
    """The line of the user's that has led to this call."""
    return users_line(outwards(sys._getframe(1)))
