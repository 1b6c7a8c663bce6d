# SPDX-License-Identifier: Apache-2.0
"""The store that forgets with its process: sessions and runs in two dictionaries.

Nothing in it waits, so each call is done in one step, whatever cancels it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Sequence
from itertools import chain

from andon.core.store import DONE, RunRecord, SessionKey
from andon.errors import NotContinuableError, UnknownRunError
from andon.messages import Message

RECORDS_KEPT = 10_000

# The time is part of it: an id may come again when nobody remembers it, and must then replace nothing.
_Key = tuple[str, float]


class _Part:
    """What one run added to a session."""

    __slots__ = ("continues", "messages")

    def __init__(self, messages: Sequence[Message], continues: str | None) -> None:
        self.messages, self.continues = list(messages), continues


class MemoryStore:
    """Conversations live as long as the store; of ended runs the records of the last 10,000 are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # runs of one agent may live on several threads; nothing waits under it
        self._sessions: dict[SessionKey, dict[_Key, _Part]] = {}
        self._records: dict[str, RunRecord] = {}
        self._ended: deque[str] = deque()  # a dict that loses its first keys is slow to find its first one

    async def load(self, session: SessionKey) -> list[Message]:
        with self._lock:
            return list(chain.from_iterable(part.messages for part in self._parts(session).values()))

    def save(self, record: RunRecord, messages: Sequence[Message]) -> Awaitable[None]:
        with self._lock:
            key = (record.run_id, record.created_at)
            self._sessions.setdefault(record.session, {})[key] = _Part(messages, record.continues)
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
            return None if part is None else list(part.messages)

    async def take_back(self, run_id: str) -> None:
        with self._lock:
            record = self._records.get(run_id)
            if record is None:
                raise UnknownRunError(f"there is no run {run_id!r}")
            parts = {key: part for key, part in self._parts(record.session).items() if part.messages}
            key = (run_id, record.created_at)
            if key not in parts:
                raise NotContinuableError(f"run {run_id!r} is not part of its session: it was taken back or continued")
            if key != next(reversed(parts)):
                raise NotContinuableError(f"run {run_id!r} can't be taken back: later runs build on it")
            del self._sessions[record.session][key]

    def _parts(self, session: SessionKey) -> dict[_Key, _Part]:
        """The parts of a conversation: without those that a later run has gone on with."""
        parts = self._sessions.get(session, {})
        taken_up = {part.continues for part in parts.values() if part.continues is not None}
        return {key: part for key, part in parts.items() if key[0] not in taken_up} if taken_up else parts
