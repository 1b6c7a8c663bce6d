# SPDX-License-Identifier: Apache-2.0
"""A look inside a run, for tests: what its handle does not show.

>>> looked = probe(run)
>>> [event.event for event in looked.events]
>>> await looked.settled()
"""

from __future__ import annotations

from typing import Any

from andon.core.budget import Budget
from andon.core.events import Event
from andon.core.receipt import Receipt, RunResult
from andon.core.run.handle import Run, local_run
from andon.core.run.run import LocalRun
from andon.core.run.waits import make_result, only_wait_settled, wait_gone, wait_settled_blocking
from andon.core.states import Phase, RunState, RunStatus
from andon.messages import Message


class RunProbe:
    """Shows a test what happens inside a run. It changes nothing."""

    def __init__(self, run: LocalRun) -> None:
        self._run = run

    @property
    def events(self) -> list[Event]:
        """All events so far, without waiting for any."""
        return list(self._run.journal.events)

    @property
    def steps(self) -> list[str]:
        """The names of the steps that the run is waiting for: a model call, a tool, a hook."""
        return [step.name for step in self._run.steps.live]

    @property
    def children(self) -> list[Run]:
        """The runs that its tools have started and that have not settled."""
        return [Run(child) for child in self._run.children.live if isinstance(child, LocalRun)]

    @property
    def run_id(self) -> str:
        return self._run.run_id

    @property
    def parent_run_id(self) -> str | None:
        return self._run.parent_run_id

    @property
    def status(self) -> RunStatus:
        return self._run.status

    @property
    def phase(self) -> Phase:
        """What the run is doing."""
        return self._run.phase

    @property
    def is_paused(self) -> bool:
        return self._run.is_paused

    @property
    def warnings(self) -> list[str]:
        return list(self._run.steps.warnings)

    @property
    def conversation(self) -> list[Message]:
        """All messages of its session, as this process knows them."""
        return self._run.session.messages

    @property
    def result(self) -> RunResult[Any]:
        """The result of a run that has ended, or is paused, without waiting for it."""
        return make_result(self._run)

    @property
    def is_cancelling(self) -> bool:
        return self._run.is_cancelling

    @property
    def own_messages(self) -> list[Message]:
        """The messages that the run has added to its session so far."""
        return self._run.own_messages

    @property
    def deadline(self) -> float | None:
        """The earliest deadline of this run and the runs above it, as `time.time()`."""
        return self._run.children.deadline

    @property
    def depth(self) -> int:
        """The number of runs from the top of the tree down to this one."""
        return self._run.children.depth

    @property
    def budget_left(self) -> Budget | None:
        return self._run.children.budget_left

    async def gone(self, timeout: float | None = None) -> Receipt | None:
        """Wait until the run is over and nothing of it is left. The receipt names what is left after `timeout`."""
        return await wait_gone(self._run, timeout)

    def settled_blocking(self, timeout: float | None = None) -> bool:
        """The same as `settled` for a thread. False if `timeout` seconds have passed first."""
        return wait_settled_blocking(self._run, timeout)

    async def ended(self) -> None:
        """Wait until the run is over, its last hooks included; also while it is paused."""
        self._run.ensure_ending()
        await self._run.steps.waiters.wait(lambda: self._run.state is RunState.released)

    async def settled(self) -> None:
        """Wait until the run is over, its last hooks included, or is paused. Cancelling the wait changes nothing."""
        await only_wait_settled(self._run)


def probe(run: Run[Any]) -> RunProbe:
    """Look inside a run."""
    return RunProbe(local_run(run))
