# SPDX-License-Identifier: Apache-2.0
"""A step is one piece of a run's work, in a task of its own, that a cancel can cut.

Everything that may wait for long is a step: a model call, a tool, an async hook, a back-off, a queue. A cut step is
cancelled once, so that its `except` and `finally` may await and finish. It is cancelled again when it has not ended
after `cut_seconds`. It is abandoned, and named, after `abandon_seconds`. The run never waits for it longer than that.

A step says which cancel cuts it (`cut_by`). One that only `FORCE` cuts is let finish by a cancel with mode `now`. From
that moment it has `finish_within` seconds. Then it is cut like any other step.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from andon.core.log_text import cut_line
from andon.core.states import CancelMode
from andon.core.waiters import Waiters
from andon.core.watchdog import Watchdog
from andon.errors import StoreError, confide, describe

if TYPE_CHECKING:
    from andon.core.bounds import Bounds
    from andon.core.records import SessionKey
    from andon.core.signal import CancelSignal
    from andon.core.states import Rank

T = TypeVar("T")
log = logging.getLogger(__name__)


STRAY_CANCELS = 5
"""How often the host may cancel a step that no cancel of ours cuts, before that counts as the step's failure."""


class Cut(BaseException):
    """Unwinds the loop of a cancelled run, up to the place where the run is settled. Never leaves the package."""

    def __init__(self, abandoned: bool = False) -> None:
        self.abandoned = abandoned
        """The step that was cut did not stop, and may still be running."""


class CutAloneError(Exception):
    """The step was cut and the run goes on: the step's own time was up, or a cancel was for this step alone."""


class StrayError(Exception):
    """The work itself raised something that is not an Exception, such as SystemExit. That counts as its failure."""


class StrayCancelError(StrayError):
    """A CancelledError that the run did not send: the work raised it, or the host cancels every task of the loop."""


