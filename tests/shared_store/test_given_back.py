# SPDX-License-Identifier: Apache-2.0
"""A paused run that was taken up for someone who is not there any more: it waits on, as if nobody had come."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from andon import CancelCause, RunEvent, RunStatus, Runtime, tool
from andon.core.records import RequestKey
from andon.core.shared.claim import _claim
from andon.core.shared.store import Taken
from andon.errors import NotContinuableError, StoreError, TooDeepError
from andon.models.scripted import Call
from andon.store.sql import SQLStore
from andon.testing import probe
from tests.shared_store.helpers import LONG, changed_to, check_stored, ended, found, on, runtimes, stored_events
from tests.support import HANG, Flag, paused, play
from tests.support.till import DELETE, Till


class Late(SQLStore):
    """Takes a run up, and answers when it may, or says that the answer was lost."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.taken, self.may_answer, self.mute = Flag(), Flag(), False

    async def take_up(self, run_id: str, owner: str, seconds: float, *more: Any) -> Taken | None:
        answer = await super().take_up(run_id, owner, seconds, *more)
        if not self.taken.is_set():
            self.taken.set()
            await self.may_answer.arrived()
            if self.mute:
                raise StoreError("the answer was lost, says the test")
        return answer


@contextlib.asynccontextmanager
async def closing(runtime: Runtime) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await runtime.close()


@contextlib.asynccontextmanager
async def late(url: str) -> AsyncIterator[tuple[Runtime, Late, Till, str, dict[str, bool]]]:
    """A run that has paused in a process that is gone, and a runtime whose store is late with it."""
    till, store = Till(), Late(url)
    async with runtimes(url, 1) as (before,):
        run, result = await paused(on(before, DELETE, tools=till.tools), session_id="s")
    here = Runtime(store, lease_seconds=LONG)
    try:
        yield here, store, till, run.run_id, {result.interrupts[0].id: True}
    finally:
        store.may_answer.set()
        await here.close()


def test_the_task_that_answers_is_cancelled_while_the_run_is_claimed(url: str) -> None:
    async def main() -> None:
        async with late(url) as (here, store, till, run_id, answers):
            agent = on(here, "Done.", tools=till.tools)
            going_on = asyncio.create_task(agent.continue_run(run_id, answers))
            await store.taken.arrived()
            going_on.cancel()
            store.may_answer.set()
            with pytest.raises(asyncio.CancelledError):
                await going_on
            assert (await found(here, run_id)).status is RunStatus.paused
            assert not here.runs
            assert (await agent.continue_run(run_id, answers)).status is RunStatus.completed
            assert till.did == ["all"]
            await check_stored(here, run_id, RunStatus.completed)

    play(main)


def test_an_answer_that_was_not_given_keeps_no_idempotency_key(url: str) -> None:
    """Else who said no is told, on a second try, that it was done, though somebody else said yes meanwhile."""

    async def main() -> None:
        async with late(url) as (here, store, till, run_id, answers):
            agent = on(here, "Done.", tools=till.tools)
            no, yes = RequestKey("no", "deny"), RequestKey("yes", "approve")
            denying = asyncio.create_task(agent.resume_run(run_id, dict.fromkeys(answers, False), request_key=no))
            await store.taken.arrived()
            assert await store.find_key(agent.id, None, "no") is not None
            denying.cancel()
            store.may_answer.set()
            with pytest.raises(asyncio.CancelledError):
                await denying
            assert await store.find_key(agent.id, None, "no") is None
            run = await agent.resume_run(run_id, answers, request_key=yes)
            assert (await run.result()).status is RunStatus.completed
            assert till.did == ["all"]
            assert await store.find_key(agent.id, None, "no") is None
            assert await store.find_key(agent.id, None, "yes") is not None

    play(main)


def test_a_run_that_is_refused_where_it_is_taken_up_waits_on(url: str) -> None:
    """A tool answers it, where no further run may begin below. Else it would be lost when its lease is over."""

    async def main() -> None:
        till = Till()
        async with runtimes(url, 1) as (before,):
            run, result = await paused(on(before, DELETE, tools=till.tools), session_id="s")
        answers = {result.interrupts[0].id: True}
        async with runtimes(url, 1, max_depth=1) as (here,):
            agent, refused = on(here, "Done.", tools=till.tools), list[BaseException]()

            @tool
            async def approve() -> str:
                try:
                    await agent.continue_run(run.run_id, answers)
                except TooDeepError as error:
                    refused.append(error)
                return "tried"

            boss = on(here, Call("approve", id="a"), name="Boss", tools=[approve])
            assert (await boss.invoke_async("go")).status is RunStatus.completed
            assert len(refused) == 1
            await changed_to(here, run.run_id, lambda record: record.status is RunStatus.paused)
            assert till.did == []
            assert (await agent.continue_run(run.run_id, answers)).status is RunStatus.completed
            assert till.did == ["all"]
            await check_stored(here, run.run_id, RunStatus.completed)

    play(main)


def test_the_runtime_is_closed_while_a_run_is_taken_up(sqlite_url: str) -> None:
    async def main() -> None:
        async with late(sqlite_url) as (here, store, till, run_id, answers):
            going_on = asyncio.create_task(on(here, "Done.", tools=till.tools).continue_run(run_id, answers))
            await store.taken.arrived()
            await here.close()
            with pytest.raises(StoreError, match="closed"):
                await going_on
            assert till.did == []

    play(main)


