# SPDX-License-Identifier: Apache-2.0
"""Two runtimes on one database: what one runs, the other one watches, cancels, answers and goes on with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

import pytest

from andon import CancelCause, CancelOutcome, Run, RunEvent, RunStatus, Runtime, ToolContext, tool
from andon.agent.retry import Retry
from andon.core.run.handle import local_run
from andon.core.run.run import LocalRun
from andon.core.run.waits import only_wait_settled
from andon.core.selection import Selection
from andon.core.shared import written
from andon.core.shared.remote import StoredReader
from andon.core.shared.store import Progress
from andon.core.states import RunState
from andon.errors import (
    ConfigurationError,
    ModelError,
    NotContinuableError,
    RunIdTakenError,
    SessionBusyError,
    SessionPausedError,
    UnknownRunError,
)
from andon.messages import Text, assistant, user
from andon.models.scripted import Call, Fail, Item, Stall
from andon.store.sql import SQLStore
from andon.testing import probe
from tests.shared_store.helpers import (
    LONG,
    Shaky,
    changed_to,
    check_same,
    check_stored,
    ended,
    found,
    leased,
    on,
    runtimes,
    store_of,
    stored_events,
)
from tests.support import Flag, Hold, Piece, Reach, Silence, forever, paused, play, until
from tests.support.till import DELETE, PAY, Till

Here = Callable[[Runtime, Flag], Coroutine[Any, Any, Run]]


async def begun(agent: Any, reached: Flag, **options: Any) -> Run:
    run: Run = agent.start("go", **{"session_id": "s"} | options)
    await run.begin()
    await reached.arrived()
    return run


async def _silent(here: Runtime, reached: Flag) -> Run:
    return await begun(on(here, [Reach(reached), Stall()]), reached)


async def _streaming(here: Runtime, reached: Flag) -> Run:
    return await begun(on(here, ["Once upon a time", Reach(reached), Stall()]), reached)


async def _arguments(here: Runtime, reached: Flag) -> Run:
    return await begun(on(here, [Piece("c", "look", '{"a'), Reach(reached), Stall()]), reached)


async def _backing_off(here: Runtime, reached: Flag) -> Run:
    failing: list[str | Item] = [Reach(reached), Fail(ModelError("overloaded", retryable=True))]
    agent = on(here, failing, retry=Retry(base_seconds=60.0, cap_seconds=60.0))
    return await begun(agent, reached)


async def _in_a_tool(here: Runtime, reached: Flag) -> Run:
    @tool
    async def slow() -> str:
        reached.set()
        await forever()

    return await begun(on(here, Call("slow", id="c"), tools=[slow]), reached)


async def _in_a_thread(here: Runtime, reached: Flag) -> Run:
    @tool
    def slow(ctx: ToolContext) -> str:
        cut = Flag()
        ctx.on_cancel(cut.set)
        reached.set()
        cut.wait()
        return "late"

    return await begun(on(here, Call("slow", id="c"), tools=[slow]), reached)


async def _in_a_hook(here: Runtime, reached: Flag) -> Run:
    class Hook:
        async def before_model(self, event: Any) -> None:
            reached.set()
            await forever()

    return await begun(on(here, hooks=[Hook()]), reached)


async def _paused(here: Runtime, reached: Flag) -> Run:
    run, _ = await paused(on(here, DELETE, tools=Till().tools), session_id="s")
    return run


async def _queued(here: Runtime, reached: Flag) -> Run:
    agent = on(here, [Reach(reached), Stall()])
    first = await begun(agent, reached)
    second = agent.start("me too", session_id="s", on_busy="queue")
    await second.begin()
    # What it leaves is part of the conversation when the first one has ended: so that one goes too.
    second_ended = asyncio.create_task(only_wait_settled(local_run(second)))
    second_ended.add_done_callback(lambda _: first.cancel())
    return second


PLACES: list[Here] = [
    _silent,
    _streaming,
    _arguments,
    _backing_off,
    _in_a_tool,
    _in_a_thread,
    _in_a_hook,
    _paused,
    _queued,
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__.strip("_"))
def test_a_cancel_from_elsewhere_finds_the_run_wherever_it_is(url: str, place: Here) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            run = await place(here, Flag())
            on(there)
            assert await there.cancel(run_id=run.run_id, reason="enough", by="ann") == {
                run.run_id: CancelOutcome.requested
            }
            await probe(run).ended()
            result = await run.result()
            assert result.status is RunStatus.cancelled
            assert result.receipt is not None
            assert (result.receipt.by, result.receipt.reason) == ("ann", "enough")
            assert await there.cancel(run_id=run.run_id) == {run.run_id: CancelOutcome.already_finished}
            while here.runs:
                await only_wait_settled(local_run(here.runs[0]))
            await check_stored(there, run.run_id, RunStatus.cancelled, CancelCause.user)
            if place is not _paused:  # which anybody may end who hears of it
                check_same(run, await stored_events(there, run.run_id))
            answer = await on(there, "Yes.").invoke_async("and now?", session_id="s")
            assert answer.status is RunStatus.completed
            assert answer.messages[-2:] == [user("and now?"), assistant(Text("Yes."))]

    play(main)


def test_a_run_is_watched_from_elsewhere_as_it_goes(url: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            reached, go_on = Flag(), Flag()
            agent = on(here, ["One, ", Reach(reached), Hold(go_on), "two."])
            on(there)
            assert there.worker is not None
            async with agent.start("count") as run:
                await reached.arrived()
                reader = StoredReader(there.worker.link, run.run_id)
                events = await reader.batch(100)
                while not any(event.content == "One, " for event in events):
                    events += await reader.batch(100)
                assert not reader.at_end
                go_on.set()
                while batch := await reader.batch(100):
                    events += batch
                await run.result()
            check_same(run, events)
            assert reader.at_end
            await check_stored(there, run.run_id, RunStatus.completed)

    play(main)


def test_a_session_is_one_line_for_all(url: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            reached, go_on = Flag(), Flag()
            first, other = on(here, [Reach(reached), Hold(go_on), "First."]), on(there, "Second.")
            async with first.start("one", session_id="s", run_id="r1") as run:
                await reached.arrived()
                with pytest.raises(SessionBusyError, match="r1") as refused:
                    await other.invoke_async("two", session_id="s", run_id="r2")
                assert refused.value.run_id == "r1"
                with pytest.raises(RunIdTakenError):
                    await other.invoke_async("two", session_id="t", run_id="r1")
                assert other.cancel_run("r2") is CancelOutcome.unknown  # it never was
                with pytest.raises(UnknownRunError):
                    await other.continue_run("r2")
                async with other.start("two", session_id="s", run_id="r2", on_busy="queue") as queued:
                    assert run.status is RunStatus.running
                    go_on.set()
                    result = await queued.result()
            assert [message.text for message in result.messages] == ["one", "First.", "two", "Second."]
            await check_stored(here, "r1", RunStatus.completed)
            await check_stored(here, "r2", RunStatus.completed)

    play(main)


def test_a_refused_run_leaves_nothing_and_calls_no_hook(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    class Hook:
        def run_ended(self, event: Any) -> None:
            told.append(event.result.run_id)

    async def main() -> None:
        async with runtimes(sqlite_url, 1) as (here,):
            reached = Flag()
            agent = on(here, [Reach(reached), Stall()], "Yes.", hooks=[Hook()])
            async with agent.start("one", run_id="r1"):
                await reached.arrived()
                before = agent.messages
                with pytest.raises(SessionBusyError):
                    await agent.invoke_async("two", run_id="r2")
                with pytest.raises(SessionBusyError):
                    async for _ in agent.stream_async("two", run_id="r2"):
                        pass
                assert agent.messages == before
            assert agent.messages == [user("one"), assistant(Text("Cancelled by the caller"))]
            assert told == ["r1"]
            assert await store_of(here).find("r2") is None
            # So the same id may be tried again.
            result = await agent.invoke_async("two", run_id="r2")
            assert result.status is RunStatus.completed

    play(main)
    assert not caplog.records


def test_a_newer_run_elsewhere_supersedes(url: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            silence = Silence()
            async with on(here, silence).start("one", session_id="s") as run:
                await silence.reached.arrived()
                newer = await on(there, "Second.").invoke_async("two", session_id="s", on_busy="cancel")
                assert newer.status is RunStatus.completed
                result = await run.result()
            assert result.receipt is not None
            assert result.receipt.cause is CancelCause.superseded
            await check_stored(there, run.run_id, RunStatus.cancelled, CancelCause.superseded)
            assert [message.role for message in newer.messages] == ["user", "assistant", "user", "assistant"]

    play(main)


def test_a_session_whose_run_is_being_cancelled_is_not_busy(url: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            reached, clean = Flag(), Flag()

            @tool
            async def slow() -> str:
                reached.set()
                await clean.arrived()
                return "clean"

            agent, other = on(here, Call("slow"), tools=[slow]), on(there, "Second.")
            async with agent.start("one", session_id="s") as run:
                await reached.arrived()
                run.cancel(mode="after_tools")
                # Told to the store though the run is not over: elsewhere it is not busy either.
                await changed_to(there, run.run_id, lambda record: record.status is RunStatus.cancelling)
                async with other.start("two", session_id="s") as second:
                    assert (await found(there, second.run_id)).status is RunStatus.pending
                    clean.set()
                    assert (await second.result()).status is RunStatus.completed

    play(main)


async def take_rounds(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Awaitable[None]]:
    """Nothing is written of runs that go on, and nobody told of cancels, but by what is returned, once each time."""
    worker = runtime.worker
    assert worker is not None
    write, idle = worker.writer._write_news, Flag()

    async def rest() -> bool:
        idle.set()
        return False

    async def take_round() -> None:
        await write()

    monkeypatch.setattr(written, "TEXT_SECONDS", 0.0)
    monkeypatch.setattr(worker.writer, "_write_news", rest)
    for run in runtime.runs:
        local_run(run).storage.changed()
    await idle.arrived()
    return lambda: asyncio.wrap_future(worker.link.submit(take_round))


def test_a_run_that_was_asked_to_stop_is_given_the_time_to_end_before_others_are_told(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with runtimes(url, 1) as (runtime,):
            first, second, go_on, last = Flag(), Flag(), Flag(), Flag()
            agent = on(runtime, ["One, ", Reach(first), Hold(go_on), "two, ", Reach(second), Hold(last), "three."])
            store = store_of(runtime)

            async def write_and_cancel(batch: Sequence[Progress]) -> list[str]:
                refused = await SQLStore.write(cast("SQLStore", store), batch)
                run.cancel(mode="after_turn")
                await until(lambda: probe(run).events[-1].event is RunEvent.cancel_requested)
                return refused

            async def stored() -> tuple[RunStatus, int]:
                return (await found(runtime, "r1")).status, len(await stored_events(runtime, "r1"))

            async with agent.start("go", run_id="r1") as run:
                await first.arrived()
                next_round = await take_rounds(runtime, monkeypatch)
                await next_round()
                go_on.set()
                await second.arrived()
                with monkeypatch.context() as patch:
                    patch.setattr(store, "write", write_and_cancel)
                    await next_round()
                count = len(probe(run).events)
                assert await stored() == (RunStatus.running, count - 1)
                await next_round()  # it takes its time
                assert await stored() == (RunStatus.cancelling, count)
                last.set()
                await probe(run).ended()
            await check_stored(runtime, "r1", RunStatus.cancelled, CancelCause.user)

    play(main)


def test_a_paused_run_is_answered_elsewhere_and_its_handle_goes_along(url: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            first, second, go_on = Till(), Till(), Flag()
            run, result = await paused(on(here, DELETE, tools=first.tools), session_id="s")
            other = on(there, ["Done", Hold(go_on), "."], tools=second.tools)
            with pytest.raises(SessionPausedError, match="continue_run"):
                await other.invoke_async("hello?", session_id="s")
            again = await other.resume_run(run.run_id, {result.interrupts[0].id: True})
            assert again.run_id == run.run_id
            await until(lambda: run.status is RunStatus.running)  # it has heard of it
            reader = run.events()
            while (await anext(reader)).event is not RunEvent.run_continued:  # read along, while it is going
                pass
            with pytest.raises((NotContinuableError, UnknownRunError)):
                await on(here).continue_run(run.run_id, {result.interrupts[0].id: True})
            go_on.set()
            assert (await again.result()).content == (await run.result()).content == "Done."
            await probe(run).ended()
            assert (first.did, second.did) == ([], ["all"])
            check_same(run, await stored_events(there, run.run_id))
            assert run.status is RunStatus.completed
            assert not here.runs
            await check_stored(here, run.run_id, RunStatus.completed)

    play(main)


def test_a_run_whose_loop_was_closed_is_not_lost_when_another_process_answers_it(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread looks at the run right after it is running again, there. Here, its own loop is gone."""
    move = LocalRun.move

    def looked_at(self: LocalRun, to: RunState) -> None:
        move(self, to)
        self.ensure_ending()

    async def main() -> None:
        async with runtimes(sqlite_url) as (here, there):
            agent = on(here, DELETE, tools=Till().tools)
            run, result = await asyncio.to_thread(lambda: asyncio.run(paused(agent, session_id="s")))
            monkeypatch.setattr(LocalRun, "move", looked_at)
            again = await on(there, "Done.", tools=Till().tools).resume_run(run.run_id, {result.interrupts[0].id: True})
            assert (await again.result()).status is RunStatus.completed
            await probe(run).ended()
            assert (run.status, (await run.result()).receipt) == (RunStatus.completed, None)
            check_same(run, await stored_events(there, run.run_id))  # no cancel was written here

    play(main)


