# SPDX-License-Identifier: Apache-2.0
"""Which sessions a memory store deletes: those that were not used for long, and those that are too many.

If there are too many, the user who has the most loses the oldest one. So a user who creates very many loses only their
own sessions.

What must stay true: a session in use is not deleted. Each live or paused run uses its session, and each agent uses its
own conversation.

Sessions that runs create for sub-agents are counted separately: one prompt may create any number of them, and they must
not displace a person's conversations.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from time import monotonic
from weakref import WeakMethod

from andon.core.records import SessionKey
from andon.errors import ConfigurationError

DAY = 86400.0
LOOKS = 4
"""How many sessions are checked each time that one is used: enough to delete all, and no call takes long."""

InUse = Callable[[SessionKey], bool]


class Touched:
    """Sessions in the order in which they were touched, of all users together and of each user. Each operation takes
    constant time: users are grouped by their number of sessions, which an operation changes by one.
    """

    def __init__(self) -> None:
        self.times: OrderedDict[SessionKey, float] = OrderedDict()
        self._of: dict[str | None, OrderedDict[SessionKey, None]] = {}
        self._groups: dict[int, OrderedDict[str | None, None]] = {}
        """For each number of sessions, the users who have that number; first the user who was active least recently."""
        self._most = 0

    def __len__(self) -> int:
        return len(self.times)

    def touch(self, key: SessionKey) -> None:
        user = key.user_id
        theirs = self._of.setdefault(user, OrderedDict())
        before = len(theirs)
        theirs[key], self.times[key] = None, monotonic()
        theirs.move_to_end(key)
        self.times.move_to_end(key)
        self._regroup(user, before, len(theirs))

    def drop(self, key: SessionKey) -> None:
        if self.times.pop(key, None) is None:
            return
        user = key.user_id
        theirs = self._of[user]
        before = len(theirs)
        del theirs[key]
        self._regroup(user, before, len(theirs))
        if not theirs:
            del self._of[user]

    def _regroup(self, user: str | None, before: int, after: int) -> None:
        if before:
            group = self._groups[before]
            del group[user]
            if not group:
                del self._groups[before]
        if after:
            self._groups.setdefault(after, OrderedDict())[user] = None
        if after > self._most or self._most not in self._groups:  # the last one of that group has left it, by one
            self._most = after

    def oldest(self) -> SessionKey:
        return next(iter(self.times))

    def oldest_of_most(self) -> SessionKey:
        """The oldest session of the user who has the most."""
        return next(iter(self._of[next(iter(self._groups[self._most]))]))


class Retention:
    """Decides which sessions are to be deleted. None means no limit."""

    def __init__(self, keep_days: float | None, keep_sessions: int | None) -> None:
        if keep_days is not None and not keep_days >= 0:
            raise ConfigurationError(f"keep_days is {keep_days!r}; it is a number of days, 0 or more, or None for all")
        if keep_sessions is not None and not keep_sessions >= 0:
            raise ConfigurationError(f"keep_sessions is {keep_sessions!r}; it is a number, 0 or more, or None for all")
        self.keep_days, self.keep_sessions = keep_days, keep_sessions
        self._touched, self._below = Touched(), Touched()
        """The sessions of persons, and those of sub-agents."""
        self._holders: list[WeakMethod[InUse]] = []

    def spare(self, in_use: InUse) -> None:
        """Don't delete sessions for which this bound method returns True. It is held weakly."""
        self._holders = [each for each in self._holders if each() is not None]
        if (holder := WeakMethod(in_use)) not in self._holders:
            self._holders.append(holder)

    def touch(self, key: SessionKey, *, below: bool = False) -> None:
        """`below`: a run has created it for a sub-agent."""
        (self._below if below else self._touched).touch(key)

    def drop(self, key: SessionKey) -> None:
        self._touched.drop(key)
        self._below.drop(key)

    def due(self) -> Iterator[SessionKey]:
        """Some of the sessions that are too old or too many. A session that is in use is touched instead."""
        for touched in (self._touched, self._below):
            if not touched.times or not (self._are_too_many(touched) or self._is_old(touched)):
                continue  # by far the most frequent case
            yield from self._look(touched, touched.oldest, self._is_old)
            before = len(touched)
            yield from self._look(touched, touched.oldest_of_most, self._are_too_many)
            if len(touched) == before:  # those of that user that were checked are in use: then the oldest of all
                yield from self._look(touched, touched.oldest, self._are_too_many)

    def _look(
        self, touched: Touched, pick: Callable[[], SessionKey], is_due: Callable[[Touched], bool]
    ) -> Iterator[SessionKey]:
        for _ in range(LOOKS):
            if not touched or not is_due(touched):
                break
            if self._is_held(key := pick()):
                touched.touch(key)
            else:
                yield key  # the caller drops it, or touches it

    def _are_too_many(self, touched: Touched) -> bool:
        return self.keep_sessions is not None and len(touched) > self.keep_sessions

    def _is_old(self, touched: Touched) -> bool:
        return self.keep_days is not None and monotonic() - touched.times[touched.oldest()] > self.keep_days * DAY

    def _is_held(self, key: SessionKey) -> bool:
        return any(in_use(key) for holder in self._holders if (in_use := holder()) is not None)
