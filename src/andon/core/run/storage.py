# SPDX-License-Identifier: Apache-2.0
"""The seam between a run and where it is kept. The run calls it in the same way, whichever storage it has.

`LocalStorage` is for a store that one process uses: the run's session is a queue in this process, and the store keeps
what a run leaves. On a store that several processes share (`core/shared/leased_run.py`), the queue is in the store, the
run is held under a lease, and the store has the last word on how a run ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

from andon.core.events import Event
from andon.core.receipt import CancelRequest
from andon.core.records import RequestKey, RunRecord, SessionKey
from andon.core.steps import StepRunner
from andon.core.store import DONE, SessionStore, Store
from andon.errors import AndonError
from andon.messages import Message


class EndedElsewhere(NamedTuple):
    """Another process has ended the run."""

    record: RunRecord
    messages: list[Message]
    """What the run has added to its session."""
    last_event: Event | None = None


class RunStorage(Protocol):
    """Where one run is kept."""

    @property
    def refusal(self) -> AndonError | None:
        """Why the store has refused the run. Then nothing of it is recorded."""
        ...

    @property
    def is_admitted(self) -> bool:
        """The store has taken the run in."""
        ...

    @property
    def is_away(self) -> bool:
        """The run's end waits for a store that can't be reached, and has waited for long."""
        ...

    @property
    def may_be_elsewhere(self) -> bool:
        """The run is paused, or about to be, and another process may go on with it: only the store knows its state."""
        ...

    async def admit(self) -> None:
        """Enter the run into the store, and wait until all runs that are ahead in its session have ended."""
        ...

    async def load(self, session: SessionKey) -> list[Message]:
        """The conversation before this run."""
        ...

    async def load_session(self, session: SessionKey) -> list[Message]:
        """The whole conversation, as far as it is stored."""
        ...

    async def replace_history(self, session: SessionKey, history: list[Message]) -> None:
        """Put these messages in place of the conversation before this run."""
        ...

    async def checkpoint(self) -> None:
        """Wait until what the run has done so far is stored. Called before tools start."""
        ...

    async def commit_events(self) -> bool:
        """Wait until the events so far are stored, where another process may need them. True, or it raises."""
        ...

    async def may_undo(self) -> bool:
        """May calls of this run be undone here? False if another process ends the run, and undoes them."""
        ...

    def changed(self) -> None:
        """The run has something new to store, or was cancelled. Safe from any thread."""
        ...

    def cancel_was_stored(self) -> None:
        """The store knows that the run was cancelled: it need not be told again."""
        ...

    async def pause(self, steps: StepRunner, record: RunRecord, messages: Sequence[Message]) -> Event | None:
        """Store that the run is paused. Returns the `run_paused` event, if that was stored together with it."""
        ...

    async def reclaim(self, request_key: RequestKey | None = None) -> bool:
        """Hold the run again after a pause. False if another process has it, or it was cancelled."""
        ...

    async def finish(self, record: RunRecord, messages: list[Message]) -> Event | CancelRequest | EndedElsewhere | None:
        """Agree with the store on the run's end.

        The terminal event: the end is stored, together with it. A request: the store has accepted that cancel before,
        and the run must end as cancelled. `EndedElsewhere`: that is how the run has ended. None: there is nothing to
        agree on, or the store can't be reached any more.
        """
        ...

    async def save(self, steps: StepRunner, record: RunRecord, messages: Sequence[Message]) -> bool:
        """Keep what the run leaves, unless `finish` has stored it. False if that failed: then it was reported."""
        ...

    def release(self) -> RunStorage:
        """The run is over. Returns the storage to use from now on, which does not refer to the run."""
        ...


class LocalStorage:
    """The storage of all runs of a runtime whose store is used by this process alone. It has no state of a run."""

    __slots__ = ("_store",)

    refusal: AndonError | None = None
    is_admitted = True
    is_away = False
    may_be_elsewhere = False

    def __init__(self, store: Store) -> None:
        self._store = store

    def is_for(self, store: object) -> bool:
        return self._store is store

    async def admit(self) -> None:
        """The queue in this process is all there is."""

    async def load(self, session: SessionKey) -> list[Message]:
        return await self._store.load(session)

    async def load_session(self, session: SessionKey) -> list[Message]:
        return await self._store.load(session)

    async def replace_history(self, session: SessionKey, history: list[Message]) -> None:
        await cast(SessionStore, self._store).replace_session(session, history)

    async def checkpoint(self) -> None:
        """What a run has done is stored at its end."""

    async def commit_events(self) -> bool:
        return True  # no other process looks at the run

    async def may_undo(self) -> bool:
        return True

    def changed(self) -> None:
        """What is new is stored at the run's end."""

    def cancel_was_stored(self) -> None:
        """Other processes do not cancel runs of this one."""

    async def pause(self, steps: StepRunner, record: RunRecord, messages: Sequence[Message]) -> Event | None:
        await self.save(steps, record, messages)
        return None

    async def reclaim(self, request_key: RequestKey | None = None) -> bool:
        return True

    async def finish(self, record: RunRecord, messages: list[Message]) -> None:
        """A run ends as its signal says; `save` keeps it."""

    async def save(self, steps: StepRunner, record: RunRecord, messages: Sequence[Message]) -> bool:
        store = self._store
        try:
            saving = store.save(record, messages)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the boundary to a store that isn't ours
            steps.warn("the store failed", error=error)
            return False
        if saving is DONE:
            return True
        first = [saving]  # awaited once; should that be cancelled, the store is called again

        async def save() -> bool:
            await (first.pop() if first else store.save(record, messages))
            return True

        return bool(await steps.bounded(save, "the store", steps.bounds.settle_seconds))

    def release(self) -> LocalStorage:
        return self


class EndedStorage:
    """Stands in for the storage of a run that is over. What there was to store is stored."""

    __slots__ = ("is_admitted", "refusal")

    is_away = False
    may_be_elsewhere = False

    def __init__(self, refusal: AndonError | None, *, is_admitted: bool) -> None:
        self.refusal, self.is_admitted = refusal, is_admitted

    async def admit(self) -> None: ...

    async def load(self, session: SessionKey) -> list[Message]:
        return []

    async def load_session(self, session: SessionKey) -> list[Message]:
        return []

    async def replace_history(self, session: SessionKey, history: list[Message]) -> None: ...

    async def checkpoint(self) -> None: ...

    async def commit_events(self) -> bool:
        return True

    async def may_undo(self) -> bool:
        return True

    def changed(self) -> None: ...

    def cancel_was_stored(self) -> None: ...

    async def pause(self, steps: StepRunner, record: RunRecord, messages: Sequence[Message]) -> Event | None:
        return None

    async def reclaim(self, request_key: RequestKey | None = None) -> bool:
        return False

    async def finish(self, record: RunRecord, messages: list[Message]) -> None: ...

    async def save(self, steps: StepRunner, record: RunRecord, messages: Sequence[Message]) -> bool:
        return True

    def release(self) -> EndedStorage:
        return self
