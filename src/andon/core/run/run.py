# SPDX-License-Identifier: Apache-2.0
"""The handle of a run: read it, wait for it, cancel it. From any thread or loop; whoever holds it owns nothing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import Generator
from types import ModuleType, TracebackType
from typing import Any, Generic, Self

import msgspec

from andon.core.journal import Reader
from andon.core.receipt import CancelRequest, OutputT, Receipt, RunResult
from andon.core.run.life import spectator
from andon.core.run.pause import Pausing
from andon.core.signal import Failed, stop_reason_of
from andon.core.states import CancelCause, CancelMode, CancelOutcome, RunStatus, StopReason
from andon.errors import HandleError, StartError
from andon.messages import assistant

__all__ = ["Run", "spectator"]


def hold_off() -> contextlib.AbstractContextManager[object]:
    """Ask a host that cancels again and again, as anyio's scopes do at every turn of the loop, to wait for the end.

    Without it the wait would be right, but busy. Whoever uses such scopes has loaded anyio; we don't. As long as that,
    or its part for asyncio, is not completely imported, no task can be inside a scope: there is nothing to hold off.
    """
    anyio = _whole("anyio")
    if anyio is None or _whole("anyio._backends._asyncio") is None:  # to import that here would block the loop
        return contextlib.nullcontext()
    scope: contextlib.AbstractContextManager[object] = anyio.CancelScope(shield=True)
    return scope


def _whole(name: str) -> ModuleType | None:
    """A module, if it is completely imported. Another thread may be importing it at this very moment."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


