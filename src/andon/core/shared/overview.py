# SPDX-License-Identifier: Apache-2.0
"""What a shared store tells about all of its runs, for the board of a server.

A store may lack this: then a board shows only the runs of its own process. All of it only reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from andon.core.events import Event
from andon.core.records import RunRecord


class StoredRun(NamedTuple):
    """A run in a list of runs."""

    record: RunRecord
    """Without content, metadata, output and bookmark. It has questions only if the run is paused."""
    owner: str | None
    """The worker that holds it. None for a run that is paused or has ended."""
    ended_at: float | None


@runtime_checkable
class OverviewStore(Protocol):
    """A shared store that can be watched as a whole."""

    async def live_runs(self, limit: int) -> list[StoredRun]:
        """The runs that have not ended, newest first."""
        ...

    async def ended_runs(self, since: float, until: float, limit: int) -> list[StoredRun]:
        """The runs that have ended between these times. The run that ended last comes first."""
        ...

    async def run_tree(self, run_id: str, limit: int) -> list[StoredRun]:
        """This run, the runs that were started inside it, and those inside them, oldest first."""
        ...

    async def owners(self, run_ids: Sequence[str]) -> Mapping[str, str]:
        """The worker that holds each of these runs. A run that none holds is left out."""
        ...

    async def new_events(self, after: Mapping[str, int], limit: int) -> Mapping[str, list[Event]]:
        """For each of these runs its written events after a number, at most `limit` of each."""
        ...
