# SPDX-License-Identifier: Apache-2.0
"""The interface of a store that several processes share: which process may write a run, and which runs must stop.

The process that holds the lease of a run writes the run. A lease expires unless it is renewed. Then any other process
may take the run over. Each new holder gets the next epoch, and writes with an older epoch are refused. So a run has one
writer at a time, and one end, even if clocks or networks fail. A cancel is first committed as a row; only then are
processes notified. So a notification may be lost, but not the cancel. A session's queue is the order of its runs here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from andon.core.events import Event
from andon.core.receipt import CancelRequest
from andon.core.records import RequestKey, RunRecord
from andon.core.selection import Block, BlockKind, CancelEntry, Outcomes, Selection
from andon.core.states import CancelOutcome, RunStatus
from andon.core.store import SessionStore
from andon.messages import Message

if TYPE_CHECKING:
    from andon.core.session import OnBusy


class Lease(NamedTuple):
    """The right to write a run."""

    run_id: str
    epoch: int


class Granted(Lease):
    """A lease that was just given. It equals any other lease of that run and epoch."""

    since: float
    """When its seconds began, by `time.monotonic()`: when its statement was sent."""
    has_turn: bool
    """No run is ahead in the session's queue: the run is running from now on."""
    is_fresh: bool
    """The session has no messages yet."""

    @classmethod
    def of(cls, run_id: str, epoch: int, since: float, *, has_turn: bool = False, is_fresh: bool = False) -> Granted:
        self = cls(run_id, epoch)
        self.since, self.has_turn, self.is_fresh = since, has_turn, is_fresh
        return self


class Renewal(NamedTuple):
    """What a worker learns about the runs that it holds."""

    lost: list[str]
    """Runs that it does not hold any more: another process has taken them over, or ended them."""
    cancels: dict[str, CancelRequest]
    """Runs that were cancelled, with the request."""
    since: float
    """When the seconds of the renewed leases began: when the statement was sent."""
    locked: list[str]
    """Runs that could not be renewed now, because another transaction has locked them."""


class Glance(NamedTuple):
    """The part of a run's state for which other runs wait."""

    status: RunStatus
    is_first: bool
    """No run is ahead of it in its session's queue."""


class Progress(NamedTuple):
    """What a run has done since the last write."""

    lease: Lease
    messages: list[Message] | None
    """All messages that it has added to its session so far. None if they have not changed."""
    events: Sequence[Event]
    """The events after those that were written before."""
    continues: str | None = None
    """The run that this one continues, if any. The messages of that run are part of these."""


class Taken(NamedTuple):
    """A run that was taken over, and how far it had come."""

    lease: Lease
    record: RunRecord
    messages: list[Message]
    cancel: CancelRequest | None
    """The request, if the run was cancelled."""
    last_seq: int
    """The number of its last written event. 0 if there is none."""
    since: float = 0.0
    """When the seconds of the lease began: when its statement was sent."""


class CallRequest(NamedTuple):
    """A request to cancel one tool call of a run, for the process that holds the run."""

    name: str
    """No other request has it."""
    call_id: str
    reason: str | None
    force: bool


class CallAnswer(NamedTuple):
    """What became of such a request."""

    status: RunStatus
    """Of the run."""
    waits: bool
    """The process that holds the run has not answered yet. If it is False and there is no outcome, none will come: no
    process holds the run, or another one does by now.
    """
    outcome: CancelOutcome | None


class KeyUse(NamedTuple):
    """The use of an idempotency key."""

    run_id: str
    said: str
    """A digest of the request."""
    after: int
    """The number of the run's last event before the request: 0, unless the request answered a paused run."""


Look = Callable[[Sequence[str]], None]
"""Called when something may have changed: in these runs, or, if the sequence is empty, in any run."""
Changed = Callable[[Sequence[str]], None]
"""Called with the runs that have made progress, have ended, or have their turn."""
Asked = Callable[[str, str, CancelRequest], None]
"""Called with a cancelled run, its holder, and the request. Another listener may have another run of that id."""


class Listening(Protocol):
    def close(self) -> None: ...


@runtime_checkable
class SecretStore(Protocol):
    """A store that gives all its processes the same secret."""

    async def secret(self, name: str) -> str:
        """Random text, the same at every call with this name. The first call creates it."""
        ...


@runtime_checkable
class EventStore(Protocol):
    """A store that can delete the events of runs that have ended, and keep the runs."""

    async def prune_events(self, older_than: float, since: float) -> tuple[int, float]:
        """Delete the events of runs that have ended more than `older_than` seconds ago, by the store's clock. Runs that
        had ended at `since` have none any more. Returns how many events were deleted, and the next `since`.
        """
        ...


