# SPDX-License-Identifier: Apache-2.0
"""The explorer: it cancels a scenario at each of its scheduling steps, and checks the result each time.

    async def scenario() -> None:
        agent = Agent("Helper", ScriptedModel([Call("search", {"query": "tea"})], then="Found it."), tools=[search])
        async for event in reading(agent.stream_async("Find tea")):
            ...

    def test_cancelling_anywhere_is_safe() -> None:
        explore(scenario).raise_for_problems()

It runs the scenario once, in virtual time, and counts the steps. Then it runs the scenario once more for every step,
with one injection exactly before that step. What must stay true: an exploration without problems means that every step
was tried, and that each time the run ended correctly, the conversation was valid, no task or thread was left, and the
next prompt was answered. A run that is paused at the end is cancelled first, and must then end correctly too.

Start with `explore`. `stage` performs a scenario once, `injections` has what is done to it, `invariants` has what must
hold afterwards.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from andon.core.run.handle import Run
from andon.core.run.run import LocalRun
from andon.errors import InsideEventLoopError, describe
from andon.testing.broken import BrokenCancel, Way
from andon.testing.injections import (
    Cancel,
    CancelHost,
    CancelRun,
    CloseStream,
    Injection,
    LeaveStream,
    Moment,
    TearDown,
)
from andon.testing.stage import Scenario, Situation, Stage
from andon.testing.surroundings import Surroundings

Kind = Literal["cancel", "host", "leave", "teardown", "broken_cancel"]
KINDS: tuple[Kind, ...] = ("cancel", "host", "leave", "teardown")
"""The default of `inject`."""
ALL_KINDS: tuple[Kind, ...] = (*KINDS, "broken_cancel")

MAX_STEPS = 20_000
LAST_EVENTS = 8
"""How many of a run's last events a problem shows."""


@dataclass(frozen=True)
class Problem:
    """What was wrong after one injection, or without any: then the scenario itself is wrong."""

    scenario: str
    injection: Injection | None
    text: str
    events: tuple[str, ...] = ()
    """The last events of each run."""
    line: str | None = None
    """The line of your code at which the scenario waited then: the file, the number, and the source."""

    def __str__(self) -> str:
        when = "undisturbed" if self.injection is None else str(self.injection)
        where = () if self.line is None else (f"at {self.line}",)
        return "\n    ".join([f"{self.scenario}, {when}: {self.text}", *where, *self.events])


@dataclass
class Report:
    """What an exploration found. `report.raise_for_problems()` is all that a test needs."""

    scenario: str
    steps: int = 0
    """How many steps the undisturbed scenario takes."""
    injections: int = 0
    """How many times it was disturbed."""
    missed: int = 0
    """Injections whose moment never came, because the scenario took other steps than before. Threads can cause that."""
    repeatable: bool = True
    """Two undisturbed performances took the same steps."""
    problems: list[Problem] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.problems

    def raise_for_problems(self) -> None:
        """Raise an `AssertionError` that lists all problems, if there are any."""
        if self.problems:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        found = "no problem" if self.ok else f"{len(self.problems)} problem(s)"
        missed = f", {self.missed} missed" if self.missed else ""
        steps = f"{self.steps} steps" + ("" if self.repeatable else " (not the same ones every time)")
        head = f"{self.scenario}: {found} in {self.injections} injections{missed}, {steps}"
        return "\n".join([head, *(f"- {problem}" for problem in self.problems)])


