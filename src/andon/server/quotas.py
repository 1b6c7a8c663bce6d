# SPDX-License-Identifier: Apache-2.0
"""A limit of something that is counted in a store, without counting it each time: the nearer it is, the more often.

Whoever is counted is allowed half of what is left, uncounted. What must stay true: on one server the limit holds,
however many ask at once. So one count at a time is made of each, and only when all that was allowed before is there to
be counted, or has failed. Several servers together may pass the limit by a little, and never by much.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable

KEPT = 10_000
"""How many are remembered; the others are counted again when they come."""


class _Quota:
    """What one of them may still have."""

    __slots__ = ("being_made", "left", "none_being_made", "turn")

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.left = 0
        """How many more, before they are counted again."""
        self.being_made = 0
        """How many were allowed and may not be in the store yet."""
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
                self.left = 1 + (limit - counted) // 2 if counted < limit else 0
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
    """What each may still have before it is counted again."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, _Quota] = OrderedDict()

    @contextlib.asynccontextmanager
    async def reserve(self, who: Hashable, limit: int, count: Callable[[], Awaitable[int]]) -> AsyncIterator[bool]:
        """A place for one more of it; False if that is one too many. At the end of the block it must be there to be
        counted, or have failed.
        """
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
