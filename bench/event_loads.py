# SPDX-License-Identifier: Apache-2.0
"""The agent of the figure `events`. Servers and workers import it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from andon import Agent
from andon.models.base import ModelRequest, Sink
from andon.models.scripted import Item, ScriptedModel, Turn
from bench.loads import Words

PER_SECOND = 50
ATTACH_SECONDS = 1.0
"""How long a run waits before its first token, so that all its readers are there."""


@dataclass(frozen=True, slots=True)
class Wait(Item):
    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        await asyncio.sleep(ATTACH_SECONDS)


@dataclass(frozen=True, slots=True)
class Stamps(Item):
    """So many tokens, each of which is the moment when it was pushed, by the machine's monotonic clock."""

    count: int

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        began = time.monotonic()
        for place in range(self.count):
            sink.text(f"{time.monotonic():.6f} ")
            await asyncio.sleep(began + (place + 1) / PER_SECOND - time.monotonic())


def _answer(request: ModelRequest) -> Turn:
    """To `fast 1000` or `stamps 1000`, which asks for so many tokens."""
    kind, _, count = request.messages[-1].text.partition(" ")
    return [Wait(), Words(int(count), fast=True) if kind == "fast" else Stamps(int(count))]


agent = Agent("Bench", ScriptedModel(then=_answer))
