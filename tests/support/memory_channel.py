# SPDX-License-Identifier: Apache-2.0
"""An event channel in the memory of this process: it can be away, silent, and forget."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from andon.core.events import Event
from andon.core.shared.event_channel import ChannelError, Received, Text
from andon.core.waiters import Waiters


class Memory:
    """What several channels have in common, as processes have one Redis."""

    def __init__(self) -> None:
        self.streams: dict[str, list[Sequence[Event]]] = {}
        self.changed = Waiters()
        self.away = self.mute = False
        self.sent = 0
        """How many pieces of text were sent."""

    def forget(self) -> None:
        self.streams.clear()

    def wake(self) -> None:
        self.changed.wake()


class MemoryChannel:
    shown = "memory"

    def __init__(self, memory: Memory) -> None:
        self._memory, self._space, self._interrupted = memory, "", False

    async def check(self) -> None:
        await self._check()

    async def open(self, space: str) -> None:
        self._space = space
        await self._check()

    async def _check(self) -> None:
        if self._memory.away:
            raise ChannelError("it is away, says the test")
        if self._memory.mute:
            await asyncio.get_running_loop().create_future()

    async def send(self, texts: Sequence[Text]) -> None:
        await self._check()
        for text in texts:
            self._memory.streams.setdefault(self._space + text.run_id, []).append(list(text.events))
            self._memory.sent += len(text.events)
        self._memory.wake()

    async def receive(self, places: Mapping[str, str | None]) -> list[Received]:
        await self._check()
        found: list[Received] = []

        def ready() -> bool:
            for run_id, place in places.items():
                stream = self._memory.streams.get(self._space + run_id, [])
                if new := stream[int(place or 0) :]:
                    found.append(Received(run_id, str(len(stream)), new))
            return bool(found) or self._interrupted or self._memory.away

        await self._memory.changed.wait(ready)
        self._interrupted = False
        await self._check()
        return found

    async def interrupt(self) -> None:
        await self._check()
        self._interrupted = True
        self._memory.wake()

    async def close(self) -> None:
        pass
