# SPDX-License-Identifier: Apache-2.0
"""A session is one conversation and a queue of runs. One run at a time has its turn, in the order of the queue.

The lock guards only the order of the queue. Nothing waits while it is held, and a cancel never takes it. A run that is
cancelled in the queue ends at once. Its message and marker keep their place in the queue: the run that leaves the queue
just before them writes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Literal, Protocol

from andon.core.records import SessionKey
from andon.core.states import CancelCause, CancelOutcome, RunStatus
from andon.core.steps import StepRunner
from andon.core.waiters import Waiters
from andon.errors import SessionBusyError, SessionPausedError
from andon.messages import Message

LOST_CHECK_SECONDS = 1.0
"""How often a queued run checks the runs ahead on other event loops: a closed loop sends no notification."""

OnBusy = Literal["reject", "queue", "cancel"]


def refusal(session: SessionKey, holder: str, status: RunStatus, describe_open: Callable[[], str]) -> SessionBusyError:
    """The error for a run that can't enter the queue."""
    if status is RunStatus.paused:
        return SessionPausedError(
            f"session {session.session_id!r} is paused: run {holder!r} waits for answers to {describe_open()}. Give "
            f"them with agent.continue_run({holder!r}, answers={{…}}), or cancel that run.",
            run_id=holder,
        )
    return SessionBusyError(
        f"session {session.session_id!r} is busy: run {holder!r} is {status.name} in it. "
        f'Wait for it, cancel it, use another session, or pass on_busy="queue" or on_busy="cancel".',
        run_id=holder,
    )


def still_busy(session: SessionKey, holder: str, status: RunStatus) -> SessionBusyError:
    """The error for a change of a session while a run is in it."""
    if status is RunStatus.cancelling:
        what, advice = "being cancelled", "Wait for its end."
    else:
        what, advice = f"{status.name} in it", "Wait for it, or cancel it."
    words = f"session {session.session_id!r} is busy: run {holder!r} is {what}. {advice}"
    return SessionBusyError(words, run_id=holder)


class QueuedRun(Protocol):
    """A run, as the queue sees it."""

    @property
    def run_id(self) -> str: ...

    @property
    def status(self) -> RunStatus: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def is_cancelling(self) -> bool: ...

    def is_lost(self) -> bool: ...

    def ensure_ending(self) -> None: ...

    def describe_open(self) -> str: ...

    def cancel_for(self, cause: CancelCause, reason: str | None = None) -> CancelOutcome: ...


Write = Callable[[StepRunner], Awaitable[None]]
"""Writes the messages and the marker of a run that ended in the queue, with the steps of another run."""


class Place:
    """A run's place in the queue of its session."""

    __slots__ = ("granted", "moved_ahead", "pending_write", "run", "waiters")

    def __init__(self, run: QueuedRun) -> None:
        self.run = run
        self.granted = False
        self.moved_ahead = False
        """A run ahead in the queue has moved to another event loop."""
        self.waiters: Waiters | None = None
        self.pending_write: Write | None = None
        """If the run ended in the queue: writes what it left. Called when its turn comes."""


