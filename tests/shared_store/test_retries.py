# SPDX-License-Identifier: Apache-2.0
"""Two processes that go on with the same runs at once, as a client that retries at another server makes them do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import msgspec

from andon import Agent, RunStatus, Runtime
from andon.core.selection import Selection
from andon.errors import AndonError
from andon.models.scripted import ScriptedModel, Stall
from andon.store.sql import SQLStore
from tests.shared_store.helpers import check_stored, on, runtimes, store_of
from tests.support import Flag, Reach, play

OLD = [f"old{number}" for number in range(4)]


async def _go_on(agent: Agent, old: str) -> str:
    try:
        return (await agent.continue_run(old, new_run_id=f"new-{old}")).status.name
    except AndonError as error:
        return type(error).__name__


async def _main(url: str) -> None:
    runtime = Runtime(SQLStore(url))
    agent = Agent("Keeper", ScriptedModel(then="And so it ended."), runtime=runtime)
    await store_of(runtime).ping()
    print(flush=True)
    sys.stdin.readline()  # until both are here
    answers = [await _go_on(agent, old) for old in OLD]
    await runtime.close()
    print(msgspec.json.encode(answers).decode())


def _start(url: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "tests.shared_store.test_retries", url]
    return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _race(url: str) -> list[list[Any]]:
    processes = [_start(url) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [msgspec.json.decode(process.communicate()[0]) for process in processes]


def test_of_two_processes_that_go_on_with_one_new_id_one_makes_the_run(url: str) -> None:
    async def main() -> None:
        async with runtimes(url, 1) as (here,):
            for old in OLD:
                reached = Flag()
                run = on(here, ["Once upon", Reach(reached), Stall()]).start("go", session_id=old, run_id=old)
                await run.begin()
                await reached.arrived()
                await run.cancel_and_wait()
            one, other = await asyncio.to_thread(_race, url)
            assert [sorted(pair) for pair in zip(one, other, strict=True)] == [["RunIdTakenError", "completed"]] * 4
            for old in OLD:
                assert (await check_stored(here, f"new-{old}", RunStatus.completed)).continues == old
            assert len(await store_of(here).list_runs(Selection(), 100)) == 8

    play(main)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
