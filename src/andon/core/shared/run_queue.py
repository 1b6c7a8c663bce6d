# SPDX-License-Identifier: Apache-2.0
"""The interface of a queue of runs, which one process accepts and another one executes.

A run that waits there is a row of the shared store from the first moment: it is pending, and no process holds it. So it
is found, watched and cancelled like every other run. The queue is a part of the store (`SharedStore.run_queue`). A job
of the engine only tells a worker process that a run may be claimed. A job may come late, twice, or for a run that has
ended: the claim decides, and only one claim succeeds.

A run gets its job when it is the first of its session, when the limits leave room, and when not too many runs of the
same share wait ahead of it. A share is a user, or, without a user, a session. So a user with a thousand runs and a user
with one are served in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from andon.core.events import Event
from andon.core.records import RequestKey, RunRecord
from andon.core.session import OnBusy
from andon.core.shared.store import Lease, Taken
from andon.messages import Message

LISTED_SECONDS = 60.0
"""A worker process that has not reported for so long is not listed any more."""

TASK = "andon.run"
"""The name of the engine's task. Its one argument is the id of a run."""

WINDOW = 4
"""How many runs of one share may have a job that no worker has taken. With more, one share would delay the others; with
fewer, a worker that has become free would wait for the next job.
"""


class Route(NamedTuple):
    """Where a run waits."""

    channel: str
    """The engine's queue. Workers take jobs from those that they can execute."""
    priority: int
    """Higher ones are taken first."""
    queue: str = "default"
    """The name of the queue, as users know it."""


class QueueLimits(Struct, frozen=True):
    """How many runs there may be, over all processes. Runs of sub-agents and paused runs do not count."""

    max_runs: int = 1000
    """So many may be at work, or have a job."""
    max_user_runs: int = 100
    """The same for one user."""
    max_agent_runs: int = 1000
    """The same for one agent."""
    max_waiting_runs: int = 10_000
    """So many may wait for room."""


class QueuedStart(NamedTuple):
    """A run to be put into the queue."""

    record: RunRecord
    messages: Sequence[Message]
    """The prompt. It is part of the session if the run is cancelled before it begins."""
    first: Event
    """Its first event."""
    request: bytes
    """All that a worker needs to execute it, as JSON."""
    route: Route
    on_busy: OnBusy
    waits: bool
    """If the limits leave no room, it waits. Otherwise it is refused."""
    timeout: float | None
    """For how long it may wait."""
    goes_on: bool
    """If its worker is lost, another one continues it."""
    continues: str | None = None
    """The run that was cut, which this one continues."""


class QueuedAnswers(NamedTuple):
    """Answers for a paused run, to be put into the queue."""

    run_id: str
    known: int
    """The number of the run's last event. If it has another one now, the answers are not for its questions."""
    request: bytes
    route: Route
    goes_on: bool


class CutOff(NamedTuple):
    """A run that has ended because its worker was lost, or shut down, and that may go on."""

    record: RunRecord
    request: bytes
    route: Route
    left_nothing: bool
    """It has added nothing to its session: it was cut before it began."""


class ClaimedRun(NamedTuple):
    """A run that this process executes from now on."""

    taken: Taken
    owner: str
    """The name under which it is held."""
    request: bytes
    waited: float
    """For how many seconds it has waited in the queue."""
    events: Sequence[Event] | None = None
    """All its events, if they were read with it."""
    is_fresh: bool = False
    """Its session is known to have no messages yet."""


class WorkerState(Struct, frozen=True):
    """A worker process, as it last reported."""

    name: str
    channels: list[str]
    """The engine's queues from which it takes jobs."""
    serves: list[str]
    """The ids of those whose runs it executes."""
    queues: list[str]
    concurrency: int
    """How many runs it executes at once at the most."""
    runs: int
    """How many it executes now."""
    started_at: float
    seen_at: float
    draining: bool
    """It was asked to take no more runs, and to stop when those that it has are over."""
    owner: str = ""
    """The name under which it holds runs."""
    silence: float = 0.0
    """For how many seconds it has not reported."""


