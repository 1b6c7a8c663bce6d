# SPDX-License-Identifier: Apache-2.0
"""A cancel that an exception interrupts, and the call that comes after it.

What must stay true: if the interrupted call had cancelled a run, the run ends as cancelled at the next call: another
cancel, a wait for the run, a new reader, or its deadline. If it had not, the run continues normally, and the next
cancel works like a first one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from andon.core.receipt import CancelRequest
from andon.core.run.handle import Run
from andon.core.run.run import LocalRun
from andon.core.run.waits import wait_result, wait_settled
from andon.core.runtime import runtime_of
from andon.core.states import CancelCause, CancelMode, CancelOutcome, Phase, RunStatus
from andon.testing.aftermath import Aftermath
from andon.testing.breaking import Break, trace_call
from andon.testing.injections import CLOCK_SLACK, REASON, Cancel, Injection, Moment
from andon.testing.stage import Stage

AGAIN = "the explorer cancelled it again"
TIMEOUT_SECONDS = 1.0
NEVER = 10**9
"""A step that no scenario reaches: an action for it is done when the scenario comes to a standstill."""

Way = Literal["run", "agent", "runtime"]
"""What is cancelled: one run, all runs of an agent, or all runs of the runtime."""
Next = Literal["attend", "result", "read", "again", "timeout"]
"""The next call: a wait for the run's end or its result, a new reader, another cancel, or the run's deadline."""


@dataclass(frozen=True)
class BrokenCancel(Injection):
    """A cancel that an exception interrupts. The first time it is not interrupted, and its lines are counted."""

    moment: Moment
    number: int
    way: Way
    cancel: Cancel
    within: float | None = None
    breaking: Break | None = None
    next: Next = "attend"

    def __str__(self) -> str:
        whom = _WHOM[self.way].format(self.number + 1)
        if self.breaking is None:
            return f"{self.cancel} of {whom}, while its lines are counted, {self.moment}"
        return f"{self.cancel} of {whom} {self.moment}, interrupted {self.breaking}, {_WORDS[self.next]}"

    # -- doing it -----------------------------------------------------------------------------------------------------

    def prepare(self, stage: Stage) -> None:
        self.moment.schedule(stage, self.act)

    def act(self, stage: Stage) -> bool:
        if self.number >= len(stage.runs):
            return False
        run = stage.runs[self.number]
        after = stage.aftermath = Aftermath(len(stage.runs), self._targets(stage, run))
        stage.was_paused = any(each.is_paused for each in after.targets)
        ranks = {each: each.signal.rank for each in stage.runs}
        ask = functools.partial(self._ask, run, after.told, self.cancel.mode, REASON)
        if self.breaking is None:
            after.owed = [each for each in after.targets if each.signal.fate is None]
            after.trace = trace_call(ask)
            self._expect_end(stage, after, self.cancel.mode)
            return True
        came_to_it = self.breaking.make(ask)
        after.asked = [each for each, rank in ranks.items() if each.signal.rank > rank]
        after.owed = list(after.asked)
        self._bring_next(stage, run, after)
        return came_to_it

    def _targets(self, stage: Stage, run: LocalRun) -> list[LocalRun]:
        alive = [each for each in stage.runs if not each.status.final]
        if self.way == "agent":
            alive = [each for each in alive if each.cord is run.cord]
        elif self.way == "runtime":
            alive = [each for each in alive if each.runtime is run.runtime]
        else:
            alive = [run]
        return alive or [run]

    def _ask(self, run: LocalRun, told: list[CancelOutcome], mode: CancelMode | str, reason: str) -> None:
        grace = self.cancel.grace
        if self.way == "run":
            told.append(Run(run).cancel(reason=reason, mode=mode, grace=grace))
        elif self.way == "agent":
            request = CancelRequest.make(reason=reason, mode=mode, grace=grace)
            told.append(run.cord.pull(request, run.bounds.arm_seconds))
        else:
            outcomes = _at_once(runtime_of(run).cancel(all=True, reason=reason, mode=mode, grace=grace))
            told += outcomes.values()

    # -- what comes next ----------------------------------------------------------------------------------------------

    def _bring_next(self, stage: Stage, run: LocalRun, after: Aftermath) -> None:
        after.can_time_out = all(each.phase is not Phase.ending and not each.is_paused for each in after.targets)
        if self.next == "again":
            self._bring_second(stage, run, after)
            return
        waits = 0.0
        for each in after.targets:
            if self.next == "timeout":  # as the run's own deadline would
                _cancel_later(each, TIMEOUT_SECONDS)
                waits = TIMEOUT_SECONDS
            else:
                stage.send(_WAITS[self.next](each), f"explorer: {self.next}")
        self._expect_end(stage, after, CancelMode.now if self.next == "timeout" else self.cancel.mode, waits)
        unasked = [each for each in after.targets if each not in after.asked]
        if unasked and self.next != "timeout":  # the scenario may wait until it is cancelled
            stage.loop.before(NEVER, functools.partial(_ask_all, unasked))

    def _bring_second(self, stage: Stage, run: LocalRun, after: Aftermath) -> None:
        mode = self.cancel.again or self.cancel.mode

        def again() -> None:
            after.owed += [each for each in after.targets if each.signal.fate is None]
            self._ask(run, after.told_next, mode, AGAIN)
            self._expect_end(stage, after, mode)

        if self.cancel.later:
            stage.loop.before(stage.loop.steps + self.cancel.later, again)
        else:
            again()

    def _expect_end(self, stage: Stage, after: Aftermath, mode: CancelMode | str, waits: float = 0.0) -> None:
        """If there is a `within`: note when the cancelled runs must have ended."""
        grace = 0.0 if mode == CancelMode.now else self.cancel.grace
        if self.within is not None and grace is not None and after.owed and not stage.was_paused:
            stage.time_runs(after.owed)
            stage.deadline = stage.loop.time() + waits + grace + self.within

    def then(self, stage: Stage) -> Iterator[Injection]:
        after = stage.aftermath
        assert after is not None
        if after.trace is not None:
            yield from (replace(self, breaking=each) for each in after.trace.breaks())
        elif self.next == "attend":
            yield replace(self, next="again")
            # A run that was not cancelled is an ordinary one. A cancelled one is the same, whichever call cancelled it.
            if after.asked and self.way == "run":
                yield replace(self, next="result")
                yield replace(self, next="read")
                if after.can_time_out:
                    yield replace(self, next="timeout")

    # -- what must follow ---------------------------------------------------------------------------------------------

    def check(self, stage: Stage) -> Iterator[str]:
        after = stage.aftermath
        if after is None:
            return
        numbers = {run: number for number, run in enumerate(stage.runs, 1)}
        for run in after.owed:
            if run.status is not RunStatus.cancelled:
                yield f"run {numbers[run]} was to be cancelled, but ended as {run.status.name}"
        if CancelOutcome.armed not in (*after.told, *after.told_next):
            for run in stage.runs[after.begun :]:
                if _reason_of(run) in (REASON, AGAIN):
                    yield f"run {numbers[run]} began after the cancel, and was cancelled by it"
        if self.breaking is not None:
            for run in after.targets:
                if _reason_of(run) == REASON and run not in after.asked:
                    when = "was not cancelled when the call was interrupted"
                    yield f"run {numbers[run]} {when}, but was cancelled by it later"
        if self.way == "run":
            yield from self._check_told(after.targets[0], after)
        if after.owed and stage.last_alive > stage.deadline + CLOCK_SLACK:
            yield f"the run ended {stage.last_alive - stage.deadline:g} virtual seconds later than it had to"

    def _check_told(self, run: LocalRun, after: Aftermath) -> Iterator[str]:
        for said in (*after.told, *after.told_next):
            if said in (CancelOutcome.unknown, CancelOutcome.armed):
                yield f"the cancel of a run that had begun returned {said.value}"
            if said and run.status is not RunStatus.cancelled:
                yield f"the cancel returned {said.value}, but the run ended as {run.status.name}"
        if CancelOutcome.requested in after.told_next and run in after.asked:
            yield "the run was cancelled already, but the next cancel returned requested"


def _ask_all(runs: Sequence[LocalRun]) -> None:
    """Cancel each by its own handle, which delivers nothing to other runs."""
    for run in runs:
        Run(run).cancel(reason=AGAIN)


def _cancel_later(run: LocalRun, seconds: float) -> None:
    run.loop.call_later(seconds, functools.partial(run.cancel_for, CancelCause.deadline))


def _reason_of(run: LocalRun) -> str | None:
    return None if run.signal.request is None else run.signal.request.reason


def _at_once(work: Coroutine[Any, Any, dict[str, CancelOutcome]]) -> dict[str, CancelOutcome]:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return dict(end.value)
    finally:
        work.close()
    raise AssertionError("runtime.cancel waits for a shared store, which can't be explored in this way")


async def _read(run: LocalRun) -> None:
    async for _ in Run(run).events():
        pass


_WAITS: dict[str, Callable[[LocalRun], Coroutine[Any, Any, object]]] = {
    "attend": wait_settled,
    "result": wait_result,
    "read": _read,
}
_WHOM: dict[Way, str] = {"run": "run {}", "agent": "the agent of run {}", "runtime": "all runs"}
_WORDS: dict[Next, str] = {
    "attend": "then a task waits for its end",
    "result": "then a task waits for its result",
    "read": "then a new reader reads it",
    "again": "then it is cancelled again",
    "timeout": "then its deadline comes",
}
