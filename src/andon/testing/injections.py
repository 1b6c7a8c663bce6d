# SPDX-License-Identifier: Apache-2.0
"""What an exploration does to a scenario, and when: cancels, the host's cancellation, readers that leave.

What must stay true: an injection uses only calls that a program could make. Its moment is the same in every repetition
of the scenario. It checks what must follow from it.
"""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from andon.core.receipt import CancelRequest
from andon.core.run.handle import local_run
from andon.core.run.run import LocalRun
from andon.core.run.stream import EventStream
from andon.core.run.waits import make_result
from andon.core.runtime import runtime_of
from andon.core.states import CancelCause, CancelMode, CancelOutcome, RunStatus
from andon.testing.stage import Stage
from andon.testing.virtual import tasks_of
from andon.testing.whereabouts import users_place

REASON = "the explorer cancelled it"
CLOCK_SLACK = 1e-6
"""Floating-point sums of the same times in different orders differ a little."""


@dataclass(frozen=True)
class Cancel:
    """How the explorer cancels: a mode, perhaps with a grace; perhaps a second time, `later` steps after it.

    `Cancel("after_turn", again="now", later=3)` asks again, with mode `now`, three steps after the first time.
    """

    mode: CancelMode | str = CancelMode.now
    grace: float | None = None
    again: CancelMode | str | None = None
    later: int = 0
    force: bool = False
    """Let nothing finish. If it asks again: only then."""

    def __post_init__(self) -> None:
        self.request(self.mode, self.force and self.again is None)  # these raise if they are not valid together
        self.request(self.again or self.mode, self.force)
        if self.later < 0:
            raise ValueError(f"later is {self.later}; the second cancel comes 0 or more steps after the first")

    def request(self, mode: CancelMode | str, force: bool) -> CancelRequest:
        return CancelRequest.make(reason=REASON, mode=mode, grace=None if force else self.grace, force=force)

    def __str__(self) -> str:
        force = " with force" if self.force else ""
        grace = "" if self.grace is None else f" with grace {self.grace:g}"
        again = "" if self.again is None else f", again ({CancelMode(self.again).value}) {self.later} steps later"
        return f"cancel ({CancelMode(self.mode).value}){grace}{again}{force}"


class Injection(ABC):
    """One thing that is done to a scenario, at one moment. `str` of it says which."""

    @abstractmethod
    def prepare(self, stage: Stage) -> None:
        """Schedule it. It notes on the stage what it did."""

    def check(self, stage: Stage) -> Iterator[str]:
        """Sentences about what should have followed from it and did not, beyond what is checked always."""
        yield from ()

    def then(self, stage: Stage) -> Iterator[Injection]:
        """More injections to try after this one, each in a repetition of its own."""
        yield from ()


@dataclass(frozen=True)
class Moment:
    """The moment exactly before a step."""

    step: int
    label: str = field(compare=False)
    """The name of that step when the scenario ran undisturbed."""

    def __str__(self) -> str:
        return f"before step {self.step} ({self.label})"

    def schedule(self, stage: Stage, act: Callable[[Stage], bool]) -> None:
        """Have `act` called at this moment. It returns False if the scenario took another way, so it did nothing."""
        stage.loop.before(self.step, functools.partial(_happen, stage, act))


def _happen(stage: Stage, act: Callable[[Stage], bool]) -> None:
    stage.line = users_place(stage.loop, _task_hit(stage))  # now: a moment later the task waits elsewhere
    stage.injected |= act(stage)


def _task_hit(stage: Stage) -> asyncio.Task[Any] | None:
    """The task that takes the step, if it is known. The scenario's own task only waits for the others."""
    return None if stage.loop.next is stage.task else stage.loop.next


