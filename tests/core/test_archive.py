# SPDX-License-Identifier: Apache-2.0
"""Ended runs are kept where that was asked for, for a while, and within bounds."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from pathlib import Path

from andon import Agent, MemoryStore, RunStatus, Runtime, tool
from andon.core.archive import Archive
from andon.models.scripted import Burst, Call, ScriptedModel
from andon.store import open_store
from andon.testing import probe
from tests.support import play, until


def make(runtime: Runtime, *turns: str | Burst) -> Agent:
    return Agent("Helper", ScriptedModel(*turns), runtime=runtime)


def make_kept(seconds: float) -> tuple[Agent, Archive]:
    agent = make(Runtime())
    agent.runtime.keep_ended(seconds=seconds)
    archive = agent.runtime._archive
    assert archive is not None
    return agent, archive


def test_without_being_asked_nothing_is_kept() -> None:
    async def main() -> None:
        agent = make(Runtime(), "Hello!")
        result = await agent.invoke_async("Hi")
        assert agent.runtime.recent(result.run_id) is None
        assert agent.runtime.ended == []
        assert agent.runtime.ended_counts == {}

    play(main)


def test_a_run_is_found_from_its_beginning_to_after_its_end() -> None:
    async def main() -> None:
        agent = make(Runtime(), "Hello!")
        agent.runtime.keep_ended()
        async with agent.start("Hi") as run:
            assert agent.runtime.recent(run.run_id) == run
            await run.result()
        assert agent.runtime.recent(run.run_id) == run
        assert agent.runtime.ended == [run]
        assert [event.seq async for event in run.events(1)] == [2, 3]
        assert agent.runtime.ended_counts == {RunStatus.completed: 1}

    play(main)


def test_after_its_time_it_leaves_by_itself() -> None:
    async def main() -> None:
        agent = make(Runtime())
        agent.runtime.keep_ended(seconds=0.01)
        for _ in range(3):
            await agent.invoke_async("Hi")
        await until(lambda: agent.runtime.ended == [])
        # And so does what comes later.
        await agent.invoke_async("Hi")
        await until(lambda: agent.runtime.ended == [])

    play(main)


def test_who_comes_later_leaves_later() -> None:
    async def main() -> None:
        agent, archive = make_kept(60)
        await agent.invoke_async("Hi")
        first = archive._timer
        archive.sweep()  # the timer of a run before it: this one's time has not come
        assert len(agent.runtime.ended) == 1
        assert archive._timer not in (None, first), "it will come"
        archive.seconds = 0
        archive.sweep()
        assert agent.runtime.ended == []
        assert archive._timer is None

    play(main)


def test_the_oldest_leave_when_it_is_too_much() -> None:
    async def main() -> None:
        agent = make(Runtime(), Burst("x" * 100, 100), Burst("x" * 100, 100), Burst("x" * 100, 100))
        agent.runtime.keep_ended(max_bytes=50_000)  # two of them
        runs = [(await agent.invoke_async("Hi")).run_id for _ in range(3)]
        await until(lambda: [run.run_id for run in agent.runtime.ended] == runs[1:])
        agent.model = ScriptedModel(Burst("x" * 100_000, 5))
        await agent.invoke_async("Hi")  # one that is too large by itself
        await until(lambda: agent.runtime.ended == [])

    play(main)


def test_what_was_asked_weighs_too() -> None:
    @tool
    async def keep(text: str) -> None: ...

    async def main() -> None:
        runtime = Runtime()
        runtime.keep_ended(max_bytes=100_000)
        large = "x" * 100_000
        agent = Agent("Helper", ScriptedModel(Call("keep", {"text": large}), "OK."), tools=[keep], runtime=runtime)
        await agent.invoke_async("Hi")
        await until(lambda: runtime.ended == [])
        await agent.invoke_async(large)
        await until(lambda: runtime.ended == [])
        await agent.invoke_async("Hi", metadata={"note": large})
        await until(lambda: runtime.ended == [])
        await agent.invoke_async("Hi", metadata={"note": "short"})
        await until(lambda: len(runtime.ended) == 1 and runtime._archive is not None and runtime._archive.held > 0)

    play(main)


def test_a_timer_of_a_closed_loop_is_replaced() -> None:
    agent, archive = make_kept(0.5)

    async def once() -> None:
        await agent.invoke_async("Hi")

    async def and_again() -> None:
        await agent.invoke_async("Hi")
        assert archive._home is asyncio.get_running_loop(), "at once, and not when the other's time is over"
        await until(lambda: agent.runtime.ended == [])

    play(once)
    play(and_again)


def test_a_loop_is_not_kept_alive() -> None:
    agent, archive = make_kept(0.01)
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await agent.invoke_async("Hi")
        await until(lambda: archive._timer is None)

    play(main)
    gc.collect()
    assert loops[0]() is None


def test_a_timer_of_a_loop_that_stands_still_is_replaced_when_it_is_overdue() -> None:
    agent, archive = make_kept(0.01)
    still = asyncio.new_event_loop()
    try:
        still.run_until_complete(agent.invoke_async("Hi"))
        assert archive._home is still
        overdue = archive._due + 0.02
        while time.monotonic() <= overdue:
            threading.Event().wait(0.005)

        async def and_again() -> None:
            await agent.invoke_async("Hi")
            assert archive._home is asyncio.get_running_loop()
            await until(lambda: agent.runtime.ended == [])

        play(and_again)
    finally:
        still.close()


def test_an_agent_moves_with_what_it_will_do() -> None:
    async def main() -> None:
        agent = make(Runtime(), "One.", "Two.")
        before = agent.runtime
        await agent.invoke_async("Hi")
        after = Runtime(MemoryStore())
        agent.move_to(after)
        assert agent.messages == []
        result = await agent.invoke_async("Hi")
        assert agent.runtime is after
        assert [message.text for message in result.messages] == ["Hi", "Two."]
        assert before.store is not after.store

    play(main)


def held(runtime: Runtime) -> int:
    return sum(len(message.text) for run in runtime.ended for message in probe(run).result.messages)


def test_what_a_run_has_read_from_a_database_counts(tmp_path: Path) -> None:
    """Each run in a session holds a copy of all that was said before: sixty prompts of 1 MB took 1.9 GB."""

    async def main() -> None:
        runtime = Runtime(open_store(f"sqlite:///{tmp_path}/andon.db"))
        runtime.keep_ended(max_bytes=50_000)
        agent = make(runtime)
        for _ in range(20):
            await agent.invoke_async("x" * 1000, session_id="s1")
        await until(lambda: held(runtime) <= 50_000)  # the last one is weighed a moment later
        assert held(runtime) > 20_000
        await runtime.close()

    play(main)