class Step(Generic[T]):
    """One task of a run, from its start to its end or its abandonment."""

    __slots__ = (
        "_error",
        "_finish_timer",
        "_make",
        "_patience",
        "_runner",
        "_task",
        "_timer",
        "_value",
        "_waiter",
        "abandoned",
        "cut_by",
        "finish_within",
        "finished",
        "name",
        "on_cut",
        "timeout",
        "was_cut",
        "was_cut_alone",
        "watchdog",
    )

    def __init__(
        self,
        runner: StepRunner,
        make: Callable[[], Awaitable[T]],
        name: str,
        cut_by: Rank | None = None,
        on_cut: Callable[[], None] | None = None,
        timeout: float | None = None,
        finish_within: float | None = None,
        patience: Callable[[], float] | None = None,
    ) -> None:
        self._runner, self.name, self.cut_by, self.on_cut = runner, name, cut_by, on_cut
        self.timeout, self.finish_within, self._patience = timeout, finish_within, patience
        self._finish_timer: asyncio.TimerHandle | None = None
        self._make: Callable[[], Awaitable[T]] | None = make
        self._value: T
        self._error: BaseException | None = None
        self.watchdog = Watchdog.of(runner.loop, runner.bounds.cut_seconds)  # found now, so that a cancel is quicker
        self._timer = None if timeout is None else runner.loop.call_later(timeout, self.cut_alone)
        self._waiter: asyncio.Future[None] | None = None
        self.finished = self.was_cut = self.was_cut_alone = self.abandoned = False
        self._task = runner.loop.create_task(self._perform(), name=name)
        self._task.add_done_callback(self._on_done)

    async def _perform(self) -> None:
        if not hasattr(self, "_task"):
            # This loop begins tasks at once (asyncio.eager_task_factory). A step can't be cut before its task is known,
            # so it begins in the next turn of the loop, as on any other loop.
            await asyncio.sleep(0)
        # The coroutine is made here, so that a step cancelled before it began leaves nothing "never awaited".
        try:
            make, self._make = self._make, None  # it may refer to the run: an ended step must not
            assert make is not None
            self._value = await make()
        except asyncio.CancelledError:
            # Kept as a fact, not as an exception: its traceback would tie this object to itself.
            if not self.was_cut:
                self._error = StrayCancelError("it raised CancelledError, but it was not cancelled")
        except (Cut, KeyboardInterrupt):
            raise
        except BaseException as error:
            if isinstance(error, GeneratorExit) and is_being_closed(self._task):
                raise
            self._error = as_exception(error)  # raised where the step is awaited
        # Done here and not in the done-callback, which would cost the waiting run one more turn of the loop.
        self._finish()
        if not self.abandoned:
            self._task.remove_done_callback(self._on_done)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the end of the step, and return or raise its outcome.

        If the host cancels the task that waits here, that becomes a cancel of the run.
        """
        while not self.finished:
            try:
                yield from self._make_waiter()
            except asyncio.CancelledError:
                self._runner.host_cancelled()
        self._waiter = None
        return self.outcome()

    async def wait(self) -> None:
        """Wait for the end of the step in the same way, but leave its outcome to a later `outcome()`."""
        while not self.finished:
            try:
                await self._make_waiter()
            except asyncio.CancelledError:
                self._runner.host_cancelled()
        self._waiter = None

    def _make_waiter(self) -> asyncio.Future[None]:
        """A future for each wait: a cancellation of the awaiting task cancels this future alone."""
        self._waiter = self._runner.loop.create_future()
        return self._waiter

    def outcome(self) -> T:
        """What the work returned or raised; Cut if the run was cancelled under it."""
        error, self._error = self._error, None
        if isinstance(error, StrayCancelError) and (self._is_cancelled() or self._was_swept_away):
            # The host ends its loop and cancels every task at once. This task was reached before the run's own.
            self.mark_cut()
        if self.was_cut:
            if error is not None:
                what, facts = cut_line(describe(error)), {"facts": self._runner.facts}
                log.info("%s failed while it was cut: %s", self.name, what, exc_info=error, extra=facts)
            if self.was_cut_alone and not self._is_cancelled():
                raise CutAloneError(self.name)
            raise Cut(self.abandoned)
        if isinstance(error, KeyboardInterrupt):  # it went up through the event loop, and is raised only there
            self._runner.host_cancelled()
            raise Cut
        try:
            if error is not None:
                raise error
        finally:
            del error
        return self._value

    @property
    def task(self) -> asyncio.Task[None]:
        return self._task

    def cut_alone(self) -> None:
        """Cut this step, and let the run go on."""
        if not self.finished and not self.was_cut:
            self.was_cut_alone = True
            self._runner.cut([self])

    def cut_in(self, seconds: float, cut: Callable[[], object] | None = None) -> None:
        """A cancel lets it finish: cut it if it has not ended by itself after `seconds`. The first call counts."""
        if self._finish_timer is None and self.can_be_cut:
            self._runner.busy_for(seconds)
            self._finish_timer = self._runner.loop.call_later(seconds, cut or self._cut_late)

    def _cut_late(self) -> None:
        self._runner.cut([self])

    @property
    def is_being_let_finish(self) -> bool:
        """A cancel would have cut it, had it not said that it is to be let finish."""
        return self._finish_timer is not None

    @property
    def can_be_cut(self) -> bool:
        return not (self.finished or self.was_cut or self._task.done())

    def cut(self) -> None:
        """Cancel its task. The watchdog, which watches it already, acts if it does not end."""
        self._stop_timers()
        try:
            self.mark_cut()
        finally:
            if not (self._runner.host_has_cancelled and self._task.cancelling()):
                # A host that ends its loop has cancelled it already: the work gets one CancelledError, not two.
                self._task.cancel()

    def mark_cut(self) -> None:
        """Note that it was cut, and call `on_cut`, once."""
        if not self.was_cut:
            self.was_cut = True
            if self.on_cut is not None:
                self.on_cut()

    def _is_cancelled(self) -> bool:
        return self.cut_by is not None and self._runner.signal.rank >= self.cut_by.rank

    @property
    def _was_swept_away(self) -> bool:
        """The host has cancelled the run's task, and with it this one, which our own cancel would have let finish."""
        return self.cut_by is not None and self._runner.host_has_cancelled

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._finish_timer):
            if timer is not None:
                timer.cancel()
        self._timer = None

    def cut_again(self) -> None:
        """It was cut a while ago, and has not ended."""
        self._task.cancel()
        bounds = self._runner.bounds
        seconds = max(0.0, bounds.abandon_seconds - bounds.cut_seconds)
        self._timer = self._task.get_loop().call_later(seconds, self._run_out)  # the run may have left its loop

    def _run_out(self) -> None:
        """Its time is over. But a run that it waits for may be letting a call finish, or undoing one."""
        more = 0.0 if self._patience is None else self._patience()
        if more > 0:
            self._timer = self._task.get_loop().call_later(more, self._run_out)
        else:
            self.give_up()

    def give_up(self) -> None:
        """It was cut and does not end: name it, and let the run go on without it."""
        self.abandoned = True
        log.warning("%s was cancelled and did not stop; abandoned", self.name, extra={"facts": self._runner.facts})
        self._runner.leave_behind(self, self.name)
        self._finish()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if self.abandoned:
            log.info(
                "%s, abandoned earlier, has ended; its result is dropped",
                self.name,
                extra={"facts": self._runner.facts},
            )
            self._error = None
            self._runner.picked_up(self)
        elif task.cancelled():  # before its first step
            if not self.was_cut:
                self._error = StrayCancelError("CancelledError from outside, before it began")
            self._finish()
        elif (error := task.exception()) is not None:  # Cut, or a KeyboardInterrupt that stops the loop
            self._error = error
            self._finish()

    def _finish(self) -> None:
        self.finished = True
        self._stop_timers()
        self.watchdog.release(self)
        self._runner.forget(self)
        self.wake()

    def wake(self) -> None:
        """Have the task that waits for this step look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def wait_first(steps: Sequence[Step[Any]], ready: Callable[[], bool]) -> None:
    """Wait until one of these steps of a run has ended, or until `ready()` is true.

    Code that makes `ready()` true calls `StepRunner.look_again` afterwards.
    """
    while not (any(step.finished for step in steps) or ready()):
        waiter = steps[0]._make_waiter()
        for step in steps:
            step._waiter = waiter
        try:
            await waiter
        except asyncio.CancelledError:
            steps[0]._runner.host_cancelled()
    for step in steps:
        step._waiter = None


def is_being_closed(task: asyncio.Task[Any] | None) -> bool:
    """Is the coroutine of this task being closed, with the task or its loop? Else a GeneratorExit is the work's own."""
    loop = asyncio._get_running_loop()
    return loop is None or asyncio.current_task(loop) is not task


