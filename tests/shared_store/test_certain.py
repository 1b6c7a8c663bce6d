# SPDX-License-Identifier: Apache-2.0
"""A cancel is acknowledged only if the run that has this id will end as cancelled. This process may know another one:
two processes were given the same id, as when a client had no answer from the first one; or it is behind.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from andon import (
    CancelCause,
    CancelOutcome,
    Event,
    Message,
    RunIdTakenError,
    RunRecord,
    RunStatus,
    Runtime,
)
from andon.core.receipt import CancelRequest
from andon.core.run.handle import local_run
from andon.core.selection import Outcomes, Selection
from andon.core.shared.lease_state import LeaseState
from andon.core.shared.store import Granted, Lease
from andon.errors import StoreError
from andon.models.scripted import Stall
from andon.server import create_app
from andon.store.sql import SQLStore
from andon.testing import probe
from tests.server.people import TOKENS, bearer
from tests.shared_store.helpers import LONG, Shaky, check_stored, ended, found, leased, on, runtimes
from tests.support import Flag, Reach, play
from tests.support.till import DELETE, Till


class LateEnter(Shaky):
    """It is slow to take a run in, and says when it was asked to cancel one."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.entering, self.go_on, self.asked = Flag(), Flag(), Flag()

    async def enter(self, *arguments: Any) -> Granted:
        self.entering.set()
        await self.go_on.arrived()
        return await super().enter(*arguments)

    async def request_cancel(self, which: Selection, request: CancelRequest) -> Outcomes:
        try:
            return await super().request_cancel(which, request)
        finally:
            self.asked.set()


@contextlib.asynccontextmanager
async def entering(url: str, **bounds: Any) -> AsyncIterator[tuple[Runtime, LateEnter, Runtime, asyncio.Task[Any]]]:
    """Run `r`, which one process has begun, and the store has not taken in yet; and another process."""
    store = LateEnter(url)
    here = Runtime(store, lease_seconds=LONG, **bounds)
    async with runtimes(url, 1) as (there,):
        try:
            asked = asyncio.create_task(on(here, [Stall()]).invoke_async("go", run_id="r", session_id="here"))
            await store.entering.arrived()
            yield here, store, there, asked
        finally:
            store.away = False
            store.go_on.set()
            await asyncio.wait([asked])
            await here.close()


@pytest.mark.parametrize("by", ["run_id", "session_id"])
def test_a_run_of_that_id_that_has_completed_elsewhere_was_not_cancelled(url: str, by: str) -> None:
    async def main() -> None:
        async with entering(url) as (here, store, there, asked):
            await on(there, "Done.").invoke_async("go", run_id="r", session_id="there")
            which = {"run_id": "r"} if by == "run_id" else {"session_id": "here"}
            cancelling = asyncio.create_task(here.cancel(**which))  # type: ignore[arg-type]
            await store.asked.arrived()
            store.go_on.set()
            assert await cancelling == ({"r": CancelOutcome.already_finished} if by == "run_id" else {})
            with pytest.raises(RunIdTakenError):
                await asked
            await check_stored(there, "r", RunStatus.completed)

    play(main)


@pytest.mark.parametrize("away", [True, False])
def test_as_long_as_it_is_not_known_whose_the_id_is_a_cancel_is_not_acknowledged(url: str, away: bool) -> None:
    """What was begun here is stopped all the same."""

    async def main() -> None:
        async with entering(url, settle_seconds=0.2) as (here, store, there, asked):
            store.away = away
            for which in ({"run_id": "r"}, {"all": True}):
                with pytest.raises(StoreError, match="runs of this process were asked to stop: 1"):
                    await here.cancel(**which)
            if away:
                await on(there, "Done.").invoke_async("go", run_id="r", session_id="there")
            store.away = False
            store.go_on.set()
            if away:
                with pytest.raises(RunIdTakenError):
                    await asked
            else:
                assert (await asked).status is RunStatus.cancelled
            await check_stored(there, "r", RunStatus.completed if away else RunStatus.cancelled, None if away else USER)

    play(main)


USER = CancelCause.user


@pytest.mark.parametrize("late", [True, False])
def test_a_run_of_that_id_that_goes_on_elsewhere_is_cancelled(url: str, late: bool) -> None:
    """`late`: it has begun since the store was asked."""

    async def main() -> None:
        async with entering(url) as (here, store, there, asked):
            run = on(there, [Stall()]).start("go", run_id="r", session_id="there")
            if not late:
                await run.begin()
            cancelling = asyncio.create_task(here.cancel(run_id="r", by="ada"))
            await store.asked.arrived()
            if late:
                await run.begin()
            store.go_on.set()
            assert await cancelling == {"r": CancelOutcome.requested}
            await probe(run).ended()
            record = await check_stored(there, "r", RunStatus.cancelled, USER)
            assert record.receipt is not None
            assert record.receipt.by == "ada"
            with pytest.raises(RunIdTakenError):
                await asked

    play(main)


def test_a_run_that_the_store_takes_in_after_its_cancel_is_cancelled(url: str) -> None:
    async def main() -> None:
        async with entering(url) as (here, store, there, asked):
            cancelling = asyncio.create_task(here.cancel(run_id="r"))
            await store.asked.arrived()
            store.go_on.set()
            outcomes = await cancelling
            assert (outcomes, outcomes.stored) == ({"r": CancelOutcome.requested}, True)
            assert (await asked).status is RunStatus.cancelled
            await check_stored(there, "r", RunStatus.cancelled, USER)

    play(main)


