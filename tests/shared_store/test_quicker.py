# SPDX-License-Identifier: Apache-2.0
"""Someone else was quicker, and this process does not know it yet: what it says and does is what the store says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
import pytest

from andon import (
    CancelCause,
    CancelOutcome,
    Event,
    Message,
    Run,
    RunEvent,
    RunRecord,
    RunStatus,
    Runtime,
    ToolOutcome,
    tool,
)
from andon.agent.orphan_end import settle_orphan
from andon.core.portal import portal
from andon.core.receipt import CancelRequest, Interrupt
from andon.core.run.handle import local_run
from andon.core.run.waits import wait_admitted
from andon.core.selection import Outcomes, Selection
from andon.core.session import OnBusy
from andon.core.shared.store import Granted, Lease, Renewal, Taken
from andon.errors import NotContinuableError, RunIdTakenError, StoreError
from andon.messages import Text, ToolCall, assistant, user
from andon.models.scripted import Call, Stall
from andon.server import create_app
from andon.store.sql import SQLStore, notifications
from andon.store.sql.codec import dump_notice
from andon.testing import probe
from tests.shared_store.helpers import (
    LEASE,
    Shaky,
    changed_to,
    check_stored,
    ended,
    found,
    leased,
    on,
    runtimes,
    store_of,
)
from tests.store.making import record
from tests.support import Flag, Reach, paused, play, until
from tests.support.till import DELETE, PAY, Till


class Overtaken(SQLStore):
    """Something happens just before a run is taken up."""

    def __init__(self, url: str, before: Callable[[], Awaitable[None]]) -> None:
        super().__init__(url)
        self._before = before

    async def take_up(self, run_id: str, owner: str, seconds: float, *more: Any) -> Taken | None:
        await self._before()
        return await super().take_up(run_id, owner, seconds, *more)


class Slow(SQLStore):
    """Says what a cancel has achieved only when the worker has brought that cancel to the run."""

    run: Run

    async def request_cancel(self, which: Selection, request: CancelRequest) -> Outcomes:
        outcomes = await super().request_cancel(which, request)
        await until(lambda: local_run(self.run).signal.request is not None)
        return outcomes


class Blind(SQLStore):
    """Never says how it stands with a run."""

    async def renew(self, leases: Sequence[Lease], seconds: float | None) -> Renewal:
        raise StoreError("not now, says the test")


class Asked(SQLStore):
    """Once the store has done what it was asked, and before it says so, someone asks the run to stop."""

    def __init__(self, url: str, while_pausing: bool) -> None:
        super().__init__(url)
        self._while_pausing = while_pausing

    async def _ask(self, run_id: str) -> None:
        looked = Flag()
        listening = self.listen(lambda *_: looked.set())  # woken after the worker, which was there before
        await self.request_cancel(Selection(run_id), CancelRequest.make(CancelCause.user, by="someone"))
        await looked.arrived()
        listening.close()

    async def enter(self, record: RunRecord, owner: str, seconds: float, on_busy: OnBusy) -> Granted:
        lease = await super().enter(record, owner, seconds, on_busy)
        if not self._while_pausing:
            await self._ask(record.run_id)
        return lease

    async def finish(
        self, lease: Lease, record: RunRecord, messages: Sequence[Message], events: Sequence[Event]
    ) -> RunRecord | CancelRequest | None:
        answer = await super().finish(lease, record, messages, events)
        if record.status is RunStatus.paused:
            await self._ask(record.run_id)
        return answer


@pytest.mark.parametrize("while_pausing", [False, True])
def test_a_cancel_is_heard_though_the_worker_could_not_look_for_it_when_it_came(
    url: str, while_pausing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the run is held, and while its pause is being stored. The next renewal is far away, and so is a ping."""
    monkeypatch.setattr(notifications, "PING_SECONDS", 1000)

    async def main() -> None:
        runtime = Runtime(Asked(url, while_pausing), lease_seconds=1000)
        agent = on(runtime, DELETE if while_pausing else [Stall()], tools=Till().tools)
        assert runtime.worker is not None
        await listening(runtime)
        run = agent.start("go", run_id="r1")
        await run.begin()
        await probe(run).ended()
        await check_stored(runtime, "r1", RunStatus.cancelled, CancelCause.user)
        await runtime.close()

    play(main)


