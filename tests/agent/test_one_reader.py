# SPDX-License-Identifier: Apache-2.0
"""One iterator is for one reader: a second one that reads at the same time is refused, and no event is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from andon import Agent, CancelOutcome, Event, RunEvent, RunStatus
from andon.core.journal import Reader
from andon.core.portal import portal
from andon.core.run.handle import local_run
from andon.core.single_reader import Seat
from andon.errors import AndonError, ReaderBusyError
from andon.messages import Text
from andon.models.scripted import Burst, Pause
from andon.sync import BlockingStream
from andon.testing import probe
from tests.support import HANG, Flag, Hold, Silence, Worker, check_events, eventually, make, play, read_all

KINDS = ["stream", "handle"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def begin(agent: Agent, kind: str) -> Any:
    """An iterator over the events of a run, and the run."""
    if kind == "stream":
        stream = agent.stream_async("go", run_id="r")
        return stream, stream.run
    run = agent.start("go", run_id="r")
    local_run(run).begin()
    return run.events(), run


async def all_of(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


async def read_up_to(events: AsyncIterator[Event], content: str) -> list[Event]:
    found = [await anext(events)]
    while found[-1].content != content:
        found.append(await anext(events))
    return found


@every_kind
def test_a_second_task_is_refused_and_the_first_reads_all(kind: str) -> None:
    async def main() -> None:
        go_on, silent = Flag(), Flag()
        agent = make(["One ", Hold(go_on), Burst("x ", 20), Pause(0), Burst("y ", 20)])
        events, run = begin(agent, kind)
        seen = await read_up_to(events, "One ")

        async def read() -> None:
            silent.set()
            seen.extend([event async for event in events])

        reader = asyncio.create_task(read())
        await silent.arrived()
        with pytest.raises(ReaderBusyError, match=r"iterator of its own: run\.events\(\)") as refused:
            await anext(events)
        assert isinstance(refused.value, AndonError)
        assert isinstance(refused.value, RuntimeError)
        go_on.set()
        await reader
        check_events(seen)
        assert seen == probe(run).events
        assert run.status is RunStatus.completed

    play(main)


@every_kind
def test_two_slow_tasks_never_lose_an_event(kind: str) -> None:
    """As a pool of workers would read: one of them is refused, and the events that the other gets have no gap."""

    async def main() -> None:
        events, run = begin(make([Pause(0.01), Burst("x ", 8), Pause(0.01), Burst("y ", 8)]), kind)
        seen: list[Event] = []

        async def work() -> None:
            async for event in events:
                seen.append(event)
                await asyncio.sleep(0.003)

        done = await asyncio.gather(work(), work(), return_exceptions=True)
        assert [type(each) for each in done if each is not None] == [ReaderBusyError]
        assert seen == probe(run).events

    play(main)


def test_one_after_the_other_they_may_share_it() -> None:
    async def main() -> None:
        async with make(Burst("x ", 10)).start("go") as run:
            events, seen, turn = run.events(), [], asyncio.Lock()

            async def work() -> None:
                while True:
                    async with turn:
                        try:
                            seen.append(await anext(events))
                        except StopAsyncIteration:
                            return

            await asyncio.gather(work(), work(), work())
        check_events(seen)

    play(main)


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_a_read_that_did_not_come_to_its_end_leaves_the_iterator_free(how: str) -> None:
    async def main() -> None:
        go_on = Flag()
        agent = make(["One ", Hold(go_on), "two."])
        async with agent.start("go") as run:
            events = run.events()
            seen = await read_up_to(events, "One ")
            if how == "cancelled":
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(events), 0.01)
            else:
                read = anext(events).__await__()
                next(read)
                with pytest.raises(ZeroDivisionError):
                    read.throw(ZeroDivisionError())
            go_on.set()
            seen += [event async for event in events]
            check_events(seen)
            assert seen == await read_all(run)

    play(main)


def test_a_batch_is_a_read_too() -> None:
    async def main() -> None:
        silence = Silence()
        async with make(["One ", silence]).start("go") as run:
            events = run.events()
            await silence.reached.arrived()
            assert len(await events.batch(100)) > 1
            first = asyncio.create_task(events.batch(100))
            await asyncio.sleep(0)
            with pytest.raises(ReaderBusyError):
                await events.batch(100)
            with pytest.raises(ReaderBusyError):
                await anext(events)
            run.cancel()
            assert await first

    play(main)


def test_another_task_may_close_the_stream() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", silence])
        stream = agent.stream_async("go", run_id="r")
        seen = await read_up_to(stream, "a ")
        await silence.reached.arrived()
        reader = asyncio.create_task(all_of(stream))
        await asyncio.sleep(0)
        await stream.aclose()
        assert silence.cuts == 1
        assert agent.cancel_run("r") is CancelOutcome.already_finished  # settled when it returned
        seen += await reader
        check_events(seen)
        assert [event async for event in stream] == []

    play(main)


# -- threads ----------------------------------------------------------------------------------------------------------


def is_read(stream: BlockingStream) -> bool:
    return bool(stream._reader.seat._taken)


def test_a_second_thread_is_refused_and_the_run_goes_on() -> None:
    go_on = Flag()
    agent = make(["One ", Hold(go_on), "two."])
    stream = agent.run("go", stream=True)
    seen = [next(stream)]
    while seen[-1].event is not RunEvent.run_content:
        seen.append(next(stream))
    reader = Worker(lambda: seen.extend(stream))
    eventually(lambda: is_read(stream))
    with pytest.raises(ReaderBusyError):
        next(stream)
    go_on.set()
    reader.done()
    check_events(seen)
    assert stream.run.status is RunStatus.completed


def test_a_second_thread_is_refused_while_the_run_begins() -> None:
    held, go_on = Flag(), Flag()

    async def hold() -> None:
        held.set()
        go_on.wait()  # the very loop on which the run would begin

    seen: list[Event] = []
    stream = make("Hello.").run("go", stream=True)
    holding = portal.submit(hold)
    held.wait()
    reader = Worker(lambda: seen.extend(stream))
    eventually(lambda: is_read(stream))
    with pytest.raises(ReaderBusyError):
        next(stream)
    go_on.set()
    holding.result(HANG)
    reader.done()
    check_events(seen)
    assert seen[-1].event is RunEvent.run_completed


def test_threads_that_try_again_lose_nothing() -> None:
    agent = make(Burst("x ", 5_000, every=7))
    stream = agent.run("go", stream=True)
    shares: list[list[Event]] = [[], [], []]

    def read(share: list[Event]) -> None:
        while True:
            try:
                while True:
                    share.append(next(stream))
            except StopIteration:
                return
            except ReaderBusyError:
                continue

    readers = [Worker(lambda share=share: read(share)) for share in shares]  # type: ignore[misc]
    for reader in readers:
        reader.done()
    for share in shares:
        assert all(one.seq < other.seq for one, other in itertools.pairwise(share))
    check_events(sorted(itertools.chain(*shares), key=lambda event: event.seq))
    assert stream.run.status is RunStatus.completed


class Hasty(Seat):
    """Its reader sits down right after another thread has got up, which has left a batch."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self._reader, self.got = reader, list[Event]()

    def take(self, me: object) -> None:
        super().take(me)
        if not self.got and (event := self._reader._take()) is not None:
            self.got.append(event)


@pytest.mark.parametrize("way", ["anext", "next_blocking", "a blocking stream"])
def test_a_batch_that_another_thread_has_just_left_is_read(way: str) -> None:
    stream = make(Burst("x ", 10)).run("go", stream=True)
    events = list(stream)
    reader = stream.run.events()
    reader.seat = hasty = Hasty(reader)
    if way == "anext":
        found = asyncio.run(all_of(reader))
    elif way == "next_blocking":
        found = [*iter(reader.next_blocking, None)]
    else:
        stream._reader, stream._state = reader, "begun"
        found = [*stream]
    assert [*hasty.got, *found] == events


def test_another_thread_may_close_the_stream() -> None:
    silence = Silence()
    agent = make(["Half a ", silence])
    stream = agent.run("go", stream=True, run_id="r")
    seen: list[Event] = [next(stream)]
    reader = Worker(lambda: seen.extend(stream))
    silence.reached.wait()
    stream.close()
    assert agent.cancel_run("r") is CancelOutcome.already_finished
    reader.done()
    assert seen == probe(stream.run).events[: len(seen)]
    assert agent.messages[-1].content == [Text("Half a "), Text("Cancelled by the caller")]
