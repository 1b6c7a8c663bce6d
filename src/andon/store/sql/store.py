# SPDX-License-Identifier: Apache-2.0
"""The store in a database: sessions and runs that outlive their processes, and that several processes share.

Each method is one transaction. Pruning, and the functions of `postgres_fast`, use several, each of which leaves the
database consistent. When a method returns, its changes are committed. On SQLite a commit survives the death of any
process. If the machine loses power, the last moments may be lost, and nothing else, unless the URL says
`?synchronous=full`. Leases use Postgres' clock, or with SQLite the machine's monotonic clock (see `clocks`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from andon.core.events import Event
from andon.core.receipt import CancelRequest
from andon.core.records import RequestKey, RunRecord, SessionKey, SessionRecord, brought
from andon.core.selection import Block, CancelEntry, Outcomes, Selection
from andon.core.session import OnBusy
from andon.core.shared.overview import StoredRun
from andon.core.shared.run_queue import RunQueue
from andon.core.shared.store import (
    Asked,
    CallAnswer,
    CallRequest,
    Changed,
    Glance,
    Granted,
    KeyUse,
    Lease,
    Listening,
    Look,
    Progress,
    Renewal,
    Taken,
)
from andon.core.states import CancelOutcome
from andon.errors import ConfigurationError, StartError, StoreError
from andon.messages import Message
from andon.store.sql import (
    call_cancels,
    cancels,
    database,
    histories,
    keys,
    maintenance,
    overview,
    postgres_fast,
    queries,
    sessions,
    sqlite_fast,
    states,
)
from andon.store.sql import leases as run_leases
from andon.store.sql.codec import dump, read_messages, read_state
from andon.store.sql.database import Database
from andon.store.sql.encoded import EncodedEnd, encode_progress, in_parts
from andon.store.sql.faults import LockedError
from andon.store.sql.run_queue import SQLRunQueue
from andon.store.sql.session_locks import SessionLocks
from andon.store.sql.transaction import Tx
from andon.store.state import MAX_STATE, check_size, checked_limit

CHANGE_TRIES = 20
"""How often a change of a state is tried, while other processes change it too."""
LOCKED_SECONDS = 0.05
"""A cancel of a locked run is tried again after this."""


class SQLStore:
    """Keeps everything in a database: `SQLStore("sqlite:///andon.db")`, `SQLStore("postgresql://user:pw@host/name")`.

    The first call opens it, from any loop or thread. Close it when nothing uses it any more.
    """

    def __init__(self, url: str, *, max_state: int = MAX_STATE) -> None:
        self._db = Database(url)
        self._locks = SessionLocks()
        self.max_state = checked_limit(max_state)
        """How many bytes the state of a session may take, as JSON."""
        self._fast_path = True
        """Whether the usual cases go through `postgres_fast` or `sqlite_fast`. Without, the generic statements handle
        them too. A test compares both.
        """

    def __repr__(self) -> str:
        return f"<SQLStore {self._db.address.shown}>"

    @property
    def shown(self) -> str:
        """Where the database is, without its password."""
        return self._db.address.shown

    @property
    def _postgres_fast(self) -> bool:
        return self._fast_path and self._db.postgres

    @property
    def _sqlite_fast(self) -> bool:
        return self._fast_path and not self._db.postgres

    @property
    def lag(self) -> float:
        return self._db.lag

    # -- conversations ------------------------------------------------------------------------------------------------

    # JSON is parsed and made here, and not in the threads that run transactions.

    async def load(self, session: SessionKey) -> list[Message]:
        before, parts = await self._db.read(lambda tx: histories.read(tx, session))
        said = [] if before is None else read_messages(before.messages)
        return [*said, *(message for part in parts for message in part.messages)]

    def save(self, record: RunRecord, messages: Sequence[Message]) -> Awaitable[None]:
        text, said = dump(record), dump(messages)
        return self._db.change(lambda tx: sessions.save(tx, record, text, said))

    async def find(self, run_id: str) -> RunRecord | None:
        row = await self._db.read(lambda tx: sessions.find_run(tx, run_id))
        return None if row is None else sessions.record_of(row)

    async def added(self, run_id: str) -> list[Message] | None:
        part = await self._db.read(lambda tx: sessions.added(tx, run_id))
        return None if part is None else part.messages

    async def rollback(self, run_id: str) -> None:
        await self._db.change(lambda tx: sessions.roll_back_run(tx, run_id))

    async def history(self, session: SessionKey) -> list[tuple[RunRecord, list[Message]]]:
        before, parts = await self._db.read(lambda tx: histories.read(tx, session))
        told = [(part.record, part.messages) for part in parts]
        if before is None:
            return told
        record = brought(SessionRecord(session, {}, before.created, before.created))
        return [(record, read_messages(before.messages)), *told]

    async def create_session(
        self, session: SessionKey, state: dict[str, Any], messages: Sequence[Message] = ()
    ) -> SessionRecord | None:
        text, said = self._encode_state(state), dump(list(messages)) if messages else None
        kept = await self._db.change(lambda tx: histories.create(tx, session, text, said))
        return None if kept is None else _session(session, kept)

    async def replace_session(self, session: SessionKey, messages: Sequence[Message]) -> SessionRecord:
        said = dump(list(messages))
        return _session(session, await self._db.change(lambda tx: histories.replace(tx, session, said)))

    async def find_session(self, session: SessionKey) -> SessionRecord | None:
        kept = await self._db.read(lambda tx: states.find(tx, session))
        return None if kept is None else _session(session, kept)

    async def list_sessions(
        self, agent_id: str, user_id: str | None, limit: int | None = None, after: tuple[float, str] | None = None
    ) -> list[SessionRecord]:
        return await self._db.read(lambda tx: sessions.list_all(tx, agent_id, user_id, limit, after))

    async def count_sessions(self, agent_id: str, user_id: str | None) -> int:
        return await self._db.read(lambda tx: sessions.count(tx, agent_id, user_id))

    async def update_session(self, session: SessionKey, delta: dict[str, Any]) -> SessionRecord | None:
        async with self._locks.of(session):  # else many changes at once would all conflict
            for _ in range(CHANGE_TRIES):
                before = await self._db.read(lambda tx: states.find(tx, session))
                if before is None:
                    return None
                text = self._encode_state({**read_state(before.state), **delta})
                now = await self._db.change(partial(states.change, before=before, state=text))
                if now is not None:
                    return _session(session, before._replace(state=text, updated=now))
                # Another process has changed it meanwhile: try again with its state.
        raise StoreError(f"other processes keep changing the state of session {session.session_id!r}: try again later")

    def _encode_state(self, state: dict[str, Any]) -> str:
        text = dump(state)
        check_size(len(text.encode()), self.max_state)
        return text

    async def delete_session(self, session: SessionKey, *, idle: bool = False) -> bool:
        return await self._db.change(lambda tx: histories.remove(tx, session, idle=idle))

    # -- a run, by the holder of its lease ----------------------------------------------------------------------------

    async def enter(self, record: RunRecord, owner: str, seconds: float, on_busy: OnBusy) -> Granted:
        text = dump(record)

        def enter(tx: Tx) -> Granted:
            fast = self._sqlite_fast and record.request_key is None
            usual = sqlite_fast.enter(tx, record, text, owner, seconds) if fast else None
            return usual or run_leases.enter(tx, record, text, owner, seconds, on_busy)

        if self._postgres_fast and record.request_key is None:
            deadline = database.server_deadline()
            usual = await self._db.change(
                lambda tx: postgres_fast.enter(tx, record, text, owner, seconds, deadline), autocommit=True
            )
            if usual is not None:
                return usual
        try:
            return await self._db.change(enter)
        except run_leases.Busy as busy:
            raise busy.refusal(record.session) from None
        except StartError:
            if self._postgres_fast:  # it has committed the session's row, and no run is in it
                with contextlib.suppress(StoreError):
                    await self._db.change(lambda tx: sessions.drop_if_unused(tx, record.session))
            raise

    async def take_turn(self, lease: Lease) -> bool:
        return await self._db.change(lambda tx: run_leases.take_turn(tx, lease))

    async def bring(self, lease: Lease, messages: Sequence[Message]) -> None:
        said = dump(list(messages))
        await self._db.change(lambda tx: histories.bring(tx, lease, said))

    async def renew(self, leases: Sequence[Lease], seconds: float | None) -> Renewal:
        if seconds is None:
            return await self._db.look(lambda tx: run_leases.renew(tx, leases, None))
        if self._postgres_fast:
            return await self._db.renew(lambda tx: postgres_fast.renew(tx, leases, seconds), autocommit=True)
        return await self._db.renew(lambda tx: run_leases.renew(tx, leases, seconds))

    async def write(self, batch: Sequence[Progress]) -> list[str]:
        fast = self._postgres_fast
        write = postgres_fast.write if fast else run_leases.write
        lost: list[str] = []
        for news in in_parts(encode_progress(batch)):  # other writes wait for each part, so none is very large
            lost += await self._db.progress(partial(write, batch=news), autocommit=fast)
        return lost

    async def finish(
        self, lease: Lease, record: RunRecord, messages: Sequence[Message], events: Sequence[Event]
    ) -> RunRecord | CancelRequest | None:
        end = EncodedEnd.of(lease, record, messages, events)
        if self._postgres_fast and await self._db.end(lambda tx: postgres_fast.finish(tx, end), autocommit=True):
            return None
        return await self._db.end(lambda tx: self._finish(tx, end))

    def _finish(self, tx: Tx, end: EncodedEnd) -> RunRecord | CancelRequest | None:
        if self._sqlite_fast and sqlite_fast.finish(tx, end):
            return None
        return run_leases.finish(tx, end)

    # -- a run, by others ---------------------------------------------------------------------------------------------

    async def take_up(
        self, run_id: str, owner: str, seconds: float, request_key: RequestKey | None = None
    ) -> Taken | None:
        found = await self._db.change(lambda tx: run_leases.take_up(tx, run_id, owner, seconds, request_key))
        return None if found is None else found.read()

    async def find_key(self, agent_id: str, user_id: str | None, key: str) -> KeyUse | None:
        return await self._db.read(lambda tx: keys.find(tx, agent_id, user_id, key))

    async def take_orphans(self, owner: str, seconds: float, limit: int) -> list[Taken]:
        if not await self._db.read(run_leases.has_orphans):  # nearly always; a read blocks no other call
            return []
        found = await self._db.change(lambda tx: run_leases.take_orphans(tx, owner, seconds, limit))
        return [each.read() for each in found]

    async def request_cancel(self, which: Selection, request: CancelRequest) -> Outcomes:
        if self._postgres_fast and which.run_id is not None and not which.statuses:
            ask = partial(postgres_fast.request_cancel, which=which, request=request)
            outcomes = await self._db.cancel(ask, autocommit=True)
            if outcomes is not None:
                return outcomes
        deadline = time.monotonic() + database.ANSWER_SECONDS
        while True:
            try:
                return await self._db.cancel(lambda tx: cancels.request_cancel(tx, which, request))
            except LockedError as error:
                if time.monotonic() > deadline:
                    raise StoreError(str(error)) from None
            await asyncio.sleep(LOCKED_SECONDS)  # meanwhile other cancels can use the thread

    async def request_call_cancel(self, run_id: str, request: CallRequest) -> CallAnswer | None:
        return await self._db.cancel(lambda tx: call_cancels.ask(tx, run_id, request))

    async def find_call_answer(self, run_id: str, name: str) -> CallAnswer | None:
        return await self._db.read(lambda tx: call_cancels.find_answer(tx, run_id, name))

    async def open_call_requests(self) -> Mapping[Lease, Sequence[CallRequest]]:
        return await self._db.look(call_cancels.list_open)

    async def answer_call_requests(self, run_id: str, outcomes: Mapping[str, CancelOutcome]) -> None:
        await self._db.cancel(lambda tx: call_cancels.answer(tx, run_id, outcomes))

    async def cancelled_calls(self, run_id: str) -> Collection[str]:
        return await self._db.read(lambda tx: call_cancels.list_cancelled(tx, run_id))

    async def read_events(self, run_id: str, after: int, limit: int) -> list[Event]:
        rows = await self._db.read(lambda tx: queries.list_events(tx, run_id, after, limit))
        return queries.read_events(rows, run_id, after, limit)

    async def last_event(self, run_id: str) -> Event | None:
        return await self._db.read(lambda tx: queries.last_event(tx, run_id))

    async def list_runs(self, which: Selection, limit: int, before: tuple[float, str] | None = None) -> list[RunRecord]:
        return await self._db.read(lambda tx: queries.list_runs(tx, which, limit, before))

    async def glance(self, run_ids: Sequence[str]) -> dict[str, Glance]:
        return await self._db.read(lambda tx: queries.glance(tx, run_ids))

    # -- all runs, for a board ----------------------------------------------------------------------------------------

    # Large results are parsed in a thread, so that the event loop does not wait for that.

    async def live_runs(self, limit: int) -> list[StoredRun]:
        found = await self._db.read(lambda tx: overview.live_runs(tx, limit))
        return await asyncio.to_thread(overview.read, found)

    async def ended_runs(self, since: float, until: float, limit: int) -> list[StoredRun]:
        found = await self._db.read(lambda tx: overview.ended_runs(tx, since, until, limit))
        return await asyncio.to_thread(overview.read, found)

    async def run_tree(self, run_id: str, limit: int) -> list[StoredRun]:
        return overview.read(await self._db.read(lambda tx: overview.run_tree(tx, run_id, limit)))

    async def owners(self, run_ids: Sequence[str]) -> Mapping[str, str]:
        return await self._db.read(lambda tx: overview.owners(tx, run_ids))

    async def new_events(self, after: Mapping[str, int], limit: int) -> dict[str, list[Event]]:
        found = await self._db.read(lambda tx: overview.new_rows(tx, after, limit))
        return await asyncio.to_thread(overview.read_new, found, after, limit)

    def listen(self, look: Look, changed: Changed | None = None, asked: Asked | None = None) -> Listening:
        return self._db.hub.listen(look, changed, asked)

    def run_queue(self) -> RunQueue:
        """The queue of runs that worker processes execute. Raises for SQLite, which one machine uses alone."""
        if not self._db.postgres:
            raise ConfigurationError(
                f"worker processes need Postgres, and this is {self.shown}. With SQLite, the server executes its runs "
                "itself: use `andon serve` without --no-execute, with --workers for several processes"
            )
        return SQLRunQueue(self._db, fast_path=self._fast_path)

    # -- the service --------------------------------------------------------------------------------------------------

    async def block(self, block: Block) -> None:
        await self._db.change(lambda tx: maintenance.block(tx, block))

    async def unblock(self, kind: Literal["user", "agent"], id: str) -> bool:
        return await self._db.change(lambda tx: maintenance.unblock(tx, kind, id))

    async def blocks(self) -> list[Block]:
        return await self._db.read(maintenance.list_blocks)

    async def secret(self, name: str) -> str:
        found = await self._db.read(lambda tx: maintenance.find_secret(tx, name))
        return found if found is not None else await self._db.change(lambda tx: maintenance.make_secret(tx, name))

    async def cancel_log(self, which: Selection, limit: int) -> list[CancelEntry]:
        return await self._db.read(lambda tx: cancels.cancel_log(tx, which, limit))

    async def prune(self, older_than: float, *, dry_run: bool = False) -> dict[str, int]:
        before = await self.clock() - older_than
        if dry_run:
            return await self._db.sweep(lambda tx: maintenance.count_old(tx, before), writes=False)
        counts = Counter({"sessions": 0, "runs": 0, "events": 0})
        steps = (
            maintenance.prune_sessions,
            maintenance.prune_strays,
            maintenance.prune_events,
            maintenance.prune_cancels,
        )
        for step in steps:
            while done := await self._db.sweep(partial(step, before=before), writes=True):
                counts.update(done)
        return {name: counts[name] for name in ("sessions", "runs", "events")}

    async def prune_events(self, older_than: float, since: float) -> tuple[int, float]:
        before, count = await self.clock() - older_than, 0
        while done := await self._db.sweep(partial(maintenance.prune_events, before=before, since=since), writes=True):
            count += done["events"]
        return count, before - maintenance.LATE_SECONDS

    async def clock(self) -> float:
        return await self._db.read(sessions.read_clock) if self._db.postgres else time.time()

    async def ping(self) -> None:
        self._db.version.compare(await self._db.check(maintenance.ping, autocommit=self._db.postgres))

    async def close(self) -> None:
        await self._db.close()


def _session(key: SessionKey, kept: states.SessionRow) -> SessionRecord:
    return SessionRecord(key, read_state(kept.state), kept.created, kept.updated)
