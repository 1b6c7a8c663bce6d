# SPDX-License-Identifier: Apache-2.0
"""Reads from a store what operators are shown: worker processes, what waits in each queue, and which process holds a
run.

It changes nothing, and works without the engine. A store without workers has an empty overview.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from andon.core.process_name import process_of, worker_of
from andon.core.shared.overview import OverviewStore
from andon.core.shared.run_queue import LISTED_SECONDS, RunQueue, WorkerState
from andon.errors import ConfigurationError
from andon.scale.overview import Overview, QueueLine, WorkerCondition, WorkerLine

SILENT_SECONDS = 5.0
"""A worker process reports once a second. One that has not reported for so long is dead, or cut off."""


def queue_at(store: Any) -> RunQueue | None:
    """The queue of this store, or None if it can't have one."""
    make = getattr(store, "run_queue", None)
    try:
        queue: RunQueue | None = None if make is None else make()
    except ConfigurationError:  # SQLite
        return None
    return queue


async def look(queue: RunQueue) -> Overview:
    found = await queue.workers(LISTED_SECONDS)
    active = [each for each in found if _condition(each) == "working"]
    lines = [
        QueueLine(
            each.queue,
            each.serves,
            each.ready,
            each.held_back,
            each.lag,
            sum(each.channel in worker.channels for worker in active),
        )
        for each in await queue.queues()
    ]
    return Overview([_line(each) for each in found], lines)


def _line(worker: WorkerState) -> WorkerLine:
    return WorkerLine(
        worker.name,
        _condition(worker),
        worker.runs,
        worker.concurrency,
        worker.queues,
        worker.serves,
        worker.started_at,
        worker.silence,
    )


def _condition(worker: WorkerState) -> WorkerCondition:
    if worker.silence > SILENT_SECONDS:
        return "silent"
    return "draining" if worker.draining else "working"


async def worker_names(store: Any) -> dict[str, str]:
    """The names of the worker processes, by the names under which they hold runs."""
    queue = queue_at(store)
    return {} if queue is None else {each.owner: each.name for each in await queue.workers(LISTED_SECONDS)}


async def holders(store: Any, run_ids: Sequence[str]) -> Mapping[str, str]:
    """Which process holds each of these runs: the name of a worker, or the process of a server. A run that no process
    holds is left out.
    """
    owners = await store.owners(run_ids) if run_ids and isinstance(store, OverviewStore) else {}
    if not owners:
        return {}
    names = await worker_names(store)
    return {run_id: holder_name(owner, names) for run_id, owner in owners.items()}


def holder_name(owner: str, names: Mapping[str, str]) -> str:
    return names.get(worker_of(owner)) or process_of(owner)
