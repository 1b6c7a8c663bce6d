# SPDX-License-Identifier: Apache-2.0
"""Nobody waits for a database for ever: after a while a caller is told that it could not be asked.

The transaction may still be under way then, in a thread that waits for a lock, or for a server that has stopped. It is
undone before its commit. Only one that was being committed at that very moment is done though its caller was told
otherwise: that is what a `StoreError` leaves open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from andon.errors import StoreError

T = TypeVar("T")


class Deadline:
    """That of one caller."""

    __slots__ = ("_over", "_shown", "began")

    def __init__(self, shown: str) -> None:
        self._shown, self._over, self.began = shown, False, time.monotonic()

    async def wait_for(self, answer: Awaitable[T], seconds: float | None) -> T:
        """Wait so long for the answer. What has not begun by then is taken back."""
        try:
            async with asyncio.timeout(seconds) as bound:
                return await answer
        except TimeoutError:
            if not bound.expired():
                raise
            self._over = True
            raise self._error(f"has not answered within {seconds:g} s") from None

    def check(self) -> None:
        """In the thread that does the work: raise if nobody waits for it any more."""
        if self._over:
            raise self._error("answered too late, and what it was asked is undone")

    def _error(self, what: str) -> StoreError:
        return StoreError(f"the database {self._shown} {what}. Trying again may help.")