def test_a_cancel_by_the_old_handle_reaches_the_process_that_went_on(url: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            reached = Flag()
            agent = on(here, DELETE, tools=Till().tools)
            run, result = await paused(agent, session_id="s")
            other = on(there, [Reach(reached), Stall()], tools=Till().tools)
            again = await other.resume_run(run.run_id, {result.interrupts[0].id: True})
            await reached.arrived()
            assert run.cancel("enough", "ann") is CancelOutcome.requested  # whether or not it has heard
            done = await again.result()
            assert (done.status, done.receipt and done.receipt.by) == (RunStatus.cancelled, "ann")
            await probe(run).ended()
            assert run.status is RunStatus.cancelled
            await check_stored(here, run.run_id, RunStatus.cancelled, CancelCause.user)

    play(main)


def test_a_cancel_by_the_old_handle_is_passed_on_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            reached = Flag()
            run, result = await paused(on(here, DELETE, tools=Till().tools), session_id="s")
            storage = leased(run)
            other = on(there, [Reach(reached), Stall()], tools=Till().tools)
            again = await other.resume_run(run.run_id, {result.interrupts[0].id: True})
            await reached.arrived()
            await until(lambda: storage.lease is None)
            next_round = await take_rounds(here, monkeypatch)
            run.cancel("enough")
            await next_round()
            assert (await found(here, run.run_id)).status in (RunStatus.cancelling, RunStatus.cancelled)
            assert (await again.result()).status is RunStatus.cancelled
            await probe(run).ended()

    play(main)


def test_of_many_answers_in_several_places_one_counts(url: str) -> None:
    async def main() -> None:
        async with runtimes(url, 3) as places:
            tills = [Till() for _ in places]
            for number in range(4):
                run, result = await paused(on(places[0], DELETE, tools=tills[0].tools), session_id=f"s{number}")
                agents = [on(place, "Done.", tools=till.tools) for place, till in zip(places, tills, strict=True)]
                answers = {result.interrupts[0].id: True}
                ends = await asyncio.gather(
                    *(agent.continue_run(run.run_id, answers) for agent in agents for _ in range(2)),
                    return_exceptions=True,
                )
                done = [end for end in ends if not isinstance(end, BaseException)]
                assert [end.status for end in done] == [RunStatus.completed]
                refusals = (NotContinuableError, RunIdTakenError)
                assert all(isinstance(end, refusals) for end in ends if isinstance(end, BaseException)), ends
                await ended(places[2], run.run_id)
                await check_stored(places[1], run.run_id, RunStatus.completed)
            assert sum(len(till.did) for till in tills) == 4

    play(main)


def test_a_cut_run_goes_on_elsewhere(url: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            reached = Flag()
            run = await begun(on(here, ["Once upon", Reach(reached), Stall()]), reached)
            run.cancel()
            await probe(run).ended()
            result = await on(there, " a time.").continue_run(run.run_id)
            assert result.status is RunStatus.completed
            assert [message.role for message in result.messages] == ["user", "assistant", "user", "assistant"]
            record = await check_stored(here, result.run_id, RunStatus.completed)
            assert record.continues == run.run_id
            # The earlier one is part of it now; taking it back gives what was before.
            await on(here).rollback_run(result.run_id)
            assert len(await store_of(there).load(record.session)) == 2

    play(main)


def test_of_many_that_go_on_in_several_places_with_one_new_id_one_makes_a_run(url: str) -> None:
    async def main() -> None:
        async with runtimes(url, 3) as places:
            for number in range(4):
                reached, old, new = Flag(), f"old{number}", f"new{number}"
                agent = on(places[0], ["Once upon", Reach(reached), Stall()])
                run = await begun(agent, reached, session_id=f"s{number}", run_id=old)
                run.cancel()
                await probe(run).ended()
                agents = [on(place, " a time.", " a time.") for place in places]

                async def go_on(agent: Any, old: str = old, new: str = new) -> Any:
                    return await agent.continue_run(old, new_run_id=new)

                ends = await asyncio.gather(*map(go_on, [*agents, *agents]), return_exceptions=True)
                assert [end.run_id for end in ends if not isinstance(end, BaseException)] == [new], ends
                assert sum(isinstance(end, RunIdTakenError) for end in ends) == 5, ends
                assert (await check_stored(places[1], new, RunStatus.completed)).continues == old
                for agent in agents:  # nor later, anywhere
                    with pytest.raises(RunIdTakenError, match=new):
                        await go_on(agent)
            listed = await store_of(places[2]).list_runs(Selection(), 100)
            assert sorted(record.run_id for record in listed) == sorted(
                f"{o}{n}" for o in ("old", "new") for n in range(4)
            )

    play(main)


def test_a_paused_run_keeps_its_id_elsewhere(url: str) -> None:
    async def main() -> None:
        async with runtimes(url) as (here, there):
            till = Till()
            run, result = await paused(on(here, DELETE, tools=till.tools))
            answers, other = {result.interrupts[0].id: True}, on(there, "Done.", tools=till.tools)
            with pytest.raises(ConfigurationError, match="goes on under its own id"):
                await other.continue_run(run.run_id, answers, new_run_id="n")
            assert (await found(there, run.run_id)).status is RunStatus.paused
            assert (await other.continue_run(run.run_id, answers, new_run_id=run.run_id)).status is RunStatus.completed

    play(main)


def test_pay_twice_is_asked_twice_wherever_it_goes_on(url: str) -> None:
    """Each answer is given in another place than the one that asked."""

    async def main() -> None:
        async with runtimes(url, 3) as (one, two, three):
            till = Till()
            run, result = await paused(on(one, [DELETE, PAY], tools=till.tools), session_id="s")
            assert len(result.interrupts) == 2
            answers = {each.id: True for each in result.interrupts}
            again = await on(two, PAY, tools=till.tools).continue_run(run.run_id, answers)
            assert again.status is RunStatus.paused
            assert till.did == ["all", True]
            last = await on(three, "Paid.", tools=till.tools).continue_run(
                run.run_id, {again.interrupts[0].id: "by card"}
            )
            assert (last.status, last.content) == (RunStatus.completed, "Paid.")
            assert till.did == ["all", True, "by card"]
            await probe(run).ended()
            check_same(run, await stored_events(two, run.run_id))
            await check_stored(one, run.run_id, RunStatus.completed)

    play(main)


def test_a_run_that_goes_on_with_another_one_is_written_though_its_model_says_nothing(url: str) -> None:
    """Its messages are new, and no event tells of that."""

    async def main() -> None:
        async with shaky_runtime(url) as (runtime, store):
            first = on(runtime, [Stall()]).start("one", session_id="s")
            await first.begin()
            first.cancel()
            await probe(first).ended()
            store.delay = 0.1  # a round of writing comes before the conversation is loaded
            run = await on(runtime, [Stall()]).resume_run(first.run_id)
            store.delay = 0.0
            with runtime.worker.link.news.watch(run.run_id) as topic:  # type: ignore[union-attr]
                while not await store.added(run.run_id):
                    await topic.changed(topic.count)
            run.cancel()
            await probe(run).ended()

    play(main)


@contextlib.asynccontextmanager
async def shaky_runtime(url: str) -> AsyncIterator[tuple[Runtime, Shaky]]:
    store = Shaky(url)
    runtime = Runtime(store, lease_seconds=LONG)
    try:
        yield runtime, store
    finally:
        await runtime.close()


def test_a_run_that_has_ended_is_not_listened_to(sqlite_url: str) -> None:
    """Whoever did would keep it alive until the garbage collector comes."""

    async def main() -> None:
        async with runtimes(sqlite_url, 1) as (runtime,):
            run = on(runtime, "Done.").start("go")
            await run.begin()
            held = leased(run)
            await probe(run).ended()
            held.listen()
            assert not local_run(run).journal.waiters.wakes

    play(main)
