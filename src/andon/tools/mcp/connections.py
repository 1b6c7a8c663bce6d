# SPDX-License-Identifier: Apache-2.0
"""The connections to one server: one for each event loop that uses it.

What must stay true: it does not refer to the `MCPServer`. So the connections are closed when that is garbage.
"""

from __future__ import annotations

import asyncio
import threading
import weakref

from andon.tools.mcp.connection import Connection
from andon.tools.mcp.settings import Address, Behaviour


class Connections:
    """One connection per loop, made at the first use there."""

    def __init__(self, name: str, address: Address, behaviour: Behaviour) -> None:
        self._made_of = name, address, behaviour
        self._lock = threading.Lock()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = weakref.WeakKeyDictionary()

    def here(self) -> Connection:
        """The connection of the running loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            found = self._loops.get(loop)
            if found is None:
                found = self._loops[loop] = Connection(*self._made_of)
            return found

    def leave(self) -> None:
        """Have all of them closed. Safe from any thread; waits for nothing."""
        with self._lock:
            connections = list(self._loops.values())
        for each in connections:
            each.leave_threadsafe()

    async def close(self) -> None:
        """The same, and wait for the connection of this loop."""
        self.leave()
        await self.here().close()
