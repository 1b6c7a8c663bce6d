# SPDX-License-Identifier: Apache-2.0
"""The store in this process's memory: sessions and runs in two dictionaries, both bounded.

No method waits for anything, so each call is done in one step, and a cancel can't interrupt it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from itertools import chain
from typing import Any

import msgspec

from andon.core.fork import start_over_after_fork
from andon.core.records import RunRecord, SessionKey, SessionRecord, brought
from andon.core.states import RunStatus
from andon.core.store import DONE
from andon.errors import NotContinuableError, UnknownRunError, show
from andon.messages import Message
from andon.store.retention import Retention
from andon.store.state import MAX_STATE, check_size, checked_limit

RECORDS_KEPT = 10_000
RECORDS_BYTES = 128 * 2**20
"""As JSON. A run may have any amount of metadata."""

_encode = msgspec.json.Encoder(enc_hook=show).encode


class _Kept:
    """A session, as it is stored."""

    __slots__ = ("below", "brought", "created_at", "runs", "state", "updated_at")

    def __init__(
        self, created_at: float, state: dict[str, Any] | None = None, messages: Sequence[Message] = ()
    ) -> None:
        self.created_at = self.updated_at = created_at
        self.below = False
        """Whether a run has created it for a sub-agent."""
        self.state = dict(state or {})
        self.brought = list(messages)
        """The messages before the first of its runs."""
        self.runs: dict[tuple[str, float], tuple[RunRecord, list[Message]]] = {}

    def record(self, key: SessionKey) -> SessionRecord:
        return SessionRecord(key, dict(self.state), self.created_at, self.updated_at)


class MemoryStore:
    """Keeps everything in this process: `MemoryStore()`, or `memory://` where a URL is asked for.

    `keep_days`: a conversation that was not used for this number of days is deleted; None for never.
    `keep_sessions`: if there are more conversations than this, the user who has the most loses the one that was used
    least recently. Conversations of sub-agents are counted separately.
    `max_state`: how many bytes the state of a session may take, as JSON.

    A conversation with a live or paused run is not deleted, nor is an agent's own conversation. The records of the last
    10,000 ended runs can be found by id, or of fewer, if they take more than 128 MiB. Conversations keep the messages
    of older runs, but not their metadata.
    """

    def __init__(
        self, *, keep_days: float | None = 7.0, keep_sessions: int | None = 10_000, max_state: int = MAX_STATE
    ) -> None:
        self.retention = Retention(keep_days, keep_sessions)
        self.max_state = checked_limit(max_state)
        self.start_over()
        start_over_after_fork(self)
        self._sessions: dict[SessionKey, _Kept] = {}
        self._records: dict[str, RunRecord] = {}
        self._ended: deque[tuple[str, int]] = deque()  # a dict that loses its first keys is slow to find its first one
        self._held = 0
        """The size of these records in bytes."""

    def start_over(self) -> None:
        """In a forked child everything stays, except the lock: a thread of the parent may have held it."""
        self._lock = threading.Lock()  # runs of one agent may live on several threads; nothing waits under it

    def _touch(self, session: SessionKey) -> None:
        """Note that this session is in use, and delete sessions that are due."""
        if (kept := self._sessions.get(session)) is not None:
            self.retention.touch(session, below=kept.below)
        for key in self.retention.due():
            due = self._sessions[key]
            if any(record.status is RunStatus.paused for record, _ in due.runs.values()):
                self.retention.touch(key, below=due.below)
            else:
                self._drop(key)

    def _drop(self, session: SessionKey) -> bool:
        self.retention.drop(session)
        return self._sessions.pop(session, None) is not None

    async def load(self, session: SessionKey) -> list[Message]:
        with self._lock:
            self._touch(session)
            kept = self._sessions.get(session)
            before = [] if kept is None else kept.brought
            return [*before, *chain.from_iterable(messages for _, messages in self._parts(session).values())]

    def save(self, record: RunRecord, messages: Sequence[Message]) -> Awaitable[None]:
        size = _size(record) if record.status.final else 0  # not under the lock: a large record takes long
        with self._lock:
            kept = self._sessions.get(record.session)
            if kept is None:
                kept = self._sessions[record.session] = _Kept(record.created_at)
                kept.below = record.parent_run_id is not None
            # The time is part of the key: a forgotten run's id may be used again, and must not replace its messages.
            kept.runs[record.run_id, record.created_at] = record, list(messages)
            kept.updated_at = time.time()
            self._touch(record.session)
            before, self._records[record.run_id] = self._records.get(record.run_id), record
            if record.status.final and not (before is not None and before.status.final):
                self._ended.append((record.run_id, size))
                self._held += size
                self._drop_records()
        return DONE

    def _drop_records(self) -> None:
        while len(self._ended) > RECORDS_KEPT or self._held > RECORDS_BYTES:
            run_id, size = self._ended.popleft()
            self._held -= size
            record = self._records.pop(run_id, None)
            kept = None if record is None else self._sessions.get(record.session)
            if record is None or kept is None or not record.metadata:
                continue
            # Its conversation stays, and has the same record: only the metadata is removed there.
            if (part := kept.runs.get(key := (run_id, record.created_at))) is not None:
                kept.runs[key] = msgspec.structs.replace(part[0], metadata={}), part[1]

    async def find(self, run_id: str) -> RunRecord | None:
        with self._lock:
            return self._records.get(run_id)

    async def added(self, run_id: str) -> list[Message] | None:
        with self._lock:
            record = self._records.get(run_id)
            part = None if record is None else self._parts(record.session).get((run_id, record.created_at))
            return None if part is None else list(part[1])

    async def rollback(self, run_id: str) -> None:
        with self._lock:
            record = self._records.get(run_id)
            if record is None:
                raise UnknownRunError(f"there is no run {run_id!r}")
            parts = {key: part for key, part in self._parts(record.session).items() if part[1]}
            key = (run_id, record.created_at)
            if key not in parts:
                raise NotContinuableError(f"run {run_id!r} is not part of its session: it was rolled back or continued")
            if key != next(reversed(parts)):
                raise NotContinuableError(f"run {run_id!r} can't be rolled back: later runs build on it")
            del self._sessions[record.session].runs[key]

    def _parts(self, session: SessionKey) -> dict[tuple[str, float], tuple[RunRecord, list[Message]]]:
        """A conversation by its runs, without runs that a later one continues."""
        kept = self._sessions.get(session)
        runs = {} if kept is None else kept.runs
        taken_up = {record.continues for record, _ in runs.values() if record.continues is not None}
        return {key: part for key, part in runs.items() if key[0] not in taken_up} if taken_up else runs

    async def history(self, session: SessionKey) -> list[tuple[RunRecord, list[Message]]]:
        with self._lock:
            self._touch(session)
            kept, parts = self._sessions.get(session), list(self._parts(session).values())
            if kept is None or not kept.brought:
                return parts
            return [(brought(kept.record(session)), list(kept.brought)), *parts]

    async def create_session(
        self, session: SessionKey, state: dict[str, Any], messages: Sequence[Message] = ()
    ) -> SessionRecord | None:
        self._check(state)
        with self._lock:
            if session in self._sessions:
                return None
            kept = self._sessions[session] = _Kept(time.time(), state, messages)
            self._touch(session)
            return kept.record(session)

    async def replace_session(self, session: SessionKey, messages: Sequence[Message]) -> SessionRecord:
        with self._lock:
            kept = self._sessions.get(session)
            if kept is None:
                kept = self._sessions[session] = _Kept(time.time())
            self._touch(session)
            kept.runs.clear()
            kept.brought, kept.updated_at = list(messages), time.time()
            return kept.record(session)

    async def find_session(self, session: SessionKey) -> SessionRecord | None:
        with self._lock:
            self._touch(session)
            kept = self._sessions.get(session)
            return None if kept is None else kept.record(session)

    async def list_sessions(
        self, agent_id: str, user_id: str | None, limit: int | None = None, after: tuple[float, str] | None = None
    ) -> list[SessionRecord]:
        with self._lock:
            theirs = [
                (kept.created_at, key, kept) for key, kept in self._sessions.items() if key[:2] == (agent_id, user_id)
            ]
        places = sorted(((at, key.session_id), key, kept) for at, key, kept in theirs)
        later = [(key, kept) for place, key, kept in places if after is None or place > after]
        return [SessionRecord(key, {}, kept.created_at, kept.updated_at) for key, kept in later[:limit]]

    async def count_sessions(self, agent_id: str, user_id: str | None) -> int:
        with self._lock:
            return sum(key[:2] == (agent_id, user_id) for key in self._sessions)

    async def update_session(self, session: SessionKey, delta: dict[str, Any]) -> SessionRecord | None:
        while (kept := self._sessions.get(session)) is not None:
            before = kept.state
            state = {**before, **delta}
            self._check(state)  # not under the lock: a large state takes long
            with self._lock:
                if self._sessions.get(session) is kept and kept.state is before:
                    self._touch(session)
                    kept.state, kept.updated_at = state, time.time()
                    return kept.record(session)
        return None

    async def delete_session(self, session: SessionKey, *, idle: bool = False) -> bool:
        with self._lock:
            return self._drop(session)

    def _check(self, state: dict[str, Any]) -> None:
        check_size(_size(state), self.max_state)


def _size(value: object) -> int:
    """In bytes, as JSON."""
    try:
        return len(_encode(value))
    except (UnicodeError, RecursionError, TypeError, OverflowError):  # there is no JSON for it: it is stored as it is
        return len(show(value))
