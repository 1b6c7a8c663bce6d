# SPDX-License-Identifier: Apache-2.0
"""The store that forgets with its process: sessions and runs in two dictionaries.

Nothing in it waits, so each call is done in one step, whatever cancels it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from itertools import chain
from typing import Any

from andon.core.fork import start_over_after_fork
from andon.core.store import DONE, RunRecord, SessionKey, SessionRecord
from andon.errors import NotContinuableError, UnknownRunError
from andon.messages import Message

RECORDS_KEPT = 10_000


class _Kept:
    """A session, as it is kept."""

    __slots__ = ("created_at", "runs", "state", "updated_at")

    def __init__(self, created_at: float, state: dict[str, Any] | None = None) -> None:
        self.created_at = self.updated_at = created_at
        self.state = dict(state or {})
        self.runs: dict[tuple[str, float], tuple[RunRecord, list[Message]]] = {}

    def record(self, key: SessionKey) -> SessionRecord:
        return SessionRecord(key, dict(self.state), self.created_at, self.updated_at)


class MemoryStore:
    """Conversations live as long as the store; of ended runs the records of the last 10,000 can be found by id."""

    def __init__(self) -> None:
        self.start_over()
        start_over_after_fork(self)
        self._sessions: dict[SessionKey, _Kept] = {}
        self._records: dict[str, RunRecord] = {}
        self._ended: deque[str] = deque()  # a dict that loses its first keys is slow to find its first one

    def start_over(self) -> None:
        """In a forked child all is kept, but the lock may be held for ever."""
        self._lock = threading.Lock()  # runs of one agent may live on several threads; nothing waits under it

    async def load(self, session: SessionKey) -> list[Message]:
        with self._lock:
            return list(chain.from_iterable(messages for _, messages in self._parts(session).values()))

    def save(self, record: RunRecord, messages: Sequence[Message]) -> Awaitable[None]:
        with self._lock:
            kept = self._sessions.get(record.session)
            if kept is None:
                kept = self._sessions[record.session] = _Kept(record.created_at)
            # The time is part of the key: an id may come again when nobody remembers it, and then replaces nothing.
            kept.runs[record.run_id, record.created_at] = record, list(messages)
            kept.updated_at = time.time()
            before, self._records[record.run_id] = self._records.get(record.run_id), record
            if record.status.final and not (before is not None and before.status.final):
                self._ended.append(record.run_id)
                if len(self._ended) > RECORDS_KEPT:
                    self._records.pop(self._ended.popleft(), None)
        return DONE

    async def find(self, run_id: str) -> RunRecord | None:
        with self._lock:
            return self._records.get(run_id)

    async def added(self, run_id: str) -> list[Message] | None:
        with self._lock:
            record = self._records.get(run_id)
            part = None if record is None else self._parts(record.session).get((run_id, record.created_at))
            return None if part is None else list(part[1])

    async def take_back(self, run_id: str) -> None:
        with self._lock:
            record = self._records.get(run_id)
            if record is None:
                raise UnknownRunError(f"there is no run {run_id!r}")
            parts = {key: part for key, part in self._parts(record.session).items() if part[1]}
            key = (run_id, record.created_at)
            if key not in parts:
                raise NotContinuableError(f"run {run_id!r} is not part of its session: it was taken back or continued")
            if key != next(reversed(parts)):
                raise NotContinuableError(f"run {run_id!r} can't be taken back: later runs build on it")
            del self._sessions[record.session].runs[key]

    def _parts(self, session: SessionKey) -> dict[tuple[str, float], tuple[RunRecord, list[Message]]]:
        """A conversation by its runs, without those that a later one has gone on with."""
        kept = self._sessions.get(session)
        runs = {} if kept is None else kept.runs
        taken_up = {record.continues for record, _ in runs.values() if record.continues is not None}
        return {key: part for key, part in runs.items() if key[0] not in taken_up} if taken_up else runs

    async def history(self, session: SessionKey) -> list[tuple[RunRecord, list[Message]]]:
        with self._lock:
            return list(self._parts(session).values())

    async def create_session(self, session: SessionKey, state: dict[str, Any]) -> SessionRecord | None:
        with self._lock:
            if session in self._sessions:
                return None
            kept = self._sessions[session] = _Kept(time.time(), state)
            return kept.record(session)

    async def find_session(self, session: SessionKey) -> SessionRecord | None:
        with self._lock:
            kept = self._sessions.get(session)
            return None if kept is None else kept.record(session)

    async def list_sessions(self, agent_id: str, user_id: str | None) -> list[SessionRecord]:
        with self._lock:
            return [kept.record(key) for key, kept in self._sessions.items() if key[:2] == (agent_id, user_id)]

    async def update_session(self, session: SessionKey, delta: dict[str, Any]) -> SessionRecord | None:
        with self._lock:
            kept = self._sessions.get(session)
            if kept is None:
                return None
            kept.state.update(delta)
            kept.updated_at = time.time()
            return kept.record(session)

    async def delete_session(self, session: SessionKey) -> bool:
        with self._lock:
            return self._sessions.pop(session, None) is not None