class Beginning:
    """A run that was begun. Await it, to know whether its store has taken it in."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    def __await__(self) -> Generator[Any, None, None]:
        return self._run.admitted().__await__()


class Run(Pausing, Generic[OutputT]):
    """One invocation of an agent, and the handle to it.

    >>> async with agent.start("Hello") as run:
    ...     async for event in run:
    ...         ...
    ...     result = await run.result()

    Leaving the `async for` never cancels; leaving the `async with` cancels a run that is still going, and waits for it.
    """

    __slots__ = ()

    # -- waiting for it -----------------------------------------------------------------------------------------------

    def __aiter__(self) -> Reader:
        return self.events()

    def events(self, after: int = 0) -> Reader:
        """Read the events from a sequence number on, as often as you like. Leaving never cancels."""
        self._check_begun()
        if after < 0:
            raise ValueError(f"after is {after}; it is the number of the last event that was read, or 0")
        self.ensure_ending()
        return Reader(self.journal, after)

    async def result(self) -> RunResult[OutputT]:
        """How the run ended. Waits for that; a cancelled or failed run has a result too.

        It is there with the terminal event. The `run_ended` hooks come after that, so their warnings may be missing.
        """
        self._check_begun()
        self.ensure_ending()
        while True:
            await self._waiters.wait(lambda: self._ended or self.is_paused)
            if (result := self._look()) is not None:
                return result

    def result_blocking(self) -> RunResult[OutputT]:
        """The same for a thread."""
        self.ensure_ending()
        while True:
            self._waiters.wait_blocking(lambda: self.at_rest)
            if (result := self._look()) is not None:
                return result

    def make_result(self) -> RunResult[OutputT]:
        """How a run that is known to have ended has ended."""
        result = self._look()
        assert result is not None
        return result

    def _look(self) -> RunResult[OutputT] | None:
        """How it stands with the run, if it has ended or is paused."""
        if self.tenure is not None and self.tenure.refusal is not None:
            raise self.tenure.refusal
        fate, status = self.signal.fate, self.status
        left, stop_reason = self._settlement, stop_reason_of(fate)
        if status is RunStatus.paused:
            left, stop_reason = self._progress, StopReason.interrupt
        elif not status.final:  # cancelled, or answered, a moment ago
            return None
        assert left is not None
        # A run that was to go on with an earlier one, and did not come to it, has left nothing of its own.
        settled = [] if status is RunStatus.paused else self._conversation
        conversation = settled or self.session.messages
        return RunResult(
            self.run_id,
            self.session_id,
            self.agent_id,
            status,
            stop_reason,
            conversation[-1] if conversation else assistant(),  # lost, before even the prompt was written
            left.content,
            list(conversation),
            left.usage,
            left.interrupts,
            self._receipt,
            fate.error if isinstance(fate, Failed) else None,
            list(self.warnings),
            self.metadata,
            left.output,
        ).with_writer(left.write_output)

    def _check_begun(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        if not self.has_begun:
            raise HandleError(
                "this run has not begun: enter it with `async with agent.start(...) as run`, or `await run.begin()`"
            )

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    def begin(self) -> Beginning:
        """Begin, without a block that lasts as long as the run: `await run.begin()`.

        The await returns when the run is admitted to its session, in memory at once, on a shared store when that has
        taken the run in. It raises what keeps the run from starting: `SessionBusyError` (a `SessionPausedError` is one
        too), `RunIdTakenError`, `BlockedError`; then nothing was recorded, and this handle is used up: to try again,
        start another one. Cancelling the await cancels the run, cause `caller`, and waits for its end.
        """
        if self._refusal is not None:
            raise HandleError(f"run {self.run_id!r} was refused; start another one")
        try:
            self.set_out()
        except HandleError:
            raise
        except StartError as error:  # the await raises it, as it does where a store refuses the run
            self._refusal, self._stage, self._ended, self._settled = error, RunStatus.error, True, True
        return Beginning(self)

    async def open(self) -> None:
        """The same as `await run.begin()`."""
        await self.begin()

    async def entered(self) -> bool:
        """Wait until a shared store has taken the run in. False if it was refused: then it never was."""
        tenure = self.tenure
        if tenure is not None and self._stage is RunStatus.pending:
            await self._waiters.wait(lambda: tenure.lease is not None or self._settled)
        return not self.was_refused

    async def admitted(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        tenure = self.tenure
        if tenure is None:
            return
        try:
            await self._waiters.wait(lambda: tenure.lease is not None or self._settled)
        except asyncio.CancelledError as error:
            await self.attend(error)
        if tenure.refusal is not None:
            await self.attend()
            raise tenure.refusal

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        await self.attend(error if isinstance(error, asyncio.CancelledError) else None)

    def leave(self) -> None:
        """Whoever began the run goes away: what is still going is cancelled. A question may be answered later."""
        if not self._ended and not self.is_paused:
            self.cancel_for(CancelCause.caller)

    async def rested(self) -> None:
        """Wait until the run has ended, or waits for a person, and nothing else."""
        self.ensure_ending()
        await self._waiters.wait(lambda: self.at_rest)

    async def ended(self) -> None:
        """Wait until the run has ended, and nothing else: whoever waits has no part in it."""
        self.ensure_ending()
        await self._waiters.wait(lambda: self._settled)

    async def attend(self, cancelled: asyncio.CancelledError | None = None) -> None:
        """Wait until the run is settled or paused. The host's cancellation ends it first, and then goes its own way.

        It does not wait for a store that can't be reached; the run does, for as long as its loop goes on.
        """
        self.ensure_ending()
        if cancelled is not None:
            self.leave()
        try:
            while not self._may_leave(cancelled):
                try:
                    with hold_off() if cancelled else contextlib.nullcontext():
                        await self._waiters.wait(functools.partial(self._may_leave, cancelled))
                except asyncio.CancelledError as error:
                    cancelled = cancelled or error
                    self.cancel_for(CancelCause.caller)
            if cancelled is not None:
                raise cancelled  # the very one: its owner may know it by its message
        finally:
            del cancelled

    def _may_leave(self, cancelled: asyncio.CancelledError | None) -> bool:
        return self.at_rest or (cancelled is not None and self.store_is_away)

    def attend_blocking(self, timeout: float | None = None) -> bool:
        """The same for a thread; False if `timeout` passed first."""
        self.ensure_ending()
        return self._waiters.wait_blocking(lambda: self.at_rest, timeout)

    def _is_gone(self) -> bool:
        return (self._settled or not self.has_begun) and not self._leftovers

    # -- cancelling it ------------------------------------------------------------------------------------------------

    def cancel(
        self,
        reason: str | None = None,
        by: str | None = None,
        mode: CancelMode | str = CancelMode.now,
        grace: float | None = None,
    ) -> CancelOutcome:
        """Ask the run to go no further. Never waits; safe from any thread, loop, tool, hook or signal handler."""
        return self.ask(CancelRequest.make(CancelCause.user, reason, by, mode, grace))

    async def cancel_and_wait(
        self,
        timeout: float | None = 5.0,
        *,
        reason: str | None = None,
        by: str | None = None,
        mode: CancelMode | str = CancelMode.now,
        grace: float | None = None,
    ) -> Receipt | None:
        """Cancel, and wait until all of the run is gone, or name in the receipt what is left after `timeout` seconds.

        A run that had ended without a cancel has no receipt.
        """
        self.cancel(reason, by, mode, grace)
        return await self.gone(timeout)

    async def gone(self, timeout: float | None = None) -> Receipt | None:
        """Wait, for `timeout` seconds at the most, until the run has ended and all of it is gone.

        The receipt names what is left then; a run that nobody cancelled has none.
        """
        self.ensure_ending()
        try:
            async with asyncio.timeout(timeout):
                await self._waiters.wait(self._is_gone)
        except TimeoutError:
            pass
        if self.signal.request is None:
            return None
        receipt = self._receipt or self._make_receipt()
        return msgspec.structs.replace(receipt, leftovers=[*(step.name for step in self._steps), *self.leftovers])

    def cancel_tool(self, call_id: str, reason: str | None = None) -> CancelOutcome:
        """Cancel one tool call and keep the run: the model is told, and the turn goes on. Safe from anywhere."""
        work = getattr(self, "_work", None)  # let go of at the end
        return CancelOutcome.already_finished if work is None else work.cancel_call(call_id, reason)
