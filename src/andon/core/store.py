# SPDX-License-Identifier: Apache-2.0
"""The seam to storage: where conversations and the records of runs are kept.

A session's conversation is the messages of its runs, in the order in which the runs took their turn. `save` replaces
what one run added, so it may be called again. A session is there once it was created, or once a run has left something
in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Sequence
from typing import Any, Protocol, runtime_checkable

from andon.core.records import RunRecord, SessionKey, SessionRecord
from andon.messages import Message


class _Done:
    """Nothing to wait for."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


DONE = _Done()


class Store(Protocol):
    """Keeps sessions and runs. Every method may be cancelled, and must then have done all of its work or none."""

    async def load(self, session: SessionKey) -> list[Message]:
        """The conversation so far; a session that is not there is empty."""
        ...

    def save(self, record: RunRecord, messages: Sequence[Message]) -> Awaitable[None]:
        """Keep a run's record, and the messages that it added to its session, in place of what it saved before.

        A coroutine, or, from a store that need not wait, `DONE`, which spares the run a task.
        """
        ...

    async def find(self, run_id: str) -> RunRecord | None:
        """The record of a run, if there is one."""
        ...

    async def added(self, run_id: str) -> list[Message] | None:
        """What a run has added to its session; None if that is no longer part of it, or was never kept."""
        ...

    async def rollback(self, run_id: str) -> None:
        """Take what a run added out of its session; the record stays. Raises `NotContinuableError` where later runs
        build on it. What the run had gone on with is part of the session again.
        """
        ...


@runtime_checkable
class SessionStore(Store, Protocol):
    """A store that can also say which sessions there are, and what each of them is: what servers address them by."""

    async def history(self, session: SessionKey) -> list[tuple[RunRecord, list[Message]]]:
        """The conversation by its runs: the record of each, and the messages that it added.

        What somebody has put there comes first, as if a run of no id had (see `brought`).
        """
        ...

    async def create_session(
        self, session: SessionKey, state: dict[str, Any], messages: Sequence[Message] = ()
    ) -> SessionRecord | None:
        """Make a session in which this was said; None if it is there already. Raises `StateTooLargeError`."""
        ...

    async def replace_session(self, session: SessionKey, messages: Sequence[Message]) -> SessionRecord:
        """Put these messages in place of what was said in the session, and make it if it is not there.

        The records of the runs stay, but what they have added is forgotten. A store that several processes share
        raises `SessionBusyError` if a run is in the session; of others, the runtime knows that.
        """
        ...

    async def find_session(self, session: SessionKey) -> SessionRecord | None:
        """The session, if it is there."""
        ...

    async def list_sessions(
        self, agent_id: str, user_id: str | None, limit: int | None = None, after: tuple[float, str] | None = None
    ) -> list[SessionRecord]:
        """A user's sessions with an agent, oldest first, without their states: so many, or all. `after` is where the
        page before ended: that session's `created_at` and id.
        """
        ...

    async def count_sessions(self, agent_id: str, user_id: str | None) -> int:
        """How many sessions a user has with an agent; those may count that a run is only about to begin."""
        ...

    async def update_session(self, session: SessionKey, delta: dict[str, Any]) -> SessionRecord | None:
        """Set these keys of the session's state, and return what it is then; None if it is not there.

        Raises `StateTooLargeError`, and then nothing has changed.
        """
        ...

    async def delete_session(self, session: SessionKey, *, idle: bool = False) -> bool:
        """Forget the session and its conversation; the records of its runs may stay. False if it was not there.

        With `idle`, a store that several processes share raises `SessionBusyError` if a run is in the session.
        """
        ...