async def listening(runtime: Runtime) -> None:
    """From here on it is told what the server says."""
    connected = Flag()
    store_of(runtime).listen(lambda *_: connected.set())
    await connected.arrived()
    assert runtime.worker is not None
    runtime.worker.start()
    await until(lambda: runtime.worker is not None and runtime.worker.leases.missed > 0)  # it listens as well


def test_a_cancel_that_a_server_has_told_of_is_not_looked_for(postgres_url: str) -> None:
    async def main() -> None:
        here, there = Runtime(Blind(postgres_url), lease_seconds=1000), Runtime(SQLStore(postgres_url))
        agent, _ = on(here, [Stall()]), on(there, "OK.")
        await listening(here)
        run = agent.start("go", run_id="r1")
        await run.begin()
        await wait_admitted(local_run(run))
        assert await there.cancel(run_id="r1", by="ada") == {"r1": CancelOutcome.requested}
        await probe(run).ended()
        stored = await check_stored(here, "r1", RunStatus.cancelled, CancelCause.user)
        assert stored.receipt is not None
        assert stored.receipt.by == "ada"
        for runtime in (here, there):
            await runtime.close()

    play(main)


@pytest.mark.parametrize("by", ["ada", "mallory"])
def test_a_notification_that_the_runs_row_does_not_know_stops_nothing(postgres_url: str, by: str) -> None:
    """Every role that may connect to the database can send one: also with the right owner, and beside a real one."""

    async def main() -> None:
        async with runtimes(postgres_url) as (here, there):
            going, told = Flag(), Flag()
            agent, _ = on(here, [Reach(going), Stall()]), on(there)
            await listening(here)
            run = agent.start("go", run_id="r1")
            await run.begin()
            await going.arrived()
            store_of(here).listen(lambda names: told.set() if names == ["r1"] else None)
            forged = dump_notice("r1", leased(run).owner, CancelRequest.make(by="mallory", reason="because I can"))
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                admin.execute("SELECT pg_notify(%s, %s)", (notifications.CHANNEL, forged))
                await told.arrived()  # that somebody should look is all that was passed on
                assert not probe(run).is_cancelling
                assert await there.cancel(run_id="r1", by=by) == {"r1": CancelOutcome.requested}
                admin.execute("SELECT pg_notify(%s, %s)", (notifications.CHANNEL, forged))
            await probe(run).ended()
            stored = await check_stored(there, "r1", RunStatus.cancelled, CancelCause.user)
            assert stored.receipt is not None
            assert (stored.receipt.by, stored.receipt.reason) == (by, None)

    play(main)


