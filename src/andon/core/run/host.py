# SPDX-License-Identifier: Apache-2.0
"""The runtime, as its runs see it."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from andon.core.run.storage import RunStorage
from andon.core.run.tool_call import CallHost

RunT = TypeVar("RunT")


class RunHost(CallHost, Protocol[RunT]):
    """Holds the bounds of runs, and knows which runs there are. All methods are safe from any thread."""

    @property
    def store(self) -> object: ...

    @property
    def max_depth(self) -> int: ...

    @property
    def max_events(self) -> int: ...

    @property
    def max_event_bytes(self) -> int: ...

    def storage_for(self, run: RunT) -> RunStorage: ...

    def find(self, run_id: str) -> RunT | None:
        """The run with this id, if it has not ended."""
        ...

    def register(self, run: RunT) -> None:
        """Have the run found by its id. Raises if the id is taken, or if the run's user or agent is blocked."""
        ...

    def withdraw(self, run: RunT) -> None:
        """Undo `register`: the run did not begin."""
        ...

    def part_from(self, run: RunT) -> None:
        """Have the run not found by its id any more, though it still has something to do."""
        ...

    def run_ended(self, run: RunT) -> None:
        """Have the run found among those that have ended."""
        ...

    def run_released(self, run: RunT) -> None:
        """The run has nothing to do any more."""
        ...


Spectator = Callable[[Any], None]
spectator: contextvars.ContextVar[Spectator | None] = contextvars.ContextVar("spectator", default=None)
"""Is called with every run that begins in its context. The explorer uses it."""
