# SPDX-License-Identifier: Apache-2.0
"""A limit on things that a store counts, such as the sessions of a user, without a count for each new one.

After a count, half of what is left is granted without counting again, but never very much, because other servers grant
too. So counts get more frequent near the limit. What must stay true: on one server the limit holds, also for concurrent
requests. So there is one count at a time per owner, and it waits until everything that was granted is in the store, or
has failed. Several servers together may exceed the limit by a little.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable

KEPT = 10_000
"""How many owners are remembered; others are counted again at their next request."""


GRANTED_AT_ONCE = 100
"""So many are granted without another count, at the most."""


class _Quota:
    """What one owner may still create."""

    __slots__ = ("being_made", "left", "none_being_made", "turn")

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.left = 0
        """How many more until the next count."""
        self.being_made = 0
        """How many were granted and may not be in the store yet."""
        self.none_being_made = asyncio.Event()
        self.none_being_made.set()

    @property
    def in_use(self) -> bool:
        return self.being_made > 0 or self.turn.locked()

    async def take(self, limit: int, count: Callable[[], Awaitable[int]]) -> bool:
        async with self.turn:
            if not self.left:
                await self.none_being_made.wait()
                counted = await count()
                self.left = min(GRANTED_AT_ONCE, 1 + (limit - counted) // 2) if counted < limit else 0
            if not self.left:
                return False
            self.left -= 1
            self.being_made += 1
            self.none_being_made.clear()
            return True

    def made(self) -> None:
        self.being_made -= 1
        if not self.being_made:
            self.none_being_made.set()


class Quotas:
    """What each owner may still create before the next count."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, _Quota] = OrderedDict()

    @contextlib.asynccontextmanager
    async def reserve(self, who: Hashable, limit: int, count: Callable[[], Awaitable[int]]) -> AsyncIterator[bool]:
        """Yields whether `who` may create one more. At the end of the block it must be in the store, or have failed."""
        theirs = self._known.setdefault(who, _Quota())
        self._known.move_to_end(who)
        taken = await theirs.take(limit, count)
        self._forget()
        try:
            yield taken
        finally:
            if taken:
                theirs.made()

    def _forget(self) -> None:
        while len(self._known) > KEPT and not next(iter(self._known.values())).in_use:
            self._known.popitem(last=False)
