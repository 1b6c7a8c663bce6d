# SPDX-License-Identifier: Apache-2.0
"""A run that waits for a person: it holds no task, no thread and no timer, and two things may happen to it.

Someone answers, and it goes on as the same run, on the loop of whoever answered. Or someone cancels it, and the portal
ends it. Which of the two is decided by one token, that the pause lays down and only one of them can take: so a run that
was cancelled never goes on, and one that goes on is ended by its own task. Like the signal, a cancel takes no lock. The
pause lays the token down and then looks for a cancel; a cancel is entered first and then looks for the token.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from andon.core.events import Event, RunEvent
from andon.core.portal import portal
from andon.core.receipt import CancelRequest, Interrupt, describe_open
from andon.core.run.children import paused_below
from andon.core.run.life import Life
from andon.core.run.work import Settlement
from andon.core.signal import Batch
from andon.core.states import CancelCause, CancelOutcome, Phase, RunStatus, check_step
from andon.errors import AnswersError, NotContinuableError, StoreError, confide, show

if TYPE_CHECKING:
    from andon.core.records import RequestKey, RunRecord
    from andon.core.shared.claim import Held
    from andon.core.shared.worker import Keeper

_becoming = threading.RLock()
"""Held for the moment in which a run becomes paused: whoever sees that from another thread, and answers, finds all."""


class Token:
    """Lies there until somebody takes it; of several who try, one gets it, and can prove that later."""

    __slots__ = ("_slot",)

    def __init__(self) -> None:
        self._slot: dict[str, object] = {}

    @property
    def lies_there(self) -> bool:
        return not self._slot

    def take(self, taker: object) -> bool:
        """True for one taker alone, however often it asks."""
        return self._slot.setdefault("taker", taker) is taker

    def is_held_by(self, taker: object) -> bool:
        return self._slot.get("taker") is taker


class Pausing(Life):
    """A life that can be paused, and go on."""

    __slots__ = ("_progress", "_token")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._progress: Settlement | None = None
        """How far it had come when it paused."""
        self._token: Token | None = None

    @property
    def is_paused(self) -> bool:
        return self.status is RunStatus.paused

    @property
    def rests(self) -> bool:
        """It is paused, also if it was cancelled since, or is about to be: on a shared store it may be answered by
        another process, and then that one's end is the run's.
        """
        return self._stage is RunStatus.paused or (self.tenure is not None and self.tenure.pausing)

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
            self._token = Token()  # from here on, someone else may go on with it
        if self.signal.fate is not None and self._take(self._token, self):
            self._task, self._stage = task, RunStatus.running
            return False
        self.journal.waiters.wake()
        self._waiters.wake()
        return True

    async def _keep_progress(self, progress: Settlement) -> None:
        record, tenure = self._make_record(RunStatus.paused, progress), self.tenure
        if tenure is None:
            await self._keep(self, record, progress.messages)
            return
        tenure.pausing = True  # first: whoever asks it to stop looks for this afterwards
        if self.signal.fate is not None:  # there is nobody to be asked any more
            tenure.pausing = False
            return
        answer = await self._offer(tenure, record, progress.messages)
        tenure.pausing = answer is None
        if isinstance(answer, CancelRequest):
            self.ask(answer)
        elif answer is not None:
            self.cancel_for(CancelCause.lost, "another worker has taken it over")
        else:
            tenure.rest()

    def _take(self, token: Token | None, taker: object) -> bool:
        """True for one taker alone, which decides how the run goes on."""
        if token is None or not token.take(taker):
            return False
        self.journal.resting = False
        return True

    def ask_alone(self, request: CancelRequest, batch: Batch | None = None) -> CancelOutcome:
        if portal.exited and self.is_paused:  # nobody is left to end it, and to store that: it is not promised
            return CancelOutcome.unknown
        return super().ask_alone(request, batch)

    def end_elsewhere_if_due(self) -> None:
        if self.signal.request is not None and self._token is not None and self._token.lies_there:
            self.journal.resting = False  # who reads from here on, reads to the end
            self._hand_over_soon()
        else:
            super().end_elsewhere_if_due()

    def _may_take_over(self) -> bool:
        waits = self._token is not None and self._caretaker is None and not self.signal.adopted
        if waits and not self._take(self._token, portal):
            # Someone else was quicker, and ends it: its own task, one that has the answers, or, if it has been answered
            # or ended by another process, one that watches that.
            return False
        return super()._may_take_over()

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

    async def resume(self, answers: Mapping[str, Any], anew: Any = None, request_key: RequestKey | None = None) -> None:
        """Go on with the answers of a person, on the running loop; or raise, and nothing has changed.

        `anew` is for the work: see `Work.answer`.
        """
        answers = dict(answers) if isinstance(answers, Mapping) else answers  # a mapping of somebody's own may raise
        with _becoming:
            token = self._token  # of this pause: the answers are not those to another one's questions
            self.check_answers(answers)
        assert token is not None
        me = object()
        try:
            quicker = not self._take(token, me) or self.signal.request is not None
            if quicker or (self.tenure is not None and not await self.tenure.take_up(request_key)):
                raise NotContinuableError(f"run {self.run_id!r} is {self.status.name}: someone else was quicker")
            self._go_on(answers, anew)
        except BaseException:
            if token.is_held_by(me):
                self._stay_behind()
            raise

    def _go_on(self, answers: Mapping[str, Any], anew: Any) -> None:
        check_step(self._stage, RunStatus.running)
        self.loop, self._stage = asyncio.get_running_loop(), RunStatus.running
        self._work.answer(answers, anew)
        self.session.stir()
        self.journal.add(RunEvent.run_continued)
        self._go()
        if self.tenure is not None:
            self.tenure.stir()

    def _stay_behind(self) -> None:
        """Who took the token can't go on. The run waits on for a person; or ends, if it was not as before any more."""
        if self._stage is not RunStatus.paused:
            self._break_off()
            return
        # Like the pause: first the token, then a look for a cancel.
        self.journal.resting, self._token = True, Token()
        self.journal.waiters.wake()
        self.end_elsewhere_if_due()

    def begin_again(self, events: Sequence[Event], record: RunRecord, held: Held) -> None:
        """Go on with a run that was paused elsewhere, from what the store has of it, where it was taken up."""
        assert self.tenure is not None
        self.created_at, self.was_called_by = record.created_at, record.parent_run_id
        self.tenure.restoring, self.tenure.written = True, len(events)
        self.tenure.waiting = paused_below(record)
        self.journal.events.extend(events)
        try:
            self._enlist()
        except BaseException:  # it is refused here, and waits on for a person
            from andon.core.shared.claim import give_back  # like all that only shared stores need

            give_back(self.tenure.keeper, self.run_id, held)
            raise
        self.tenure.hold(*held)
        self.tenure.keeper.leases.look([self.run_id])  # it may have been asked to stop in between
        try:
            self._cord.add(self, 0)
            self._go()
        except BaseException:
            self._break_off()
            raise

    # -- someone else has it ------------------------------------------------------------------------------------------

    def lose(self) -> None:
        """Another worker has the run. If it waited for a person here, it was answered there: that is no end."""
        tenure = self.tenure
        if tenure is not None and self._take(self._token, tenure):
            tenure.let_go()
            self.runtime.part_from(self)  # whoever answers finds it where it is
            portal.submit(self._go_along)
        else:
            self.cancel_for(CancelCause.lost, "another worker has taken it over")

    async def _go_along(self) -> None:
        """Show here what is done elsewhere, and end as it ends there."""
        self.loop, tenure = asyncio.get_running_loop(), self.tenure
        assert tenure is not None
        self._stage, self._last = RunStatus.running, None
        tenure.stir()  # a cancel that was asked for here meanwhile is told to the store
        try:
            record = await self._watch_elsewhere(tenure.keeper)
            self._take_over(record, await tenure.left())
            await self._close(record.status)
        except StoreError as error:  # it was closed: how the run goes on will not be known here
            self.cancel_for(CancelCause.lost, confide(error))
            await self._finish()
        except Exception as error:  # noqa: BLE001 - the last boundary there is
            await self._collapse(error)
        self._settle()

    async def _watch_elsewhere(self, keeper: Keeper) -> RunRecord:
        """Read along, over every further pause, until the run has ended."""
        with keeper.news.watch(self.run_id) as topic:
            while True:
                seen = topic.count
                reader = keeper.read(self.run_id, len(self.journal.events))
                while events := await reader.batch():
                    for event in events:
                        if event.event.terminal:
                            self._last = event
                        else:
                            self.journal.publish(event)
                    self.journal.waiters.wake()
                record = await keeper.ask(lambda: keeper.store.find(self.run_id))
                if record is None or record.status.final:
                    return record or self._make_record(RunStatus.cancelled, self._work.progress())
                await topic.changed(seen)
                keeper.check_open()


def _after_fork() -> None:
    """Another thread may have held it, and there is none in a forked child."""
    global _becoming
    _becoming = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


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
