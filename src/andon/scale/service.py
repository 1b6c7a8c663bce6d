# SPDX-License-Identifier: Apache-2.0
"""A worker process: it claims runs that wait in the queue, and executes them.

A job is only a hint, so each run is claimed first, and only one process can do that. From then on the run is one of
this runtime, under a lease, like any other run: it writes its events, hears of its cancel, and ends once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from andon.agent.agent import Agent
from andon.agent.options import check_queueing
from andon.agent.queued import channel_of
from andon.core.process_name import process_name
from andon.core.run.handle import local_run
from andon.core.run.run import LocalRun
from andon.core.runtime import Runtime
from andon.core.shared.lease_state import LeaseState
from andon.core.shared.leased_run import LeasedRun
from andon.core.shared.run_queue import WorkerState
from andon.core.states import CancelCause
from andon.errors import AndonError, ConfigurationError, StoreError, describe
from andon.scale import systemd
from andon.scale.engine import Engine
from andon.scale.inspection import SILENT_SECONDS
from andon.scale.maintenance import QueueMaintenance, queue_of

log = logging.getLogger(__name__)

NAME = r"[A-Za-z0-9._:@-]{1,100}"
REPORT_SECONDS = 1.0
"""How often a worker process reports. It hears of a drain then, at the latest."""
SETTLE_SECONDS = 5.0
"""How long a shutdown waits for runs to end after it has cancelled them, and then for the rest of the service. Giving a
job back may take as long.
"""


class WorkerService:
    """Executes the runs of these agents, all of which are on this runtime, at most `concurrency` at once.

    `queues`: the names of the queues that it serves; by default those that its agents name.
    `drain`: when it is stopped, runs have so many seconds to finish; then they are cancelled.
    """

    def __init__(
        self,
        agents: Sequence[Agent],
        runtime: Runtime,
        *,
        concurrency: int,
        queues: Sequence[str] = (),
        drain: float = 10.0,
        name: str | None = None,
    ) -> None:
        if runtime.worker is None:
            raise ConfigurationError("a worker process needs a database that processes share: postgresql://…")
        self._runtime, self._worker, self._drain = runtime, runtime.worker, drain
        self._agents = _with_sub_agents(agents, runtime)
        self._queues = _check_queues(queues, {agent.queue for agent in self._agents.values()}) or list(
            dict.fromkeys(agent.queue for agent in self._agents.values())
        )
        self._concurrency, self._slots = concurrency, asyncio.Semaphore(concurrency)
        self.name = process_name() if name is None else name
        if not re.fullmatch(NAME, self.name):
            raise ConfigurationError(f"the name {self.name!r} is not one of 1 to 100 letters, digits and . _ - : @")
        self._started_at = time.time()
        self._runs: dict[LocalRun, asyncio.Event] = {}
        """The runs that it executes. The event is set when this process has nothing more to do with the run."""
        self._executing: set[asyncio.Task[None]] = set()
        self._stopped, self._is_cutting = asyncio.Event(), False
        self._channels = [channel_of(queue, agent_id) for queue in self._queues for agent_id in self._agents]
        self._queue = queue_of(runtime)
        self._engine = Engine(self._queue.url, self._channels, concurrency, self._handle, self._worker.link.seconds)
        self._reported: float | None = None
        """When the store has last taken a report of this worker."""

    @property
    def queues(self) -> list[str]:
        return self._queues

    @property
    def runs(self) -> int:
        """How many runs it executes now."""
        return len(self._runs)

    def stop(self) -> None:
        """Take no more runs, let those that are working finish, and return from `serve`."""
        self._stopped.set()

    async def serve(self, on_up: Callable[[], object] = lambda: None) -> None:
        """Execute runs until `stop` is called, or until somebody asks this worker to drain.

        `on_up` is called when the database has been checked.
        """
        await self._queue.prepare()
        await self._take_name()
        on_up()
        self._worker.start()
        parts = [
            asyncio.ensure_future(self._engine.serve()),
            asyncio.ensure_future(self._report()),
            asyncio.ensure_future(QueueMaintenance(self._queue, self._worker).serve()),
            asyncio.ensure_future(_feed_watchdog()),
        ]
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait([*parts, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stopped.set()
            stopped.cancel()
            systemd.notify("STOPPING=1", f"STATUS=draining, {len(self._runs)} runs")
            parts[0].cancel()  # it takes no more jobs
            await self._finish_runs()
            for part in parts[1:]:
                part.cancel()
            await asyncio.wait(parts, timeout=SETTLE_SECONDS / 2)  # without the database, this and the next take long
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS / 2):
                    await self._queue.leave(self.name)
        for part in parts:
            if part.done() and not part.cancelled() and (error := part.exception()) is not None:
                raise error

    async def _take_name(self) -> None:
        """What an earlier process of this name was asked is not for this one."""
        for each in await self._queue.workers(SILENT_SECONDS):
            if each.name == self.name:
                log.warning(
                    "a worker called %s has reported %.0f s ago. If it has not ended, start this one with another "
                    "--name: `andon ps` shows only one of them, and `andon drain` stops both",
                    *(self.name, each.silence),
                )
        await self._queue.leave(self.name)

    # -- executing ----------------------------------------------------------------------------------------------------

    async def _handle(self, run_id: str) -> None:
        """Handle a job. If the engine gives its jobs up, because the database is away or at a shutdown, runs go on."""
        if self._stopped.is_set() or self._slots.locked():
            await self._put_back(run_id)
            return
        executing = asyncio.ensure_future(self._execute(run_id))
        self._executing.add(executing)
        executing.add_done_callback(self._executing.discard)
        await asyncio.shield(executing)

    async def _put_back(self, run_id: str) -> None:
        """If the store does not take it back soon, the run gets another job after a lease."""
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._queue.put_back(run_id)
        except TimeoutError:
            log.warning("the job of run %s could not be given back within %g s", run_id, SETTLE_SECONDS)
        except StoreError as error:
            self._worker.link.complain("a job can't be given back", error)

    async def _execute(self, run_id: str) -> None:
        """Execute a run, unless another process has it, or it has ended."""
        async with self._slots:
            link = self._worker.link
            # The name belongs to this job alone: another job for the same run gets nothing.
            owner = f"{link.owner}:{os.urandom(4).hex()}"
            claimed = await link.retry(lambda: self._queue.claim(run_id, owner, link.seconds))
            if claimed is None:
                return
            for earlier, is_left in list(self._runs.items()):
                if earlier.run_id == run_id:  # it has just paused here, and was answered already
                    await is_left.wait()
            if self._is_cutting:  # its claim was on its way when the others were cancelled
                with contextlib.suppress(StoreError):  # then it is lost when its lease expires
                    await link.retry(lambda: self._queue.hand_back(claimed.taken.lease))
                return
            agent = self._agents[claimed.taken.record.session.agent_id]
            try:
                run = local_run(await agent.begin_queued(claimed))
            except Exception as error:
                expected = isinstance(error, AndonError)
                log.error("run %s can't be executed: %s", run_id, describe(error), exc_info=None if expected else error)
            else:
                await self._attend(run)
            with contextlib.suppress(StoreError):  # another process looks after the queue too
                await self._queue.ended(run_id)

    async def _attend(self, run: LocalRun) -> None:
        """Wait until the run has ended, or has paused. Then any process may go on with it, and this one forgets it."""
        is_left = self._runs[run] = asyncio.Event()
        if self._is_cutting:  # it was being made when the others were cancelled
            _cut(run)
        try:
            await run.steps.waiters.wait(lambda: run.is_settled or _is_elsewhere(run))
            for each in self._runtime.live_runs:
                if each is run or run.children in each.children.ancestors:
                    each.let_go()
        finally:
            del self._runs[run]
            is_left.set()

    async def _finish_runs(self) -> None:
        """Let the runs finish, for so long; then cancel those that are left, and wait for their end."""
        if self._executing:
            await asyncio.wait(self._executing, timeout=self._drain)
        self._is_cutting = True
        if self._runs:
            log.warning("the time to finish is over: %d of its runs are cancelled", len(self._runs))
        for run in list(self._runs):
            _cut(run)
        if self._executing:
            await asyncio.wait(self._executing, timeout=SETTLE_SECONDS)

    # -- reporting ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> WorkerState:
        return WorkerState(
            self.name,
            self._channels,
            list(self._agents),
            self._queues,
            self._concurrency,
            len(self._runs),
            self._started_at,
            time.time(),
            self._stopped.is_set(),
            self._worker.link.owner,
        )

    @property
    def why_not_ready(self) -> str | None:
        """Why it takes no runs at the moment; None if it does."""
        if self._stopped.is_set():
            return "draining"
        if self._reported is None:
            return "starting"
        if (silence := time.monotonic() - self._reported) > SILENT_SECONDS:
            return f"the database has not answered for {silence:.0f} s"
        return "no jobs can be taken; the log says why" if self._engine.is_failing else None

    async def _report(self) -> None:
        while True:
            try:
                is_asked = await self._queue.report(self.state)
                if self._reported is None:
                    systemd.notify("READY=1", f"STATUS=serves {', '.join(self._queues)}")
                self._reported = time.monotonic()
                if is_asked and not self._stopped.is_set():
                    log.warning("this worker was asked to drain: it takes no more runs")
                    self.stop()
            except StoreError as error:
                self._worker.link.complain("this worker can't report", error)
            await asyncio.sleep(REPORT_SECONDS)


def _cut(run: LocalRun) -> None:
    run.cancel_for(CancelCause.shutdown, "the worker was shut down")


def _is_elsewhere(run: LocalRun) -> bool:
    """It has paused here, and was answered before this process had forgotten it."""
    return isinstance(run.storage, LeasedRun) and run.storage.state is LeaseState.elsewhere


async def _feed_watchdog() -> None:
    """Tell systemd that the event loop is alive, also while the database is away: a restart would not bring it back."""
    if (every := systemd.watchdog_seconds()) is None:
        await asyncio.Event().wait()
        return
    while True:
        systemd.notify("WATCHDOG=1")
        await asyncio.sleep(every)


def _check_queues(given: Sequence[str], known: Iterable[str]) -> list[str]:
    """These queues, without repetitions. One that no agent names is most likely a typing error, but may be right: the
    servers may have other settings.
    """
    for name in given:
        check_queueing(name, 0, "end")
        if name not in known:
            named = ", ".join(sorted(known))
            log.warning("no agent of this worker names the queue %s; they name %s. Look at --queues", name, named)
    return list(dict.fromkeys(given))


def _with_sub_agents(agents: Iterable[Agent], runtime: Runtime) -> Mapping[str, Agent]:
    """These agents and their sub-agents by id: a paused run of a sub-agent may be answered by its own id."""
    found: dict[str, Agent] = {}
    todo = list(agents)
    while todo:
        agent = todo.pop(0)
        if agent.id not in found:
            found[agent.id] = agent.on(runtime)
            todo += [each for each in agent.sub_agents if not each.brought_runtime]
    return found
