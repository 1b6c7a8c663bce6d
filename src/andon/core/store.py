# SPDX-License-Identifier: Apache-2.0
"""The interface of a store, which keeps conversations and the records of runs.

A session's conversation is the messages of its runs, in the order in which the runs took their turn. `save` replaces
the messages that one run added, so it may be called again. A session exists once it was created, or once a run has
added messages to it.
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
        """The conversation so far. It is empty if the session does not exist."""
        ...

    def save(self, record: RunRecord, messages: Sequence[Message]) -> Awaitable[None]:
        """Keep a run's record, and the messages that it added to its session. They replace what the run saved before.

        Returns a coroutine. A store that need not wait returns `DONE`, which saves the run a task.
        """
        ...

    async def find(self, run_id: str) -> RunRecord | None:
        """The record of a run, if there is one."""
        ...

    async def added(self, run_id: str) -> list[Message] | None:
        """The messages that a run added to its session. None if they are no longer part of it, or were never kept."""
        ...

    async def rollback(self, run_id: str) -> None:
        """Remove the messages that a run added to its session. The record stays. If the run continued another run, the
        messages of that run are part of the session again. Raises `NotContinuableError` if later runs build on it.
        """
        ...


@runtime_checkable
class SessionStore(Store, Protocol):
    """A store that can also list, find and change sessions. Servers need that."""

    async def history(self, session: SessionKey) -> list[tuple[RunRecord, list[Message]]]:
        """The conversation by its runs: the record of each, and the messages that it added.

        Messages that did not come from a run come first, with a record whose run id is empty (see `brought`).
        """
        ...

    async def create_session(
        self, session: SessionKey, state: dict[str, Any], messages: Sequence[Message] = ()
    ) -> SessionRecord | None:
        """Create a session with these messages. None if it exists already. Raises `StateTooLargeError`."""
        ...

    async def replace_session(self, session: SessionKey, messages: Sequence[Message]) -> SessionRecord:
        """Replace the conversation of a session by these messages. Create the session if it does not exist.

        The records of the runs stay, but the messages that they added are removed. A store that several processes share
        raises `SessionBusyError` if a run is in the session. For other stores the runtime checks that.
        """
        ...

    async def find_session(self, session: SessionKey) -> SessionRecord | None:
        """The session, if it exists."""
        ...

    async def list_sessions(
        self, agent_id: str, user_id: str | None, limit: int | None = None, after: tuple[float, str] | None = None
    ) -> list[SessionRecord]:
        """A user's sessions with an agent, oldest first, without their states: at most `limit`, or all. `after` is the
        end of the previous page: the `created_at` and the id of its last session.
        """
        ...

    async def count_sessions(self, agent_id: str, user_id: str | None) -> int:
        """How many sessions a user has with an agent. A session may count whose first run is about to begin."""
        ...

    async def update_session(self, session: SessionKey, delta: dict[str, Any]) -> SessionRecord | None:
        """Set these keys of the session's state, and return the changed session. None if it does not exist.

        Raises `StateTooLargeError`; then nothing has changed.
        """
        ...

    async def delete_session(self, session: SessionKey, *, idle: bool = False) -> bool:
        """Delete the session and its conversation. The records of its runs may stay. False if it did not exist.

        With `idle`, a store that several processes share raises `SessionBusyError` if a run is in the session.
        """
        ...