# -- ours -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CancelRun(Injection):
    """Our cancel, by run id."""

    moment: Moment
    number: int
    cancel: Cancel
    within: float | None = None

    def __str__(self) -> str:
        return f"{self.cancel} of run {self.number + 1} {self.moment}"

    def prepare(self, stage: Stage) -> None:
        self.moment.schedule(stage, self.act)

    def act(self, stage: Stage) -> bool:
        if self.number >= len(stage.runs):
            return False
        run = stage.runs[self.number]
        stage.watched, stage.ended_before, stage.was_paused = run, run.status.final, run.is_paused
        if self.within is not None:
            stage.time_runs([run])
        self._ask(stage, run, self.cancel.mode, self.cancel.force and self.cancel.again is None)
        if self.cancel.again is not None:
            again = functools.partial(self._ask, stage, run, self.cancel.again, self.cancel.force)
            if self.cancel.later:
                stage.loop.before(stage.loop.steps + self.cancel.later, again)
            else:
                again()
        return True

    def _ask(self, stage: Stage, run: LocalRun, mode: CancelMode | str, force: bool) -> None:
        request = self.cancel.request(mode, force)
        stage.outcomes.append(runtime_of(run).cancel_run(run.run_id, request))
        wait = 0.0 if request.mode is CancelMode.now else request.grace
        if stage.was_paused:  # another thread ends it, in real time
            return
        if wait is not None and self.within is not None:
            stage.deadline = min(stage.deadline, stage.loop.time() + wait + self.within)

    def check(self, stage: Stage) -> Iterator[str]:
        run, outcomes = stage.watched, stage.outcomes
        if run is None:
            return
        said = " and ".join(outcome.value for outcome in outcomes)
        if CancelOutcome.unknown in outcomes or CancelOutcome.armed in outcomes:
            yield f"the cancel of a run that had begun returned {said}"
        if outcomes.count(CancelOutcome.requested) > 1:
            yield f"two cancels of one run returned {said}"
        cancelled = run.status is RunStatus.cancelled
        if outcomes[0] and not cancelled:
            yield f"the cancel returned {said}, but the run ended as {run.status.name}"
        if outcomes[0] is CancelOutcome.already_finished and cancelled and not stage.ended_before:
            yield "the cancel returned already_finished, but the run was cancelled"
        yield from self._check_time(stage)

    def _check_time(self, stage: Stage) -> Iterator[str]:
        """After a cancel with mode `now`, only the scenario's own cleanup may take virtual time."""
        if stage.outcomes[0] and stage.last_alive > stage.deadline + CLOCK_SLACK:
            yield f"the run ended {stage.last_alive - stage.deadline:g} virtual seconds later than it had to"


# -- the host's -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CancelHost(Injection):
    """The host calls `task.cancel()` on the task in which the scenario runs."""

    moment: Moment

    def __str__(self) -> str:
        return f"task.cancel() by the host {self.moment}"

    def prepare(self, stage: Stage) -> None:
        self.moment.schedule(stage, self.act)

    def act(self, stage: Stage) -> bool:
        accepted = stage.task.cancel()
        stage.host_cancelled |= accepted
        return accepted


@dataclass(frozen=True)
class TearDown(Injection):
    """Every task of the loop is cancelled, as `asyncio.run` does when its main function has ended."""

    moment: Moment

    def __str__(self) -> str:
        return f"the loop is torn down {self.moment}"

    def prepare(self, stage: Stage) -> None:
        self.moment.schedule(stage, self.act)

    def act(self, stage: Stage) -> bool:
        stage.host_cancelled |= not stage.task.done()
        for task in tasks_of(stage.loop):
            if task not in stage.crew:
                task.cancel()
        return True


# -- the reader's -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CloseStream(Injection):
    """Another task calls `aclose()` on the stream that the scenario reads."""

    moment: Moment
    number: int

    def __str__(self) -> str:
        return f"stream {self.number + 1} is closed from outside {self.moment}"

    def prepare(self, stage: Stage) -> None:
        self.moment.schedule(stage, self.act)

    def act(self, stage: Stage) -> bool:
        stream = stage.readings[self.number].stream() if self.number < len(stage.readings) else None
        if stream is None:
            return False
        stage.send(_close(stage, stream), "explorer: aclose")
        return True

    def check(self, stage: Stage) -> Iterator[str]:
        return _check_left(stage)


async def _close(stage: Stage, stream: EventStream) -> None:
    stage.note_leaving(local_run(stream.run))
    await stream.aclose()


@dataclass(frozen=True)
class LeaveStream(Injection):
    """The reader itself leaves after some events, by `break` (and drops the iterator) or by `aclose()`."""

    number: int
    events: int
    way: Literal["break", "aclose"]

    def __str__(self) -> str:
        return f"the reader of stream {self.number + 1} leaves by {self.way} after {self.events} events"

    def prepare(self, stage: Stage) -> None:
        stage.leaving = (self.number, self.events, self.way)

    def check(self, stage: Stage) -> Iterator[str]:
        return _check_left(stage)


def _check_left(stage: Stage) -> Iterator[str]:
    run = stage.watched
    if run is None or stage.ended_before or stage.was_paused:  # leaving a paused run does not cancel it
        return
    receipt = make_result(run).receipt if run.status is RunStatus.cancelled else None
    if receipt is None or receipt.cause is not CancelCause.caller:
        yield f"the reader left, and the run ended as {run.status.name}, not as cancelled by its caller"
