# SPDX-License-Identifier: Apache-2.0
"""Items for the scripted model that tell the test how far it has come, and wait for its word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from andon.models.base import Sink
from andon.models.scripted import Item, ScriptedModel
from tests.support.flags import Flag, forever


@dataclass(frozen=True)
class Reach(Item):
    """Tell the test that the model has come here."""

    flag: Flag

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        self.flag.set()


@dataclass(frozen=True)
class Hold(Item):
    """Wait for the test's word."""

    flag: Flag

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        await self.flag.arrived()


@dataclass(frozen=True)
class Do(Item):
    """Call something of the test's, in the model's place."""

    action: Callable[[], object]

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        self.action()


@dataclass(frozen=True)
class Piece(Item):
    """One piece of a tool call's arguments, and not the last one."""

    call_id: str
    name: str
    text: str

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        sink.tool_call(self.call_id, self.name, self.text)


class Silence(Item):
    """Say nothing more, until cut; and remember how often that happened."""

    def __init__(self) -> None:
        self.reached = Flag()
        self.cuts = 0

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        self.reached.set()
        try:
            await forever()
        except asyncio.CancelledError:
            self.cuts += 1
            raise
