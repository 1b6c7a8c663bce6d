# SPDX-License-Identifier: Apache-2.0
"""A run whose own task, or whose loop, is gone before its end: the portal ends it in their place, in the same way.

And if that breaks as well, which would be a defect of ours, there is still an end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from andon.core.events import TERMINAL_EVENT, Event
from andon.core.portal import portal
from andon.core.receipt import CancelRequest
from andon.core.run.holding import Holding
from andon.core.run.work import Settlement
from andon.core.states import CancelCause, RunStatus
from andon.errors import describe
from andon.messages import UNKNOWN_USAGE, Text, assistant

log = logging.getLogger(__name__)


class Outliving(Holding):
    """A run that is ended, whatever became of the place where it lived."""

    __slots__ = ("_caretaker", "_ended", "_settled", "_stage", "_task", "limits")

    _caretaker: asyncio.AbstractEventLoop | None
    """The portal's loop, if the run is being ended there."""
    _ended: bool
    _settled: bool
    _stage: RunStatus
    _task: asyncio.Task[None] | None

    @property
    def has_begun(self) -> bool:
        return bool(self.journal.events)

    async def _finish(self) -> None:
        raise NotImplementedError

    def _retire(self, last: Event) -> None:
        raise NotImplementedError

    def _task_done(self, task: asyncio.Task[None]) -> None:
        if task is not self._task:  # it has paused the run, and another one may have gone on since
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("%r: its task broke", self, exc_info=error, extra={"facts": self.names})
        if self._ended:
            self._settle()
        else:  # cancelled before its first step, or stopped with its loop
            self.host_cancelled()
            self.limits.end()
            if self.signal.adopt():
                self.cut(self._steps)  # here, where they live: from now on another thread writes
                portal.submit(self._end_elsewhere)

    def _settle(self) -> None:
        self._settled = True
        self.runtime.settled(self)  # type: ignore[arg-type]  # there is no other kind
        if self.tenure is not None:
            self.tenure.release()
            if self.tenure.refusal is None:
                self.tenure = None  # it knows the run: let go, so that both are freed without the garbage collector
        self.signal.unbind()
        self._leave_family()
        self._waiters.wake()

    def is_lost(self) -> bool:
        """Its loop was closed under it, or the portal's that was to end it. A paused run needs none."""
        if self._ended or not self.has_begun:
            return False
        home = self._caretaker if self._stage is RunStatus.paused else self.loop
        return home is not None and home.is_closed()

    def ensure_ending(self) -> None:
        """Called by whoever comes by: if the run is lost, or has not heard of its cancel, see to it that it ends."""
        self.end_elsewhere_if_due()
        self.signal.deliver_again()

    def end_elsewhere_if_due(self) -> None:
        """Have the portal end the run if nobody else can."""
        if self._ended:
            if not self._settled and self.loop.is_closed():  # in its last hooks: there is nothing more to wait for
                self._settle()
        elif self.is_lost():
            self.signal.adopt()
            self.signal.cancel(CancelRequest.make(CancelCause.lost))
            self._hand_over_soon()
        elif self.signal.adopted and self._caretaker is None:  # whoever adopted it was interrupted right after
            self._hand_over_soon()

    def _hand_over_soon(self) -> None:
        portal.submit_soon(self, self._end_elsewhere)

    def _may_take_over(self) -> bool:
        """Asked on the portal's loop alone: is there no other caretaker, or has that one died with its loop?"""
        return not self._ended and (self._caretaker is None or self._caretaker.is_closed())

    async def _end_elsewhere(self) -> None:
        if not self._may_take_over():  # it was handed over twice
            return
        loop = self.loop = self._caretaker = asyncio.get_running_loop()
        try:
            self.limits.abandon()
            self.lose_steps()
            await self._finish()
        except BaseException as error:  # the last boundary there is
            if isinstance(error, GeneratorExit) and asyncio._get_running_loop() is not loop:
                raise  # this coroutine is closed, with its loop: another portal ends the run
            try:
                await self._collapse(error)
            finally:
                self._settle()
        else:
            self._settle()

    async def _collapse(self, error: BaseException) -> None:
        """Settling itself failed: a defect of ours. Even then nobody waits for ever, and the session goes on."""
        log.critical("%r: could not be ended properly", self, exc_info=error, extra={"facts": self.names})
        if self._ended:  # and that has been told
            return
        # Of what it has said, nothing is known to be valid; the prompt is.
        kept = [*self.session.tail[:1], assistant(Text("(lost)"))] if self._place and self._place.granted else []
        self._settlement = Settlement(kept, "", UNKNOWN_USAGE, [], [])
        self._stage = RunStatus.error if self.signal.request is None else RunStatus.cancelled
        with contextlib.suppress(BaseException):  # what broke once may break again, each time at another place
            self._receipt = None if self.signal.request is None else self._make_receipt()
            self._record = self._make_record(self._stage, self._settlement)
            self._stage = await self._agree(self._stage)
            if kept:
                await self._write(self)
        with contextlib.suppress(BaseException):
            await self._pass_on()
        self._conversation = self.session.base or [assistant(Text("(lost)"))]
        self._ended = True
        kind, why = TERMINAL_EVENT[self._stage], f"could not be ended properly: {describe(error)}"
        self._retire(self.journal.draft(kind, status=self._stage, receipt=self._receipt, error=why))
