# SPDX-License-Identifier: Apache-2.0
"""A way to a service on this machine that can fall silent: connections stay, and what is sent does not come through."""

from __future__ import annotations

import asyncio
import threading

from bench.chaos.ports import free_port
from bench.chaos.proxy import HOST, OPEN, Link


class SilentWay:
    """A proxy on a thread of its own. What was sent in the meantime comes through when it is mended."""

    def __init__(self, port: int) -> None:
        self.port = free_port()
        self._link = Link(HOST, self.port, f"{HOST}:{port}")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="silent way", daemon=True)
        self._thread.start()
        self.change(**OPEN)

    def change(self, *, up: bool, down: bool, listens: bool = True, drop: str = "") -> None:
        asyncio.run_coroutine_threadsafe(self._link.change(up, down, listens, drop=drop), self._loop).result()

    def close(self) -> None:
        self.change(up=True, down=True, listens=False, drop="reset")
        asyncio.run_coroutine_threadsafe(self._ended(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _ended(self) -> None:
        me = asyncio.current_task()
        while tasks := [task for task in asyncio.all_tasks() if task is not me]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
