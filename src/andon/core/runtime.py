# SPDX-License-Identifier: Apache-2.0
"""The runtime starts, finds and cancels runs, and holds the bounds that they keep.

Looking up and cancelling take no lock. A run that ends is entered among the ended ones before it leaves the live ones,
so that there is no moment at which it is unknown.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import ReferenceType, WeakSet, WeakValueDictionary, ref

from andon.core.archive import Archive, Latencies
from andon.core.backend import Backend, LocalBackend
from andon.core.bounds import Bounds
from andon.core.cancel_runs import cancel_fitting
from andon.core.fork import start_over_after_fork
from andon.core.held import HeldResource
from andon.core.portal import portal
from andon.core.receipt import CancelRequest, is_seconds
from andon.core.records import SessionKey
from andon.core.run.caretaker import disown, give_up
from andon.core.run.handle import Run
from andon.core.run.run import LocalRun
from andon.core.run.storage import RunStorage
from andon.core.run.tool_call import ToolCallScope
from andon.core.run.waits import only_wait_settled
from andon.core.selection import Block, BlockKind, CancelEntry, Outcomes, Selection
from andon.core.session import Session
from andon.core.states import CancelCause, CancelMode, CancelOutcome, RunStatus
from andon.core.store import Store
from andon.errors import ConfigurationError, RunIdTakenError

if TYPE_CHECKING:
    from andon.core.shared.event_channel import EventChannel
    from andon.core.shared.link import EndOrphan
    from andon.core.shared.store import SharedStore
    from andon.core.shared.worker import Worker

log = logging.getLogger(__name__)

ENDED_KEPT = 10_000


class EndWatcher(Protocol):
    """An object whose method is called for each run that ends."""

    def run_ended(self, run: LocalRun) -> None:
        """The run's record is complete, and its terminal event comes next. Called in the thread of the run's loop: it
        must not wait, and must not raise.
        """
        ...


class Runtime:
    """Starts, finds and cancels runs.

    Agents that share a runtime share its store, its ids and its sessions; an agent without one makes its own.

    >>> runtime = Runtime(arm_seconds=0, cut_seconds=0.5)

    `arm_seconds`: how long an `agent.cancel()` with nothing in flight waits for the next run; 0 switches that off.
    `cut_seconds`: after this, a task that was cancelled and has not ended is cancelled again.
    `abandon_seconds`: after this, it is abandoned and named.
    `hook_seconds`: how long an async hook may take.
    `settle_seconds`: how long the store may take at a run's end.
    `child_seconds`: how long a run waits for the runs that its tools started, before and after it cancels them.
    `kill_seconds`: how long the processes of a cut tool call may take to end before they are killed.
    `lease_seconds`: on a store that several processes share, how long a run belongs to a process without a renewal.
    `finish_seconds`: how long a cancel lets a call go on whose tool says `on_cancel="finish"`.
    `undo_seconds`: how long undoing a call that was cut may take.
    `abandoned_threads`: while this number of them is running, sync tools get an error result.
    `abandoned_user_threads`: the same for the threads of one user; those above it don't count for other users.
    `max_events`: a run with more events than this is cancelled, with the cause `budget`; 0 sets no limit.
    `max_event_bytes`: the same for the bytes of its events, roughly.
    `max_result_bytes`: a larger result of a tool, or question to a person, becomes an error result; 0 sets no limit.
    `max_attachment_bytes`: the same for the images and files that a tool returns.
    `max_depth`: how many runs may be at work below one another, each started by a tool of the one above.
    `keep_days`: a store that several processes share deletes sessions after this number of days without use.
    `keep_event_minutes`: there, the events of runs that have ended so long ago are deleted. The runs stay.
    `events`: there, carries the text of runs to the other processes, beside the store: see `open_events`.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        arm_seconds: float = 5.0,
        cut_seconds: float = 1.0,
        abandon_seconds: float = 2.0,
        hook_seconds: float = 5.0,
        settle_seconds: float = 2.0,
        child_seconds: float = 5.0,
        lease_seconds: float = 10.0,
        finish_seconds: float = 10.0,
        undo_seconds: float = 5.0,
        kill_seconds: float = 0.2,
        abandoned_threads: int = 64,
        abandoned_user_threads: int = 16,
        max_events: int = 0,
        max_event_bytes: int = 0,
        max_result_bytes: int = 2**20,
        max_attachment_bytes: int = 20 * 2**20,
        max_depth: int = 50,
        keep_days: float | None = None,
        keep_event_minutes: float | None = None,
        events: EventChannel | None = None,
    ) -> None:
        _check_store(store, events)
        task_seconds = arm_seconds, cut_seconds, abandon_seconds, hook_seconds, settle_seconds
        abandoned = abandoned_threads, abandoned_user_threads
        ends = finish_seconds, undo_seconds
        self.bounds = Bounds(*task_seconds, child_seconds, lease_seconds, kill_seconds, *abandoned, *ends)
        self.bounds.check()
        _check_counts(max_events=max_events, max_event_bytes=max_event_bytes)
        _check_counts(max_result_bytes=max_result_bytes, max_attachment_bytes=max_attachment_bytes)
        _check_counts(1, max_depth=max_depth)
        _check_kept(keep_days=keep_days, keep_event_minutes=keep_event_minutes)
        self.max_events, self.max_event_bytes, self.max_result_bytes = max_events, max_event_bytes, max_result_bytes
        self.max_attachment_bytes = max_attachment_bytes
        self.max_depth, self.keep_days, self.keep_event_minutes = max_depth, keep_days, keep_event_minutes
        self._events = events
        self.store = store
        """Where sessions and runs are kept; the first agent puts a memory store here if there is none."""
        self.worker: Worker | None = None
        """Looks after the runs in a store that several processes share."""
        self.abandoned: dict[HeldResource, ToolCallScope] = {}
        """What tool calls that were cut still hold, each with its call."""
        self.undoers: WeakValueDictionary[str, Any] = WeakValueDictionary()
        """On a shared store, the objects that can undo calls of runs whose process is gone, by their `agent_id`."""
        self._local = LocalBackend(lambda: self.store, self._cancel_entries)
        self.backend: Backend = self._local
        """Where its runs are kept: in this process alone, or by the worker."""
        self._runs: dict[str, LocalRun] = {}
        self._leaving: dict[LocalRun, None] = {}
        """Runs that are not found by their id any more, but have not settled: in their last hooks, for one."""
        self._ended: set[str] = set()
        self._ended_order: deque[str] = deque()
        self._archive: Archive | None = None
        self._end_watchers: tuple[ReferenceType[EndWatcher], ...] = ()
        self._lock = threading.Lock()
        _runtimes.add(self)
        start_over_after_fork(self)

    def start_over(self) -> None:
        """In a forked child the runs are the parent's: here they are over, and hold nothing."""
        runs, self._runs, self.abandoned, self._lock = self.live_runs, {}, {}, threading.Lock()
        self._leaving = {}
        for run in runs:
            disown(run)
        self._local.start_over()
        if self._archive is not None:
            self._archive.start_over()

    @property
    def is_shared(self) -> bool:
        """Is the store one that several processes share, a `SharedStore`?"""
        return hasattr(self.store, "request_cancel")

    def keep(self, end_orphan: EndOrphan) -> None:
        """Look after the runs in a store that several processes share; done by the first agent."""
        if self.worker is None:
            from andon.core.shared.worker import Worker  # most programs have no such store, and want to start quickly

            store = cast("SharedStore", self.store)
            with self._lock:  # the import takes its time, in which another thread may make an agent as well
                kept = self.keep_days, self.keep_event_minutes
                self.worker = self.worker or Worker(store, self.bounds.lease_seconds, end_orphan, *kept, self._events)
                self.backend = self.worker

    async def close(self) -> None:
        """Cancel all running runs, with the cause `shutdown`, and close a shared store.

        Paused runs stay paused. If a shared store can't be reached, the ends of these runs are not stored, and another
        process ends them as `lost`.
        """
        going = [run for run in self.live_runs if not run.is_paused]
        for run in going:
            if not run.may_be_elsewhere:  # one that the store is just asked to take as paused is paused in a moment
                run.cancel_for(CancelCause.shutdown, "the runtime was closed")
        try:
            await self._wait_all_settled(going)
        except TimeoutError:
            log.warning("the runtime is closed, though some of its runs have not ended: %s", self.runs)
        finally:
            if self.worker is not None:
                await self.worker.close()
            if self.is_shared:
                await cast("SharedStore", self.store).close()

    async def _wait_all_settled(self, going: list[LocalRun]) -> None:
        """Wait until these runs have ended. What a cancel lets finish has a part of that time, and is then cut."""
        bounds = self.bounds
        force = CancelRequest.make(CancelCause.shutdown, "the runtime was closed", force=True)
        try:
            async with asyncio.timeout(bounds.child_seconds):
                for run in going:
                    await only_wait_settled(run)
        except TimeoutError:
            for run in going:
                if run.is_cancelling:
                    run.request_cancel(force)
            async with asyncio.timeout(bounds.abandon_seconds + bounds.settle_seconds):
                for run in going:
                    await only_wait_settled(run)

    def run(self, run_id: str) -> Run | None:
        """The handle of the run with this id, if it has not ended yet."""
        run = self._runs.get(run_id)
        return None if run is None else Run(run)

    @property
    def runs(self) -> list[Run]:
        """The handles of all runs that have not ended yet."""
        return [Run(run) for run in self.live_runs]

    @property
    def ended(self) -> list[Run]:
        """The handles of the runs that have ended not long ago, oldest first, if `keep_ended` was called."""
        return [Run(run) for run in self.recently_ended]

    def recent(self, run_id: str) -> Run | None:
        """The handle of the run with this id, also if it has ended not long ago and `keep_ended` was called."""
        run = self.find_recent(run_id)
        return None if run is None else Run(run)

    def find_recent(self, run_id: str) -> LocalRun | None:
        """The run with this id, also if it has ended not long ago and `keep_ended` was called."""
        run = self._runs.get(run_id)  # first: a run that ends is in the archive before it leaves here
        if run is None and self._archive is not None:
            run = self._archive.find(run_id)
        return run

    @property
    def recently_ended(self) -> list[LocalRun]:
        """The runs that have ended not long ago, oldest first, if `keep_ended` was called."""
        return [] if self._archive is None else self._archive.runs

    @property
    def ended_counts(self) -> dict[RunStatus, int]:
        """How many runs have ended since `keep_ended` was called, and how."""
        return {} if self._archive is None else dict(self._archive.counts)

    @property
    def cancel_counts(self) -> dict[CancelCause, int]:
        """How many of those were cancelled, and why."""
        return {} if self._archive is None else dict(self._archive.causes)

    @property
    def cancel_latencies(self) -> Latencies:
        """How long their cancels took."""
        return Latencies() if self._archive is None else self._archive.latencies

    def keep_ended(self, seconds: float = 60.0, max_bytes: int = 64 * 2**20) -> None:
        """Keep runs and their events readable for some seconds after their end, at most `max_bytes` of them.

        Servers need this, for readers that come back. Otherwise an ended run is freed with its last handle.
        """
        if self._archive is None:
            self._archive = Archive(seconds, max_bytes, lambda: self.backend.copies_conversations)

    def watch_ends(self, watcher: EndWatcher) -> None:
        """Tell this object of each run that ends. The runtime holds only a weak reference to it."""
        watched = [each for each in self._end_watchers if each() not in (None, watcher)]
        self._end_watchers = (*watched, ref(watcher))

    @property
    def live_runs(self) -> list[LocalRun]:
        """Every run that has not ended yet."""
        return list(self._runs.copy().values())

    @property
    def lag(self) -> float:
        """How many seconds a run that begins now would wait for a shared store to take it in."""
        return self.backend.lag

    @property
    def lost_leases(self) -> int:
        """How many runs were stopped here because their leases on a shared store were lost."""
        return self.backend.lost_leases

    @property
    def live(self) -> int:
        """How many runs have not ended yet."""
        return len(self._runs)

    def cancel_run(self, run_id: str, request: CancelRequest) -> CancelOutcome:
        run = self._runs.get(run_id)
        if run is not None:
            return run.request_cancel(request)
        return CancelOutcome.already_finished if run_id in self._ended else CancelOutcome.unknown

    async def cancel(
        self,
        *,
        run_id: str | None = None,
        session_id: str | None = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        all: bool = False,
        reason: str | None = None,
        by: str | None = None,
        mode: CancelMode | str = CancelMode.now,
        grace: float | None = None,
        force: bool = False,
    ) -> Outcomes:
        """Cancel every run that matches all given arguments. Returns a dict from run ids to outcomes.

        An unknown `run_id` gives an empty dict. `all=True` cancels all runs. If a shared store can't be asked, this
        raises `StoreError`, but the runs that this process works on are cancelled all the same. With the `run_id` of
        one of these runs nothing is raised: then `stored` of the result is False.
        """
        if not all and run_id is None and session_id is None and user_id is None and agent_id is None:
            raise ValueError("say which runs: run_id=, session_id=, user_id=, agent_id=, or all=True")
        request = CancelRequest.make(reason=reason, by=by, mode=mode, grace=grace, force=force)
        return await cancel_fitting(self, Selection(run_id, session_id, user_id, agent_id), request)

    def has_ended(self, run_id: str) -> bool:
        """Is this the id of a run that has ended here?"""
        return run_id in self._ended

    # -- the kill switch ----------------------------------------------------------------------------------------------

    async def block(self, kind: BlockKind, id: str, by: str | None = None, reason: str | None = None) -> Block:
        """Refuse new runs of this user, or of this agent, and answers to paused ones, until `unblock`.

        Runs that have begun go on: use `cancel` to end them.

        >>> await runtime.block("user", "mallory", by="ops", reason="too many complaints")
        >>> await runtime.cancel(user_id="mallory")
        """
        block = Block(kind, id, by, reason, time.time())
        await self.backend.block(block)
        return block

    async def unblock(self, kind: BlockKind, id: str) -> bool:
        """Accept new runs again. False if there was no such block."""
        return await self.backend.unblock(kind, id)

    async def blocks(self) -> list[Block]:
        """The blocks, oldest first."""
        return await self.backend.blocks()

    async def check_blocks(self, key: SessionKey) -> None:
        """Raise `BlockedError` if this user or this agent is blocked. Called before a paused run goes on."""
        for block in await self.blocks():
            if block.id == (key.user_id if block.kind == "user" else key.agent_id):
                raise block.refusal()

    async def cancel_log(self, which: Selection, limit: int = 100) -> list[CancelEntry]:
        """Who cancelled what, when and why, newest first; of ended runs, if `keep_ended` was called."""
        return await self.backend.cancel_log(which, limit)

    def _cancel_entries(self) -> list[CancelEntry]:
        """The cancels of runs of this process: of those that have ended not long ago, and of those that are ending."""
        ended = [] if self._archive is None else list(self._archive.cancels.copy())
        requests = [(run, run.signal.request) for run in self.live_runs]
        going = [CancelEntry(run.run_id, request, run.session.key) for run, request in requests if request is not None]
        return [*ended, *going]

    def session(self, key: SessionKey) -> Session:
        """The session of this key. The conversation itself is in the store."""
        return self.backend.session(key)

    def holds(self, key: SessionKey) -> bool:
        """Does a run that has not ended, or anything else, refer to the session of this key?"""
        return self._local.has_session(key)

    def register(self, run: LocalRun) -> None:
        self.backend.check_blocked(run)
        if run.run_id in self._ended or self._runs.setdefault(run.run_id, run) is not run:
            raise RunIdTakenError.of(run.run_id)

    def find(self, run_id: str) -> LocalRun | None:
        """The run with this id, if it has not ended yet."""
        return self._runs.get(run_id)

    def storage_for(self, run: LocalRun) -> RunStorage:
        """Where this run is kept."""
        return self.backend.storage_for(run)

    def withdraw(self, run: LocalRun) -> None:
        """Undo a registration: the run did not start, or goes on in another process."""
        if self._runs.get(run.run_id) is run:
            del self._runs[run.run_id]

    def part_from(self, run: LocalRun) -> None:
        """The same for a run that still has something to do. `run_released` is called when that is done."""
        self._leaving[run] = None
        self.withdraw(run)

    def run_released(self, run: LocalRun) -> None:
        self._leaving.pop(run, None)

    def run_ended(self, run: LocalRun) -> None:
        self._ended.add(run.run_id)
        self._ended_order.append(run.run_id)
        if self._archive is not None:
            self._archive.add(run)
        for reference in self._end_watchers:
            if (watcher := reference()) is not None:
                watcher.run_ended(run)
        self.part_from(run)
        if len(self._ended_order) > ENDED_KEPT:
            self._ended.discard(self._ended_order.popleft())


