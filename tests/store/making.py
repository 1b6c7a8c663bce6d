# SPDX-License-Identifier: Apache-2.0
"""What the tests of stores put into them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

from andon import Event, RunEvent, RunRecord, RunStatus, SessionKey
from andon.core.receipt import CancelRequest
from andon.core.states import CancelCause
from andon.messages import Message, Text, assistant, user
from andon.store import MemoryStore, open_store
from andon.store.sql import SQLStore

KEY = SessionKey("helper", "ada", "s1")
LONG = 1000.0
"""A lease that no test outlives."""
PAST = -1.0
"""A lease that has run out."""


BACK_TO_2 = [
    *(f"DROP TABLE andon_{name}" for name in ("histories", "keys", "secrets", "states")),
    "DROP INDEX andon_runs_created",
    "ALTER TABLE andon_runs DROP COLUMN parent",
    "ALTER TABLE andon_sessions ADD state TEXT NOT NULL DEFAULT '{}'",
    "UPDATE andon_meta SET version = 2",
]
"""What makes a database of version 2 of one of version 3."""


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[SQLStore]:
    store = SQLStore(url)
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def opened_any(url: str) -> AsyncIterator[MemoryStore | SQLStore]:
    store = open_store(url)
    assert isinstance(store, MemoryStore | SQLStore)
    try:
        yield store
    finally:
        if isinstance(store, SQLStore):
            await store.close()


def record(
    run_id: str, status: RunStatus = RunStatus.pending, session: SessionKey = KEY, at: float = 1.5, **facts: Any
) -> RunRecord:
    return RunRecord(run_id, session, status, at, {"from": "a test"}, **facts)


def said(prompt: str) -> list[Message]:
    return [user(prompt), assistant(Text(f"{prompt}, indeed"))]


def events(run_id: str, numbers: Iterable[int], session: SessionKey = KEY) -> list[Event]:
    whose = run_id, session.session_id, session.agent_id
    return [Event(RunEvent.run_content, *whose, seq, 2.5, f"word {seq}") for seq in numbers]


def asking(**facts: Any) -> CancelRequest:
    return CancelRequest.make(CancelCause.user, **facts)
