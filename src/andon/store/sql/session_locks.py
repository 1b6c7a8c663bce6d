# SPDX-License-Identifier: Apache-2.0
"""Those of one event loop that want to change the same session do it one after the other."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from andon.core.records import SessionKey


class SessionLocks:
    """A lock for each session that is being changed. It is gone when nobody has it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[int, SessionKey], asyncio.Lock] = WeakValueDictionary()

    def of(self, session: SessionKey) -> asyncio.Lock:
        # A lock is for one loop. Those of two loops meet in the database, as two processes do.
        key = (id(asyncio.get_running_loop()), session)
        return self._locks.setdefault(key, asyncio.Lock())