def test_a_cancel_that_was_heard_of_and_then_lost_with_the_server_is_told_to_it_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was seen before it was on the disk, and never got there; but the run is stopping, and everybody must know."""
    monkeypatch.setattr(notifications, "compared", lambda driver, said: said)  # the row was there when it was looked at

    async def main() -> None:
        async with runtimes(postgres_url) as (here, there):
            going = Flag()
            agent, _ = on(here, [Reach(going), Stall()]), on(there)
            await listening(here)
            run = agent.start("go", run_id="r1")
            await run.begin()
            await going.arrived()
            request = CancelRequest.make(by="ada", mode="after_turn")
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                admin.execute(
                    "SELECT pg_notify(%s, %s)",
                    (notifications.CHANNEL, dump_notice("r1", leased(run).owner, request)),
                )
            await changed_to(there, "r1", lambda record: record.status is RunStatus.cancelling)
            assert [entry.request for entry in await store_of(there).cancel_log(Selection("r1"), 9)] == [request]
            run.cancel()
            await probe(run).ended()

    play(main)


def test_a_cancel_of_a_run_that_was_taken_up_is_heard_at_once(url: str) -> None:
    async def main() -> None:
        till, going = Till(), Flag()
        async with runtimes(url, 1) as (before,):
            run, result = await paused(on(before, DELETE, tools=till.tools), session_id="s")
        store = Blind if url.startswith("postgres") else SQLStore  # a server says it itself: nobody has to look
        here, there = Runtime(store(url), lease_seconds=1000), Runtime(SQLStore(url))
        agent, _ = on(here, [Reach(going), Stall()], tools=till.tools), on(there)
        await listening(here)
        again = await agent.resume_run(run.run_id, {result.interrupts[0].id: True})
        await going.arrived()
        assert await there.cancel(run_id=run.run_id) == {run.run_id: CancelOutcome.requested}
        await probe(again).ended()
        await check_stored(here, run.run_id, RunStatus.cancelled, CancelCause.user)
        for runtime in (here, there):
            await runtime.close()

    play(main)


def test_a_cancel_is_not_heard_by_a_run_of_that_id_in_another_schema_of_the_same_database(postgres_url: str) -> None:
    """What a server says, it says to all who listen to that database."""

    async def main() -> None:
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute("CREATE SCHEMA other")
        apart = f"{postgres_url}{'&' if '?' in postgres_url else '?'}options=-csearch_path%3Dother"
        async with runtimes(postgres_url) as (here, other), runtimes(apart, 1) as (there,):
            on(other, "OK.")
            agents, told = [on(runtime, [Stall()]) for runtime in (here, there)], Flag()
            await listening(there)
            store_of(there).listen(lambda names: told.set() if names == ["r1"] else None)  # told after the worker
            runs = [agent.start("go", run_id="r1") for agent in agents]
            for run in runs:
                await run.begin()
                await wait_admitted(local_run(run))
            assert await other.cancel(run_id="r1") == {"r1": CancelOutcome.requested}
            assert (await runs[0].result()).status is RunStatus.cancelled
            await told.arrived()
            assert runs[1].cancel() is CancelOutcome.requested  # and not before

    play(main)


async def deaf(runtime: Runtime) -> None:
    """From here on it hears of nothing."""
    assert runtime.worker is not None
    await runtime.worker.close()


def test_a_run_that_was_answered_and_has_ended_elsewhere_is_not_cancelled_here(url: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            till = Till()
            run, result = await paused(on(here, DELETE, tools=till.tools), session_id="s")
            await deaf(here)
            await on(there, "Done.", tools=till.tools).continue_run(run.run_id, {result.interrupts[0].id: True})
            assert run.status is RunStatus.paused  # as far as is known here
            assert await here.cancel(run_id=run.run_id) == {run.run_id: CancelOutcome.already_finished}
            assert await here.cancel(session_id="s") == {}
            assert await here.cancel(all=True) == {}
            await check_stored(there, run.run_id, RunStatus.completed)

    play(main)


@pytest.mark.parametrize("which", ["run_id", "session_id", "all"])
def test_a_cancel_of_a_paused_run_is_not_acknowledged_while_the_store_is_away(url: str, which: str) -> None:
    """Not the second time either: it may be answered elsewhere, and then it goes on."""

    async def main() -> None:
        store, till = Shaky(url), Till()
        here, there = Runtime(store), Runtime(SQLStore(url))
        try:
            run, result = await paused(on(here, DELETE, tools=till.tools), session_id="s")
            asked: dict[str, Any] = {"run_id": run.run_id, "session_id": "s", "all": True}
            store.away = True
            for _ in range(3):
                with pytest.raises(StoreError):
                    await here.cancel(**{which: asked[which]})
            assert run.status is RunStatus.paused
            agent = on(there, "Done.", tools=till.tools)
            answered = await agent.continue_run(run.run_id, {result.interrupts[0].id: True})
            assert answered.status is RunStatus.completed
            assert till.did == ["all"]
            store.away = False
            await probe(run).ended()
            assert (await run.result()).status is RunStatus.completed
            await check_stored(there, run.run_id, RunStatus.completed)
        finally:
            await here.close()
            await there.close()

    play(main)


class LateAnswer(Shaky):
    """It has stored a pause, and its answer is on the way until the test lets it arrive."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.stored, self.arrives = Flag(), Flag()

    async def finish(
        self, lease: Lease, record: RunRecord, messages: Sequence[Message], events: Sequence[Event]
    ) -> RunRecord | CancelRequest | None:
        answer = await super().finish(lease, record, messages, events)
        if record.status is RunStatus.paused:
            self.stored.set()
            await self.arrives.arrived()
        return answer