def runtime_of(run: LocalRun) -> Runtime:
    """The runtime of a run, which knows it only as its host."""
    assert isinstance(run.runtime, Runtime)
    return run.runtime


_runtimes: WeakSet[Runtime] = WeakSet()


def _end_lost() -> None:
    """The portal's loop broke: the runs that lived on it are lost. A new portal ends them."""
    for runtime in list(_runtimes):
        for run in [*runtime.live_runs, *runtime._leaving.copy()]:
            run.ensure_ending()


def _give_up() -> list[asyncio.Task[None]]:
    """The portal is being closed: its runs wait for nothing any more but for the store."""
    runs = [run for runtime in list(_runtimes) for run in runtime.live_runs if run.loop is asyncio.get_running_loop()]
    return [task for run in runs if (task := give_up(run)) is not None]


portal.on_death.append(_end_lost)
portal.on_hurry.append(_give_up)


def _check_counts(least: int = 0, **counts: object) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < least:
            raise ConfigurationError(f"{name} is {count!r}; it must be a whole number, {least} or more")


def _check_store(store: object, events: object) -> None:
    if store is not None and not callable(getattr(store, "load", None)):
        hint = f": open one with open_store({store!r})" if isinstance(store, str) else ""
        raise ConfigurationError(f"{store!r} is no store{hint}")
    if events is not None and not callable(getattr(events, "receive", None)):
        hint = f": open it with open_events({events!r})" if isinstance(events, str) else ""
        raise ConfigurationError(f"{events!r} is no event channel{hint}")
    if events is not None and not hasattr(store, "request_cancel"):
        raise ConfigurationError("events= is for a store that processes share: open_store('postgresql://…')")


def _check_kept(**limits: float | None) -> None:
    for name, value in limits.items():
        if value is not None and not is_seconds(value):
            raise ConfigurationError(f"{name} is {value!r}; it must be a number, 0 or more, or None for all")