def as_exception(error: BaseException) -> Exception:
    """What counts as the failure of the work that raised it: the error itself, or a StrayError that describes it."""
    if isinstance(error, Exception):
        return error
    stray = StrayError(describe(error)).with_traceback(error.__traceback__)
    stray.__cause__ = error
    return stray


class StepRunner:
    """Runs the steps of a run, cuts them, and remembers what had to be left behind."""

    __slots__ = (
        "_busy_until",
        "_key",
        "_leftovers",
        "_on_host_cancel",
        "_run_id",
        "_steps",
        "_warnings",
        "bounds",
        "host_has_cancelled",
        "loop",
        "signal",
        "waiters",
    )

    loop: asyncio.AbstractEventLoop
    """Where the steps run. Set when the run begins, and when it moves to another loop."""

    def __init__(self, run_id: str, key: SessionKey, signal: CancelSignal, bounds: Bounds) -> None:
        self._run_id, self._key, self.signal, self.bounds = run_id, key, signal, bounds
        self.host_has_cancelled = False
        """The host has cancelled the task that waits for the steps, and maybe the tasks of the steps too."""
        self.waiters = Waiters()
        """Woken when something that was left behind is gone, and whenever the state of the run changes."""
        self._steps: list[Step[Any]] = []
        self._busy_until = 0.0
        self._leftovers: dict[object, str] | None = None  # made when it is needed: a waiting run stays small
        self._warnings: list[str] | None = None
        self._on_host_cancel: Callable[[], object] | None = None

    def bind(self, loop: asyncio.AbstractEventLoop, on_host_cancel: Callable[[], object]) -> None:
        """Run steps on this loop. `on_host_cancel` is called when the host cancels a task that waits for a step."""
        self.loop, self._on_host_cancel = loop, on_host_cancel

    def runs_here(self) -> bool:
        """Is the running loop the one on which the steps run? False before the run has begun."""
        return asyncio._get_running_loop() is getattr(self, "loop", None)

    def release(self) -> None:
        """The run is over: forget it, so that it is freed without the garbage collector."""
        self._on_host_cancel = None

    def host_cancelled(self) -> None:
        """The host has cancelled the task that waits for a step."""
        self.host_has_cancelled = True
        if self._on_host_cancel is not None:
            self._on_host_cancel()

    @property
    def live(self) -> list[Step[Any]]:
        """The steps that have begun and not ended."""
        return self._steps.copy()

    @property
    def leftovers(self) -> list[str]:
        """The names of tasks and threads that were left behind and are still running. Normally empty."""
        return list(self._leftovers.copy().values()) if self._leftovers else []

    @property
    def has_leftovers(self) -> bool:
        return bool(self._leftovers)

    # -- running steps ------------------------------------------------------------------------------------------------

    def start(
        self,
        make: Callable[[], Awaitable[T]],
        *,
        name: str,
        cut_by: Rank | None,
        timeout: float | None = None,
        on_cut: Callable[[], None] | None = None,
        finish_within: float | None = None,
        patience: Callable[[], float] | None = None,
    ) -> Step[T]:
        """Start one piece of work in a task of its own. Await the step that is returned, or call its `wait()`.

        `cut_by` is the weakest mode that cuts it, None for work that only its `timeout` may cut. Raises Cut if the run
        was cancelled with such a mode before. To await the step raises Cut if that happens meanwhile, and CutAloneError
        if the step's own time was up. With `FORCE`, a cancel with mode `now` lets it go on for `finish_within` seconds.
        `patience` says how much longer it may take to stop, because it waits for other runs that stop.
        """
        if cut_by is not None:
            self.gate(cut_by)
        step: Step[T] = Step(self, make, name, cut_by, on_cut, timeout, finish_within, patience)
        self._steps.append(step)
        return step

    def forget(self, step: Step[Any]) -> None:
        """The step has ended."""
        try:
            self._steps.remove(step)
        except ValueError:  # the steps were lost with their loop
            pass

    def look_again(self) -> None:
        """Wake the tasks that wait for steps, so that they check their condition again. Called on the run's loop."""
        for step in self._steps:
            step.wake()

    async def bounded(self, make: Callable[[], Awaitable[T]], name: str, seconds: float) -> T | None:
        """Do work that no cancel cuts, but its time does. A failure is reported and survived.

        A host that ends its loop cancels every task, this one too: then the work is tried again.
        """
        try:
            for _ in range(STRAY_CANCELS):
                with contextlib.suppress(StrayCancelError):
                    return await self.start(make, name=name, cut_by=None, timeout=seconds)
            return await self.start(make, name=name, cut_by=None, timeout=seconds)
        except CutAloneError:
            self.warn(f"{name} took longer than {seconds:g} s and was cut")
        except Exception as error:  # noqa: BLE001 - the boundary: it is beside the run's work, so reported and survived
            self.warn(f"{name} failed", error=error)
        return None

    def gate(self, mode: Rank) -> None:
        """Raise Cut if the run was cancelled with this mode or a stronger one. Called before anything new begins."""
        if self.signal.rank >= mode.rank:
            raise Cut

    # -- cutting them -------------------------------------------------------------------------------------------------

    def cut_for_cancel(self) -> None:
        """Cut the steps that the cancel's mode cuts. What it lets finish has so much time from now on."""
        rank = self.signal.rank
        self.cut([step for step in self._steps if step.cut_by is not None and step.cut_by.rank <= rank])
        if rank >= CancelMode.now.rank:
            for step in self._steps:
                if step.cut_by is not None and step.cut_by.rank > rank:
                    step.cut_in(self.finish_seconds(step.finish_within))

    def finish_seconds(self, own: float | None) -> float:
        """How long a call is let finish: its own `finish_within`, else the cancel's grace, else the runtime's bound."""
        bounds = (own, self.signal.finish_grace, self.bounds.finish_seconds)
        return next(seconds for seconds in bounds if seconds is not None)

    def busy_for(self, seconds: float) -> None:
        """How long the end may take, because a call is let finish, or is undone."""
        self._busy_until = max(self._busy_until, time.monotonic() + seconds + self.bounds.abandon_seconds)

    @property
    def patience(self) -> float:
        """For how many seconds more the end of the run may have to wait for such things. 0 or less if for none."""
        return self._busy_until - time.monotonic()

    def cut_all(self) -> None:
        """Cut every step, also those that no cancel cuts."""
        self.cut(self._steps)

    def cut(self, steps: Sequence[Step[Any]]) -> None:
        """Cancel the tasks of these steps, and have the watchdog look after those that do not end."""
        steps = [step for step in steps if step.can_be_cut]
        if steps:
            steps[0].watchdog.watch(steps)  # first: should an exception come in between, all of them are watched
            for step in steps:
                step.cut()

    def abandon_cut(self) -> None:
        """Wait no longer for steps that were cut: the event loop is about to be closed."""
        for step in self._steps.copy():
            if step.was_cut and not step.finished:
                step.give_up()

    def lose(self) -> None:
        """The steps died with their loop. What they hold may live on, threads for example, and is told."""
        steps, self._steps = self._steps, []
        for step in steps:
            step.mark_cut()

    # -- what is left behind, and what went wrong ---------------------------------------------------------------------

    @property
    def warnings(self) -> list[str]:
        """What went wrong beside the run's work."""
        return list(self._warnings or ())

    def leave_behind(self, key: object, name: str) -> None:
        """Name something that could not be stopped. Called on the run's loop."""
        if self._leftovers is None:
            self._leftovers = {}
        self._leftovers[key] = name

    def picked_up(self, key: object) -> None:
        """Something that was left behind is gone. Safe from any thread."""
        if self._leftovers is not None:
            self._leftovers.pop(key, None)
        self.waiters.wake()

    @property
    def facts(self) -> dict[str, str | None]:
        """The ids of the run, for the log."""
        key = self._key
        return {
            "run_id": self._run_id,
            "session_id": key.session_id,
            "agent_id": key.agent_id,
            "user_id": key.user_id,
        }

    def warn(self, message: str, by: logging.Logger = log, error: BaseException | None = None) -> None:
        """Report what went wrong beside the run's work: in the log, and in the result's `warnings`.

        The log has the traceback of an `error`. The result has only what users may see of it.
        """
        why = "" if error is None else f": {cut_line(describe(error))}"
        shown = None if isinstance(error, StoreError) else error  # our own error, whose text says everything
        by.warning("run %s: %s%s", self._run_id, message, why, exc_info=shown, extra={"facts": self.facts})
        if self._warnings is None:
            self._warnings = []
        self._warnings.append(message if error is None else f"{message}: {confide(error)}")
