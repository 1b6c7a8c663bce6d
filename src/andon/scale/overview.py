# SPDX-License-Identifier: Apache-2.0
"""What operators are shown of worker processes and queues, as plain data. `inspection` reads it from a store."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

WorkerCondition = Literal["working", "draining", "silent"]


class WorkerLine(Struct, frozen=True):
    """A worker process."""

    name: str
    state: WorkerCondition
    runs: int
    """How many runs it executes now."""
    concurrency: int
    """How many it executes at once at the most."""
    queues: list[str]
    agents: list[str]
    started_at: float
    silence: float
    """For how many seconds it has not reported."""


class QueueLine(Struct, frozen=True):
    """The runs of one agent that wait in one queue."""

    queue: str
    agent_id: str
    ready: int
    """Runs that wait for a worker alone."""
    held_back: int
    """Runs that wait for their session, for their user's turn, or for room."""
    lag: float
    """For how many seconds the oldest of the ready ones has waited for a worker."""
    workers: int
    """How many workers take these runs. With none, they wait until one is started."""


class Overview(Struct, frozen=True):
    """The worker processes that have reported lately, and the queues in which runs wait."""

    workers: list[WorkerLine]
    queues: list[QueueLine]
