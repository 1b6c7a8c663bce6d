# SPDX-License-Identifier: Apache-2.0
"""A run that waits for a person: it holds no task, no thread and no timer, and two things may happen to it.

Someone answers, and it goes on as the same run, on the loop of whoever answered. Or someone cancels it, and the portal
ends it. Which of the two is decided by one token, that the pause lays down and only one of them can take: so a run that
was cancelled never goes on, and one that goes on is ended by its own task. Like the signal, a cancel takes no lock. The
pause lays the token down and then looks for a cancel; a cancel is entered first and then looks for the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from andon.core.events import Event, RunEvent
from andon.core.life import Life
from andon.core.portal import portal
from andon.core.receipt import CancelRequest, Interrupt, describe_open
from andon.core.signal import Batch
from andon.core.states import CancelCause, CancelOutcome, Phase, RunStatus, check_step
from andon.core.work import Settlement
from andon.errors import AnswersError, NotContinuableError, StoreError, describe

if TYPE_CHECKING:
    from andon.core.keeper import Keeper
    from andon.core.store import RunRecord
    from andon.core.taking import Held

_becoming = threading.RLock()
"""Held for the moment in which a run becomes paused: whoever sees that from another thread, and answers, finds all."""


class Pausing(Life):
    """A life that can be paused, and go on."""

    __slots__ = ("_progress", "_token")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._progress: Settlement | None = None
        """How far it had come when it paused."""
        self._token: list[None] | None = None

    @property
    def is_paused(self) -> bool:
        return self.status is RunStatus.paused

    @property
    def at_rest(self) -> bool:
        return self._settled or self.is_paused

    @property
    def interrupts(self) -> list[Interrupt]:
        """The questions that are open. One whose call was cancelled alone is not, any more."""
        work = getattr(self, "_work", None)  # let go of at the end
        return work.progress().interrupts if work is not None and self.is_paused else []

    async def _pause(self) -> bool:
        """Hold nothing from here on. False if a cancel was quicker: then the run goes on to its end."""
        if (watch := self.limits.pause()) is not None:
            await watch.wait()
        progress = self._progress = self._work.progress()
        await self._keep_progress(progress)
        # A cancel that still wakes this loop was entered before, and is seen here; a later one finds the token.
        self.signal.unbind()
        paused = self._last or self.journal.draft(RunEvent.run_paused, interrupts=progress.interrupts)
        if self.signal.fate is not None:
            if self._last is not None:  # it is stored: what comes next comes after it
                self.journal.publish(paused)
            return False
        with _becoming:
            self.phase, self._stage = Phase.paused, RunStatus.paused
            self.journal.rest(paused)
            task, self._task = self._task, None  # its end is not the run's
            self._token = [None]  # from here on, someone else may go on with it
        if self.signal.fate is not None and self._take(self._token):
            self._task = task
            return False
        self.journal.waiters.wake()
        self._waiters.wake()
        return True

    async def _keep_progress(self, progress: Settlement) -> None:
        record, tenure = self._make_record(RunStatus.paused, progress), self.tenure
        if tenure is None:
            await self._keep(self, record, progress.messages)
            return
        if self.signal.fate is not None:  # there is nobody to be asked any more
            return
        answer = await self._offer(tenure, record, progress.messages)
        if isinstance(answer, CancelRequest):
            self.ask(answer)
        elif answer is not None:
            self.cancel_for(CancelCause.lost, "another worker has taken it over")
        else:
            tenure.rest()

    def _take(self, token: list[None] | None) -> bool:
        """True for one caller alone, which decides how the run goes on."""
        if token:
            with contextlib.suppress(IndexError):
                token.pop()
                self.journal.resting = False
                return True
        return False

    def ask(self, request: CancelRequest, batch: Batch | None = None) -> CancelOutcome:
        outcome = super().ask(request, batch)
        if outcome and self._take(self._token):
            self._hand_over_soon()
        return outcome

    def check_answers(self, answers: Mapping[str, Any]) -> None:
        """Raise if these are not the answers to the questions that are open."""
        if not self.is_paused:
            raise NotContinuableError(f"run {self.run_id!r} is {self.status.name}: it has no open questions")
        assert self._progress is not None
        check_answers(self.run_id, self._progress.interrupts, self.interrupts, answers)

    def describe_open(self) -> str:
        return describe_open(self.interrupts)

    def answer(self, answers: Mapping[str, Any]) -> None:
        """Give the answers to a run that was paused elsewhere, and has not begun here yet."""
        self._work.answer(answers)

    async def resume(self, answers: Mapping[str, Any]) -> None:
        """Go on with the answers of a person, on the running loop; or raise, and nothing has changed."""
        loop = asyncio.get_running_loop()
        with _becoming:
            token = self._token  # of this pause: the answers are not those to another one's questions
            self.check_answers(answers)
        if not self._take(token) or not await self._take_back():
            raise NotContinuableError(f"run {self.run_id!r} is {self.status.name}: someone else was quicker")
        self._work.answer(answers)
        check_step(self._stage, RunStatus.running)
        self.loop, self._stage = loop, RunStatus.running
        self.session.stir()
        self.journal.add(RunEvent.run_continued)
        self._go()
        if self.tenure is not None:
            self.tenure.keeper.ring()

    async def _take_back(self) -> bool:
        """On a shared store: take the run up there, before anybody else does."""
        if self.tenure is None:
            return True
        try:
            taken = await self.tenure.take_up()
        except BaseException:  # if the store has given it, it is given back
            self._lay_down()
            raise
        if not taken:
            self._lay_down()
        return taken

    def _lay_down(self) -> None:
        """Wait on for a person. Like the pause: first the token, then a look for a cancel."""
        self.journal.resting, self._token = True, [None]
        self.journal.waiters.wake()
        if self.signal.fate is not None and self._take(self._token):
            self._hand_over_soon()

    def begin_again(self, events: Sequence[Event], created_at: float, held: Held) -> None:
        """Go on with a run that was paused elsewhere, from what the store has of it, where it was taken up."""
        assert self.tenure is not None
        self.created_at, self.tenure.restoring, self.tenure.written = created_at, True, len(events)
        self.journal.events.extend(events)
        self._enlist()
        self.tenure.hold(*held)
        self._cord.add(self, 0)
        self._go()

    # -- someone else has it ------------------------------------------------------------------------------------------

    def lose(self) -> None:
        """Another worker has the run. If it waited for a person here, it was answered there: that is no end."""
        tenure = self.tenure
        if tenure is not None and self._take(self._token):
            tenure.let_go()
            self.runtime.forget(self)  # whoever answers finds it where it is
            portal.submit(self._go_along)
        else:
            self.cancel_for(CancelCause.lost, "another worker has taken it over")

    async def _go_along(self) -> None:
        """Show here what is done elsewhere, and end as it ends there."""
        self.loop, tenure = asyncio.get_running_loop(), self.tenure
        assert tenure is not None
        self._stage, self._last = RunStatus.running, None
        tenure.keeper.ring()  # a cancel that is asked for here is told to the store from now on
        try:
            record = await self._watch_elsewhere(tenure.keeper)
            self._take_over(record, await tenure.left())
            await self._close(record.status)
        except StoreError as error:  # it was closed: how the run goes on will not be known here
            self.cancel_for(CancelCause.lost, describe(error))
            await self._finish()
        except Exception as error:  # noqa: BLE001 - the last boundary there is
            await self._collapse(error)
        self._settle()

    async def _watch_elsewhere(self, keeper: Keeper) -> RunRecord:
        """Read along, over every further pause, until the run has ended."""
        while True:
            reader = keeper.read(self.run_id, len(self.journal.events))
            while events := await reader.batch():
                for event in events:
                    if event.event.terminal:
                        self._last = event
                    else:
                        self.journal.publish(event)
                self.journal.waiters.wake()
            seen = keeper.changes
            record = await keeper.ask(lambda: keeper.store.find(self.run_id))
            if record is None or record.status.final:
                return record or self._make_record(RunStatus.cancelled, self._work.progress())
            await keeper.changed(seen)


def check_answers(
    run_id: str, asked: Sequence[Interrupt], still_open: Sequence[Interrupt], answers: Mapping[str, Any]
) -> None:
    """Raise if these are not the answers to the questions that are open."""
    if not isinstance(answers, Mapping):
        raise TypeError(f"answers must be a dict by the questions' ids, not {type(answers).__name__}")
    problems = [f"there is no question {key!r}" for key in answers.keys() - {interrupt.id for interrupt in asked}]
    problems += [f"no answer to {key!r}" for key in {interrupt.id for interrupt in still_open} - answers.keys()]
    problems += [
        f"{interrupt.id!r} asks for approval: {answers[interrupt.id]!r} is neither a yes (True) nor a no (False)"
        for interrupt in still_open
        if interrupt.approval and (value := answers.get(interrupt.id, True)) is not False and not value
    ]
    if problems:
        raise AnswersError(
            f"run {run_id!r} stays paused: {'; '.join(sorted(problems))}. Open are: {describe_open(still_open)}",
            interrupts=still_open,
        )
