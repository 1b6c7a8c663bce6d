# SPDX-License-Identifier: Apache-2.0
"""The agent that is served: it streams, calls tools of each kind, and asks before it deletes.

Every tool writes down that it was started, in a file that all servers append to: a call that starts twice, or that is
said never to have started, can be found there.
"""

from __future__ import annotations

import asyncio
import os
import time

from andon import Agent, ToolContext, tool
from andon.models.openai import OpenAIChat

AGENT = "chaos"
PROVIDER, STARTED = "ANDON_CHAOS_PROVIDER", "ANDON_CHAOS_STARTED"
"""Where the model is, and the file of the calls that were started: both are in the environment."""


def _note(ctx: ToolContext) -> None:
    with open(os.environ[STARTED], "a") as file:  # one short line: it is appended as a whole
        file.write(f"{ctx.call_id}\n")


@tool
async def look_up(word: str, seconds: float, ctx: ToolContext) -> str:
    """Look a word up."""
    _note(ctx)
    await asyncio.sleep(seconds)
    return f"{word} is a word"


@tool
def count(number: int, ctx: ToolContext) -> int:
    """Count, in a thread."""
    _note(ctx)
    for _ in range(number):
        ctx.check_cancelled()
        time.sleep(0.01)
    return number


@tool(approval=True)
async def delete(name: str, ctx: ToolContext) -> str:
    """Delete something, if a person agrees."""
    _note(ctx)
    return f"{name} is gone"


agent = Agent(
    AGENT,
    OpenAIChat("fake", base_url=os.environ.get(PROVIDER, "http://127.0.0.1:9/v1"), api_key="sk-fake"),
    instructions="Help.",
    tools=[look_up, count, delete],
)
