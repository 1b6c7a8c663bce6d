# SPDX-License-Identifier: Apache-2.0
"""The metrics of the queue of runs and of worker processes, on a database that has a queue.

They are the same at every server of that database. The values of labels come from users, and are escaped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from andon.errors import SchemaError, StoreError
from andon.scale.overview import Overview, QueueLine
from andon.server.authorized_host import AuthorizedHost

log = logging.getLogger(__name__)


async def collect(host: AuthorizedHost, seconds: float) -> list[str]:
    """Empty if the database has no queue, or does not answer within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            if not await host.has_queue():
                return []
            found = await host.workers()
    except (StoreError, SchemaError, TimeoutError) as error:
        why = str(error) or f"it has not answered within {seconds:g} s"
        log.warning("/metrics leaves out queues and workers, because the database can't be asked: %s", why)
        return []
    return lines_of(found, [agent.queue for agent in host.all_agents])


def lines_of(found: Overview, served: Iterable[str]) -> list[str]:
    """`served`: the queues of the agents of this server."""
    return [*_queues(found, served), *_workers(found)]


def _queues(found: Overview, served: Iterable[str]) -> list[str]:
    """A queue that is empty has zeros, so that no series comes and goes with each run."""
    empty: dict[str, list[QueueLine]] = {name: [] for each in found.workers for name in each.queues}
    lines = empty | {name: [] for name in served}
    for each in found.queues:
        lines.setdefault(each.queue, []).append(each)
    values: dict[str, tuple[str, Callable[[Sequence[QueueLine]], float]]] = {
        "queue_ready": ("Runs that wait for a worker alone.", lambda waiting: sum(each.ready for each in waiting)),
        "queue_held_back": (
            "Runs that wait for their session, for their user's turn, or for room.",
            lambda waiting: sum(each.held_back for each in waiting),
        ),
        "queue_lag_seconds": (
            "How long the oldest ready run has waited for a worker.",
            lambda waiting: max([each.lag for each in waiting], default=0.0),
        ),
    }
    return [
        line
        for name, (about, count) in values.items()
        for line in _gauge(name, about, "queue", {queue: count(lines[queue]) for queue in sorted(lines)})
    ]


def _workers(found: Overview) -> list[str]:
    alive = [each for each in found.workers if each.state != "silent"]
    return [
        *_gauge("workers", "Worker processes that report.", None, {"": len(alive)}),
        *_gauge("worker_runs", "Runs that a worker executes.", "worker", {each.name: each.runs for each in alive}),
        *_gauge(
            "worker_concurrency",
            "How many runs a worker executes at once at the most; 0 while it drains.",
            "worker",
            {each.name: each.concurrency if each.state == "working" else 0 for each in alive},
        ),
    ]


def _gauge(name: str, about: str, label: str | None, values: Mapping[str, float]) -> list[str]:
    lines = [f"# HELP andon_{name} {about}", f"# TYPE andon_{name} gauge"]
    for value, number in values.items():
        where = "" if label is None else f'{{{label}="{_escape(value)}"}}'
        lines.append(f"andon_{name}{where} {number if isinstance(number, int) else f'{number:.3f}'}")
    return lines


def _escape(value: str) -> str:
    """The text as the value of a label. Prometheus knows these three escapes, and reads UTF-8."""
    plain = value.encode(errors="replace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
