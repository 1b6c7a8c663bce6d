# SPDX-License-Identifier: Apache-2.0
"""Undoing the calls of a run that were cut: after each has really ended, once, and in bounded time.

First the steps that the call has registered (`ctx.on_undo`) are called, the last one first; then the function that the
tool was defined with (`on_cancel=`). What must stay true: whether a call is kept or undone is decided once, by its
record, so a call that was undone is never kept. A call is undone at most once. Before it is undone, that is on record:
if this process dies, or loses the run, the process that ends the run does not undo the call again.

A call that still runs at the end of its run is undone when it has ended. Then only the log tells of it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from andon.agent.call_record import CallRecord
from andon.agent.plan import Plan
from andon.agent.undoing import Undoing, definition_step
from andon.core.events import RunEvent
from andon.core.portal import portal
from andon.core.run.run import LocalRun
from andon.tools.base import traits_of
from andon.tools.undo import call_undo

log = logging.getLogger(__name__)

NOT_TOLD = "the store could not be told that it is undone"
INTERRUPTED = "its event loop was closed while it was undone"


async def undo_calls(run: LocalRun, plan: Plan, records: Sequence[CallRecord]) -> None:
    """Undo those of these calls that were cut, and wait for that. One that still runs is undone when it has ended.

    Called again, by the portal if the task that did it was stopped, it goes on with what is missing.
    """
    undoings = [undoing for record in records if (undoing := _undoing_of(run, plan, record)) is not None]
    await _leave_to_later(run, plan, records)
    if not undoings:
        return
    fresh = [undoing for undoing in undoings if undoing.task is None and not undoing.is_over]
    if fresh:
        run.steps.busy_for(run.bounds.undo_seconds)
        records = [record for record in records if record.undoing in fresh]
        if await _announce(run, records):
            for undoing in fresh:
                if undoing.task is None:
                    _ = undoing.start()
        else:
            for undoing in fresh:
                undoing.fail(NOT_TOLD)
    for undoing in undoings:
        await _wait(run, undoing)


def _undoing_of(run: LocalRun, plan: Plan, record: CallRecord) -> Undoing | None:
    """How the call is undone, if it was cut and there is something to undo."""
    if record.undoing is not None:
        return None if record.is_left_running else record.undoing
    if not record.decide_cut():
        return None
    scope, function = record.scope, has_undo_function(plan, record)
    has_ended = not scope.has_resources and (not scope.entered or record.is_on_closed_loop)
    if has_ended and not function and not scope.undo_steps:
        scope.undo_steps = None
        return None
    take = functools.partial(_take, run, plan, record)
    undoing = Undoing(record.call, run.bounds.undo_seconds, run.steps, take)
    if has_ended:
        record.undoing = undoing
        return undoing
    if function or scope.undo_steps:
        record.undoing, record.is_left_running = undoing, True
    if not function:
        _undo_when_ended(run, record, undoing, function)
    return None


async def _leave_to_later(run: LocalRun, plan: Plan, records: Sequence[CallRecord]) -> None:
    """Have the calls that still run undone when they have ended, unless another process undoes them.

    What they have registered themselves is known to this process alone, so that is not told to the store.
    """
    late = [
        (record, undoing)
        for record in records
        if record.is_left_running and (undoing := record.undoing) is not None and not undoing.is_over
        if undoing.task is None and not record.scope.has_when_ended and has_undo_function(plan, record)
    ]
    if not late:
        return
    if await _announce(run, [record for record, _ in late]):
        for record, undoing in late:
            _undo_when_ended(run, record, undoing, True)
    else:
        for _, undoing in late:
            undoing.fail(NOT_TOLD)


def _undo_when_ended(run: LocalRun, record: CallRecord, undoing: Undoing, function: bool) -> None:
    record.scope.when_ended(functools.partial(_begin_late, run, record, undoing, function))


def has_undo_function(plan: Plan, record: CallRecord) -> bool:
    tool = plan.tools.get(record.call.name)
    return tool is not None and traits_of(tool).undo is not None


def _take(run: LocalRun, plan: Plan, record: CallRecord) -> list[Callable[[], Any]]:
    registered, record.scope.undo_steps = record.scope.undo_steps, None
    steps: list[Callable[[], Any]] = [*reversed(list((registered or {}).values()))]
    facts = {
        "run_id": run.run_id,
        "session_id": run.session_id,
        "user_id": run.user_id,
        "deadline": None,
        "metadata": run.metadata,
        "deps": plan.deps,
    }

    async def definition() -> None:  # bound only now: a user's validator may fail, and the steps above come first
        step = definition_step(plan.tools.get(record.call.name), record.call, facts)
        if step is not None:
            await call_undo(step, f"undo of {record.call.name} ({record.call.id})", run.steps)

    return [*steps, definition] if has_undo_function(plan, record) else steps


async def _announce(run: LocalRun, records: Sequence[CallRecord]) -> bool:
    """Have it on record that these calls are undone. False if they must not be undone here."""
    if not await run.steps.bounded(run.storage.may_undo, "the store", run.bounds.undo_seconds):
        return False
    for record in records:
        if record.undoing is not None and not record.undoing.is_announced:
            record.undoing.is_announced = True
            run.journal.add(RunEvent.tool_undo_started, tool=record.view())
    return bool(await run.steps.bounded(run.storage.commit_events, "the store", run.bounds.undo_seconds))


async def _wait(run: LocalRun, undoing: Undoing) -> None:
    """Wait for its end. It may be on another loop than this: that of a task of the run that was stopped meanwhile."""
    if (task := undoing.task) is not None and not undoing.is_over:
        loop, steps = task.get_loop(), run.steps
        if not loop.is_closed():
            wait = functools.partial(steps.waiters.wait, lambda: undoing.is_over)
            await steps.bounded(wait, undoing.name, run.bounds.undo_seconds + run.bounds.abandon_seconds)
            if not undoing.is_over:
                steps.leave_behind(undoing, undoing.name)
        undoing.fail(INTERRUPTED if loop.is_closed() else "it does not end")
    if undoing.failure is not None:
        run.steps.warn(f"{undoing.name} failed: {undoing.failure}")


def _begin_late(run: LocalRun, record: CallRecord, undoing: Undoing, function: bool) -> None:
    """A call that was left running has ended. Called from any thread."""
    if not function and not record.scope.undo_steps:
        record.scope.undo_steps = None
        return
    run.steps.leave_behind(undoing, undoing.name)
    try:
        run.loop.call_soon_threadsafe(_start_late, run, undoing)
    except RuntimeError:  # the loop is closed
        portal.submit_soon(undoing, functools.partial(_undo_on_portal, run, undoing))


async def _undo_on_portal(run: LocalRun, undoing: Undoing) -> None:
    _start_late(run, undoing)
    if undoing.task is not None:
        await asyncio.wait([undoing.task])


def _start_late(run: LocalRun, undoing: Undoing) -> None:
    if undoing.task is None:
        undoing.start().add_done_callback(functools.partial(_tell_late, run, undoing))


def _tell_late(run: LocalRun, undoing: Undoing, task: object) -> None:
    if undoing.is_done:
        log.info("%s, whose call had gone on after its cancel, is done", undoing.name, extra={"facts": run.steps.facts})
