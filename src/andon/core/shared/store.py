# SPDX-License-Identifier: Apache-2.0
"""The seam to a store that several processes share: who may write a run, and who wants it to stop.

A run is written by whoever holds its lease. A lease runs out unless it is renewed, and then anybody may take the run
over; each taker gets the next epoch, and what is written with an older one is refused. So a run has one writer at a
time, and one end, whatever the clocks and networks in between do. A cancel is first a committed row; only then is
anybody woken, so that a wake-up may be lost and the cancel is not. A session's line is the order of its runs here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from andon.core.events import Event
from andon.core.receipt import CancelRequest
from andon.core.records import RequestKey, RunRecord
from andon.core.selection import Block, BlockKind, CancelEntry, Outcomes, Selection
from andon.core.states import RunStatus
from andon.core.store import SessionStore
from andon.messages import Message

if TYPE_CHECKING:
    from andon.core.session import OnBusy


class Lease(NamedTuple):
    """The right to write a run."""

    run_id: str
    epoch: int


class Granted(Lease):
    """A lease that was just given. It is the same as any other of that run and epoch."""

    since: float
    """From when on its seconds count, as `time.monotonic()` does: when its statement was sent."""
    has_turn: bool
    """Nobody is ahead in the session's line: the run is running from now on."""
    is_fresh: bool
    """Nothing was said in the session so far."""

    @classmethod
    def of(cls, run_id: str, epoch: int, since: float, *, has_turn: bool = False, is_fresh: bool = False) -> Granted:
        self = cls(run_id, epoch)
        self.since, self.has_turn, self.is_fresh = since, has_turn, is_fresh
        return self


class Renewal(NamedTuple):
    """What a worker learns of the runs that it holds."""

    lost: list[str]
    """Those that are not its own any more: taken over, or ended, by someone else."""
    cancels: dict[str, CancelRequest]
    """Those that someone has asked to stop."""
    since: float
    """From when on the seconds of those that were renewed count: when the statement was sent."""
    locked: list[str]
    """Those that could not be renewed now, because somebody is changing them at this moment."""


class Glance(NamedTuple):
    """How it stands with a run, as far as others wait for that."""

    status: RunStatus
    is_first: bool
    """Nobody is ahead of it in its session's line."""


class Progress(NamedTuple):
    """What is new of a run."""

    lease: Lease
    messages: list[Message] | None
    """All that it has added to its session so far, or None if that is as it was."""
    events: Sequence[Event]
    """What comes after the events that were written before."""
    continues: str | None = None
    """The run whose messages are part of these, if it goes on with one."""


class Taken(NamedTuple):
    """A run that was taken over, and how far it had come."""

    lease: Lease
    record: RunRecord
    messages: list[Message]
    cancel: CancelRequest | None
    """What it was asked, if it was asked to stop."""
    last_seq: int
    """The number of its last event that is written, 0 without any."""
    since: float = 0.0
    """From when on the seconds of the lease count: when its statement was sent."""


class KeyUse(NamedTuple):
    """What an idempotency key was used for."""

    run_id: str
    said: str
    """A digest of what was asked for."""
    after: int
    """The number of the run's last event before that: 0, unless a paused run was answered."""


Look = Callable[[Sequence[str]], None]
"""Is told that something may have changed: of these runs, or, if there are none, of any."""
Changed = Callable[[Sequence[str]], None]
"""Is told which runs have made progress, have ended, or have their turn."""
Asked = Callable[[str, str, CancelRequest], None]
"""Is told which run was asked to stop, who holds it, and how: who else listens may have another of that id."""


class Listening(Protocol):
    def close(self) -> None: ...


@runtime_checkable
class SecretStore(Protocol):
    """A store that can give its processes a secret that all of them share."""

    async def secret(self, name: str) -> str:
        """Random text, the same for all who ask for this name. It is made when it is asked for the first time."""
        ...


