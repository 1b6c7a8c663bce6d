# SPDX-License-Identifier: Apache-2.0
"""Cancelling every run that fits, in this process and in a shared store.

A cancel is acknowledged only when it is certain. A run that this process works on is cancelled at once: it ends as
cancelled, even if the store fails. A paused run belongs to no process, and another process may answer it: it is
cancelled here only when the store has accepted the cancel. A run with an id that its caller has chosen may have been
started in another process too, and the store takes in only one of them. Until it has, the run here is stopped, and that
alone is not enough: the cancel is meant for the run that the store takes in.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from andon.core.bounds import Bounds
from andon.core.receipt import CancelRequest
from andon.core.run.run import LocalRun
from andon.core.run.waits import was_admitted
from andon.core.selection import Outcomes, Selection
from andon.core.signal import Batch, wake_all
from andon.core.states import CancelOutcome
from andon.errors import StoreError

if TYPE_CHECKING:
    from andon.core.shared.worker import Worker


class RunsOfProcess(Protocol):
    """A runtime, as a cancel of many runs sees it."""

    @property
    def live_runs(self) -> list[LocalRun]: ...

    @property
    def worker(self) -> Worker | None: ...

    @property
    def bounds(self) -> Bounds: ...

    def find(self, run_id: str) -> LocalRun | None: ...

    def has_ended(self, run_id: str) -> bool: ...


async def cancel_fitting(runtime: RunsOfProcess, which: Selection, request: CancelRequest) -> Outcomes:
    """Ask them, and say for each what that achieved. See `Runtime.cancel`."""
    sweep = Sweep(runtime, which)
    ask_here([sweep], request)
    return await sweep.ask_store(request)


def ask_here(sweeps: Iterable[Sweep], request: CancelRequest) -> None:
    """Ask the runs that this process works on, of all these, and wait for nothing. Each run is asked once: do it again
    for those that have begun since.
    """
    batch: Batch = {}
    try:
        for sweep in sweeps:
            sweep.ask_here(request, batch)
    finally:  # runs that were asked are woken, even if a Ctrl-C comes in between
        wake_all(batch, request)


class Sweep:
    """A cancel of the runs of one runtime that fit: first here, and then in its store."""

    def __init__(self, runtime: RunsOfProcess, which: Selection) -> None:
        self._runtime, self._which = runtime, which
        self.found: dict[str, LocalRun] = {}
        """The runs of this process that it is about, also those that only the store can stop."""
        self._at_work: dict[str, LocalRun] = {}
        self._here = Outcomes()
        """Of those that this process works on, what was achieved."""

    @property
    def asked(self) -> int:
        """How many runs of this process stop, even if the store fails."""
        return sum(map(bool, self._here.values()))

    def ask_here(self, request: CancelRequest, batch: Batch) -> None:
        """See `ask_here`."""
        fitting = _find(self._runtime, self._which)
        new = [run for run in fitting if run.run_id not in self._at_work]
        at_work = {run.run_id: run for run in new if not run.may_be_elsewhere}
        self.found |= {run.run_id: run for run in fitting}
        self._at_work |= at_work
        outcomes = {run_id: run.request_cancel(request, batch) for run_id, run in at_work.items()}
        for run_id, outcome in outcomes.items():
            if not at_work[run_id].may_be_elsewhere:  # else it began to pause at this very moment
                self._here[run_id] = outcome

    async def ask_store(self, request: CancelRequest) -> Outcomes:
        """Ask the others as well, and say for each run what that achieved."""
        run_id, worker = self._which.run_id, self._runtime.worker
        outcomes = self._here if worker is None else await self._ask_everywhere(worker, request)
        if run_id is not None and run_id not in outcomes and self._runtime.has_ended(run_id):
            outcomes[run_id] = CancelOutcome.already_finished
        return outcomes

    async def _ask_everywhere(self, worker: Worker, request: CancelRequest) -> Outcomes:
        resting = [run for run_id, run in self.found.items() if run_id not in self._at_work]
        try:
            # If runs of this process were cancelled, they stop by now: the answer does not wait for long.
            async with asyncio.timeout(self._runtime.bounds.settle_seconds if self.asked else None):
                stored = await worker.store.request_cancel(self._which, request)
                if await self._drop_refused(stored) and self._which.run_id is not None:  # another run has that id
                    stored = await worker.store.request_cancel(self._which, request)
        except (StoreError, TimeoutError) as error:
            return self._unstored(error)
        for run in self._at_work.values():
            if stored.get(run.run_id):
                run.storage.cancel_was_stored()
        # For paused runs the store alone decides: it may know of an end that this process has not heard of yet.
        _ask([run for run in resting if stored.get(run.run_id)], request)
        outcomes = Outcomes({key: value for key, value in stored.items() if value is not CancelOutcome.unknown})
        for run_id, outcome in self._here.items():
            outcomes[run_id] = _joint(outcomes.get(run_id), outcome)
        if stored.has_orphans:
            with contextlib.suppress(StoreError):  # it has taken the cancel; the rest is done by any worker
                await worker.orphans.end_all()
        return outcomes

    async def _drop_refused(self, stored: Outcomes) -> bool:
        """Forget the runs here that the store has refused, since another process may have runs with their ids. First
        wait for its answer, unless the store has just accepted a cancel of that id. True if there were any.
        """
        doubtful = [self._at_work[run_id] for run_id in self._here if not stored.get(run_id)]
        for run in doubtful:
            if run.id_was_given:
                await was_admitted(run)
        refused = [run.run_id for run in doubtful if not _is_ours(run)]
        for run_id in refused:
            del self._here[run_id], self.found[run_id]
        return bool(refused)

    def _unstored(self, error: StoreError | TimeoutError) -> Outcomes:
        """The store can't be asked. The cancel of one run that was stopped here is acknowledged, if no other process
        can have a run with its id. Otherwise it is not known what other processes run, and the failure is raised.
        """
        if self._which.run_id is not None and self.asked and all(map(_is_ours, self._at_work.values())):
            self._here.stored = False
            return self._here
        said = str(error) if isinstance(error, StoreError) else "the store takes too long to answer"
        done = done_here(self.asked)
        failure = StoreError(f"{said} ({done})" if done else said)
        failure.done = done
        raise failure from None


def done_here(asked: int) -> str:
    """The text for an error of the store, if `asked` runs of this process stop all the same."""
    return f"runs of this process were asked to stop: {asked}; ask again for those of others" if asked else ""


def _find(runtime: RunsOfProcess, which: Selection) -> list[LocalRun]:
    known = runtime.live_runs if which.run_id is None else filter(None, [runtime.find(which.run_id)])
    return [
        run
        for run in known
        if which.session_id in (None, run.session_id)
        and which.user_id in (None, run.user_id)
        and which.agent_id in (None, run.agent_id)
    ]


def _ask(runs: Iterable[LocalRun], request: CancelRequest) -> None:
    batch: Batch = {}
    try:
        for run in runs:
            run.request_cancel(request, batch)
    finally:
        wake_all(batch, request)


def _is_ours(run: LocalRun) -> bool:
    """Is it certain that no other process has a run with this id?"""
    return not run.id_was_given or (run.storage.is_admitted and not run.was_refused)


def _joint(stored: CancelOutcome | None, here: CancelOutcome) -> CancelOutcome:
    """What a cancel has achieved that was asked for both here and in the store.

    A run that was stopped here may not be entered there yet, or its end may be stored before this request comes. If its
    end was decided here, the store may still not have it: then the cancel is quicker.
    """
    return here if here or stored is None else stored
