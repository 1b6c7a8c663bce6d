# SPDX-License-Identifier: Apache-2.0
"""The line of the user's code at which a scenario waited when it was disturbed.

The step names only a task, often a task of Andon. A line of their own code tells users more: the innermost line,
outside Andon and libraries, in which the task waits that the injection hits.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from andon.core.source_lines import Line, inwards, outwards, users_line
from andon.testing.virtual import VirtualLoop, tasks_of


def users_place(loop: VirtualLoop, first: asyncio.Task[Any] | None = None) -> Line | None:
    """The line at which `first` waits. If it has none: that of another task, the newest first."""
    tasks = [] if first is None else [first]
    for task in [*tasks, *reversed(tasks_of(loop))]:
        if (line := users_line(reversed(list(inwards(task.get_coro()))))) is not None:
            return line
    return None


def users_place_here() -> Line | None:
    """The line of the user's code that led to this call."""
    return users_line(outwards(sys._getframe(1)))