@pytest.mark.parametrize("away", [True, False])
def test_a_cancel_of_a_run_that_is_about_to_be_paused_is_not_acknowledged_alone(url: str, away: bool) -> None:
    """The store has the pause, and whoever paused it does not know that yet: someone else has answered it."""

    async def main() -> None:
        store, till = LateAnswer(url), Till()
        here, there = Runtime(store), Runtime(SQLStore(url))
        try:
            run = on(here, DELETE, tools=till.tools).start("go", run_id="r1")
            await run.begin()
            await store.stored.arrived()
            interrupts = (await found(there, "r1")).interrupts
            if away:
                store.away = True
                for _ in range(2):
                    with pytest.raises(StoreError):
                        await here.cancel(run_id="r1")
                store.away = False
            await on(there, "Done.", tools=till.tools).continue_run("r1", {interrupts[0].id: True})
            assert await here.cancel(run_id="r1") == {"r1": CancelOutcome.already_finished}
            store.arrives.set()
            await probe(run).ended()
            assert (await run.result()).status is RunStatus.completed
            await check_stored(there, "r1", RunStatus.completed)
        finally:
            await here.close()
            await there.close()

    play(main)


def test_a_paused_run_that_was_asked_here_alone_is_not_acknowledged_as_asked(url: str) -> None:
    """`run.cancel()` waits for nobody, so it can't promise anything while the store is away; who asks next is told."""

    async def main() -> None:
        store, till = Shaky(url), Till()
        here, there = Runtime(store), Runtime(SQLStore(url))
        try:
            run, result = await paused(on(here, DELETE, tools=till.tools), session_id="s")
            store.away = True
            run.cancel()
            with pytest.raises(StoreError):
                await here.cancel(run_id=run.run_id)
            await on(there, "Done.", tools=till.tools).continue_run(run.run_id, {result.interrupts[0].id: True})
            store.away = False
            await probe(run).ended()
            assert (await run.result()).status is RunStatus.completed
        finally:
            await here.close()
            await there.close()

    play(main)


def test_a_run_that_is_held_here_is_stopped_at_once_though_the_store_is_away(url: str) -> None:
    """The answer says that the store does not know yet; it is told as soon as it can be."""

    async def main() -> None:
        store, entered, left = Shaky(url), Flag(), Flag()

        @tool
        async def work() -> str:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()
            return "never"

        here, there = Runtime(store, settle_seconds=0.2), Runtime(SQLStore(url))
        try:
            run = on(here, Call("work"), tools=[work]).start("go", run_id="r1")
            await run.begin()
            await entered.arrived()
            store.away = True
            outcomes = await here.cancel(run_id="r1", by="ada")
            assert (outcomes, outcomes.stored) == ({"r1": CancelOutcome.requested}, False)
            await left.arrived()
            again = await here.cancel(run_id="r1")
            assert (again, again.stored) == ({"r1": CancelOutcome.already_requested}, False)
            with pytest.raises(StoreError, match="were asked to stop: 1"):
                await here.cancel(all=True)
            assert (await found(there, "r1")).status is RunStatus.running
            store.away = False
            await probe(run).ended()
            stored = await check_stored(there, "r1", RunStatus.cancelled, CancelCause.user)
            assert stored.receipt is not None
            assert stored.receipt.by == "ada"
        finally:
            await here.close()
            await there.close()

    play(main)


