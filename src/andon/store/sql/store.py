# SPDX-License-Identifier: Apache-2.0
"""The store in a database: sessions and runs that outlive their processes, and that several processes share.

Each method is one transaction, or, where something is pruned, or done in the way of `at_once`, several that each leave
everything sound. What was answered is committed. On SQLite a commit survives the death of any process; should the
machine itself lose its power, the last moments may be lost, and nothing else, unless the URL says `?synchronous=full`.
Leases go by Postgres' clock, or with SQLite by one of the machine's that nobody can set (see `clocks`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Literal

from andon.core.events import Event
from andon.core.receipt import CancelRequest
from andon.core.selection import Block, CancelEntry, Outcomes, Selection
from andon.core.session import OnBusy
from andon.core.shared import Asked, Changed, Glance, Granted, Lease, Listening, Look, Progress, Renewal, Taken
from andon.core.store import RunRecord, SessionKey, SessionRecord
from andon.errors import StoreError
from andon.messages import Message
from andon.store.sql import asking, at_once, by_hand, database, holding, service, sessions
from andon.store.sql.database import Database
from andon.store.sql.faults import LockedError
from andon.store.sql.transaction import Tx

LOCKED_SECONDS = 0.05
"""After this, what somebody has locked is tried again."""


class SQLStore:
    """Keeps everything in a database: `SQLStore("sqlite:///andon.db")`, `SQLStore("postgresql://user:pw@host/name")`.

    It is opened by the first call, from any loop or thread; close it when nothing uses it any more.
    """

    def __init__(self, url: str) -> None:
        self._db = Database(url)

    def __repr__(self) -> str:
        return f"<SQLStore {self._db.address.shown}>"

    @property
    def lag(self) -> float:
        return self._db.lag

    # -- conversations ------------------------------------------------------------------------------------------------

    async def load(self, session: SessionKey) -> list[Message]:
        return await self._db.read(lambda tx: sessions.load(tx, session))

    def save(self, record: RunRecord, messages: Sequence[Message]) -> Awaitable[None]:
        return self._db.change(lambda tx: sessions.save(tx, record, messages))

    async def find(self, run_id: str) -> RunRecord | None:
        return await self._db.read(lambda tx: sessions.find_run(tx, run_id))

    async def added(self, run_id: str) -> list[Message] | None:
        return await self._db.read(lambda tx: sessions.added(tx, run_id))

    async def take_back(self, run_id: str) -> None:
        await self._db.change(lambda tx: sessions.take_back(tx, run_id))

    async def history(self, session: SessionKey) -> list[tuple[RunRecord, list[Message]]]:
        return await self._db.read(lambda tx: sessions.history(tx, session))

    async def create_session(self, session: SessionKey, state: dict[str, Any]) -> SessionRecord | None:
        return await self._db.change(lambda tx: sessions.create(tx, session, state))

    async def find_session(self, session: SessionKey) -> SessionRecord | None:
        return await self._db.read(lambda tx: sessions.find(tx, session))

    async def list_sessions(self, agent_id: str, user_id: str | None) -> list[SessionRecord]:
        return await self._db.read(lambda tx: sessions.list_all(tx, agent_id, user_id))

    async def update_session(self, session: SessionKey, delta: dict[str, Any]) -> SessionRecord | None:
        return await self._db.change(lambda tx: sessions.change(tx, session, delta))

    async def delete_session(self, session: SessionKey) -> bool:
        return await self._db.change(lambda tx: sessions.remove(tx, session))

    # -- a run, by whoever holds it -----------------------------------------------------------------------------------

    async def enter(self, record: RunRecord, owner: str, seconds: float, on_busy: OnBusy) -> Granted:
        def enter(tx: Tx) -> Granted:
            usual = None if self._db.postgres else by_hand.enter(tx, record, owner, seconds)
            return usual or holding.enter(tx, record, owner, seconds, on_busy)

        if self._db.postgres:
            deadline = time.monotonic() + database.ANSWER_SECONDS
            usual = await self._db.change(lambda tx: at_once.enter(tx, record, owner, seconds, deadline), at_once=True)
            if usual is not None:
                return usual
        return await self._db.change(enter)

    async def take_turn(self, lease: Lease) -> bool:
        return await self._db.change(lambda tx: holding.take_turn(tx, lease))

    async def renew(self, leases: Sequence[Lease], seconds: float | None) -> Renewal:
        if seconds is None:
            return await self._db.read(lambda tx: holding.renew(tx, leases, None))
        if self._db.postgres:
            return await self._db.renew(lambda tx: at_once.renew(tx, leases, seconds), at_once=True)
        return await self._db.renew(lambda tx: holding.renew(tx, leases, seconds))

    async def write(self, batch: Sequence[Progress]) -> list[str]:
        if self._db.postgres:
            return await self._db.progress(lambda tx: at_once.write(tx, batch), at_once=True)
        return await self._db.progress(lambda tx: holding.write(tx, batch))

    async def finish(
        self, lease: Lease, record: RunRecord, messages: Sequence[Message], events: Sequence[Event]
    ) -> RunRecord | CancelRequest | None:
        if self._db.postgres and await self._db.end(
            lambda tx: at_once.finish(tx, lease, record, messages, events), at_once=True
        ):
            return None
        return await self._db.end(lambda tx: self._finish(tx, lease, record, messages, events))

    def _finish(
        self, tx: Tx, lease: Lease, record: RunRecord, messages: Sequence[Message], events: Sequence[Event]
    ) -> RunRecord | CancelRequest | None:
        if not self._db.postgres and by_hand.finish(tx, lease, record, messages, events):
            return None
        return holding.finish(tx, lease, record, messages, events)

    # -- a run, by others ---------------------------------------------------------------------------------------------

    async def take_up(self, run_id: str, owner: str, seconds: float) -> Taken | None:
        return await self._db.change(lambda tx: holding.take_up(tx, run_id, owner, seconds))

    async def take_orphans(self, owner: str, seconds: float, limit: int) -> list[Taken]:
        if not await self._db.read(holding.has_orphans):  # as nearly always, and who only reads is in nobody's way
            return []
        return await self._db.change(lambda tx: holding.take_orphans(tx, owner, seconds, limit))

    async def request_cancel(self, which: Selection, request: CancelRequest) -> Outcomes:
        if self._db.postgres and which.run_id is not None and not which.statuses:
            outcomes = await self._db.ask(lambda tx: at_once.request_cancel(tx, which, request), at_once=True)
            if outcomes is not None:
                return outcomes
        deadline = time.monotonic() + database.ANSWER_SECONDS
        while True:
            try:
                return await self._db.ask(lambda tx: asking.request_cancel(tx, which, request))
            except LockedError as error:
                if time.monotonic() > deadline:
                    raise StoreError(str(error)) from None
            await asyncio.sleep(LOCKED_SECONDS)  # meanwhile other cancels have their turn

    async def read_events(self, run_id: str, after: int, limit: int) -> list[Event]:
        return await self._db.read(lambda tx: asking.list_events(tx, run_id, after, limit))

    async def last_event(self, run_id: str) -> Event | None:
        return await self._db.read(lambda tx: asking.last_event(tx, run_id))

    async def list_runs(self, which: Selection, limit: int) -> list[RunRecord]:
        return await self._db.read(lambda tx: asking.list_runs(tx, which, limit))

    async def glance(self, run_ids: Sequence[str]) -> dict[str, Glance]:
        return await self._db.read(lambda tx: asking.glance(tx, run_ids))

    def listen(self, look: Look, changed: Changed | None = None, asked: Asked | None = None) -> Listening:
        return self._db.hub.listen(look, changed, asked)

    # -- the service --------------------------------------------------------------------------------------------------

    async def block(self, block: Block) -> None:
        await self._db.change(lambda tx: service.block(tx, block))

    async def unblock(self, kind: Literal["user", "agent"], id: str) -> bool:
        return await self._db.change(lambda tx: service.unblock(tx, kind, id))

    async def blocks(self) -> list[Block]:
        return await self._db.read(service.list_blocks)

    async def cancel_log(self, which: Selection, limit: int) -> list[CancelEntry]:
        return await self._db.read(lambda tx: asking.cancel_log(tx, which, limit))

    async def prune(self, older_than: float, *, dry_run: bool = False) -> dict[str, int]:
        before = await self.clock() - older_than
        if dry_run:
            return await self._db.sweep(lambda tx: service.count_old(tx, before), writes=False)
        counts = Counter({"sessions": 0, "runs": 0, "events": 0})
        steps = (service.forget_sessions, service.forget_strays, service.forget_events, service.forget_cancels)
        for step in steps:
            while done := await self._db.sweep(partial(step, before=before), writes=True):
                counts.update(done)
        return {name: counts[name] for name in ("sessions", "runs", "events")}

    async def clock(self) -> float:
        return await self._db.read(sessions.read_clock) if self._db.postgres else time.time()

    async def ping(self) -> None:
        at_once = self._db.postgres
        self._db.version.compare(await self._db.check(service.ping, at_once=at_once))

    async def close(self) -> None:
        await self._db.close()
