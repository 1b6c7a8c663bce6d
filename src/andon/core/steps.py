# SPDX-License-Identifier: Apache-2.0
"""A step: one piece of work of a run, in a task of its own, that a cancel can cut.

Whatever may wait for long (a model call, a tool, an async hook, a back-off, a queue) is a step. It is cancelled once,
so that its `except` and `finally` may await and finish; again when it has not ended after `cut_seconds`; and abandoned,
and named, after `abandon_seconds`. The run never waits for it any longer than that, whatever it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from andon.core.cutting import cut_line
from andon.core.waiters import Waiters
from andon.core.watchdog import Alarm
from andon.errors import StoreError, confide, describe

if TYPE_CHECKING:
    from andon.core.bounds import Bounds
    from andon.core.signal import CancelSignal
    from andon.core.states import CancelMode

T = TypeVar("T")
log = logging.getLogger(__name__)


STRAY_CANCELS = 5
"""How often a host may cancel what no cancel of ours may cut, before that counts as its failure."""


class Cut(BaseException):
    """Unwinds the loop of a run that was cancelled, to where it is settled. Never leaves the package."""

    def __init__(self, abandoned: bool = False) -> None:
        self.abandoned = abandoned
        """The step that was cut did not stop, and may still be running."""


class CutAloneError(Exception):
    """The step was cut, and the run goes on: its own time was up, or someone asked for it alone."""


class StrayError(Exception):
    """The work raised what is not an Exception, a CancelledError or SystemExit say, on its own account: its failure."""


class StrayCancelError(StrayError):
    """A CancelledError that the run didn't send: the work's own, or of a host that cancels every task it finds."""


class Step(Generic[T]):
    """One task of a run, from its start to its end or its abandonment."""

    __slots__ = (
        "_error",
        "_make",
        "_run",
        "_task",
        "_timer",
        "_value",
        "_waiter",
        "abandoned",
        "alarm",
        "cut_by",
        "finished",
        "name",
        "on_cut",
        "was_cut",
        "was_cut_alone",
    )

    def __init__(
        self,
        run: Stepper,
        make: Callable[[], Awaitable[T]],
        name: str,
        cut_by: CancelMode | None = None,
        on_cut: Callable[[], None] | None = None,
        timeout: float | None = None,
    ) -> None:
        self._run, self._make, self.name, self.cut_by, self.on_cut = run, make, name, cut_by, on_cut
        self._value: T
        self._error: BaseException | None = None
        self.alarm = Alarm.of(run.loop, run.bounds.cut_seconds)  # had in time: a cancel does not want to wait for it
        self._timer = None if timeout is None else run.loop.call_later(timeout, self.cut_alone)
        self._waiter: asyncio.Future[None] | None = None
        self.finished = self.was_cut = self.was_cut_alone = self.abandoned = False
        self._task = run.loop.create_task(self._perform(), name=name)
        self._task.add_done_callback(self._on_done)

    async def _perform(self) -> None:
        if not hasattr(self, "_task"):
            # This loop begins tasks at once (asyncio.eager_task_factory). Nobody could cut the step before its task is
            # known, so it begins in the next turn, as on any other loop.
            await asyncio.sleep(0)
        # The coroutine is made here, so that a step cancelled before it began leaves nothing "never awaited".
        try:
            self._value = await self._make()
        except asyncio.CancelledError:
            # Kept as a fact, not as an exception: its traceback would tie this object to itself.
            if not self.was_cut:
                self._error = StrayCancelError("it raised CancelledError, but it was not cancelled")
        except (Cut, KeyboardInterrupt):
            raise
        except BaseException as error:
            if isinstance(error, GeneratorExit) and self._is_closed():
                raise
            self._error = as_exception(error)  # whoever awaits the step gets it
        # Not left to the done-callback, which would cost the waiting run one more turn of the loop; and if that has
        # nothing left to do, the loop is spared it.
        self._finish()
        if not self.abandoned:
            self._task.remove_done_callback(self._on_done)

    def _is_closed(self) -> bool:
        """Is its coroutine being closed, with its task or its loop? Else a GeneratorExit is the work's own."""
        loop = asyncio._get_running_loop()
        return loop is None or asyncio.current_task(loop) is not self._task

    async def wait(self) -> None:
        """Outlast the step. The host's cancellation of this very task becomes a cancel of the run."""
        while not self.finished:
            # A future per wait: a cancellation of the awaiting task cancels that one alone.
            self._waiter = self._run.loop.create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self._run.host_cancelled()
        self._waiter = None

    def outcome(self) -> T:
        """What the work returned or raised; Cut if the run was cancelled under it."""
        error, self._error = self._error, None
        if isinstance(error, StrayCancelError) and self._is_cancelled():
            # A host that ends its loop cancels every task at once, and this one heard of it before the run did.
            self.mark_cut()
        if self.was_cut:
            if error is not None:
                what, facts = cut_line(describe(error)), {"facts": self._run.names}
                log.info("%s failed while it was cut: %s", self.name, what, exc_info=error, extra=facts)
            if self.was_cut_alone and not self._is_cancelled():
                raise CutAloneError(self.name)
            raise Cut(self.abandoned)
        if isinstance(error, KeyboardInterrupt):  # it has gone its way, through the loop, and goes it once
            self._run.host_cancelled()
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
            self._run.cut([self])

    @property
    def can_be_cut(self) -> bool:
        return not (self.finished or self.was_cut or self._task.done())

    def cut(self) -> None:
        """Cancel its task. Its alarm, which has been told, rings if it does not end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            self.mark_cut()
        finally:
            if not (self._run.host_has_cancelled and self._task.cancelling()):
                # A host that ends its loop has done it: the work is to see one CancelledError, not two.
                self._task.cancel()

    def mark_cut(self) -> None:
        """Have it told, once."""
        if not self.was_cut:
            self.was_cut = True
            if self.on_cut is not None:
                self.on_cut()

    def _is_cancelled(self) -> bool:
        return self.cut_by is not None and self._run.signal.rank >= self.cut_by.rank

    def cut_again(self) -> None:
        """It was cut a while ago, and has not ended."""
        self._task.cancel()
        bounds = self._run.bounds
        seconds = max(0.0, bounds.abandon_seconds - bounds.cut_seconds)
        self._timer = self._task.get_loop().call_later(seconds, self.give_up)  # the run may have left that loop

    def give_up(self) -> None:
        """It was cut, and does not end: name it, and go on without it."""
        self.abandoned = True
        log.warning("%s was cancelled and did not stop; abandoned", self.name, extra={"facts": self._run.names})
        self._run.leave_behind(self, self.name)
        self._finish()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if self.abandoned:
            log.info(
                "%s, abandoned earlier, has ended; its result is dropped", self.name, extra={"facts": self._run.names}
            )
            self._error = None
            self._run.picked_up(self)
        elif task.cancelled():  # before its first step
            if not self.was_cut:
                self._error = StrayCancelError("CancelledError from outside, before it began")
            self._finish()
        elif (error := task.exception()) is not None:  # Cut, or a KeyboardInterrupt that stops the loop
            self._error = error
            self._finish()

    def _finish(self) -> None:
        self.finished = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.alarm.let_go(self)
        self._run.end_step(self)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def as_exception(error: BaseException) -> Exception:
    """What counts as the failure of the work that raised it: the error itself, or a StrayError that describes it."""
    if isinstance(error, Exception):
        return error
    stray = StrayError(describe(error)).with_traceback(error.__traceback__)
    stray.__cause__ = error
    return stray


class Stepper:
    """Whoever works in steps: does them, cuts them, and remembers what it had to leave behind."""

    __slots__ = ("_leftovers", "_steps", "_waiters", "bounds", "host_has_cancelled", "loop", "signal", "warnings")

    loop: asyncio.AbstractEventLoop

    def __init__(self, signal: CancelSignal, bounds: Bounds) -> None:
        self.signal, self.bounds = signal, bounds
        self.host_has_cancelled = False
        """Whoever owns the loop has cancelled the task that waits for the steps, and maybe theirs too."""
        self.warnings: list[str] = []
        self._steps: list[Step[Any]] = []
        self._leftovers: dict[object, str] = {}
        self._waiters = Waiters()

    def host_cancelled(self) -> None:
        """The task that waits for a step was cancelled by someone else."""
        raise NotImplementedError

    @property
    def leftovers(self) -> list[str]:
        """What was left behind and is not gone yet, by name. Empty is the normal case."""
        return list(self._leftovers.copy().values())

    async def step(
        self,
        make: Callable[[], Awaitable[T]],
        *,
        name: str,
        cut_by: CancelMode | None,
        timeout: float | None = None,
        on_cut: Callable[[], None] | None = None,
    ) -> T:
        """Do one piece of work in a task of its own, and wait for it.

        `cut_by` is the weakest mode that cuts it, None for work that only its `timeout` may cut. Raises Cut if the run
        was cancelled so, before or under it, and CutAloneError if its own time was up.
        """
        step = self.begin_step(make, name=name, cut_by=cut_by, timeout=timeout, on_cut=on_cut)
        await step.wait()
        return step.outcome()

    def begin_step(
        self,
        make: Callable[[], Awaitable[T]],
        *,
        name: str,
        cut_by: CancelMode | None,
        timeout: float | None = None,
        on_cut: Callable[[], None] | None = None,
    ) -> Step[T]:
        """The same without the waiting, for several at once: whoever begins one waits for it, come what may."""
        if cut_by is not None:
            self.gate(cut_by)
        step: Step[T] = Step(self, make, name, cut_by, on_cut, timeout)
        self._steps.append(step)
        return step

    def end_step(self, step: Step[Any]) -> None:
        try:
            self._steps.remove(step)
        except ValueError:  # they were lost with their loop
            pass

    async def bounded(self, make: Callable[[], Awaitable[T]], name: str, seconds: float) -> T | None:
        """Do something that no cancel cuts, but its time does; report what goes wrong.

        A host that ends its loop cancels every task, this one too: then it is tried again.
        """
        try:
            for _ in range(STRAY_CANCELS):
                with contextlib.suppress(StrayCancelError):
                    return await self.step(make, name=name, cut_by=None, timeout=seconds)
            return await self.step(make, name=name, cut_by=None, timeout=seconds)
        except CutAloneError:
            self.warn(f"{name} took longer than {seconds:g} s and was cut")
        except Exception as error:  # noqa: BLE001 - the boundary: beside the run's work, so reported and survived
            self.warn(f"{name} failed", error=error)
        return None

    def gate(self, mode: CancelMode) -> None:
        """Go no further if a cancel of this mode, or a stronger one, was asked for."""
        if self.signal.rank >= mode.rank:
            raise Cut

    def cut_steps(self) -> None:
        """Cut whatever the cancel's mode says."""
        rank = self.signal.rank
        self.cut([step for step in self._steps if step.cut_by is not None and step.cut_by.rank <= rank])

    def cut(self, steps: Sequence[Step[Any]]) -> None:
        """Cancel the tasks of these steps, and see to it that they end."""
        steps = [step for step in steps if step.can_be_cut]
        if steps:
            steps[0].alarm.watch(steps)  # first: whatever comes in between, it rings for all of them
            for step in steps:
                step.cut()

    def give_up_steps(self) -> None:
        """Wait no longer for what was cut: whoever owns the loop ends it, and all that is on it."""
        for step in self._steps.copy():
            if step.was_cut and not step.finished:
                step.give_up()

    def lose_steps(self) -> None:
        """The steps died with their loop; their tools' threads may live on, and are told."""
        steps, self._steps = self._steps, []
        for step in steps:
            step.mark_cut()

    def leave_behind(self, key: object, name: str) -> None:
        self._leftovers[key] = name

    def picked_up(self, key: object) -> None:
        """Something that was left behind is gone. Safe from any thread."""
        self._leftovers.pop(key, None)
        self._waiters.wake()

    @property
    def names(self) -> dict[str, str | None]:
        """What it is, for the log."""
        raise NotImplementedError

    def warn(self, message: str, by: logging.Logger = log, error: BaseException | None = None) -> None:
        """Report what went wrong beside the work: in the log, with the traceback of an `error`, and, as far as users
        may know it, in the result.
        """
        why = "" if error is None else f": {cut_line(describe(error))}"
        shown = None if isinstance(error, StoreError) else error  # that one is ours: it says all there is
        by.warning("%r: %s%s", self, message, why, exc_info=shown, extra={"facts": self.names})
        self.warnings.append(message if error is None else f"{message}: {confide(error)}")
