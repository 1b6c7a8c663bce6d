# SPDX-License-Identifier: Apache-2.0
"""The seam to storage: where conversations and the records of runs are kept.

A session's conversation is the messages of its runs, in the order in which the runs took their turn. `save` replaces
what one run added, so it may be called again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from andon.core.receipt import Interrupt, Receipt
from andon.core.states import RunStatus, StopReason
from andon.messages import Message, Usage


class SessionKey(NamedTuple):
    """What makes a session: two users' `s1` never meet."""

    agent_id: str
    user_id: str | None
    session_id: str


class RunRecord(Struct, frozen=True):
    """What is kept of a run."""

    run_id: str
    session: SessionKey
    status: RunStatus
    created_at: float
    metadata: dict[str, Any]
    stop_reason: StopReason | None = None
    content: str = ""
    usage: Usage | None = None
    receipt: Receipt | None = None
    error: str | None = None
    interrupts: list[Interrupt] = []
    """The questions that are open, if the run is paused."""
    continues: str | None = None
    """The run that this one goes on with: what that one added is part of what this one adds."""
    parent_run_id: str | None = None
    """The run inside which this one was started."""


class _Done:
    """Nothing to wait for."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


DONE = _Done()


class Store(Protocol):
    """Keeps sessions and runs. Every method may be cancelled, and must then have done all of its work or none."""

    async def load(self, session: SessionKey) -> list[Message]:
        """The conversation so far; a session that is not there is empty."""
        ...

    def save(self, record: RunRecord, messages: Sequence[Message]) -> Awaitable[None]:
        """Keep a run's record, and the messages that it added to its session, in place of what it saved before.

        A coroutine, or, from a store that need not wait, `DONE`, which spares the run a task.
        """
        ...

    async def find(self, run_id: str) -> RunRecord | None:
        """The record of a run, if there is one."""
        ...

    async def added(self, run_id: str) -> list[Message] | None:
        """What a run has added to its session; None if that is no longer part of it, or was never kept."""
        ...

    async def take_back(self, run_id: str) -> None:
        """Take what a run added out of its session; the record stays. Raises `NotContinuableError` where later runs
        build on it. What the run had gone on with is part of the session again.
        """
        ...
