# SPDX-License-Identifier: Apache-2.0
"""Whether the databases of a server accept writes. Readiness probes always get a response within a second.

Several load balancers may probe, also while a database hangs. So there is one check at a time: a probe during a check
waits for its result, and a probe right after it gets the same result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from andon.core.shared.store import SharedStore
from andon.errors import AndonError, SchemaError, StoreError

ANSWER_SECONDS = 0.8
FRESH_SECONDS = 0.5
"""How long a result is used."""


class Readiness:
    """Checks these stores."""

    def __init__(self, stores: Callable[[], Sequence[SharedStore]]) -> None:
        self._stores = stores
        self._asking: asyncio.Task[AndonError | None] | None = None
        self._answered = 0.0

    async def check(self) -> None:
        """Raise `StoreError` or `SchemaError` if a store can't be reached, is read-only, or does not answer in time."""
        asking = self._asking
        if asking is None or asking.get_loop() is not asyncio.get_running_loop() or self._is_old(asking):
            asking = self._asking = asyncio.create_task(self._ask(), name="andon-ready")
        await asyncio.wait([asking], timeout=ANSWER_SECONDS)  # after a timeout the task goes on, for the next probe
        if not asking.done():
            raise StoreError(f"the database has not answered within {ANSWER_SECONDS:g} s")
        if (error := asking.result()) is not None:
            raise error

    def _is_old(self, asking: asyncio.Task[AndonError | None]) -> bool:
        return asking.done() and (asking.cancelled() or time.monotonic() - self._answered > FRESH_SECONDS)

    async def _ask(self) -> AndonError | None:
        try:
            for store in self._stores():
                await store.ping()
        except (StoreError, SchemaError) as error:
            return error
        finally:
            self._answered = time.monotonic()
        return None
