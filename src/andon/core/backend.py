# SPDX-License-Identifier: Apache-2.0
"""Where a runtime's runs are kept: in this process alone, or in a store that several processes share.

The runtime calls its backend in the same way, whichever it has. `LocalBackend` is for one process. For a store that
several processes share it is the worker (`core/shared/worker.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from andon.core.records import RunRecord, SessionKey
from andon.core.run.run import LocalRun
from andon.core.run.storage import LocalStorage, RunStorage
from andon.core.selection import Block, BlockKind, CancelEntry, Selection
from andon.core.session import Session
from andon.core.store import Store

if TYPE_CHECKING:
    from andon.core.shared.remote import RemoteRun


class Backend(Protocol):
    """What a runtime asks of the place where its runs are kept."""

    @property
    def lag(self) -> float:
        """How many seconds a run that begins now would wait until it is taken in."""
        ...

    @property
    def lost_leases(self) -> int:
        """How many runs were stopped in this process because their leases were lost."""
        ...

    @property
    def copies_conversations(self) -> bool:
        """Does each run have a copy of its conversation? Else the runs of a session share it."""
        ...

    def storage_for(self, run: LocalRun) -> RunStorage:
        """Where this run is kept."""
        ...

    def session(self, key: SessionKey) -> Session:
        """The session of this key, for a run that begins."""
        ...

    def check_blocked(self, run: LocalRun) -> None:
        """Raise `BlockedError` if new runs of this user or agent are refused, as far as this process knows it."""
        ...

    def start(self) -> None:
        """Begin to look after the runs of processes that have died, if other processes share the store."""
        ...

    # -- runs of any process: without a shared store there are none ---------------------------------------------------

    async def find_record(self, run_id: str) -> RunRecord | None:
        """The record of this run."""
        ...

    async def list_records(
        self, which: Selection, limit: int, before: tuple[float, str] | None = None
    ) -> list[RunRecord]:
        """The newest records that fit, before this position."""
        ...

    def remote_run(self, record: RunRecord) -> RemoteRun | None:
        """The run of this record, which may be in any process."""
        ...

    async def given_back(self, run_id: str, seconds: float) -> bool:
        """Wait until a paused run that this process is giving back is paused again. False for any other run."""
        ...

    # -- the kill switch ----------------------------------------------------------------------------------------------

    async def block(self, block: Block) -> None: ...

    async def unblock(self, kind: BlockKind, id: str) -> bool: ...

    async def blocks(self) -> list[Block]: ...

    async def cancel_log(self, which: Selection, limit: int) -> list[CancelEntry]: ...


class LocalBackend:
    """Keeps what one process needs: its sessions and its blocks. Conversations and records are in the store."""

    lag = 0.0
    lost_leases = 0
    copies_conversations = False

    def __init__(self, store: Callable[[], Store | None], cancels: Callable[[], Iterable[CancelEntry]]) -> None:
        self._store, self._cancels = store, cancels
        self._storage: LocalStorage | None = None
        self._blocks: dict[tuple[str, str | None], Block] = {}
        self._sessions: WeakValueDictionary[SessionKey, Session] = WeakValueDictionary()
        self._lock = threading.Lock()

    def start_over(self) -> None:
        """In a forked child the runs in the sessions are the parent's, and the lock may be held for ever."""
        self._lock = threading.Lock()
        for session in list(self._sessions.values()):
            session.start_over()

    def storage_for(self, run: LocalRun) -> RunStorage:
        store = self._store()
        assert store is not None
        if self._storage is None or not self._storage.is_for(store):
            self._storage = LocalStorage(store)
        return self._storage

    def session(self, key: SessionKey) -> Session:
        """One object for all runs of the session. It lives as long as something refers to it."""
        with self._lock:
            session = self._sessions.get(key)
            if session is None:
                session = self._sessions[key] = Session(key)
            return session

    def has_session(self, key: SessionKey) -> bool:
        """Does a run, or anything else, refer to the session of this key?"""
        return key in self._sessions

    def check_blocked(self, run: LocalRun) -> None:
        if self._blocks:
            for key in (("user", run.user_id), ("agent", run.agent_id)):
                if (block := self._blocks.get(key)) is not None:
                    raise block.refusal()

    def start(self) -> None: ...

    async def find_record(self, run_id: str) -> RunRecord | None:
        return None

    async def list_records(
        self, which: Selection, limit: int, before: tuple[float, str] | None = None
    ) -> list[RunRecord]:
        return []

    def remote_run(self, record: RunRecord) -> RemoteRun | None:
        return None

    async def given_back(self, run_id: str, seconds: float) -> bool:
        return False

    async def block(self, block: Block) -> None:
        self._blocks[block.kind, block.id] = block

    async def unblock(self, kind: BlockKind, id: str) -> bool:
        return self._blocks.pop((kind, id), None) is not None

    async def blocks(self) -> list[Block]:
        return list(self._blocks.copy().values())

    async def cancel_log(self, which: Selection, limit: int) -> list[CancelEntry]:
        entries = {entry.run_id: entry for entry in self._cancels()}.values()
        fitting = [entry for entry in entries if entry.fits(which)]
        return sorted(fitting, key=lambda entry: -entry.request.requested_at)[:limit]
