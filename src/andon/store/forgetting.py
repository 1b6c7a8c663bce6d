# SPDX-License-Identifier: Apache-2.0
"""Which sessions of a memory store may leave: those that nobody has touched, by age and by number.

What must stay true: a session that anybody holds stays. Every run that has not ended holds its session, a paused one
too, and so does each agent its own conversation.

Sessions that runs have made for their sub-agents are counted apart: a person comes back to a conversation, and one
prompt may make any number of those.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from time import monotonic
from weakref import WeakMethod

from andon.core.store import SessionKey
from andon.errors import ConfigurationError

DAY = 86400.0
LOOKS = 4
"""So many are looked at, at the most, each time that one is touched: nobody waits for more, and it is enough."""

InUse = Callable[[SessionKey], bool]


class Forgetting:
    """Sessions in the order in which they were touched. None means no limit."""

    def __init__(self, keep_days: float | None, keep_sessions: int | None) -> None:
        if keep_days is not None and not keep_days >= 0:
            raise ConfigurationError(f"keep_days is {keep_days!r}; it is a number of days, 0 or more, or None for all")
        if keep_sessions is not None and not keep_sessions >= 0:
            raise ConfigurationError(f"keep_sessions is {keep_sessions!r}; it is a number, 0 or more, or None for all")
        self.keep_days, self.keep_sessions = keep_days, keep_sessions
        self._touched: OrderedDict[SessionKey, float] = OrderedDict()
        self._below: OrderedDict[SessionKey, float] = OrderedDict()
        """Those of sub-agents."""
        self._holders: list[WeakMethod[InUse]] = []

    def spare(self, in_use: InUse) -> None:
        """Keep the sessions of which this method of somebody's says that they are in use, as long as there is one."""
        self._holders = [each for each in self._holders if each() is not None]
        if (holder := WeakMethod(in_use)) not in self._holders:
            self._holders.append(holder)

    def touch(self, key: SessionKey, *, below: bool = False) -> None:
        """`below`: a run has made it for a sub-agent."""
        touched = self._below if below else self._touched
        touched[key] = monotonic()
        touched.move_to_end(key)

    def drop(self, key: SessionKey) -> None:
        self._touched.pop(key, None)
        self._below.pop(key, None)

    def due(self) -> Iterator[SessionKey]:
        """Some of those that are too old or too many. One that is in use was touched by that."""
        for touched in (self._touched, self._below):
            for _ in range(LOOKS):
                key = next(iter(touched), None)
                if key is None or not self._is_due(key, touched):
                    break
                if self._is_held(key):
                    self.touch(key, below=touched is self._below)
                else:
                    yield key  # whoever asks drops it, or touches it

    def _is_due(self, key: SessionKey, touched: OrderedDict[SessionKey, float]) -> bool:
        if self.keep_sessions is not None and len(touched) > self.keep_sessions:
            return True
        return self.keep_days is not None and monotonic() - touched[key] > self.keep_days * DAY

    def _is_held(self, key: SessionKey) -> bool:
        return any(in_use(key) for holder in self._holders if (in_use := holder()) is not None)
