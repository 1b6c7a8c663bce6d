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
from andon.messages import Message

RECORDS_KEPT = 10_000


class MemoryStore:
    """Conversations live as long as the store; of ended runs the records of the last 10,000 are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # runs of one agent may live on several threads; nothing waits under it
        self._sessions: dict[SessionKey, dict[tuple[str, float], list[Message]]] = {}
        self._records: dict[str, RunRecord] = {}
        self._ended: deque[str] = deque()  # a dict that loses its first keys is slow to find its first one

    async def load(self, session: SessionKey) -> list[Message]:
        with self._lock:
            return list(chain.from_iterable(self._sessions.get(session, {}).values()))

    def save(self, record: RunRecord, messages: Sequence[Message]) -> Awaitable[None]:
        with self._lock:
            # The time is part of the key: an id may come again when nobody remembers it, and then replaces nothing.
            self._sessions.setdefault(record.session, {})[record.run_id, record.created_at] = list(messages)
            before, self._records[record.run_id] = self._records.get(record.run_id), record
            if record.status.final and not (before is not None and before.status.final):
                self._ended.append(record.run_id)
                if len(self._ended) > RECORDS_KEPT:
                    self._records.pop(self._ended.popleft(), None)
        return DONE

    async def find(self, run_id: str) -> RunRecord | None:
        with self._lock:
            return self._records.get(run_id)
