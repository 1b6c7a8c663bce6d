# SPDX-License-Identifier: Apache-2.0
"""The explorer finds what is broken in programs like those that users write, and names it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from andon import Agent, Message, RunStatus, Runtime, tool
from andon.core.records import RunRecord, SessionKey
from andon.errors import ModelError
from andon.models.base import ModelRequest
from andon.models.scripted import Call, Fail, ScriptedModel
from andon.store.memory import MemoryStore
from andon.testing import explore
from tests.testing.explorable import Scenario, calling, found, hello, raising


def test_an_agent_that_only_its_turns_end() -> None:
    @tool
    async def look() -> str:
        return "nothing yet"

    async def scenario() -> None:
        agent = Agent("Watcher", ScriptedModel(then=Call("look", {})), tools=[look], max_turns=2)
        await agent.invoke_async("Go")

    explore(scenario, inject="cancel").raise_for_problems()


# -- programs that are broken -----------------------------------------------------------------------------------------


def test_a_scenario_that_leaves_a_task_behind() -> None:
    tasks: set[asyncio.Task[None]] = set()

    async def forgetful() -> None:
        tasks.add(asyncio.create_task(asyncio.sleep(3600), name="forgotten"))
        await hello().invoke_async("Hi")

    found(explore(forgetful), r"a task was left behind: forgotten in sleep \(tasks.py:\d+\)")


def test_a_tool_that_forgets_its_task_when_it_is_cut() -> None:
    @tool
    async def fan_out() -> str:
        task = asyncio.create_task(asyncio.sleep(5, "fine"))
        return await asyncio.shield(task)

    async def scenario() -> None:
        await calling("fan_out", fan_out).invoke_async("Go")

    report = explore(scenario)
    found(report, "a task was left behind: sleep in sleep")
    assert all(problem.injection is not None for problem in report.problems)


def test_a_tool_that_forgets_its_thread() -> None:
    release = threading.Event()

    @tool
    async def spin_off() -> str:
        threading.Thread(target=release.wait, args=(20,), name="spun off", daemon=True).start()
        return "spinning"

    async def scenario() -> None:
        await calling("spin_off", spin_off).invoke_async("Go")

    found(explore(scenario), "a thread was left behind: spun off")
    release.set()


def test_a_named_thread_may_live_on() -> None:
    release = threading.Event()

    @tool
    def block() -> str:
        release.wait(20)
        return "late"

    async def scenario() -> None:
        release.clear()
        asyncio.get_running_loop().call_later(1, release.set)
        await calling("block", block).invoke_async("Go")

    explore(scenario, inject="cancel", next_prompt=None).raise_for_problems()
    release.set()


def test_a_wrapper_that_swallows_the_hosts_cancellation() -> None:
    async def polite() -> None:
        try:
            await hello().invoke_async("Hi")
        except asyncio.CancelledError:
            print("cancelled, never mind")

    report = explore(polite)
    found(report, "the host's cancellation was swallowed: the scenario went on to its end")
    assert {str(problem.injection).split(" before")[0] for problem in report.problems} == {
        "task.cancel() by the host",
        "the loop is torn down",
    }


def test_a_wrapper_that_turns_the_hosts_cancellation_into_an_error() -> None:
    async def translated() -> None:
        try:
            await hello().invoke_async("Hi")
        except asyncio.CancelledError:
            raise RuntimeError("cancelled") from None

    found(explore(translated, inject="host"), "the scenario raised RuntimeError: cancelled")


def test_a_scenario_that_is_cancelled_by_itself() -> None:
    async def confused() -> None:
        await hello().invoke_async("Hi")
        raise asyncio.CancelledError

    found(explore(confused), "the scenario was cancelled, though its host did not cancel it")


def test_a_tool_that_keeps_a_lock_when_it_is_cut() -> None:
    async def scenario() -> None:
        lock = asyncio.Lock()

        @tool
        async def book() -> str:
            await lock.acquire()
            await asyncio.sleep(1)
            lock.release()
            return "booked"

        await calling("book", book).invoke_async("Go")

    found(
        explore(scenario),
        r"the next prompt did not end: nothing is left to do .*waiting: tool book \(call_2\) in acquire",
    )
    explore(scenario, next_prompt=None).raise_for_problems()


def test_an_agent_that_fails_after_a_cancel() -> None:
    def answer(request: ModelRequest) -> Any:
        cancelled = any("Cancelled" in message.text for message in request.messages)
        return Fail(ModelError("I am offended")) if cancelled else "Hello."

    async def scenario() -> None:
        await Agent("A", ScriptedModel(then=answer)).invoke_async("Hi")

    found(explore(scenario), r"the next prompt ended as error \(ModelError: I am offended\)")


def test_a_coroutine_that_is_never_awaited() -> None:
    @tool
    async def tidy_up() -> str:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            asyncio.sleep(0)  # type: ignore[unused-coroutine]
            raise
        return "tidy"

    async def scenario() -> None:
        await calling("tidy_up", tidy_up).invoke_async("Go")

    found(explore(scenario), "RuntimeWarning: coroutine 'sleep' was never awaited")


def test_a_file_that_is_never_closed(tmp_path: Path) -> None:
    @tool
    async def write() -> str:
        file = open(tmp_path / "notes", "w")  # noqa: ASYNC230, SIM115
        await asyncio.sleep(1)
        file.close()
        return "written"

    async def scenario() -> None:
        await calling("write", write).invoke_async("Go")

    found(explore(scenario), "ResourceWarning: unclosed file .*notes")


def test_a_callback_that_fails_on_the_loop() -> None:
    @tool
    async def call_back() -> str:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_soon(lambda: 1 / 0)
            raise
        return "called"

    async def scenario() -> None:
        await calling("call_back", call_back).invoke_async("Go")

    found(explore(scenario), "the loop's exception handler was called: .*ZeroDivisionError")


def test_an_error_that_is_not_retrieved() -> None:
    @tool
    async def fire_and_forget() -> str:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            task = asyncio.ensure_future(raising(ValueError("unseen")))
            await asyncio.wait([task])
            raise
        return "done"

    async def scenario() -> None:
        await calling("fire_and_forget", fire_and_forget).invoke_async("Go")

    found(explore(scenario), "the loop's exception handler was called: .*never retrieved: ValueError.*unseen")


class Fragile:
    def __del__(self) -> None:
        raise ValueError("broken on the way out")


def test_an_object_that_fails_when_it_is_dropped() -> None:
    @tool
    async def hold() -> str:
        fragile: Fragile | None = Fragile()
        await asyncio.sleep(1)
        del Fragile.__del__
        try:
            fragile = None
        finally:
            Fragile.__del__ = __del__  # type: ignore[method-assign]
        return str(fragile)

    __del__ = Fragile.__del__

    async def scenario() -> None:
        await calling("hold", hold).invoke_async("Go")

    found(explore(scenario), "Exception ignored in.*__del__.*broken on the way out")


# -- stores that are broken -------------------------------------------------------------------------------------------


def with_store(store: Callable[[], MemoryStore], prompts: int = 2) -> Scenario:
    async def scenario() -> None:
        agent = hello(runtime=Runtime(store()))
        for number in range(prompts):
            await agent.invoke_async(f"Hi {number}")

    return scenario


class LosesTheEnd(MemoryStore):
    def save(self, record: RunRecord, messages: Sequence[Message]) -> Awaitable[None]:
        return super().save(record, messages if record.status is RunStatus.completed else messages[:-1])


class LosesRecords(MemoryStore):
    async def find(self, run_id: str) -> RunRecord | None:
        return None


class SaysCompleted(MemoryStore):
    def save(self, record: RunRecord, messages: Sequence[Message]) -> Awaitable[None]:
        return super().save(msgspec.structs.replace(record, status=RunStatus.completed), messages)


class Duplicates(MemoryStore):
    async def load(self, session: SessionKey) -> list[Message]:
        return [message for message in await super().load(session) for _ in range(2)]


class Forgets(MemoryStore):
    """Has nothing any more once it was looked into."""

    forgotten = False

    async def find(self, run_id: str) -> RunRecord | None:
        self.forgotten = True
        return await super().find(run_id)

    async def load(self, session: SessionKey) -> list[Message]:
        return [] if self.forgotten else await super().load(session)


class Hangs(MemoryStore):
    async def find(self, run_id: str) -> RunRecord | None:
        await asyncio.Event().wait()
        return None


class Fails(MemoryStore):
    async def find(self, run_id: str) -> RunRecord | None:
        raise OSError("disk gone")


@pytest.mark.parametrize(
    ("store", "pattern"),
    [
        (LosesTheEnd, r"the session has .*, the store|the store must have .* once|not valid|must end with"),
        (LosesRecords, "the store has no record of the run"),
        (SaysCompleted, "the run is cancelled, the store's record says completed"),
        (Duplicates, "the conversation is not valid: .*roles must alternate"),
        (Forgets, "the next prompt did not go on with the conversation as it was"),
        (Hangs, "looking into the store did not end: nothing is left to do"),
        (Fails, "looking into the store failed: OSError: disk gone"),
    ],
)
def test_a_broken_store(store: Callable[[], MemoryStore], pattern: str) -> None:
    found(explore(with_store(store, 1 if store is Forgets else 2)), pattern)