def test_a_run_that_the_store_never_took_in_was_not_cancelled_in_it(url: str) -> None:
    """The runtime is closed with the store away: this process tells it of nothing any more."""

    async def main() -> None:
        store = LateEnter(url)
        here = Runtime(store, lease_seconds=LONG, settle_seconds=0.1, child_seconds=0.1)
        asked = asyncio.create_task(on(here, [Stall()]).invoke_async("go", run_id="r", session_id="here"))
        await store.entering.arrived()
        run = local_run(here.runs[0])
        cancelling = asyncio.create_task(here.cancel(run_id="r"))
        await store.asked.arrived()
        store.away = True
        store.go_on.set()
        with pytest.raises(StoreError):
            await cancelling
        await here.close()
        await asyncio.wait([asked])
        assert not run.storage.is_admitted
        async with runtimes(url, 1) as (there,):
            assert await there.cancel(run_id="r") == {}

    play(main)


# -- over HTTP --------------------------------------------------------------------------------------------------------

RUNS = "/agents/keeper/runs"


@contextlib.asynccontextmanager
async def served(url: str) -> AsyncIterator[tuple[httpx.AsyncClient, LateEnter, Runtime, asyncio.Task[httpx.Response]]]:
    """The same run of Ada, which she has begun over HTTP."""
    store = LateEnter(url)
    here = Runtime(store, lease_seconds=LONG)
    transport = httpx.ASGITransport(create_app([on(here, [Stall()])], here, tokens=TOKENS))
    async with (
        runtimes(url, 1) as (there,),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=bearer("ada")) as ada,
    ):
        try:
            wanted = {"message": "go", "run_id": "r", "stream": False}
            asked = asyncio.create_task(ada.post(RUNS, json=wanted))
            await store.entering.arrived()
            yield ada, store, there, asked
        finally:
            store.go_on.set()
            await asyncio.wait([asked])
            await here.close()


def test_the_receipt_is_that_of_the_run_that_has_the_id(url: str) -> None:
    async def main() -> None:
        async with served(url) as (ada, store, there, asked):
            run = on(there, [Stall()]).start("go", run_id="r", user_id="ada")
            await run.begin()
            cancelling = asyncio.create_task(ada.post(f"{RUNS}/r/cancel?wait=30"))
            await store.asked.arrived()
            store.go_on.set()
            answer = await cancelling
            record = await check_stored(there, "r", RunStatus.cancelled, USER)
            assert record.receipt is not None
            assert (answer.status_code, answer.json()["status"]) == (200, "CANCELLED")
            assert answer.json()["receipt"]["phase"] == record.receipt.phase.value
            assert answer.json()["receipt"]["requested_at"] == record.receipt.requested_at
            assert (await asked).status_code == 409

    play(main)


@pytest.mark.parametrize("wait", ["", "?wait=30"])
def test_another_user_s_run_of_that_id_goes_on(url: str, wait: str) -> None:
    async def main() -> None:
        async with served(url) as (ada, store, there, asked):
            run = on(there, [Stall()]).start("go", run_id="r", user_id="bob")
            await run.begin()
            cancelling = asyncio.create_task(ada.post(f"{RUNS}/r/cancel{wait}"))
            await store.asked.arrived()
            store.go_on.set()
            answer = await cancelling
            assert answer.status_code == 404
            assert "bob" not in answer.text
            assert (await asked).status_code == 409
            assert (await found(there, "r")).status is RunStatus.running
            run.cancel()
            await probe(run).ended()

    play(main)


# -- a pause ----------------------------------------------------------------------------------------------------------


class LostAnswer(SQLStore):
    """It stores a pause, and its answer is lost. It answers the next call, and the end, when the test wants that."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.paused, self.again = Flag(), Flag()
        self.ending, self.end = Flag(), Flag()
        self.away = False

    async def finish(
        self, lease: Lease, record: RunRecord, messages: Sequence[Message], events: Sequence[Event]
    ) -> RunRecord | CancelRequest | None:
        if record.status is not RunStatus.paused:
            self.ending.set()
            await self.end.arrived()
        elif self.paused.is_set():
            await self.again.arrived()
        answer = await super().finish(lease, record, messages, events)
        if record.status is RunStatus.paused and not self.paused.is_set():
            self.paused.set()
            raise StoreError("the answer was lost, says the test")
        return answer

    async def request_cancel(self, which: Selection, request: CancelRequest) -> Outcomes:
        if self.away:
            raise StoreError("the database is away, says the test")
        return await super().request_cancel(which, request)


@pytest.mark.parametrize("over", [True, False])
def test_a_pause_that_was_answered_elsewhere_before_it_was_known_here(url: str, over: bool) -> None:
    """This process has just heard that another one has the run. That one has ended it, if it is `over`."""

    async def main() -> None:
        store, till, deleted = LostAnswer(url), Till(), Flag()
        here = Runtime(store, lease_seconds=LONG)
        async with runtimes(url, 1) as (there,):
            try:
                run = on(here, DELETE, tools=till.tools).start("go", run_id="r")
                await run.begin()
                await store.paused.arrived()
                answers = {(await found(there, "r")).interrupts[0].id: True}
                agent = on(there, "Done." if over else [Reach(deleted), Stall()], tools=till.tools)
                going = await agent.resume_run("r", answers)
                await (probe(going).ended() if over else deleted.arrived())
                store.again.set()
                await store.ending.arrived()
                assert leased(run).state is not LeaseState.finishing
                store.away = True
                with pytest.raises(StoreError):
                    await here.cancel(run_id="r")
                store.away = False
                outcome = CancelOutcome.already_finished if over else CancelOutcome.requested
                assert await here.cancel(run_id="r") == {"r": outcome}
                store.end.set()
                await probe(run).ended()
                status = RunStatus.completed if over else RunStatus.cancelled
                assert (await ended(there, "r")).status is status
                assert (await run.result()).status is status
                assert till.did == ["all"]
            finally:
                store.end.set()
                await here.close()

    play(main)
