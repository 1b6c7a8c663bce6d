# SPDX-License-Identifier: Apache-2.0
"""The three waits of a run: until it is admitted, until it is settled, until it is gone. And its result.

- admitted: its store has taken it in, or has refused it
- settled: it is over, its last hooks included; or it is paused
- gone: it is over, and no task or thread of it is left

A caller that waits owns nothing of the run. Cancelling a wait leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from types import ModuleType
from typing import Any

import msgspec

from andon.core.receipt import Receipt, RunResult
from andon.core.run.ending import make_receipt
from andon.core.run.run import LocalRun
from andon.core.signal import Failed, stop_reason_of
from andon.core.states import CancelCause, RunState, RunStatus, StopReason
from andon.errors import HandleError, StartError
from andon.messages import assistant


def begin_or_refuse(run: LocalRun) -> None:
    """Begin the run. What keeps it from starting is kept for `wait_admitted`, which raises it."""
    try:
        run.begin()
    except HandleError:
        raise
    except StartError as error:
        run.refusal = error
        run.move(RunState.released)
        # These refer to the run: it is freed with its last handle.
        run.work, run.place, run.storage = None, None, run.storage.release()


async def begin_and_wait(run: LocalRun) -> None:
    """Begin the run, and wait until its store has taken it in."""
    begin_or_refuse(run)
    await wait_admitted(run)


async def wait_admitted(run: LocalRun) -> None:
    """Wait until the store has taken the run in, or raise why it has not. In memory that is at once.

    Cancelling the wait cancels the run, cause `caller`, and waits for its end.
    """
    if run.refusal is not None:
        raise run.refusal
    try:
        await run.steps.waiters.wait(functools.partial(_is_admitted, run))
    except asyncio.CancelledError as error:
        await wait_settled(run, error)
    if run.storage.refusal is not None:
        await wait_settled(run)
        raise run.storage.refusal


async def was_admitted(run: LocalRun) -> bool:
    """The same for a caller that has not started the run. False if the store has refused it."""
    await run.steps.waiters.wait(functools.partial(_is_admitted, run))
    return not run.was_refused


def _is_admitted(run: LocalRun) -> bool:
    return run.storage.is_admitted or run.state is RunState.released


async def wait_settled(run: LocalRun, cancelled: asyncio.CancelledError | None = None) -> None:
    """Wait until the run is over or paused. If the host cancels this wait, the run is cancelled first.

    `cancelled` is a cancellation that the caller has caught: it is raised again when the run has ended. The wait does
    not last until a store that can't be reached comes back; the run does, as long as its loop goes on.
    """
    run.ensure_ending()
    if cancelled is not None:
        leave(run)
    try:
        while not _may_leave(run, cancelled):
            try:
                with hold_off() if cancelled else contextlib.nullcontext():
                    await run.steps.waiters.wait(functools.partial(_may_leave, run, cancelled))
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                run.cancel_for(CancelCause.caller)
        if cancelled is not None:
            raise cancelled  # the same object: its owner may know it by its message
    finally:
        del cancelled


def wait_settled_blocking(run: LocalRun, timeout: float | None = None) -> bool:
    """The same for a thread. False if `timeout` seconds have passed first."""
    run.ensure_ending()
    return run.steps.waiters.wait_blocking(lambda: run.is_settled, timeout)


async def only_wait_settled(run: LocalRun) -> None:
    """The same for a caller that has not started the run: cancelling this wait does not cancel the run."""
    run.ensure_ending()
    await run.steps.waiters.wait(lambda: run.is_settled)


async def wait_gone(run: LocalRun, timeout: float | None = None) -> Receipt | None:
    """Wait until the run is over and nothing of it is left, for `timeout` seconds at the most.

    The receipt names what is left then. A run that was not cancelled has no receipt.
    """
    run.ensure_ending()
    try:
        async with asyncio.timeout(timeout):
            await run.steps.waiters.wait(functools.partial(_is_gone, run))
    except TimeoutError:
        pass
    if run.signal.request is None:
        return None
    receipt = run.receipt or make_receipt(run)
    left = [*(step.name for step in run.steps.live), *run.steps.leftovers]
    return msgspec.structs.replace(receipt, leftovers=left)


def _is_gone(run: LocalRun) -> bool:
    return (run.state is RunState.released or not run.has_begun) and not run.steps.has_leftovers


def leave(run: LocalRun) -> None:
    """The caller that began the run goes away: a run that is still going is cancelled. A paused one stays paused."""
    if not run.has_ended and not run.is_paused:
        run.cancel_for(CancelCause.caller)


def _may_leave(run: LocalRun, cancelled: asyncio.CancelledError | None) -> bool:
    return run.is_settled or (cancelled is not None and run.storage.is_away)


# -- its result -------------------------------------------------------------------------------------------------------


async def wait_result(run: LocalRun) -> RunResult[Any]:
    """How the run has ended, or where it is paused. It is there with the terminal event, before the last hooks."""
    run.ensure_ending()
    while True:
        await run.steps.waiters.wait(lambda: run.has_ended or run.is_paused)
        if (result := find_result(run)) is not None:
            return result


def wait_result_blocking(run: LocalRun) -> RunResult[Any]:
    """The same for a thread; it waits for the last hooks too."""
    while True:
        wait_settled_blocking(run)
        if (result := find_result(run)) is not None:
            return result


def make_result(run: LocalRun) -> RunResult[Any]:
    """The result of a run that is known to have ended."""
    result = find_result(run)
    assert result is not None
    return result


def find_result(run: LocalRun) -> RunResult[Any] | None:
    """The result of a run that has ended or is paused. None if it goes on, or raises if it was refused."""
    if run.storage.refusal is not None:
        raise run.storage.refusal
    fate, status = run.signal.fate, run.status
    if status is RunStatus.paused and run.pause is not None:
        left, stop_reason, conversation = run.pause.progress, StopReason.interrupt, run.session.messages
    elif status.final:
        # A run that was to continue an earlier one, and did not begin to, has left nothing of its own.
        left, stop_reason, conversation = run.settlement, stop_reason_of(fate), run.conversation or run.session.messages
    else:  # cancelled, or answered, a moment ago
        return None
    result: RunResult[Any] = RunResult(
        run.run_id,
        run.session_id,
        run.agent_id,
        status,
        stop_reason,
        conversation[-1] if conversation else assistant(),  # lost, before even the prompt was written
        left.content,
        list(conversation),
        left.usage,
        left.interrupts,
        run.receipt,
        fate.error if isinstance(fate, Failed) else None,
        list(run.steps.warnings),
        run.metadata,
        left.output,
        left.finish_reason,
    )
    return result.with_writer(left.write_output)


# -- hosts that cancel again and again --------------------------------------------------------------------------------


def hold_off() -> contextlib.AbstractContextManager[object]:
    """Shield the wait from a host that cancels at every turn of the loop, as a cancelled scope of anyio does.

    Without it the wait would be right, but busy. A program that uses such scopes has loaded anyio; we don't load it. As
    long as anyio's part for asyncio is not completely imported, no task can be inside a scope.
    """
    anyio = _whole("anyio")
    if anyio is None or _whole("anyio._backends._asyncio") is None:  # to import that here would block the loop
        return contextlib.nullcontext()
    scope: contextlib.AbstractContextManager[object] = anyio.CancelScope(shield=True)
    return scope


def _whole(name: str) -> ModuleType | None:
    """A module, if it is completely imported. Another thread may be importing it at this very moment."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module
