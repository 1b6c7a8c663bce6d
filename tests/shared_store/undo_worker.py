# SPDX-License-Identifier: Apache-2.0
"""Another process with calls that can be undone, each up to a certain point, to be killed there.

It writes a line when a run has come to its point. What is undone is a line of the file NOTES, with the process that did
it: so the test knows it of every process, also of one that was killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from andon import Agent, RunEvent, Runtime, ToolContext, tool
from andon.models.scripted import Call, ScriptedModel
from andon.store.sql import SQLStore
from tests.support import forever

SCENES = ("at-work", "in-process", "cleaning-up", "half-undone", "paused", "abandoned")
NOTES = "ANDON_TEST_NOTES"


def note(*words: object) -> None:
    with Path(os.environ[NOTES]).open("a") as file:
        file.write(" ".join(map(str, [os.getpid(), *words])) + "\n")


def noted() -> list[list[str]]:
    path = Path(os.environ[NOTES])
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


async def refund(amount: int, call_id: str) -> None:
    note("undid", call_id, amount)


@tool(isolation="process", on_cancel=refund)
def pay_in_process(amount: int) -> str:
    note("works")
    print("up", flush=True)
    time.sleep(600)
    return "paid"


def scene(name: str, runtime: Runtime, reached: Callable[[], None]) -> Agent:
    """An agent whose call reaches the point that its name says, and stays there."""

    async def refund_for_ever(amount: int, call_id: str) -> None:
        await refund(amount, call_id)
        reached()
        await forever()

    @tool(on_cancel=refund_for_ever if name == "half-undone" else refund)
    async def pay(amount: int, ctx: ToolContext) -> str:
        if name == "paused":
            return str(ctx.interrupt("sure?"))
        try:
            if name == "cleaning-up":
                run = runtime.run(name)
                assert run is not None
                run.cancel()
            else:
                reached()
            await forever()
        finally:
            if name == "cleaning-up":
                reached()
                await forever()

    @tool(on_cancel=refund)
    def pay_in_thread(amount: int) -> str:
        reached()
        threading.Event().wait()
        return "paid"

    special: dict[str, Any] = {"in-process": pay_in_process, "abandoned": pay_in_thread}
    used = special.get(name, pay)
    model = ScriptedModel(Call(used.name, {"amount": 7}, id=name), "Fine.")
    return Agent(name, model, runtime=runtime, tools=[used])


def _say(*what: Any) -> None:
    os.write(1, msgspec.json.encode(what) + b"\n")  # in one piece: a thread says something too


async def _play(name: str, runtime: Runtime) -> None:
    run = scene(name, runtime, lambda: _say("reached", name)).start("go", run_id=name)
    await run.begin()
    async for event in run:
        if event.event is RunEvent.tool_output:
            _say("reached", name)
    if (await run.result()).interrupts:
        _say("reached", name)


async def _main(url: str, lease: str, *names: str) -> None:
    # Nothing that was cut is given up before this process is killed.
    bounds: dict[str, Any] = {"cut_seconds": 600, "abandon_seconds": 600, "undo_seconds": 600}
    runtime = Runtime(SQLStore(url), lease_seconds=float(lease), **bounds)
    await asyncio.gather(*(_play(name, runtime) for name in names))
    await forever()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
