# SPDX-License-Identifier: Apache-2.0
"""An agent's sessions in the store: read, replace, fork and delete them.

A session is changed only while no run is in it. A run that begins during the change waits, and then reads the result.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from andon.agent.history import read_history
from andon.agent.options import check_id
from andon.core.records import SessionKey, SessionRecord
from andon.core.run.run import LocalRun
from andon.core.runtime import Runtime
from andon.core.session import Session, still_busy
from andon.core.store import SessionStore
from andon.errors import ConfigurationError, SessionBusyError, SessionExistsError, UnknownSessionError
from andon.messages import Message
from andon.plain import Plain


class StoredSession(Plain, frozen=True):
    """A session, and its conversation."""

    session_id: str
    user_id: str | None
    agent_id: str
    messages: list[Message]
    state: dict[str, Any]
    created_at: float
    updated_at: float


class Sessions:
    """The sessions of one agent. Made by `agent.sessions`.

    >>> session = await agent.sessions.get("s1", user_id="ann")
    >>> await agent.sessions.fork("s1", "s1-other", user_id="ann")
    """

    def __init__(self, runtime: Runtime, own: Session) -> None:
        self._runtime, self._own = runtime, own

    async def get(self, session_id: str, *, user_id: str | None = None) -> StoredSession | None:
        """The session with its conversation; None if there is none.

        Of a run that is at work or paused, it has the messages that are complete so far.
        """
        key, store = self._key(session_id, user_id), self._store
        running = {run.run_id: run for run in self._runs_in(key)}
        record = await store.find_session(key)
        if record is None:
            if not running:
                return None
            began = min(run.created_at for run in running.values())
            record = SessionRecord(key, {}, began, began)
        messages: list[Message] = []
        for kept, said in await store.history(key):
            running.pop(kept.run_id, None)
            messages += said
        for run in running.values():
            messages += list(run.own_messages)
        return _stored(record, messages)

    async def replace(
        self, session_id: str, messages: Sequence[Message | Mapping[str, Any]], *, user_id: str | None = None
    ) -> StoredSession:
        """Replace the conversation of the session by these messages, for good. A missing session is created.

        They are checked and repaired like the `messages` of a run. Raises `HistoryError`, and `SessionBusyError` while
        a run is in the session, also one that is paused.
        """
        key, history = self._key(session_id, user_id), read_history(messages)
        session = self._runtime.session(key)
        with changing(self._runtime, session):
            record = await self._store.replace_session(key, history)
        self._show(session, history)
        return _stored(record, history)

    async def fork(
        self, session_id: str, new_session_id: str | None = None, *, user_id: str | None = None
    ) -> StoredSession:
        """Make another session that begins with the conversation of this one, and with a copy of its state.

        A run that is at work or paused is left out: its part of the conversation is not complete. Without
        `new_session_id` the new session gets a fresh id. Raises `UnknownSessionError` and `SessionExistsError`.
        """
        check_id("new_session_id", new_session_id)
        key, store = self._key(session_id, user_id), self._store
        new = self._key(new_session_id or os.urandom(16).hex(), user_id)
        source = await store.find_session(key)
        if source is None and not self._runs_in(key):
            raise UnknownSessionError(f"agent {key.agent_id!r} has no session {session_id!r}")
        said = [message for kept, part in await store.history(key) if kept.status.final for message in part]
        record = None
        if not self._runs_in(new):
            record = await store.create_session(new, {} if source is None else source.state, said)
        if record is None:
            raise SessionExistsError(f"session {new.session_id!r} exists already: choose another id, or give none")
        return _stored(record, said)

    async def delete(self, session_id: str, *, user_id: str | None = None) -> bool:
        """Delete the session and its conversation. False if it was not there.

        The records of its runs stay. Raises `SessionBusyError` while a run is in the session, also one that is paused.
        """
        key = self._key(session_id, user_id)
        session = self._runtime.session(key)
        with changing(self._runtime, session):
            gone = await self._store.delete_session(key, idle=True)
        self._show(session, [])
        return gone

    @property
    def _store(self) -> SessionStore:
        if not isinstance(store := self._runtime.store, SessionStore):
            raise ConfigurationError(f"{store!r} keeps runs and no sessions: give the runtime a SessionStore")
        return store

    def _key(self, session_id: str, user_id: str | None) -> SessionKey:
        check_id("session_id", session_id if session_id is not None else "")
        check_id("user_id", user_id)
        return SessionKey(self._own.key.agent_id, user_id, session_id)

    def _runs_in(self, key: SessionKey) -> list[LocalRun]:
        return [run for run in self._runtime.live_runs if run.session.key == key]

    def _show(self, session: Session, messages: list[Message]) -> None:
        session.refresh(messages)
        if session is not self._own and session.key == self._own.key:  # two objects: the store is a shared one
            self._own.show(messages)


@contextlib.contextmanager
def changing(runtime: Runtime, session: Session) -> Iterator[None]:
    """Change a session, or raise if a run is in it. The error is the same for every store."""
    try:
        with session.changing():
            yield
    except SessionBusyError as error:
        holder = runtime.find(error.run_id)
        if holder is None or holder.status.final:
            raise
        # This process may know more than the store, for example that the run is being cancelled.
        raise still_busy(session.key, holder.run_id, holder.status) from None


def _stored(record: SessionRecord, messages: list[Message]) -> StoredSession:
    agent_id, user_id, session_id = record.key
    return StoredSession(session_id, user_id, agent_id, messages, record.state, record.created_at, record.updated_at)
