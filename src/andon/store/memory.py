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

from andon.core.store import DONE, RunRecord, SessionKey, SessionRecord
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
        self._lock = threading.Lock()  # runs of one agent may live on several threads; nothing waits under it
        self._sessions: dict[SessionKey, _Kept] = {}
        self._records: dict[str, RunRecord] = {}
        self._ended: deque[str] = deque()  # a dict that loses its first keys is slow to find its first one

    async def load(self, session: SessionKey) -> list[Message]:
        with self._lock:
            kept = self._sessions.get(session)
            return [] if kept is None else list(chain.from_iterable(messages for _, messages in kept.runs.values()))

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

    async def history(self, session: SessionKey) -> list[tuple[RunRecord, list[Message]]]:
        with self._lock:
            kept = self._sessions.get(session)
            return [] if kept is None else list(kept.runs.values())

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
