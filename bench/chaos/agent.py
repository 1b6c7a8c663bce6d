# SPDX-License-Identifier: Apache-2.0
"""The agent that is served: it streams, calls tools of each kind, and asks before it deletes.

Every tool writes down when it starts and when it ends, in a file that all servers append to: a call that starts twice,
that is said never to have started, or that goes on after its run was cancelled, can be found there.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from andon import Agent, ToolContext, tool
from andon.models.openai import OpenAIChat
from andon.store.sql import database

AGENT = "chaos"
PROVIDER, NOTES, PATIENCE = "ANDON_CHAOS_PROVIDER", "ANDON_CHAOS_NOTES", "ANDON_CHAOS_PATIENCE"
CLOCK, GOES_ON = "ANDON_CHAOS_CLOCK", "ANDON_CHAOS_GOES_ON"
"""Where the model is, the file of the tools' notes, how long a store waits for a lock, by how much the clock is wrong,
and whether runs go on whose worker was lost: all in the environment.
"""

if CLOCK in os.environ:  # this machine's clock is wrong, by so many seconds
    time.time = functools.partial(lambda now, wrong: now() + wrong, time.time, float(os.environ[CLOCK]))

if PATIENCE in os.environ:  # a trial's leases are short, so that this has to be, too
    database.RETRY_SECONDS = float(os.environ[PATIENCE])


class Note(NamedTuple):
    """A tool call has started, or ended."""

    starts: bool
    run_id: str
    call_id: str
    at: float
    """By the clock that all processes of this machine share (`time.monotonic`)."""


def read_notes(path: Path) -> list[Note]:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:  # no tool was called
        return []
    words = [line.split() for line in lines]
    return [Note(what == "starts", run_id, call_id, float(at)) for what, run_id, call_id, at in words]


@contextlib.contextmanager
def _noting(ctx: ToolContext) -> Iterator[None]:
    _note("starts", ctx)
    try:
        yield
    finally:
        _note("ends", ctx)


def _note(what: str, ctx: ToolContext) -> None:
    with open(os.environ[NOTES], "a") as file:  # one short line: it is appended as a whole
        file.write(f"{what} {ctx.run_id} {ctx.call_id} {time.monotonic():.3f}\n")


@tool
async def look_up(word: str, seconds: float, ctx: ToolContext) -> str:
    """Look a word up."""
    with _noting(ctx):
        await asyncio.sleep(seconds)
    return f"{word} is a word"


@tool
def count(number: int, ctx: ToolContext) -> int:
    """Count, in a thread."""
    with _noting(ctx):
        for _ in range(number):
            ctx.check_cancelled()
            time.sleep(0.01)
    return number


@tool(approval=True)
async def delete(name: str, ctx: ToolContext) -> str:
    """Delete something, if a person agrees."""
    with _noting(ctx):
        return f"{name} is gone"


agent = Agent(
    AGENT,
    OpenAIChat("fake", base_url=os.environ.get(PROVIDER, "http://127.0.0.1:9/v1"), api_key="sk-fake"),
    instructions="Help.",
    tools=[look_up, count, delete],
    on_lost="continue" if GOES_ON in os.environ else "end",
)
