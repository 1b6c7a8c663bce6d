# SPDX-License-Identifier: Apache-2.0
"""The handle of a run, as users hold it: read it, wait for it, cancel it, from any thread or event loop.

A handle holds nothing but its run (`run.py`). Two handles of the same run are equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import TracebackType
from typing import Any, Generic, Self

from andon.core.journal import Reader
from andon.core.receipt import CancelRequest, Interrupt, OutputT, Receipt, RunResult
from andon.core.run.run import LocalRun
from andon.core.run.waits import begin_or_refuse, leave, wait_admitted, wait_gone, wait_result, wait_settled
from andon.core.states import CancelCause, CancelMode, CancelOutcome, Phase, RunStatus
from andon.errors import HandleError


class Beginning:
    """A run that was begun. Await it to know whether its store has taken it in."""

    __slots__ = ("_run",)

    def __init__(self, run: LocalRun) -> None:
        self._run = run

    def __await__(self) -> Generator[Any, None, None]:
        return wait_admitted(self._run).__await__()


class Run(Generic[OutputT]):
    """One invocation of an agent, and the handle to it.

    >>> async with agent.start("Hello") as run:
    ...     async for event in run:
    ...         ...
    ...     result = await run.result()

    Leaving the `async for` never cancels. Leaving the `async with` cancels a run that is still going, and waits for it.
    """

    __slots__ = ("__weakref__", "_local")

    def __init__(self, local: LocalRun) -> None:
        self._local = local

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other._local is self._local

    def __hash__(self) -> int:
        return hash(self._local)

    def __repr__(self) -> str:
        return f"<Run {self.run_id} of {self.agent_id}: {self.status.name}>"

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        return self._local.run_id

    @property
    def session_id(self) -> str:
        return self._local.session_id

    @property
    def agent_id(self) -> str:
        return self._local.agent_id

    @property
    def user_id(self) -> str | None:
        return self._local.user_id

    @property
    def parent_run_id(self) -> str | None:
        """The run whose tool has started this one."""
        return self._local.parent_run_id

    @property
    def continues(self) -> str | None:
        """The earlier run that this one goes on with."""
        return self._local.continues

    @property
    def metadata(self) -> dict[str, Any]:
        """What was given with the prompt, as JSON. A copy: changing it does not change the run's."""
        return self._local.metadata

    @property
    def status(self) -> RunStatus:
        return self._local.status

    @property
    def phase(self) -> Phase:
        """What the run is doing at this moment."""
        return self._local.phase

    @property
    def interrupts(self) -> list[Interrupt]:
        """The questions that are open, if the run is paused."""
        return self._local.interrupts

    @property
    def receipt(self) -> Receipt | None:
        """What the cancel found, once the run has ended by one."""
        return self._local.receipt

    @property
    def leftovers(self) -> list[str]:
        """The names of tasks and threads of the run that are still running after it was cut. Normally empty."""
        return self._local.steps.leftovers

    # -- beginning and leaving ----------------------------------------------------------------------------------------

    def begin(self) -> Beginning:
        """Begin, without a block that lasts as long as the run: `await run.begin()`.

        The await returns when the run is admitted to its session: in memory at once, on a shared store when the store
        has taken the run in. It raises what keeps the run from starting: `SessionBusyError` (a `SessionPausedError` is
        one too), `RunIdTakenError`, `BlockedError`. Then nothing was recorded, and this handle is used up: to try
        again, start another one. Cancelling the await cancels the run, cause `caller`, and waits for its end.
        """
        begin_or_refuse(self._local)
        return Beginning(self._local)

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self._local)
        await wait_settled(self._local, error if isinstance(error, asyncio.CancelledError) else None)

    # -- reading it ---------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Reader:
        return self.events()

    def events(self, after: int = 0) -> Reader:
        """Read the events from a sequence number on, as often as you like. Leaving never cancels."""
        check_begun(self._local)
        if after < 0:
            raise ValueError(f"after is {after}; it is the number of the last event that was read, or 0")
        return self._local.read(after)

    async def result(self) -> RunResult[OutputT]:
        """How the run ended. Waits for that. A cancelled or failed run has a result too.

        It is there with the terminal event. The `run_ended` hooks come after that, so their warnings may be missing.
        """
        check_begun(self._local)
        return await wait_result(self._local)

    # -- cancelling it ------------------------------------------------------------------------------------------------

    def cancel(
        self,
        reason: str | None = None,
        by: str | None = None,
        mode: CancelMode | str = CancelMode.now,
        grace: float | None = None,
        force: bool = False,
    ) -> CancelOutcome:
        """Cancel the run. Never waits; safe from any thread, loop, tool, hook or signal handler.

        After `grace` seconds a milder mode becomes `now`. With the mode `now`, `grace` limits how long a call of a tool
        with `on_cancel="finish"` may finish. `force=True` lets nothing finish.
        """
        return self._local.request_cancel(CancelRequest.make(CancelCause.user, reason, by, mode, grace, force))

    async def cancel_and_wait(
        self,
        timeout: float | None = 5.0,
        *,
        reason: str | None = None,
        by: str | None = None,
        mode: CancelMode | str = CancelMode.now,
        grace: float | None = None,
        force: bool = False,
    ) -> Receipt | None:
        """Cancel, and wait until all of the run is gone. After `timeout` seconds the receipt names what is left.

        A run that had ended without a cancel has no receipt.
        """
        self.cancel(reason, by, mode, grace, force)
        return await wait_gone(self._local, timeout)

    async def gone(self, timeout: float | None = None) -> Receipt | None:
        """Wait until the run has ended and nothing of it is left, for `timeout` seconds at the most. Never cancels.

        The receipt names what is left then. A run that was not cancelled has no receipt.
        """
        return await wait_gone(self._local, timeout)

    def cancel_tool(self, call_id: str, reason: str | None = None, force: bool = False) -> CancelOutcome:
        """Cancel one tool call and keep the run: the model is told, and the turn goes on. Safe from anywhere.

        A call whose tool says `on_cancel="finish"` is let finish, as by a cancel of the run. `force=True` cuts it.
        """
        return self._local.cancel_tool(call_id, reason, force)


def local_run(handle: Run[Any]) -> LocalRun:
    """The run behind a handle, for the parts of this package that do more than users may."""
    return handle._local


def check_begun(run: LocalRun) -> None:
    if run.refusal is not None:
        raise run.refusal
    if not run.has_begun:
        raise HandleError(
            "this run has not begun: enter it with `async with agent.start(...) as run`, or `await run.begin()`"
        )