def explore(
    scenario: Scenario,
    *,
    inject: Sequence[Kind] | Kind = KINDS,
    cancels: Sequence[Cancel | str] | Cancel | str = "now",
    next_prompt: str | None = "And now?",
    check: Callable[[Sequence[Run]], object] | None = None,
    stalls: bool = False,
    within: float | None = None,
    steps: Sequence[int] | None = None,
    name: str | None = None,
    max_steps: int = MAX_STEPS,
    max_problems: int = 10,
    progress: Callable[[int, int], object] | None = None,
) -> Report:
    """Disturb a scenario at each of its steps, and check each time that all is correct.

    `scenario` is an async function without parameters. It makes its own agent, so that every performance starts from
    the beginning, and starts runs in any way. A stream that it reads through `reading(...)` can be left.

    - `inject`: what to do. `cancel`: a cancel by run id of each run in flight. `host`: the host's `task.cancel()` on
      the scenario's task. `leave`: a reader leaves after each event, by `break` and by `aclose()`, and at each step by
      an `aclose()` of another task. `teardown`: all tasks are cancelled, as at the end of `asyncio.run`.
      `broken_cancel` (not by default): a cancel that an exception interrupts, at each line of that call. This takes
      some hundred performances for each step; limit it with `steps`.
    - `cancels`: how to cancel: modes, or `Cancel(...)` for a grace or a second cancel.
    - `next_prompt`: the prompt that the same agent gets afterwards in every session; its run must complete. None: no
      prompt.
    - `check`: called with the runs after each performance; an exception is a problem.
    - `stalls`: the undisturbed scenario waits for ever. Without this, that is a problem.
    - `within`: how many virtual seconds a run may take to end after a cancel with mode `now`, or after its grace. 0 for
      a scenario whose own code does not sleep when it is cut.
    - `steps`: try these steps only, for example to examine one problem.
    - `progress`: called after each performance, with the number so far and the total. The total grows while the lines
      of a cancel are still being counted.
    """
    if asyncio._get_running_loop() is not None:
        raise InsideEventLoopError("explore runs event loops of its own: call it from a function that is not async")
    if asyncio.iscoroutine(scenario):
        scenario.close()
        raise TypeError("a scenario is called many times: give the async function itself, explore(scenario)")
    if name is None:
        name = getattr(scenario, "__name__", "scenario")
    exploration = _Exploration(scenario, next_prompt, check, stalls, max_steps, name)
    report, began = exploration.report, time.perf_counter()
    options = _Options(_kinds(inject), _cancels(cancels), within, steps)
    with exploration.surroundings.watching():
        first = exploration.perform(None)
        exploration.surroundings.freeze()
        if report.ok:
            report.repeatable = exploration.perform(None).labels == first.labels
        plan = list(_plan(first, options)) if report.ok else []
        for number, injection in enumerate(plan, 1):  # grows: an injection may lead to others
            plan += exploration.perform(injection).then
            if progress is not None:
                progress(number, len(plan))
            if len(report.problems) >= max_problems:
                break
    report.seconds = time.perf_counter() - began
    return report


class _Exploration:
    """Performs one scenario again and again, and keeps the report."""

    def __init__(
        self,
        scenario: Scenario,
        next_prompt: str | None,
        check: Callable[[Sequence[Run]], object] | None,
        stalls: bool,
        max_steps: int,
        name: str,
    ) -> None:
        self._scenario, self._next_prompt, self._check = scenario, next_prompt, check
        self._stalls, self._max_steps = stalls, max_steps
        self.report = Report(name)
        self.surroundings = Surroundings()

    def perform(self, injection: Injection | None) -> _Seen:
        random.seed(0)  # for example, the jitter of a back-off must be the same every time
        stage = Stage(self._scenario, injection, max_steps=self._max_steps, stalls=self._stalls)
        try:
            return self._perform(stage, injection)
        finally:
            stage.loop.close()

    def _perform(self, stage: Stage, injection: Injection | None) -> _Seen:
        stage.loop.set_exception_handler(self.surroundings.handle_loop)
        if stage.perform():
            self._look(stage)
        problems = [*stage.problems, *self.surroundings.take(collect=False)]
        then = list(injection.then(stage)) if injection is not None and stage.injected else []
        seen = _Seen(stage.situations, [track.events for track in stage.readings], then)
        events = _last_events(stage.runs)
        clean = stage.clear()
        self._count(stage, injection)
        stage.forget()
        late = self.surroundings.take(collect=True)
        if clean and not problems:  # otherwise these are consequences of the problems found
            problems = late
        line = None if stage.line is None else str(stage.line)
        self.report.problems += (Problem(self.report.scenario, injection, text, events, line) for text in problems)
        return seen

    def _look(self, stage: Stage) -> None:
        stage.inspect()
        if stage.problems:
            return
        if self._check is not None:
            try:
                self._check([Run(run) for run in stage.runs])
            except Exception as error:  # noqa: BLE001 - reported: this is how a check says what is wrong
                stage.problems.append(f"the check failed: {describe(error).splitlines()[0]}")
        stage.end_pauses()
        if self._next_prompt is not None:
            stage.talk_on(self._next_prompt)
        stage.check_threads()

    def _count(self, stage: Stage, injection: Injection | None) -> None:
        if injection is None:
            self.report.steps = len(stage.situations)
        elif stage.injected:
            self.report.injections += 1
        else:
            self.report.missed += 1


