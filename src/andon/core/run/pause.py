# SPDX-License-Identifier: Apache-2.0
"""A paused run waits for a person. It holds no task, no thread and no timer. Two things can happen to it.

It is answered, and goes on as the same run, on the event loop of the caller who answered. Or it is cancelled, and the
portal ends it. One token decides which: the pause lays it down, and only one taker gets it. So a run that was cancelled
never goes on, and a run that goes on is ended by its own task. Like the signal, a cancel takes no lock: the pause lays
the token down and then looks for a cancel; a cancel is entered first and then looks for the token.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from andon.core.events import RunEvent
from andon.core.receipt import Interrupt, describe_open
from andon.core.records import RequestKey
from andon.core.run.ending import EndingRun, make_record
from andon.core.run.limits import Limits
from andon.core.run.work import Settlement
from andon.core.states import Phase, RunState, RunStatus
from andon.errors import AnswersError, NotContinuableError, show


class Token:
    """Can be taken once. The taker can prove later that it was the one."""

    __slots__ = ("_slot",)

    def __init__(self) -> None:
        self._slot: dict[str, object] = {}

    @property
    def is_free(self) -> bool:
        return not self._slot

    def take(self, taker: object) -> bool:
        """True for one taker alone, however often it asks."""
        return self._slot.setdefault("taker", taker) is taker

    def is_held_by(self, taker: object) -> bool:
        return self._slot.get("taker") is taker


class Pause:
    """How far a run had come when it paused, and the token for what happens next."""

    __slots__ = ("progress", "token")

    def __init__(self, progress: Settlement) -> None:
        self.progress = progress
        self.token = Token()


_lock = threading.RLock()


def pausing_lock() -> AbstractContextManager[bool]:
    """Held for the moment in which a run becomes paused, so that another thread that answers finds all of it."""
    return _lock


def _after_fork() -> None:
    """In a forked child another thread may have held the lock, and that thread is not there."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class PausingRun(EndingRun, Protocol):
    """A run, as its pause sees it."""

    state: RunState
    limits: Limits
    pause: Pause | None
    task: asyncio.Task[None] | None

    @property
    def status(self) -> RunStatus: ...

    @property
    def is_paused(self) -> bool: ...

    @property
    def interrupts(self) -> list[Interrupt]: ...

    def move(self, to: RunState) -> None: ...

    def bind_loop(self) -> None: ...

    def go(self) -> None: ...

    def break_off(self) -> None: ...

    def hand_over_if_due(self) -> None: ...

    def wake(self) -> None: ...


async def pause_run(run: PausingRun) -> bool:
    """Wait for a person, and hold nothing from here on. False if a cancel came first: then the run ends."""
    assert run.work is not None
    if (watch := run.limits.pause()) is not None:
        await watch.wait()
    progress = run.work.progress()
    stored = await run.storage.pause(run.steps, make_record(run, RunStatus.paused, progress), progress.messages)
    # A cancel that still wakes this loop was entered before, and is seen here. A later one finds the token.
    run.signal.unbind()
    if run.signal.fate is not None:
        if stored is not None:  # what comes next comes after it
            run.journal.publish(stored)
        return False
    with pausing_lock():
        run.move(RunState.paused)
        run.phase = Phase.paused
        run.journal.rest(stored or run.journal.draft(RunEvent.run_paused, interrupts=progress.interrupts))
        task, run.task = run.task, None  # the end of this task is not the end of the run
        run.pause = Pause(progress)  # from here on, another task may go on with the run
    if run.signal.fate is not None and take_pause(run, run):
        run.task = task
        run.move(RunState.running)
        return False
    run.journal.waiters.wake()
    run.wake()
    return True


def take_pause(run: PausingRun, taker: object, token: Token | None = None) -> bool:
    """True for one taker alone, which decides how the paused run goes on. `token`: of which pause."""
    if token is None:
        token = None if run.pause is None else run.pause.token
    if token is None or not token.take(taker):
        return False
    run.journal.go_on()
    return True


async def resume(run: PausingRun, answers: Mapping[str, Any], anew: Any, request_key: RequestKey | None) -> None:
    """Go on with the answers of a person, on the running loop; or raise, and nothing has changed."""
    answers = dict(answers) if isinstance(answers, Mapping) else answers  # reading a foreign mapping may raise
    with pausing_lock():
        pause = run.pause
        if not run.is_paused or pause is None:
            raise NotContinuableError(f"run {run.run_id!r} is {run.status.name}: it has no open questions")
        token = pause.token  # of this pause, whose questions are answered
        check_answers(run.run_id, pause.progress.interrupts, run.interrupts, answers)
    me = object()
    try:
        too_late = not take_pause(run, me, token) or run.signal.request is not None
        if too_late or not await run.storage.reclaim(request_key):
            raise NotContinuableError(f"run {run.run_id!r} is {run.status.name}: it was answered or cancelled just now")
        _go_on(run, answers, anew)
    except BaseException:
        if token.is_held_by(me):
            _stay_paused(run, pause)
        raise


def _go_on(run: PausingRun, answers: Mapping[str, Any], anew: Any) -> None:
    assert run.work is not None
    run.bind_loop()  # first: a running run whose loop is closed would be taken for lost
    run.move(RunState.running)
    run.work.answer(answers, anew)
    run.session.run_moved()
    run.journal.add(RunEvent.run_continued)
    run.go()
    run.storage.changed()


def _stay_paused(run: PausingRun, pause: Pause) -> None:
    """The task that took the token can't go on. The run stays paused; or it ends, if it has changed already."""
    if run.state is not RunState.paused:
        run.break_off()
        return
    # As in the pause: first the token, then a look for a cancel.
    run.journal.rest()
    pause.token = Token()
    run.journal.waiters.wake()
    run.hand_over_if_due()


def check_answers(
    run_id: str, asked: Sequence[Interrupt], still_open: Sequence[Interrupt], answers: Mapping[str, Any]
) -> None:
    """Raise if these are not the answers to the questions that are open."""
    if not isinstance(answers, Mapping):
        raise TypeError(f"answers must be a dict by the questions' ids, not {type(answers).__name__}")
    problems = [f"there is no question {show(key)}" for key in answers.keys() - {interrupt.id for interrupt in asked}]
    problems += [f"no answer to {key!r}" for key in {interrupt.id for interrupt in still_open} - answers.keys()]
    problems += [
        f"{interrupt.id!r} asks for approval: {show(answers[interrupt.id])} is neither a yes (True) nor a no (False)"
        for interrupt in still_open
        if interrupt.approval and (value := answers.get(interrupt.id, True)) is not False and not value
    ]
    if problems:
        raise AnswersError(
            f"run {run_id!r} stays paused: {'; '.join(sorted(problems))}. Open are: {describe_open(still_open)}",
            interrupts=still_open,
        )