@runtime_checkable
class SharedStore(SessionStore, Protocol):
    """A store for many processes. Every method may be cancelled, and does all of its work or none.

    `StoreError` means that the database could not be reached. Then the effect of the call is not known, and the call
    may safely be repeated.
    """

    @property
    def lag(self) -> float:
        """How many seconds a write that begins now would wait for its turn."""
        ...

    # -- a run, by the process that holds it --------------------------------------------------------------------------

    async def enter(self, record: RunRecord, owner: str, seconds: float, on_busy: OnBusy) -> Granted:
        """Put a pending run at the end of its session's queue, with a lease of `seconds`. If it is the first in the
        queue, it is running from now on.

        Raises `RunIdTakenError`; `BlockedError`; and with `reject`, `SessionPausedError` or `SessionBusyError` if a run
        in the queue is not being cancelled. With `cancel`, all runs ahead are cancelled, with the cause `superseded`.
        If the same owner calls it again for a run that has not ended, it gives the same lease: the answer may have been
        lost. The record's `request_key` is taken in the same transaction. If it is used already, `KeyUsedError` is
        raised, before any of the other errors.
        """
        ...

    async def take_turn(self, lease: Lease) -> bool:
        """If the run is the first in its queue, it is running from now on. Raises `LeaseLostError`."""
        ...

    async def bring(self, lease: Lease, messages: Sequence[Message]) -> None:
        """Replace the messages of the session before this run, which has its turn, by these. A second call changes
        nothing more. Raises `LeaseLostError`.
        """
        ...

    async def renew(self, leases: Sequence[Lease], seconds: float | None) -> Renewal:
        """Renew these leases for `seconds`. With None, only read the state of the runs.

        The lease of a paused run is not renewed, but its state is reported in the same way.
        """
        ...

    async def write(self, batch: Sequence[Progress]) -> list[str]:
        """Write the progress of runs: for each run all of it, or nothing. Returns the runs for which nothing was
        written: their leases are not valid any more, or another transaction is ending them, or taking them over, now.

        An event that is written already is not changed.
        """
        ...

    async def finish(
        self, lease: Lease, record: RunRecord, messages: Sequence[Message], events: Sequence[Event]
    ) -> RunRecord | CancelRequest | None:
        """End a run, or pause it, and write those of its events that are not written yet. Its lease is given up.

        Returns None if that is stored. If the run was cancelled and this is another end, it returns the request:
        nothing is stored, and the run must end as cancelled. If another process has taken the run over, it returns the
        run's current record.
        """
        ...

    # -- a run, by others ---------------------------------------------------------------------------------------------

    async def take_up(
        self, run_id: str, owner: str, seconds: float, request_key: RequestKey | None = None
    ) -> Taken | None:
        """Take a paused run, to continue it. None if it isn't paused, or was cancelled.

        If the same owner calls it again, and does not hold the run already, it gives the same lease: the answer may
        have been lost. A `request_key` is taken in the same transaction, or `KeyUsedError` is raised.
        """
        ...

    async def find_key(self, agent_id: str, user_id: str | None, key: str) -> KeyUse | None:
        """How this user has used an idempotency key, as long as the run is known."""
        ...

    async def take_orphans(self, owner: str, seconds: float, limit: int) -> list[Taken]:
        """Take runs that no process ends: those whose leases have expired, and paused ones that were cancelled."""
        ...

    async def request_cancel(self, which: Selection, request: CancelRequest) -> Outcomes:
        """Cancel the selected runs that have not ended: commit that, and then notify their holders.

        A run that has ended is in the outcomes only if it was selected by its id.
        """
        ...

    async def request_call_cancel(self, run_id: str, request: CallRequest) -> CallAnswer | None:
        """Ask the holder of the run to cancel one tool call: commit that, and then notify the holder. None if the run
        is not known. If no process holds the run, nothing is stored.
        """
        ...

    async def find_call_answer(self, run_id: str, name: str) -> CallAnswer | None:
        """What became of the request of this name."""
        ...

    async def open_call_requests(self) -> Mapping[Lease, Sequence[CallRequest]]:
        """The requests of the last minute that were not answered, by the lease whose holder is asked."""
        ...

    async def answer_call_requests(self, run_id: str, outcomes: Mapping[str, CancelOutcome]) -> None:
        """Store what became of requests, by their names. An earlier answer is not changed."""
        ...

    async def cancelled_calls(self, run_id: str) -> Collection[str]:
        """The ids of the calls of this run whose cancel was requested, by a process that did not hold it."""
        ...

    async def read_events(self, run_id: str, after: int, limit: int) -> list[Event]:
        """The written events of a run after this number."""
        ...

    async def last_event(self, run_id: str) -> Event | None:
        """The last written event of a run. None if no event was written, or they are deleted."""
        ...

    async def list_runs(self, which: Selection, limit: int, before: tuple[float, str] | None = None) -> list[RunRecord]:
        """Newest first, with these fields only: id, session, status, `created_at`, `continues` and `parent_run_id`.
        `find` has the rest. `before` is the end of the previous page: the `created_at` and the id of its last run.
        """
        ...

    async def glance(self, run_ids: Sequence[str]) -> dict[str, Glance]:
        """The state of these runs, without those that are not known."""
        ...

    def listen(self, look: Look, changed: Changed | None = None, asked: Asked | None = None) -> Listening:
        """Call these functions, from any thread, after a commit. None of them may wait.

        `look`: something may have changed: in these runs, which were taken over or cancelled, or, after an outage, in
        any run. `changed`: these runs have made progress, have ended, or have their turn. Only code that waits for one
        of them needs it. `asked`: this run was cancelled by this request, so its holder need not read it from the
        store. If the request does not fit into a notification, `look` is called instead.
        """
        ...

    # -- administration and maintenance -------------------------------------------------------------------------------

    async def block(self, block: Block) -> None: ...

    async def unblock(self, kind: BlockKind, id: str) -> bool: ...

    async def blocks(self) -> list[Block]: ...

    async def cancel_log(self, which: Selection, limit: int) -> list[CancelEntry]:
        """The cancels: of which run, by whom, when and why. Newest first."""
        ...

    async def prune(self, older_than: float, *, dry_run: bool = False) -> dict[str, int]:
        """Delete what has ended, and was not changed, for more than `older_than` seconds, by the store's clock. Returns
        how many sessions, runs and events were deleted; with `dry_run`, how many would be.
        """
        ...

    async def clock(self) -> float:
        """The time of the store's clock, in seconds since 1970. Ages are measured by this clock, and leases too if
        processes of several machines share the store. The clock may be wrong, and may be set.
        """
        ...

    async def ping(self) -> None:
        """Raise `StoreError` if the database can't be reached, or can't be written."""
        ...

    async def close(self) -> None: ...