def test_a_store_that_takes_long_does_not_keep_the_answer(url: str) -> None:
    async def main() -> None:
        store = Shaky(url)
        here = Runtime(store, settle_seconds=0.05)
        try:
            run = on(here, [Stall()]).start("go", run_id="r1")
            await run.begin()
            store.delay = 1.0
            outcomes = await here.cancel(run_id="r1")
            assert (outcomes, outcomes.stored) == ({"r1": CancelOutcome.requested}, False)
            store.delay = 0.0
            await probe(run).ended()
        finally:
            await here.close()

    play(main)


def test_the_process_that_is_slower_to_answer_shows_nothing_of_the_run(url: str) -> None:
    async def main() -> None:
        till, seen = Till(), []
        async with runtimes(url) as (here, there):

            async def before() -> None:
                seen.append(third.runs)
                await on(there, "Done.", tools=till.tools).continue_run(run.run_id, answers)

            third = Runtime(Overtaken(url, before))
            run, result = await paused(on(here, DELETE, tools=till.tools), session_id="s")
            answers = {result.interrupts[0].id: True}
            with pytest.raises(NotContinuableError, match=r"just now|quicker"):
                await on(third, "Done.", tools=till.tools).continue_run(run.run_id, answers)
            assert seen == [[]]
            assert not third.runs
            assert third.recent(run.run_id) is None
            assert till.did == ["all"]
            await check_stored(there, run.run_id, RunStatus.completed)
            await third.close()

    play(main)


def test_a_cancel_that_the_worker_was_quicker_to_bring_is_the_first_all_the_same(url: str) -> None:
    async def main() -> None:
        here = Runtime(store := Slow(url))
        reached = Flag()
        agent = on(here, [Reach(reached), Stall()])
        store.run = agent.start("go", run_id="r")
        await store.run.begin()
        await reached.arrived()
        assert await here.cancel(run_id="r", by="ann") == {"r": CancelOutcome.requested}
        assert await here.cancel(run_id="r") != {"r": CancelOutcome.requested}
        assert (await store.run.result()).status is RunStatus.cancelled
        await here.close()

    play(main)


@pytest.mark.parametrize("local", [True, False], ids=["paused here", "paused elsewhere"])
def test_an_answer_is_not_given_to_a_later_question(url: str, local: bool) -> None:
    async def main() -> None:
        till = Till()
        async with runtimes(url) as (other, there):

            async def before() -> None:
                await on(there, PAY, tools=till.tools).continue_run(run.run_id, answers)

            here = Runtime(Overtaken(url, before))
            mine = on(here, DELETE, tools=till.tools)
            run, result = await paused(mine if local else on(other, DELETE, tools=till.tools), session_id="s")
            answers = {result.interrupts[0].id: True}
            with pytest.raises(NotContinuableError, match=r"just now|quicker"):
                await mine.continue_run(run.run_id, answers)
            record = await found(there, run.run_id)
            assert record.status is RunStatus.paused
            (question,) = record.interrupts
            assert question.call_id == "p"
            last = await on(there, "Paid.", tools=till.tools).continue_run(run.run_id, {question.id: "yes"})
            assert last.status is RunStatus.completed
            assert till.did == ["all", "yes"]
            await check_stored(there, run.run_id, RunStatus.completed)
            await here.close()

    play(main)


