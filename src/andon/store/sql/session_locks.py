# SPDX-License-Identifier: Apache-2.0
"""Tasks of one event loop that change the same session do it one after the other."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from andon.core.records import SessionKey


class SessionLocks:
    """A lock for each session that is being changed. It is freed when no task holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[int, SessionKey], asyncio.Lock] = WeakValueDictionary()

    def of(self, session: SessionKey) -> asyncio.Lock:
        # A lock belongs to one loop. Two loops compete in the database, as two processes do.
        key = (id(asyncio.get_running_loop()), session)
        return self._locks.setdefault(key, asyncio.Lock())
