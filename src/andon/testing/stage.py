# SPDX-License-Identifier: Apache-2.0
"""One performance of a scenario: it runs on its own event loop, with at most one injection, and is checked afterwards.

What must stay true: two performances take the same steps up to their injections. Tasks and threads that one leaves
behind are found and named, and ended before the next one. A scenario that hangs is reported as a problem.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import os
import threading
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from andon.agent.loop import Loop
from andon.agent.plan import Plan
from andon.core.run.host import spectator
from andon.core.run.limits import Limits
from andon.core.run.run import LocalRun
from andon.core.run.waits import begin_and_wait, make_result, wait_settled
from andon.core.runtime import runtime_of
from andon.core.session import Place
from andon.core.source_lines import Line, users_line_of
from andon.core.states import CancelCause, CancelOutcome, RunStatus
from andon.errors import AndonError, SessionPausedError, describe
from andon.messages import user
from andon.testing.aftermath import Aftermath
from andon.testing.invariants import check_run, check_stored
from andon.testing.reading import Track, Way, tracker
from andon.testing.virtual import EndlessError, StandstillError, VirtualLoop, name_of, tasks_of, where
from andon.testing.whereabouts import users_place_here

T = TypeVar("T")
Scenario = Callable[[], Coroutine[Any, Any, object]]

ROUNDS = 5
"""How many rounds of the loop come after the end of the last run, before remaining tasks count as left behind."""
CLEAR_SECONDS, CLEAR_ATTEMPTS = 60.0, 3
"""How much virtual time remaining tasks get to end, and how often they are cancelled."""
THREAD_EXIT_SECONDS = 0.5
"""How much real time a thread gets to end after its work."""


@dataclass(frozen=True)
class Situation:
    """The state before one step of an undisturbed performance."""

    label: str
    alive: tuple[int, ...]
    """The numbers of the runs that had begun and not ended."""
    agents: tuple[int, ...]
    """Of those, the first run of each agent."""
    runtimes: tuple[int, ...]
    """And the first run of each runtime that shares its store with no other process."""
    begun: int
    host_alive: bool
    streams: tuple[int, ...]
    """The numbers of the streams that were being read."""


class Disturbance(Protocol):
    """What a stage asks of an injection (`injections`)."""

    def prepare(self, stage: Stage) -> None: ...

    def check(self, stage: Stage) -> Iterator[str]: ...


class Again(NamedTuple):
    """What is needed to make another run like this one. A run does not know its agent."""

    plan: Plan
    max_turns: int | None


class Stage:
    """Where a scenario is performed."""

    def __init__(self, scenario: Scenario, injection: Disturbance | None, *, max_steps: int, stalls: bool) -> None:
        self.loop = VirtualLoop(max_steps)
        self._scenario, self._injection, self._stalls = scenario, injection, stalls
        self._threads = set(threading.enumerate())
        self.task: asyncio.Task[object]
        """The task in which the scenario runs."""
        self.runs: list[LocalRun] = []
        self._agains: list[Again | None] = []
        self.readings: list[Track] = []
        self.crew: list[asyncio.Task[Any]] = []
        """The explorer's own tasks."""
        self.problems: list[str] = []
        self.situations: list[Situation] = []
        # What the injection did, and to which run.
        self.injected = self.host_cancelled = self.ended_before = self.was_paused = False
        self.leaving: tuple[int, int, Way] | None = None
        self.outcomes: list[CancelOutcome] = []
        self.watched: LocalRun | None = None
        self.aftermath: Aftermath | None = None
        self.line: Line | None = None
        """The line of the user's code at which the scenario waited then."""
        self.last_alive, self.deadline = 0.0, math.inf

    # -- the performance ----------------------------------------------------------------------------------------------

    def perform(self) -> bool:
        """Run the scenario and all its runs to their ends. False if it came to a standstill, as it may."""
        may_stall = self._stalls and self._injection is None
        if self._injection is None:
            self.loop.observer = self._watch
        else:
            self._injection.prepare(self)
        self.loop.expects = self._expects
        self.task = self._start()
        try:
            self._play(self.task)
            self._play(self._crew(self._wind_up()))
            while not all(run.is_settled for run in self.runs):  # a paused run may have been cancelled meanwhile
                self._play(self._crew(self._wind_up()))
        except StandstillError as error:
            if may_stall:
                self._note("standstill")
                return False
            hint = "" if self._stalls else "; if it is meant to wait until it is disturbed, pass stalls=True"
            self.problems.append(f"the scenario came to a standstill: {error}{hint}")
        except EndlessError as error:
            self.problems.append(f"the scenario did not end: {error}; max_steps= allows more")
        finally:
            self.loop.observer = None
            self.loop.forget()
        return True

    def _start(self) -> asyncio.Task[object]:
        coroutine = self._scenario()
        if not asyncio.iscoroutine(coroutine):
            raise TypeError(f"a scenario is an async function without parameters, not {self._scenario!r}")
        context = contextvars.copy_context()
        context.run(spectator.set, self._begins)
        context.run(tracker.set, self._track)
        return self.loop.create_task(coroutine, name="scenario", context=context)

    def _play(self, task: asyncio.Task[Any]) -> None:
        try:
            self.loop.run_until_complete(task)
        except (Exception, asyncio.CancelledError):
            if not task.done():
                raise

    def send(self, work: Coroutine[Any, Any, object], name: str) -> None:
        """Start a task of the explorer beside the scenario."""
        self.crew.append(self.loop.create_task(work, name=name))

    def _crew(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self.loop.create_task(work, name="explorer")
        self.crew.append(task)
        return task

    async def _wind_up(self) -> None:
        for run in self.runs:  # grows, if a run begins another one
            await wait_settled(run)
        for task in self.crew:
            if task is not asyncio.current_task():
                await asyncio.wait([task])
        for _ in range(ROUNDS):
            await asyncio.sleep(0)

    def _expects(self) -> bool:
        """If the task of a run is gone, the portal ends the run on another thread, unless it is paused."""
        return any((run.task is None or run.task.done()) and not run.is_settled for run in self.runs)

    # -- what is seen of it -------------------------------------------------------------------------------------------

    def _begins(self, run: LocalRun) -> None:
        self.runs.append(run)
        work = run.work
        self._agains.append(Again(work.plan, work.max_turns) if isinstance(work, Loop) else None)

    def _track(self) -> Track:
        number, after, way = self.leaving or (None, None, None)
        mine = number == len(self.readings)
        track = Track(after if mine else None, way if mine else None, self.note_leaving)
        self.readings.append(track)
        return track

    def note_leaving(self, run: LocalRun) -> None:
        self.injected, self.watched, self.ended_before = True, run, run.signal.fate is not None
        self.was_paused = run.is_paused
        self.line = self.line or users_place_here()

    def _watch(self, callback: Callable[..., object]) -> None:
        self._note(_label(callback))

    def _note(self, label: str) -> None:
        alive = tuple(number for number, run in enumerate(self.runs) if not run.status.final)
        agents = {id(self.runs[number].cord): number for number in reversed(alive)}
        alone = [number for number in alive if runtime_of(self.runs[number]).worker is None]
        runtimes = {id(self.runs[number].runtime): number for number in reversed(alone)}
        streams = tuple(n for n, track in enumerate(self.readings) if track.stream() is not None)
        firsts = tuple(agents.values()), tuple(runtimes.values())
        self.situations.append(Situation(label, alive, *firsts, len(self.runs), not self.task.done(), streams))

    def time_runs(self, runs: Sequence[LocalRun]) -> None:
        """From now on, note when the last of them was seen alive. The clock only moves between two steps."""

        def look(callback: Callable[..., object]) -> None:
            if not all(run.status.final for run in runs):
                self.last_alive = self.loop.time()

        self.last_alive = self.loop.time()
        self.loop.observer = look

    # -- looking at what it left --------------------------------------------------------------------------------------

    def inspect(self) -> None:
        """Check everything that must hold now."""
        if self.problems:
            return
        self.problems += self._check_scenario()
        if self._injection is None and not self.runs:
            self.problems.append("the scenario began no run, so there is nothing to explore")
        for number, run in enumerate(self.runs, 1):
            self.problems += (f"run {number}: {problem}" for problem in check_run(run))
        if self._injection is not None:
            self.problems += self._injection.check(self)
        if not self.problems:
            self.problems += [*self._check_tasks(), *self._check_lists()]
        if not self.problems:
            self._bounded(self._check_stores(), "looking into the store")

    def _check_scenario(self) -> Iterator[str]:
        if self.task.cancelled():
            if not self.host_cancelled:
                yield "the scenario was cancelled, though its host did not cancel it"
        elif (error := self.task.exception()) is not None:
            line = users_line_of(error)
            where = "" if line is None else f" (in {line.function}, {os.path.basename(line.file)}:{line.number})"
            yield f"the scenario raised {describe(error).splitlines()[0]}{where}"
        elif self.host_cancelled:
            yield "the host's cancellation was swallowed: the scenario went on to its end"
        for task in self.crew:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                yield f"{task.get_name()} raised {describe(error)}"

    def _check_tasks(self) -> Iterator[str]:
        named = {name for run in self.runs for name in run.steps.leftovers}
        for task in tasks_of(self.loop):
            if task not in self.crew and task is not self.task and task.get_name() not in named:
                yield f"a task was left behind: {name_of(task)} in {where(task)}"

    def _check_lists(self) -> Iterator[str]:
        """The runtime, the agent and the session count a paused run as in flight, and an ended run not."""
        for number, run in enumerate(self.runs, 1):
            counts = "does not count" if run.is_paused else "counts"
            if (run in runtime_of(run).live_runs) is not run.is_paused:
                yield f"run {number}: its runtime {counts} it as in flight"
            if (run in run.cord.live) is not run.is_paused:
                yield f"run {number}: its agent {counts} it as in flight"
            places = run.session.queue
            if run.is_paused and (not places or places[0].run is not run):
                yield f"run {number}: it is paused, but does not hold its session"
            if left := [place for place in places if not _may_stay(place, places[0])]:
                yield f"run {number}: its session still has a line of {len(left)}"

    async def _check_stores(self) -> None:
        for number, run in enumerate(self.runs, 1):
            store = runtime_of(run).store
            assert store is not None
            if await store.added(run.run_id) is None:  # rolled back, continued, or written when a paused run ends
                waits = any(place.run is run for place in run.session.queue)
                if not waits and await store.find(run.run_id) is None:
                    self.problems.append(f"run {number}: the store has no record of the run")
                continue
            stored, record = await store.load(run.session.key), await store.find(run.run_id)
            others = [
                other
                for other in self.runs
                if other.session is run.session and other is not run and await store.added(other.run_id) is not None
            ]
            self.problems += (f"run {number}: {p}" for p in check_stored(run, others, stored, record))

    def check_threads(self) -> None:
        """After all other checks: there is no new thread, except those that the runs have abandoned."""
        self._bounded(self.loop.shutdown_default_executor(), "the end of the loop's own threads")
        new = [thread for thread in threading.enumerate() if thread not in self._threads]
        named = Counter(name.split(" (")[0] for run in self.runs for name in run.steps.leftovers)
        for thread in new:
            tool = thread.name.removeprefix("andon-tool-")
            if thread.name == "andon-portal" or named[f"thread of {tool}"] > 0:
                named[f"thread of {tool}"] -= 1
                continue
            thread.join(THREAD_EXIT_SECONDS)
            if thread.is_alive():
                self.problems.append(f"a thread was left behind: {thread.name}")

    # -- talking on ---------------------------------------------------------------------------------------------------

    def end_pauses(self) -> None:
        """A run that still waits for a person refuses the next prompt, and can be cancelled like any other."""
        paused = False
        for number, (run, again) in enumerate(zip(self.runs, self._agains, strict=True), 1):
            if run.is_paused and again is not None:
                paused = True
                self._bounded(self._end_pause(number, run, again), "the cancel of a paused run")
        if paused and not self.problems:  # the runs cancelled behind it are written now, and have left the queue
            self.problems += self._check_lists()
            self._bounded(self._check_stores(), "looking into the store")

    async def _begin(self, run: LocalRun) -> None:
        await begin_and_wait(run)

    async def _end_pause(self, number: int, run: LocalRun, again: Again) -> None:
        try:
            await self._begin(self._make(run, again, "Hello?"))
            self.problems.append(f"run {number} is paused, but another one could begin in its session")
        except SessionPausedError:
            pass
        run.cancel_for(CancelCause.user)
        await wait_settled(run)
        if run.status is not RunStatus.cancelled:
            self.problems.append(f"run {number} was cancelled in its pause, but is {run.status.name}")
        self.problems += (f"run {number}, cancelled in its pause: {problem}" for problem in check_run(run))

    def talk_on(self, prompt: str) -> None:
        """Send the next prompt to the same agent, in every session."""
        latest = {id(run.session): (run, again) for run, again in zip(self.runs, self._agains, strict=True)}
        for run, again in latest.values():
            if again is not None:
                self._bounded(self._ask(run, again, prompt), "the next prompt")

    async def _ask(self, before: LocalRun, again: Again, prompt: str) -> None:
        messages = before.session.messages
        run = self._make(before, again, prompt)
        try:
            await self._begin(run)
        except AndonError as error:
            self.problems.append(f"the next prompt was refused: {describe(error)}")
            return
        await wait_settled(run)
        if run.status is not RunStatus.completed:
            failure = make_result(run).error
            why = "" if failure is None else f" ({describe(failure)})"
            self.problems.append(f"the next prompt ended as {run.status.name}{why}")
        elif run.session.messages[: len(messages) + 1] != [*messages, user(prompt)]:
            self.problems.append("the next prompt did not go on with the conversation as it was")
        self.problems += (f"the next prompt: {problem}" for problem in check_run(run))

    def _make(self, before: LocalRun, again: Again, prompt: str) -> LocalRun:
        """Another run of the same agent in the same session."""
        plan = msgspec.structs.replace(again.plan, history=None)
        run = LocalRun(
            before.runtime,
            before.cord,
            before.session,
            uuid.uuid4().hex,
            on_busy="reject",
            limits=Limits(None, None),
            metadata={},
        )
        run.work = Loop(plan, run, [user(prompt)], again.max_turns)
        return run

    # -- clearing away ------------------------------------------------------------------------------------------------

    def _bounded(self, work: Coroutine[Any, Any, object], name: str) -> None:
        """Do something more on the loop. It is a problem if that fails or hangs."""
        task = self._crew(work)
        try:
            self._play(task)
        except (StandstillError, EndlessError) as error:
            self.problems.append(f"{name} did not end: {error}")
        else:
            if not task.cancelled() and (failure := task.exception()) is not None:
                self.problems.append(f"{name} failed: {describe(failure)}")

    def clear(self) -> bool:
        """End the remaining tasks, and close the loop. True if there were none."""
        left = tasks_of(self.loop)
        self._end([self.task])  # its runs end with it, as with any host
        self._end(left)
        self._try(self.loop.shutdown_asyncgens())
        self.loop.close()
        return not left and not any(run.steps.leftovers for run in self.runs)

    def forget(self) -> None:
        """Drop all references to the scenario's objects, so that they can be collected."""
        self.runs, self._agains, self.readings, self.crew = [], [], [], []
        self.watched = self.aftermath = None
        del self.task, self._scenario

    def _end(self, tasks: list[asyncio.Task[Any]]) -> None:
        for _ in range(CLEAR_ATTEMPTS):
            pending = [task for task in tasks if not task.done()]
            if not pending:
                return
            for task in pending:
                task.cancel()
            self._try(asyncio.wait(pending, timeout=CLEAR_SECONDS))

    def _try(self, work: Awaitable[object]) -> None:
        with contextlib.suppress(StandstillError, EndlessError):
            self.loop.run_until_complete(work)


def _may_stay(place: Place, first: Place) -> bool:
    """A paused run holds its session. A cancelled run behind it keeps its place until its messages are written."""
    return first.run.status is RunStatus.paused and (place is first or place.pending_write is not None)


def _label(callback: Callable[..., object]) -> str:
    """The name of a step, the same in every performance."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return name_of(owner)
    return str(getattr(getattr(callback, "func", callback), "__qualname__", type(callback).__name__))
