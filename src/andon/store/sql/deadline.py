# SPDX-License-Identifier: Apache-2.0
"""A limit on how long a caller waits for a database. After it the caller gets a `StoreError`.

The transaction may still be running then, in a thread that waits for a lock, or for a server that has stopped. It is
rolled back instead of committed. Only a transaction that is being committed at that moment is done, although its caller
got an error: after a `StoreError` both are possible.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from andon.errors import StoreError

T = TypeVar("T")


class Deadline:
    """The deadline of one caller."""

    __slots__ = ("_over", "_shown", "began")

    def __init__(self, shown: str) -> None:
        self._shown, self._over, self.began = shown, False, time.monotonic()

    async def wait_for(self, answer: Awaitable[T], seconds: float | None) -> T:
        """Wait at most this time for the answer. Work that has not begun by then is withdrawn."""
        try:
            async with asyncio.timeout(seconds) as bound:
                return await answer
        except TimeoutError:
            if not bound.expired():
                raise
            self._over = True
            raise self._error(f"has not answered within {seconds:g} s") from None

    def check(self) -> None:
        """In the thread that does the work: raise if the caller has stopped waiting."""
        if self._over:
            raise self._error("answered too late, and the change was rolled back")

    def _error(self, what: str) -> StoreError:
        return StoreError(f"the database {self._shown} {what}. Trying again may help.")
