# SPDX-License-Identifier: Apache-2.0
"""What keeps the queue moving if a process dies in between: jobs are sent that are due, or were lost, and runs are
cancelled that have waited for longer than their `timeout`.

Servers that execute nothing do this too, so that a queue without any worker still ends its runs in time. All processes
together do it about twice a second, however many they are: the others only ask whether it is done.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

from andon.agent.queued import continuing_start
from andon.core.receipt import CancelRequest
from andon.core.runtime import Runtime
from andon.core.selection import Selection
from andon.core.shared.run_queue import CutOff, RunQueue
from andon.core.shared.worker import Worker
from andon.core.states import CancelCause
from andon.errors import ConfigurationError, StartError, StoreError, describe

log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.5
"""How often the queue is looked at, as a safety net: most jobs are sent by the transaction that makes them due."""
ASK_SECONDS = 0.75
"""How often the other processes ask whether one still does that. If it has died, another one takes over by then."""

CLEANS_IN_A_LEASE = 3
"""How often the jobs of dead processes are deleted."""


class QueueMaintenance:
    """Looks after the queue of one store, beside other processes that do the same."""

    def __init__(self, queue: RunQueue, worker: Worker) -> None:
        self._queue, self._worker = queue, worker
        self._cleaned_at = -math.inf

    async def serve(self) -> None:
        """Do it until cancelled."""
        while True:
            pause = ASK_SECONDS
            try:
                if await self._queue.begin_sweep(SWEEP_SECONDS):
                    pause = SWEEP_SECONDS  # so it is this process that does it the next time too
                    await self._look()
            except StoreError as error:
                self._worker.link.complain("the queue of runs can't be looked at", error)
            except Exception as error:
                log.critical("the queue of runs could not be looked after: %s", describe(error), exc_info=error)
            await asyncio.sleep(pause)

    async def _look(self) -> None:
        lease = self._worker.link.seconds
        overdue = await self._queue.sweep(lease)
        for run_id in overdue:
            request = CancelRequest.make(CancelCause.deadline, "it has waited in the queue for longer than its timeout")
            await self._worker.store.request_cancel(Selection(run_id), request)
        if overdue:
            await self._worker.orphans.end_all()
        for cut in await self._queue.cut_off():
            await self._decide(cut)
        if (now := asyncio.get_running_loop().time()) - self._cleaned_at >= lease / CLEANS_IN_A_LEASE:
            await self._queue.clean(lease)
            self._cleaned_at = now

    async def _decide(self, cut: CutOff) -> None:
        """Let a run go on whose worker was lost or shut down, if it was cut for that reason. The runs behind it in its
        session wait until that is decided, so a defect must not keep it from being decided.
        """
        run_id = cut.record.run_id
        try:
            start = continuing_start(cut)
            decided = await self._queue.decide(run_id, start)
        except StoreError:
            raise
        except Exception as error:
            level, shown = (logging.WARNING, None) if isinstance(error, StartError) else (logging.CRITICAL, error)
            log.log(level, "run %s was cut off, and can't go on: %s", run_id, describe(error), exc_info=shown)
            await self._queue.decide(run_id, None)
            return
        if not decided:
            log.warning("run %s was cut off, and can't go on: another run has its session", run_id)
        elif start is not None:
            log.warning("run %s was cut off, and goes on as %s", run_id, start.record.run_id)


def queue_of(runtime: Runtime) -> RunQueue:
    """The queue of the runtime's store. Raises for a store that has none."""
    return queue_in(runtime.store)


def queue_in(store: Any) -> RunQueue:
    make = getattr(store, "run_queue", None)
    if make is None:
        raise ConfigurationError(
            "worker processes need a Postgres that all of them use: give --db postgresql://user:password@host/name"
        )
    queue: RunQueue = make()
    return queue
