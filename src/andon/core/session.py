# SPDX-License-Identifier: Apache-2.0
"""A session is a line: one run at a time talks in it, the others wait their turn, first come, first served.

The lock guards the line's order only. Nothing waits while it is held, and a cancel never takes it. A run that was
cancelled while it waited ends at once; its message and marker keep their place in the line, and whoever leaves the
line before them writes them down.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Literal

from andon.core.states import CancelCause, RunStatus
from andon.core.waiters import Waiters
from andon.errors import SessionBusyError, SessionPausedError

if TYPE_CHECKING:
    from andon.core.records import SessionKey
    from andon.core.run.ending import Estate
    from andon.core.run.life import Life
    from andon.messages import Message

LOST_CHECK_SECONDS = 1.0
"""The safety net for whoever queues behind a run on another loop: nothing tells that a loop was closed."""

OnBusy = Literal["reject", "queue", "cancel"]


def refusal(session: SessionKey, holder: str, status: RunStatus, describe_open: Callable[[], str]) -> SessionBusyError:
    """Why a run can't enter."""
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
    """Why nobody else may change the session."""
    if status is RunStatus.cancelling:
        what, advice = "being cancelled", "Wait for its end."
    else:
        what, advice = f"{status.name} in it", "Wait for it, or cancel it."
    words = f"session {session.session_id!r} is busy: run {holder!r} is {what}. {advice}"
    return SessionBusyError(words, run_id=holder)


class Place:
    """A run's place in its session's line."""

    __slots__ = ("bequest", "granted", "run", "stirred", "waiters")

    def __init__(self, run: Life) -> None:
        self.run = run
        self.granted = False
        self.stirred = False
        """Someone ahead lives elsewhere now."""
        self.waiters: Waiters | None = None
        self.bequest: Callable[[Estate], Awaitable[None]] | None = None
        """What a run that ended in the line left to be written when its turn comes."""


class Session:
    """One conversation, and the line of runs that want to go on with it."""

    __slots__ = ("__weakref__", "_lock", "_parts", "_places", "ahead", "changes", "key", "loaded", "view")

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self._parts: tuple[list[Message], list[Message]] = ([], [])  # one thing, so that nobody sees half a change
        self.loaded = False
        self.ahead = False
        """The store could not keep what was said here last, so it is not asked what was said."""
        self.view: Session | None = None
        """Another one, that shows what is said in this one."""
        self.changes: list[Waiters] = []
        """Who waits for each change of what was said that is under way, such as taking a run back."""
        self._lock = threading.Lock()
        self._places: list[Place] = []

    def start_over(self) -> None:
        """In a forked child the runs in the line are the parent's, and the lock may be held for ever."""
        self._lock, self._places, self.changes, self._parts = threading.Lock(), [], [], (self.base, [])

    @property
    def base(self) -> list[Message]:
        """The conversation before the run that holds the session."""
        return self._parts[0]

    @property
    def tail(self) -> list[Message]:
        """What that run has added so far."""
        return self._parts[1]

    @property
    def messages(self) -> list[Message]:
        base, tail = self._parts
        return [*base, *tail]

    def enter(self, place: Place, on_busy: OnBusy) -> None:
        """Join the line, or raise if the session is busy and `on_busy` says so."""
        with self._lock:
            ahead = [other.run for other in self._places if other.bequest is None]  # the others have ended
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
        """Leave the line before anything was said. It may be that the run had not come into it."""
        if place in self._places:
            self.leave(place)

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Change what was said, or raise if a run holds the session. A run that begins meanwhile waits to read it."""
        change = Waiters()
        with self._lock:
            holder = next((other.run for other in self._places if other.bequest is None), None)
            if holder is not None:
                raise still_busy(self.key, holder.run_id, holder.status)
            self.changes.append(change)
        try:
            yield
        finally:
            self.changes.remove(change)
            change.wake()

    async def unchanged(self) -> None:
        """Wait until nobody changes what was said."""
        for change in [*self.changes]:
            await change.wait(functools.partial(self._is_over, change))

    def _is_over(self, change: Waiters) -> bool:
        return change not in self.changes

    def supersede(self, place: Place) -> None:
        """Cancel every run that is ahead in the line."""
        with self._lock:
            ahead = self._places[: self._places.index(place)]
        for other in reversed(ahead):  # the last one first: if one ends at once, the next must not have its turn
            other.run.cancel_for(CancelCause.superseded, f"run {place.run.run_id} takes over")

    async def turn(self, place: Place) -> None:
        """Wait until all that were ahead have left."""
        if (waiters := place.waiters) is None:
            return
        while not place.granted:
            place.stirred = False
            with self._lock:
                ahead = self._places[: self._places.index(place)]
            elsewhere = [other.run for other in ahead if other.run.loop is not place.run.loop]
            try:
                async with asyncio.timeout(LOST_CHECK_SECONDS if elsewhere else None):
                    await waiters.wait(lambda: place.granted or place.stirred)
            except TimeoutError:
                for run in elsewhere:
                    run.ensure_ending()

    def stir(self) -> None:
        """A run that was paused goes on on another loop: whoever waits behind it has to look after it."""
        with self._lock:
            waiting = [place for place in self._places if place.waiters is not None]
        for place in waiting:
            place.stirred = True
            assert place.waiters is not None
            place.waiters.wake()

    def bequeath(self, place: Place, write: Callable[[Estate], Awaitable[None]]) -> bool:
        """Leave the writing to whoever is ahead. False if nobody is: then it is the run's own to do."""
        with self._lock:
            if place.granted:
                return False
            place.bequest = write
            return True

    def show(self, messages: list[Message]) -> None:
        """Until a run reads what the store has, this is the conversation as it was seen last."""
        self._parts = (messages, [])

    def open(self, base: list[Message], tail: list[Message]) -> None:
        """The holder begins: the conversation as the store has it, and the list to which the holder adds."""
        self._parts, self.loaded = (base, tail), True
        if self.view is not None:
            self.view.open(base, tail)

    def refresh(self, base: list[Message]) -> None:
        """The store has another conversation than before. A run that has begun meanwhile has read it, or will."""
        with self._lock:
            if not self._places:
                self.open(base, [])

    def close(self, messages: list[Message]) -> None:
        """Put what the holder leaves in place of what it had so far."""
        self._parts = ([*self.base, *messages], [])
        if self.view is not None and self.loaded:  # else it is not known what came before
            self.view.show(self.base)

    def leave(self, place: Place) -> Place | None:
        """Give the session to the next in line, and return its place: if that has a bequest, the writing is yours."""
        with self._lock:
            self._places.remove(place)
            if not self._places:
                return None
            heir = self._places[0]
            heir.granted = True
        if heir.waiters is not None:
            heir.waiters.wake()
        heir.run.ensure_ending()
        return heir
