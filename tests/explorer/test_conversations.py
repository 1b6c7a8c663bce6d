# SPDX-License-Identifier: Apache-2.0
"""The explorer over a run that brings its own history, and whose instructions take a while to make."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from andon import Agent, Message, RunContext, Runtime, SessionKey, SessionRecord
from andon.models.scripted import Call
from andon.testing import explore, reading
from tests.explorer.parts import SlowStore, look_up, script

pytestmark = pytest.mark.no_cover

SAID = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "A lamp."}]


async def instructions(ctx: RunContext) -> str:
    await asyncio.sleep(1)
    return f"You are of use to {ctx.deps}."


async def brought() -> None:
    agent = Agent("A", script(Call("look_up", {"word": "sea"})), tools=[look_up], instructions=instructions)
    async for _ in reading(agent.stream_async("Tell me", messages=SAID, deps="Ann")):
        pass


class Slower(SlowStore):
    """Takes its time for what is brought as well."""

    async def replace_session(self, session: SessionKey, messages: Sequence[Message]) -> SessionRecord:
        await asyncio.sleep(0.1)
        record = await super().replace_session(session, messages)
        await asyncio.sleep(0.1)
        return record


async def kept_slowly() -> None:
    agent = Agent("A", script("Yes."), runtime=Runtime(Slower()), instructions=instructions)
    await agent.invoke_async("Hello", session_id="s1")
    await agent.invoke_async("Tell me", session_id="s1", messages=SAID)


@pytest.mark.parametrize("scenario", [brought, kept_slowly])
def test_it_can_be_disturbed_anywhere(scenario: Callable[[], Coroutine[Any, Any, object]]) -> None:
    explore(scenario).raise_for_problems()
