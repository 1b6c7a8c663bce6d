# SPDX-License-Identifier: Apache-2.0
"""A limit of something that is counted in a store, without counting it each time: the nearer it is, the more often.

Whoever is counted is allowed half of what is left, uncounted. So several servers together may pass the limit by a
little, and never by much.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable

KEPT = 10_000
"""How many are remembered; the others are counted again when they come."""


class Allowances:
    """What each may still have before it is counted again."""

    def __init__(self) -> None:
        self._left: OrderedDict[Hashable, int] = OrderedDict()

    async def take(self, who: Hashable, limit: int, count: Callable[[], Awaitable[int]]) -> bool:
        """One more of it; False if that is one too many."""
        left = self._left.pop(who, 0)
        if not left:
            counted = await count()
            if counted >= limit:
                return False
            left = 1 + (limit - counted) // 2
        self._left[who] = left - 1
        if len(self._left) > KEPT:
            self._left.popitem(last=False)
        return True
