# SPDX-License-Identifier: Apache-2.0
"""Whether the databases behind a server take changes, for whoever probes it: answered within a second, always.

Probes come from several sides, and go on while a database hangs. So there is one question at a time: a probe that comes
while it is under way waits for the same answer, and one that comes right after it gets that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from andon.core.shared.store import SharedStore
from andon.errors import AndonError, SchemaError, StoreError

ANSWER_SECONDS = 0.8
FRESH_SECONDS = 0.5
"""For how long an answer counts."""


class Readiness:
    """Asks these stores."""

    def __init__(self, stores: Callable[[], Sequence[SharedStore]]) -> None:
        self._stores = stores
        self._asking: asyncio.Task[AndonError | None] | None = None
        self._answered = 0.0

    async def check(self) -> None:
        """Raise `StoreError`, or `SchemaError`, if a store can't be asked, takes no changes, or says nothing."""
        asking = self._asking
        if asking is None or asking.get_loop() is not asyncio.get_running_loop() or self._is_old(asking):
            asking = self._asking = asyncio.create_task(self._ask(), name="andon-ready")
        await asyncio.wait([asking], timeout=ANSWER_SECONDS)  # who gives up waiting leaves it to the next one
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