@runtime_checkable
class SharedStore(SessionStore, Protocol):
    """A store for many processes. Every method may be cancelled, and does all of its work or none.

    `StoreError` says that the database could not be asked; nothing else is known then, and asking again is safe.
    """

    @property
    def lag(self) -> float:
        """How many seconds what begins now would wait for its turn to be written."""
        ...

    # -- a run, by whoever holds it -----------------------------------------------------------------------------------

    async def enter(self, record: RunRecord, owner: str, seconds: float, on_busy: OnBusy) -> Granted:
        """Put a pending run at the end of its session's line, with a lease of so many seconds. If it is the first in
        it, it is running from now on.

        Raises `RunIdTakenError`; `BlockedError`; and with `reject`, `SessionPausedError` or `SessionBusyError` if
        someone is in the line who is not being cancelled. With `cancel`, whoever is ahead is asked to stop, superseded.
        Asked again by the same owner for a run that has not ended, it gives the same lease: the answer may get lost.
        The record's `request_key` is taken in the same step, or `KeyUsedError` is raised, before any of the others.
        """
        ...

    async def take_turn(self, lease: Lease) -> bool:
        """If the run is the first in its line, it is running from now on. Raises `LeaseLostError`."""
        ...

    async def bring(self, lease: Lease, messages: Sequence[Message]) -> None:
        """Put these messages in place of what was said in the session before this run, which has its turn. Asked again,
        it changes nothing more. Raises `LeaseLostError`.
        """
        ...

    async def renew(self, leases: Sequence[Lease], seconds: float | None) -> Renewal:
        """Hold on to these runs for so many seconds more; with None, only look how it stands with them.

        Of a paused run nothing is renewed, but it is told of in the same way.
        """
        ...

    async def write(self, batch: Sequence[Progress]) -> list[str]:
        """Add what is new: of each run all of it, or nothing. Returns the runs of which it was not added: their leases
        were not good any more, or someone is ending them, or taking them over, at this very moment.

        An event that is written already stays as it is.
        """
        ...

    async def finish(
        self, lease: Lease, record: RunRecord, messages: Sequence[Message], events: Sequence[Event]
    ) -> RunRecord | CancelRequest | None:
        """End a run, or pause it, together with those of its events that are not written yet; its lease is given up.

        None if that is stored now. If it was asked to stop and this is another end, that request: nothing is stored,
        and it must end as cancelled. If someone else has taken it over, its record as they left it so far.
        """
        ...

    # -- a run, by others ---------------------------------------------------------------------------------------------

    async def take_up(
        self, run_id: str, owner: str, seconds: float, request_key: RequestKey | None = None
    ) -> Taken | None:
        """Take a paused run, to go on with it. None if it isn't paused, or was asked to stop.

        Asked again by the same owner, who must not have it already, it gives the same lease: the answer may get lost.
        With a `request_key`, that is taken in the same step, or `KeyUsedError` is raised.
        """
        ...

    async def find_key(self, agent_id: str, user_id: str | None, key: str) -> KeyUse | None:
        """What this user has used an idempotency key for, as long as that run is known."""
        ...

    async def take_orphans(self, owner: str, seconds: float, limit: int) -> list[Taken]:
        """Take runs that nobody ends: whose leases have run out, and paused ones that were asked to stop."""
        ...

    async def request_cancel(self, which: Selection, request: CancelRequest) -> Outcomes:
        """Ask runs that have not ended to stop, commit that, and wake whoever holds them.

        One that had ended is named only if it was asked for by its id.
        """
        ...

    async def read_events(self, run_id: str, after: int, limit: int) -> list[Event]:
        """A run's events from a number on, as far as they are written."""
        ...

    async def last_event(self, run_id: str) -> Event | None:
        """The last one of a run's events that are written. None if none are, or they are forgotten."""
        ...

    async def list_runs(self, which: Selection, limit: int, before: tuple[float, str] | None = None) -> list[RunRecord]:
        """Newest first, with what a list shows: id, session, status, `created_at`, `continues` and `parent_run_id`.
        `find` has the rest. `before` is where the page before ended: that run's `created_at` and id.
        """
        ...

    async def glance(self, run_ids: Sequence[str]) -> dict[str, Glance]:
        """How it stands with these runs; without those that are not known."""
        ...

    def listen(self, look: Look, changed: Changed | None = None, asked: Asked | None = None) -> Listening:
        """Be told, from any thread, of what is committed. None of these may wait.

        `look`: something may have changed: of these runs, which someone has taken over or asked to stop, or, after an
        outage, of any. `changed`: these runs have made progress, have ended, or have their turn: that is of interest to
        whoever waits for one of them, and to nobody else. `asked`: this run was asked to stop, in these words, so that
        nobody has to look for them; where that can't be said in a few words, it is a `look`.
        """
        ...

    # -- the service --------------------------------------------------------------------------------------------------

    async def block(self, block: Block) -> None: ...

    async def unblock(self, kind: BlockKind, id: str) -> bool: ...

    async def blocks(self) -> list[Block]: ...

    async def cancel_log(self, which: Selection, limit: int) -> list[CancelEntry]:
        """Who cancelled what, when and why; newest first."""
        ...

    async def prune(self, older_than: float, *, dry_run: bool = False) -> dict[str, int]:
        """Forget what has ended, and was not touched, for more than so many seconds, by the store's clock. Says how
        many sessions, runs and events; with `dry_run`, how many that would be.
        """
        ...

    async def clock(self) -> float:
        """What time it is by the store's clock, in seconds since 1970: the one that ages go by, and, where processes of
        several machines share the store, leases too. It may be wrong, and may be set.
        """
        ...

    async def ping(self) -> None:
        """Raise `StoreError` if the database can't be asked, or takes no changes."""
        ...

    async def close(self) -> None: ...