class Session:
    """One conversation, and the queue of its runs."""

    __slots__ = ("__weakref__", "_lock", "_parts", "_places", "ahead", "changes", "key", "loaded", "view")

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self._parts: tuple[list[Message], list[Message]] = (
            [],
            [],
        )  # one tuple: a reader never sees half a change
        self.loaded = False
        self.ahead = False
        """The store could not keep the last run's messages, so the conversation is not read from it."""
        self.view: Session | None = None
        """Another session object that shows the conversation of this one."""
        self.changes: list[Waiters] = []
        """The waiters for each change of the conversation that is under way, such as a rollback."""
        self._lock = threading.Lock()
        self._places: list[Place] = []

    def start_over(self) -> None:
        """Start over in a forked child: the queued runs are the parent's, and the lock may be held for ever."""
        self._lock, self._places, self.changes, self._parts = threading.Lock(), [], [], (self.base, [])

    @property
    def queue(self) -> list[Place]:
        """The places in the queue. The first is that of the run that has its turn."""
        return self._places.copy()

    @property
    def base(self) -> list[Message]:
        """The conversation before the run that has its turn."""
        return self._parts[0]

    @property
    def tail(self) -> list[Message]:
        """The messages that this run has added so far."""
        return self._parts[1]

    @property
    def messages(self) -> list[Message]:
        base, tail = self._parts
        return [*base, *tail]

    def enter(self, place: Place, on_busy: OnBusy) -> None:
        """Join the queue, or raise if the session is busy and `on_busy` says so."""
        with self._lock:
            ahead = [other.run for other in self._places if other.pending_write is None]  # the others have ended
            for other in ahead:
                other.ensure_ending()
            holder = next((other for other in ahead if not (other.is_cancelling or other.is_lost())), None)
            if holder is not None and on_busy == "reject":
                raise refusal(self.key, holder.run_id, holder.status, holder.describe_open)
            place.granted = not self._places
            if self._places:
                place.waiters = Waiters()
            self._places.append(place)

    def withdraw(self, place: Place) -> None:
        """Leave the queue before the run added a message. The run may not be in the queue yet."""
        if place in self._places:
            self.leave(place)

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Change the conversation, or raise if a run is in the session. A run that begins meanwhile waits."""
        change = Waiters()
        with self._lock:
            holder = next((other.run for other in self._places if other.pending_write is None), None)
            if holder is not None:
                raise still_busy(self.key, holder.run_id, holder.status)
            self.changes.append(change)
        try:
            yield
        finally:
            self.changes.remove(change)
            change.wake()

    async def unchanged(self) -> None:
        """Wait until no change of the conversation is under way."""
        for change in [*self.changes]:
            await change.wait(functools.partial(self._is_over, change))

    def _is_over(self, change: Waiters) -> bool:
        return change not in self.changes

    def supersede(self, place: Place) -> None:
        """Cancel every run that is ahead in the queue."""
        with self._lock:
            ahead = self._places[: self._places.index(place)]
        for other in reversed(ahead):  # last first: if a run ends at once, the next one must not get its turn
            other.run.cancel_for(CancelCause.superseded, f"run {place.run.run_id} takes over")

    async def wait_turn(self, place: Place) -> None:
        """Wait until all runs that were ahead have left the queue."""
        if (waiters := place.waiters) is None:
            return
        while not place.granted:
            place.moved_ahead = False
            with self._lock:
                ahead = self._places[: self._places.index(place)]
            elsewhere = [other.run for other in ahead if other.run.loop is not place.run.loop]
            try:
                async with asyncio.timeout(LOST_CHECK_SECONDS if elsewhere else None):
                    await waiters.wait(lambda: place.granted or place.moved_ahead)
            except TimeoutError:
                for run in elsewhere:
                    run.ensure_ending()

    def run_moved(self) -> None:
        """A paused run continues on another event loop: the runs behind it now have to check that loop."""
        with self._lock:
            waiting = [place for place in self._places if place.waiters is not None]
        for place in waiting:
            place.moved_ahead = True
            assert place.waiters is not None
            place.waiters.wake()

    def defer_write(self, place: Place, write: Write) -> bool:
        """Leave the write to the run ahead. False if there is no run ahead: then this run has to write itself."""
        with self._lock:
            if place.granted:
                return False
            place.pending_write = write
            return True

    def show(self, messages: list[Message]) -> None:
        """Show this conversation until a run reads the store."""
        self._parts = (messages, [])

    def begin_turn(self, base: list[Message], tail: list[Message]) -> None:
        """A run begins its turn. `base` is the conversation in the store, and the run adds to `tail`."""
        self._parts, self.loaded = (base, tail), True
        if self.view is not None:
            self.view.begin_turn(base, tail)

    def refresh(self, base: list[Message]) -> None:
        """The conversation in the store has changed. A run that has begun meanwhile reads it from the store itself."""
        with self._lock:
            if not self._places:
                self.begin_turn(base, [])

    def commit(self, messages: list[Message]) -> None:
        """End a run's turn: its final messages replace those that it had so far."""
        self._parts = ([*self.base, *messages], [])
        if self.view is not None and self.loaded:  # if not loaded, the earlier messages are not known
            self.view.show(self.base)

    def leave(self, place: Place) -> Place | None:
        """Leave the queue. Give the turn to the next run, and return its place: the caller does its pending write."""
        with self._lock:
            self._places.remove(place)
            if not self._places:
                return None
            following = self._places[0]
            following.granted = True
        if following.waiters is not None:
            following.waiters.wake()
        following.run.ensure_ending()
        return following