@dataclass(frozen=True)
class _Seen:
    """What was seen in a performance. Situations are noted only in an undisturbed one."""

    situations: list[Situation]
    events: list[int]
    """The number of events of each reading."""
    then: list[Injection]
    """The injections to try because of it."""

    @property
    def labels(self) -> list[str]:
        return [situation.label for situation in self.situations]


@dataclass(frozen=True)
class _Options:
    """What is to be done to a scenario."""

    inject: Sequence[str]
    cancels: Sequence[Cancel]
    within: float | None
    steps: Sequence[int] | None

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.inject) - set(ALL_KINDS)):
            raise ValueError(f"there is no injection {', '.join(unknown)}; there are {', '.join(ALL_KINDS)}")


def _plan(seen: _Seen, options: _Options) -> Iterator[Injection]:
    """All injections for a scenario, in the order of its steps."""
    inject, cancels, within, steps = options.inject, options.cancels, options.within, options.steps
    last = len(seen.situations)
    if steps and not any(1 <= step <= last for step in steps):
        raise ValueError(f"steps={list(steps)!r} would try nothing: the scenario takes the steps 1 to {last}")
    for step, now in enumerate(seen.situations, 1):
        if steps is not None and step not in steps:
            continue
        moment = Moment(step, now.label)
        if "cancel" in inject:
            # If none is in flight, the newest run: a late cancel must have no effect, not even on the next prompt.
            for number in now.alive or range(now.begun)[-1:]:
                yield from (CancelRun(moment, number, cancel, within) for cancel in cancels)
        if "broken_cancel" in inject:
            for way, number in _ways(now):
                yield from (BrokenCancel(moment, number, way, cancel, within) for cancel in cancels)
        if "host" in inject and now.host_alive:
            yield CancelHost(moment)
        if "teardown" in inject:
            yield TearDown(moment)
        if "leave" in inject:
            yield from (CloseStream(moment, number) for number in now.streams)
    if "leave" in inject and steps is None:
        for number, events in enumerate(seen.events):
            for count in range(1, events + 1):
                yield LeaveStream(number, count, "break")
                yield LeaveStream(number, count, "aclose")


def _ways(now: Situation) -> Iterator[tuple[Way, int]]:
    """Every way to cancel at this moment."""
    last = range(now.begun)[-1:]
    yield from (("run", number) for number in now.alive or last)
    yield from (("agent", number) for number in now.agents or last)
    yield from (("runtime", number) for number in now.runtimes)


def _kinds(inject: Sequence[str] | str) -> Sequence[str]:
    return [inject] if isinstance(inject, str) else inject


def _cancels(cancels: Sequence[Cancel | str] | Cancel | str) -> list[Cancel]:
    listed = [cancels] if isinstance(cancels, Cancel | str) else cancels
    return [cancel if isinstance(cancel, Cancel) else Cancel(cancel) for cancel in listed]


def _last_events(runs: Sequence[LocalRun]) -> tuple[str, ...]:
    lines = []
    for number, run in enumerate(runs, 1):
        names = [event.event.name for event in run.journal.events]
        before = "… " if len(names) > LAST_EVENTS else ""
        lines.append(f"run {number} ({run.status.name}): {before}{', '.join(names[-LAST_EVENTS:])}")
    return tuple(lines)
