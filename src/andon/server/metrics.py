# SPDX-License-Identifier: Apache-2.0
"""The metrics of the server in the text format of Prometheus. All label values are constants, so none is escaped.
`queue_metrics` has those of worker processes.

Metrics must work while the database is unreachable: then the values from the database are left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import get_args

from andon.core.archive import Latencies
from andon.core.selection import BlockKind
from andon.core.states import CancelCause, RunStatus
from andon.errors import SchemaError, StoreError
from andon.server import queue_metrics
from andon.server.authorized_host import AuthorizedHost

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

ANSWER_SECONDS = 2.0
"""How long to wait for the database. Prometheus itself waits for ten seconds."""


async def collect(host: AuthorizedHost) -> str:
    runtimes = host.runtimes
    live = Counter(run.status for run in host.live)
    ended: Counter[RunStatus] = Counter()
    causes: Counter[CancelCause] = Counter()
    for runtime in runtimes:
        ended.update(runtime.ended_counts)
        causes.update(runtime.cancel_counts)
    blocked = await _blocked(host)
    abandoned = sum(len(runtime.abandoned) for runtime in runtimes)
    lines = [
        *_head("runs", "gauge", "Runs that have not ended, by status."),
        *(f'andon_runs{{status="{each.name}"}} {live[each]}' for each in RunStatus if not each.final),
        *_head("runs_ended_total", "counter", "Runs that have ended, by status."),
        *(f'andon_runs_ended_total{{status="{each.name}"}} {ended[each]}' for each in RunStatus if each.final),
        *_head("cancels_total", "counter", "Runs that have ended as cancelled, by cause."),
        *(f'andon_cancels_total{{cause="{each.name}"}} {causes[each]}' for each in CancelCause),
        *_head("cancel_seconds", "histogram", "How long it took from a cancel to the run's end."),
        *_latency([runtime.cancel_latencies for runtime in runtimes]),
        *blocked,
        *await queue_metrics.collect(host, ANSWER_SECONDS),
        *_head("abandoned_threads", "gauge", "Threads of tools that were cut and still run."),
        f"andon_abandoned_threads {abandoned}",
        *_head("leases_lost_total", "counter", "Runs that were stopped as lost: their leases ran out."),
        f"andon_leases_lost_total {sum(runtime.lost_leases for runtime in runtimes)}",
        *_head("store_lag_seconds", "gauge", "How long a run that begins now would wait for the database."),
        f"andon_store_lag_seconds {max(runtime.lag for runtime in runtimes):.3f}",
        *_head("draining", "gauge", "Whether the server is shutting down."),
        f"andon_draining {int(host.draining)}",
    ]
    return "\n".join([*lines, ""])


async def _blocked(host: AuthorizedHost) -> list[str]:
    """Empty if the database can't be reached."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            blocked = Counter(block.kind for block in await host.blocks())
    except (StoreError, SchemaError, TimeoutError) as error:
        why = str(error) or f"it has not answered within {ANSWER_SECONDS:g} s"
        log.warning("/metrics leaves out andon_blocked, because the database can't be asked: %s", why)
        return []
    return [
        *_head("blocked", "gauge", "Users and agents whose new runs are refused."),
        *(f'andon_blocked{{kind="{each}"}} {blocked[each]}' for each in get_args(BlockKind)),
    ]


def _head(name: str, kind: str, about: str) -> tuple[str, str]:
    return f"# HELP andon_{name} {about}", f"# TYPE andon_{name} {kind}"


def _latency(several: Sequence[Latencies]) -> Iterator[str]:
    so_far = 0
    for number, bound in enumerate([*Latencies.BOUNDS, "+Inf"]):
        so_far += sum(each.counts[number] for each in several)
        yield f'andon_cancel_seconds_bucket{{le="{bound}"}} {so_far}'
    yield f"andon_cancel_seconds_sum {sum(each.total for each in several)}"
    yield f"andon_cancel_seconds_count {so_far}"
