# SPDX-License-Identifier: Apache-2.0
"""Cancelling every run that fits, in this process and in a shared store.

Nothing is acknowledged that is not sure. A run that this process works on is asked at once: whatever becomes of the
store, it ends as cancelled. One that waits for a person is nobody's, and may be answered at another process: it is
asked only when the store has taken the cancel, and until then nothing here has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from andon.core.receipt import CancelRequest
from andon.core.selection import Outcomes, Selection
from andon.core.signal import Batch, wake_all
from andon.core.states import CancelOutcome
from andon.errors import StoreError

if TYPE_CHECKING:
    from andon.core.keeper import Keeper
    from andon.core.run import Run
    from andon.core.runtime import Runtime


async def cancel_fitting(runtime: Runtime, which: Selection, request: CancelRequest) -> Outcomes:
    """Ask them, and say for each what that achieved. See `Runtime.cancel`."""
    fitting = _find(runtime, which)
    if runtime.keeper is None:
        outcomes = _ask(fitting, request)
    else:
        outcomes = await _ask_everywhere(runtime, runtime.keeper, which, request, fitting)
    if which.run_id is not None and which.run_id not in outcomes and runtime.has_ended(which.run_id):
        outcomes[which.run_id] = CancelOutcome.already_finished
    return outcomes


def _find(runtime: Runtime, which: Selection) -> list[Run]:
    known = runtime.runs if which.run_id is None else filter(None, [runtime.run(which.run_id)])
    return [
        run
        for run in known
        if which.session_id in (None, run.session_id)
        and which.user_id in (None, run.user_id)
        and which.agent_id in (None, run.agent_id)
    ]


def _ask(runs: Iterable[Run], request: CancelRequest) -> Outcomes:
    batch: Batch = {}
    try:
        return Outcomes({run.run_id: run.ask(request, batch) for run in runs})
    finally:  # whoever was asked is woken, even if a Ctrl-C comes in between
        wake_all(batch, request)


async def _ask_everywhere(
    runtime: Runtime, keeper: Keeper, which: Selection, request: CancelRequest, fitting: list[Run]
) -> Outcomes:
    at_work: list[Run] = []
    resting: list[Run] = []
    for run in fitting:
        (resting if run.rests else at_work).append(run)
    here = _ask(at_work, request)
    for run in at_work:
        if run.rests:  # it began to pause at this very moment
            del here[run.run_id]
    asked = [run_id for run_id, outcome in here.items() if outcome]
    try:
        # Whoever holds the run has stopped it by now: the answer does not wait for long.
        async with asyncio.timeout(runtime.bounds.settle_seconds if asked else None):
            stored = await keeper.store.request_cancel(which, request)
    except (StoreError, TimeoutError) as error:
        return _unstored(which, here, asked, error)
    for run in at_work:
        if stored.get(run.run_id) and run.tenure is not None:
            run.tenure.told = True
    # Of those that rest, the store alone decides: one that it knows to have ended is only not told so here yet.
    _ask([run for run in resting if stored.get(run.run_id)], request)
    outcomes = Outcomes({key: value for key, value in stored.items() if value is not CancelOutcome.unknown})
    for run_id, outcome in here.items():
        outcomes[run_id] = _joint(outcomes.get(run_id), outcome)
    if stored.nobodys:
        with contextlib.suppress(StoreError):  # it has taken the cancel; the rest is done by any keeper
            await keeper.end_orphans()
    return outcomes


def _joint(stored: CancelOutcome | None, here: CancelOutcome) -> CancelOutcome:
    """What a cancel has achieved that was asked for both here and in the store.

    A run that was stopped here may not be entered there yet, or its end may be stored before this request comes. If its
    end was decided here, the store may still not have it: then the cancel is quicker.
    """
    return here if here or stored is None else stored


def _unstored(which: Selection, here: Outcomes, asked: list[str], error: StoreError | TimeoutError) -> Outcomes:
    """The store can't be asked. One run that was stopped here is told of; else nobody knows what runs elsewhere."""
    if which.run_id is not None and asked:
        here.stored = False
        return here
    said = str(error) if isinstance(error, StoreError) else "the store takes too long to answer"
    done = f"runs of this process were asked to stop: {len(asked)}; ask again for those of others" if asked else ""
    failure = StoreError(f"{said} ({done})" if done else said)
    failure.done = done
    raise failure from None