class QueueState(Struct, frozen=True):
    """What waits in one of the engine's queues."""

    channel: str
    ready: int
    """Runs with a job that no worker has taken."""
    held_back: int
    """Runs that wait for their session, for their share's turn, or for room."""
    lag: float
    """For how many seconds the oldest of the ready ones has been ready."""
    queue: str
    """The name of the queue, as users know it."""
    serves: str
    """The id of the one whose runs these are."""


class RunQueue(Protocol):
    """The queue of a shared store. Every method may be cancelled, and does all of its work or none."""

    @property
    def url(self) -> str:
        """Where the database is, with its password: the engine connects to it too."""
        ...

    async def prepare(self, limits: QueueLimits | None = None) -> None:
        """Create the tables if they are missing, and set the limits. Raises a `ConfigurationError` that says what to do
        if the engine's tables can't be used.
        """
        ...

    async def put(self, start: QueuedStart) -> bool:
        """Enter a run. Raises what `SharedStore.enter` raises, and `FullError`. The same call again changes nothing,
        unless the run has ended since. True if it has cancelled runs that no worker ends.
        """
        ...

    async def put_answers(self, answers: QueuedAnswers, request_key: RequestKey | None = None) -> bool:
        """Enter the answers of a paused run. False if it waits for no answers, or has some already."""
        ...

    async def claim(self, run_id: str, owner: str, seconds: float) -> ClaimedRun | None:
        """Hold a run that waits in the queue. None if it does not wait there, was cancelled, or has not its turn.

        If the same owner calls it again, it gives the same lease: the answer may have been lost.
        """
        ...

    async def put_back(self, run_id: str) -> None:
        """This process has taken the job of a run, and does not execute the run: another one will."""
        ...

    async def hand_back(self, lease: Lease) -> None:
        """This process has claimed a run, and has not begun it: the run waits in the queue again, for any process."""
        ...

    async def ended(self, run_id: str) -> None:
        """A run has ended, or has paused: the next one of its session may get its job."""
        ...

    async def begin_sweep(self, every: float) -> bool:
        """Whether no process has begun to sweep for so many seconds. Then the caller does it now."""
        ...

    async def sweep(self, stale_seconds: float) -> list[str]:
        """Send all jobs that are due, and those again that were lost: no worker has claimed their runs for so long.
        Returns runs that have waited longer than their `timeout`.
        """
        ...

    async def clean(self, stale_seconds: float) -> None:
        """Delete the jobs of processes that have given the engine no sign of life for so long, and of runs that have
        ended so long ago.
        """
        ...

    async def cut_off(self) -> list[CutOff]:
        """Some of the runs that have ended as cancelled, with `goes_on`, and of which that was not decided yet."""
        ...

    async def decide(self, run_id: str, start: QueuedStart | None) -> bool:
        """Put the run that continues this one into the queue, or nothing. False if it can't be continued any more,
        because another run has the session.
        """
        ...

    async def report(self, worker: WorkerState) -> bool:
        """Tell of this worker process. True if it was asked to drain."""
        ...

    async def leave(self, name: str) -> None:
        """This worker process is over."""
        ...

    async def drain(self, name: str) -> bool:
        """Ask a worker process to take no more runs, and to stop. False if none of this name has reported lately."""
        ...

    async def is_there(self) -> bool:
        """Whether the database has the tables of the queue. Without, there are no workers and no queues."""
        ...

    async def workers(self, alive_seconds: float) -> list[WorkerState]:
        """The worker processes that have reported within so many seconds."""
        ...

    async def queues(self) -> list[QueueState]:
        """The queues in which runs wait now."""
        ...

    async def count_open(self, user_id: str | None = None) -> int:
        """How many runs of this user, or of all, are paused, work, or have room to. Runs of sub-agents don't count."""
        ...

    async def limits(self) -> Mapping[str, int]: ...