def test_it_was_asked_to_stop_meanwhile(url: str) -> None:
    async def main() -> None:
        async with late(url) as (here, store, till, run_id, answers):
            going_on = asyncio.create_task(on(here, "Done.", tools=till.tools).continue_run(run_id, answers))
            await store.taken.arrived()
            assert await here.cancel(run_id=run_id)
            going_on.cancel()
            store.may_answer.set()
            with pytest.raises(asyncio.CancelledError):
                await going_on
            await ended(here, run_id)
            await check_stored(here, run_id, RunStatus.cancelled, CancelCause.user)
            assert till.did == []

    play(main)


@pytest.mark.parametrize("at_once", [True, False], ids=["answered again at once", "when it is given back"])
def test_the_stores_answer_is_lost(url: str, at_once: bool) -> None:
    async def main() -> None:
        async with late(url) as (here, store, till, run_id, answers):
            agent = on(here, "Done.", tools=till.tools)
            store.mute = True
            store.may_answer.set()
            with pytest.raises(StoreError, match="lost"):
                await agent.continue_run(run_id, answers)
            if not at_once:
                await changed_to(here, run_id, lambda record: record.status is RunStatus.paused)
            assert (await agent.continue_run(run_id, answers)).status is RunStatus.completed
            assert till.did == ["all"]
            await check_stored(here, run_id, RunStatus.completed)

    play(main)


def test_what_is_given_back_is_not_what_another_answer_has_got(url: str) -> None:
    """Two answers in one process, and only the store knows which one has the run: the other one leaves it alone."""

    async def main() -> None:
        async with late(url) as (here, store, till, run_id, answers):
            agent, asking, may_ask, decided = on(here, "Done.", tools=till.tools), Flag(), Flag(), Flag()
            calls = itertools.count(1)

            async def take_up(run_id: str, owner: str, seconds: float, *more: Any) -> Taken | None:
                number = next(calls)
                if number == 1:  # the first one's question comes late
                    asking.set()
                    await may_ask.arrived()
                if number == 3:  # and what the second one has got is given back when the first one has its answer
                    await decided.arrived()
                answer = await SQLStore.take_up(store, run_id, owner, seconds, *more)
                if number == 2:
                    raise StoreError("the answer was lost, says the test")
                return answer

            store.take_up = take_up  # type: ignore[method-assign]
            first = asyncio.create_task(agent.continue_run(run_id, answers))
            first.add_done_callback(lambda _: decided.set())
            await asking.arrived()
            with pytest.raises(StoreError, match="lost"):
                await agent.continue_run(run_id, answers)
            may_ask.set()
            with pytest.raises(NotContinuableError, match=r"just now|quicker"):
                await first
            assert till.did == []
            assert (await agent.continue_run(run_id, answers)).status is RunStatus.completed
            assert till.did == ["all"]
            await check_stored(here, run_id, RunStatus.completed)

    play(main)


@pytest.mark.parametrize("way", ["the answer is lost", "the caller leaves"])
def test_one_that_paused_here_waits_on_too(url: str, way: str) -> None:
    async def main() -> None:
        till, store = Till(), Late(url)
        here = Runtime(store, lease_seconds=LONG)
        async with runtimes(url, 1) as (there,), closing(here):
            agent = on(here, DELETE, tools=till.tools)
            run, result = await paused(agent, session_id="s")
            answers = {result.interrupts[0].id: True}
            store.mute = way == "the answer is lost"
            going_on = asyncio.create_task(agent.continue_run(run.run_id, answers))
            await store.taken.arrived()
            if not store.mute:
                going_on.cancel()
            store.may_answer.set()
            with pytest.raises(StoreError if store.mute else asyncio.CancelledError):
                await going_on
            async with asyncio.timeout(HANG):
                assert [event async for event in run][-1].event is RunEvent.run_paused  # a reader ends there again
            await changed_to(here, run.run_id, lambda record: record.status is RunStatus.paused)
            done = await on(there, "Done.", tools=till.tools).continue_run(run.run_id, answers)
            assert (done.status, till.did) == (RunStatus.completed, ["all"])
            await probe(run).ended()  # the handle here hears of it a moment later
            assert (await run.result()).status is RunStatus.completed
            await check_stored(here, run.run_id, RunStatus.completed)

    play(main)


def test_one_that_was_claimed_twice_and_asks_something_else_stays_paused(url: str) -> None:
    async def main() -> None:
        async with late(url) as (here, store, till, run_id, _):
            on(here, tools=till.tools)
            assert here.worker is not None
            store.may_answer.set()
            assert await store.take_up(run_id, here.worker.link.owner, LONG)  # and nobody was told
            known = len(await stored_events(here, run_id)) - 1
            assert await _claim(here.worker.link, run_id, known, here.worker.link.owner) is None
            assert (await found(here, run_id)).status is RunStatus.paused

    play(main)


class Interrupted(BaseException):
    """As a signal handler may raise it, anywhere."""


@pytest.mark.parametrize("then", ["answer", "cancel"])
def test_an_interrupt_right_after_the_store_has_given_the_run(
    url: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given back, and waits on. Else nobody would go on with it until its lease is over, and then it is lost."""

    async def main() -> None:
        async with runtimes(url, 1) as (here,):
            till = Till()
            agent = on(here, DELETE, "Done.", tools=till.tools)
            run, result = await paused(agent, session_id="s")
            answers = {result.interrupts[0].id: True}

            def interrupted(*_: object) -> None:
                raise Interrupted

            with monkeypatch.context() as patch:
                patch.setattr("andon.core.shared.leases.Leases.hold", interrupted)
                with pytest.raises(Interrupted):
                    await agent.continue_run(run.run_id, answers)
            if then == "answer":
                assert (await agent.continue_run(run.run_id, answers)).status is RunStatus.completed
                assert till.did == ["all"]
            else:
                assert run.cancel()
                await probe(run).ended()
                assert run.status is RunStatus.cancelled
                assert till.did == []

    play(main)