class Forgetful(SQLStore):
    """Takes its time to say what an ended run has left."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked, self.says = Flag(), Flag()

    async def added(self, run_id: str) -> list[Message] | None:
        self.asked.set()
        await self.says.arrived()
        return await super().added(run_id)


def test_a_paused_run_that_is_cancelled_here_and_ended_by_the_store_has_one_end(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The cancel hands it to the portal; the worker was quicker to see that it has ended, and shows that end."""
    handed_over = list[tuple[object, Any]]()

    async def main() -> None:
        store = Forgetful(url)
        here = Runtime(store, lease_seconds=LEASE)
        try:
            run, _ = await paused(on(here, DELETE, "Done.", tools=Till().tools), run_id="r1")
            with monkeypatch.context() as patch:
                patch.setattr(portal, "submit_soon", lambda *what: handed_over.append(what))
                assert (await here.cancel(run_id="r1"))["r1"] is CancelOutcome.requested
                await store.asked.arrived()
            portal.submit_soon(*handed_over[0])
            await asyncio.wrap_future(portal.submit(nothing))  # it has begun
            store.says.set()
            assert (await run.result()).status is RunStatus.cancelled
            await probe(run).ended()
            assert [event.event for event in probe(run).events][-1:] == [RunEvent.run_cancelled]
            await check_stored(here, "r1", RunStatus.cancelled, CancelCause.user)
        finally:
            await here.close()

    async def nothing() -> None:
        pass

    play(main)
    assert [line.message for line in caplog.records if line.levelname == "CRITICAL"] == []


def test_a_call_that_was_approved_before_its_worker_died_may_have_started() -> None:
    calls = [ToolCall("d", "delete", {}), ToolCall("e", "delete", {})]
    asks = [Interrupt(f"{call.id}-1", "delete", {}, call.id, approval=True) for call in calls]
    messages = [user("go"), assistant(Text("Well."), *calls)]
    request = CancelRequest.make(CancelCause.lost)
    for status, outcome in ((RunStatus.paused, ToolOutcome.not_started), (RunStatus.running, ToolOutcome.cut)):
        taken = Taken(Lease("r", 2), record("r", status, interrupts=asks), messages, None, 3)
        end, _, _ = settle_orphan(taken, request)
        assert end.receipt is not None
        assert [each.outcome for each in end.receipt.tools] == [outcome, outcome]


def test_a_run_that_was_lost_before_its_prompt_was_written_has_a_result(url: str) -> None:
    async def main() -> None:
        store = Shaky(url)
        entering = store.enter

        async def enter(*arguments: Any) -> Lease:
            lease = await entering(*arguments)
            store.away = True  # nothing after this gets through
            return lease

        store.enter = enter  # type: ignore[method-assign, assignment]
        here = Runtime(store, lease_seconds=LEASE)
        async with runtimes(url, 1, LEASE) as (there,):
            on(there)
            run = on(here, [Stall()]).start("go", session_id="s")
            await run.begin()
            await ended(there, run.run_id)
            store.away = False
            result = await run.result()
            assert (result.status, result.messages, result.message.content) == (RunStatus.cancelled, [], [])
            assert await store_of(there).load(local_run(run).session.key) == []
        await here.close()

    play(main)


def test_a_run_whose_id_is_taken_elsewhere_is_never_shown_here(url: str) -> None:
    """A client that was not answered has asked another server: the first one comes to it later."""

    async def main() -> None:
        store, entering, go_on = SQLStore(url), Flag(), Flag()
        enter = store.enter

        async def late(*arguments: Any) -> Lease:
            entering.set()
            await go_on.arrived()
            return await enter(*arguments)

        store.enter = late  # type: ignore[method-assign, assignment]
        here = Runtime(store)
        async with runtimes(url, 1) as (there,):
            agent = on(here, "Late.")
            host = create_app([agent], here).state.andon
            await on(there, "Done.").invoke_async("go", run_id="r", session_id="s")
            asked = asyncio.create_task(agent.invoke_async("go", run_id="r", session_id="t"))
            await entering.arrived()
            looking = asyncio.create_task(host.find(agent, "r"))
            go_on.set()
            assert (await looking).status is RunStatus.completed
            with pytest.raises(RunIdTakenError):
                await asked
            await check_stored(there, "r", RunStatus.completed)
        await here.close()

    play(main)
