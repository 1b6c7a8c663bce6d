# SPDX-License-Identifier: Apache-2.0
"""Text that goes through an event channel: it comes before it is stored, and losing the channel loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from msgspec.structs import replace

from andon import CancelCause, Event, RunEvent, RunStatus, Runtime
from andon.core.shared import event_channel, written
from andon.core.shared.event_channel import EventChannel, Text
from andon.core.shared.remote import StoredReader
from andon.core.shared.worker import Worker
from andon.errors import ConfigurationError
from andon.models.scripted import Call, Item
from andon.store.redis_events import RedisEvents
from andon.store.sql import SQLStore
from tests.shared_store.helpers import LONG, check_same, check_stored, on, stored_events
from tests.store.making import events, opened, record, said
from tests.support import Flag, Hold, Reach, play, until
from tests.support.memory_channel import Memory, MemoryChannel
from tests.support.redis_server import RedisServer, redis_server
from tests.support.silent_way import SilentWay
from tests.support.till import Till

CLOSE_SECONDS = 20.0
"""Far more than a store that answers needs, and less than a connection of which nothing is heard any more."""


class Place:
    """A channel that can be lost, in one of several ways, and come back."""

    def __init__(
        self,
        make: Callable[[], EventChannel],
        lose: Callable[[], None],
        mend: Callable[[], None],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.make, self.lose, self.mend, self.close = make, lose, mend, close


def _away(memory: Memory) -> Place:
    def change(away: bool) -> None:
        memory.away = away
        memory.wake()

    return Place(lambda: MemoryChannel(memory), lambda: change(True), lambda: change(False))


def _silent(memory: Memory) -> Place:
    def change(mute: bool) -> None:
        memory.mute = mute

    return Place(lambda: MemoryChannel(memory), lambda: change(True), lambda: change(False))


def _killed(server: RedisServer) -> Place:
    return Place(lambda: RedisEvents(server.url), server.kill, server.start)


def _hung(server: RedisServer) -> Place:
    return Place(lambda: RedisEvents(server.url), server.hang, server.go_on)


def _cut(server: RedisServer) -> Place:
    """Nothing comes through in either direction, and no connection is told."""
    return _behind(server, up=False, down=False)


def _unanswered(server: RedisServer) -> Place:
    """Redis does all that it is asked to do, and its answers are lost until the network is mended."""
    return _behind(server, up=True, down=False)


def _behind(server: RedisServer, *, up: bool, down: bool) -> Place:
    way = SilentWay(server.port)
    return Place(
        lambda: RedisEvents(f"redis://127.0.0.1:{way.port}/0"),
        lambda: way.change(up=up, down=down),
        lambda: way.change(up=True, down=True),
        way.close,
    )


def _emptied(server: RedisServer) -> Place:
    def flush() -> None:
        with server.client() as client:
            client.flushall()

    return Place(lambda: RedisEvents(server.url), flush, lambda: None)


PLACES = [_away, _silent, _killed, _hung, _emptied, _cut, _unanswered]


@pytest.fixture(params=PLACES, ids=lambda each: each.__name__.strip("_"))
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param in (_away, _silent):
        yield request.param(Memory())
        return
    with redis_server() as server:
        place = request.param(server)
        yield place
        place.close()


@pytest.fixture(params=["memory", "redis"])
def channel(request: pytest.FixtureRequest) -> Iterator[Callable[[], EventChannel]]:
    if request.param == "memory":
        memory = Memory()
        yield lambda: MemoryChannel(memory)
        return
    with redis_server() as server:
        yield lambda: RedisEvents(server.url)


@contextlib.asynccontextmanager
async def pair(url: str, make: Callable[[], EventChannel]) -> AsyncIterator[tuple[Runtime, Runtime]]:
    """Two processes on one database and one channel; the first one's relay is up."""
    here, there = (Runtime(SQLStore(url), lease_seconds=LONG, events=make()) for _ in range(2))
    try:
        for each in (here, there):
            on(each)
            worker_of(each).start()
        await until(lambda: worker_of(here).relay.is_up)
        yield here, there
    finally:
        await here.close()
        await there.close()


def worker_of(runtime: Runtime) -> Worker:
    assert runtime.worker is not None
    return runtime.worker


class Listener:
    """Reads a run elsewhere, and knows what it has read."""

    def __init__(self, there: Runtime, run_id: str, after: int = 0) -> None:
        self.events: list[Event] = []
        self._heard = asyncio.Condition()
        self._reading = asyncio.create_task(self._read(StoredReader(worker_of(there).link, run_id, after)))

    async def _read(self, reader: StoredReader) -> None:
        while batch := await reader.batch():
            async with self._heard:
                self.events += batch
                self._heard.notify_all()

    @property
    def text(self) -> str:
        return "".join(event.content for event in self.events if event.event is RunEvent.run_content)

    async def hears(self, text: str) -> None:
        async with self._heard:
            await self._heard.wait_for(lambda: text in self.text)

    async def ends(self) -> list[Event]:
        await self._reading
        return self.events


def speech(*flags: tuple[Flag, Flag]) -> list[str | Item]:
    """Words; after each of them it tells the test, and waits for its word."""
    said: list[str | Item] = ["Once "]
    for number, (reached, go_on) in enumerate(flags):
        said += [f"word-{number} ", Reach(reached), Hold(go_on)]
    return [*said, "the end."]


def test_text_is_read_elsewhere_before_it_is_stored(
    sqlite_url: str, channel: Callable[[], EventChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, "RELAYED_TEXT_SECONDS", 1_000.0)

    async def main() -> None:
        flags = [(Flag(), Flag()) for _ in range(4)]
        async with pair(sqlite_url, channel) as (here, there):
            async with on(here, speech(*flags)).start("go", run_id="r1") as run:
                listener = Listener(there, "r1")
                for number, (reached, go_on) in enumerate(flags):
                    await reached.arrived()
                    await listener.hears(f"word-{number} ")
                    if number == 2:
                        late = Listener(there, "r1", after=3)
                        await late.hears("word-2 ")
                        stored = await stored_events(here, "r1")
                        assert stored[-1].seq < listener.events[-1].seq, "nothing came before it was stored"
                    go_on.set()
                await run.result()
                check_same(run, await listener.ends())
                assert await late.ends() == listener.events[3:]
            await check_stored(here, "r1", RunStatus.completed)

    play(main)


def test_losing_the_channel_loses_nothing_and_doubles_nothing(sqlite_url: str, place: Place) -> None:
    async def main() -> None:
        flags = [(Flag(), Flag()) for _ in range(5)]
        async with pair(sqlite_url, place.make) as (here, there):
            async with on(here, speech(*flags)).start("go", run_id="r1") as run:
                listener = Listener(there, "r1")
                for number, (reached, go_on) in enumerate(flags):
                    await reached.arrived()
                    await listener.hears(f"word-{number} ")
                    if number == 1:
                        await asyncio.to_thread(place.lose)
                    if number == 3:
                        await asyncio.to_thread(place.mend)
                        await until(lambda: worker_of(here).relay.is_up)
                    go_on.set()
                await run.result()
                check_same(run, await listener.ends())
            await check_stored(here, "r1", RunStatus.completed)

    play(main)


def test_a_cancel_needs_no_channel(sqlite_url: str, place: Place) -> None:
    async def main() -> None:
        reached = Flag()
        async with pair(sqlite_url, place.make) as (here, there):
            async with on(here, ["Well, ", Reach(reached), Hold(Flag())]).start("go", run_id="r1") as run:
                listener = Listener(there, "r1")
                await reached.arrived()
                await listener.hears("Well, ")
                await asyncio.to_thread(place.lose)
                await there.cancel(run_id="r1")
                await run.result()
                check_same(run, await listener.ends())
            await check_stored(here, "r1", RunStatus.cancelled, CancelCause.user)
            await asyncio.to_thread(place.mend)

    play(main)


def test_only_text_goes_through_the_channel(sqlite_url: str) -> None:
    async def main() -> None:
        memory, till = Memory(), Till()
        async with pair(sqlite_url, lambda: MemoryChannel(memory)) as (here, there):
            agent = on(
                here, ["Let me see. ", Call("look", {"what": "it"}, id="c")], ["It is ", "there."], tools=till.tools
            )
            async with agent.start("go", run_id="r1") as run:
                listener = Listener(there, "r1")
                await run.result()
                check_same(run, await listener.ends())
            kinds = {event.event for stream in memory.streams.values() for part in stream for event in part}
            assert kinds <= event_channel.TEXT

    play(main)


def test_an_end_that_comes_through_the_channel_is_no_end(sqlite_url: str) -> None:
    """Another program that writes to the same Redis could show one."""

    async def main() -> None:
        memory, reached, go_on = Memory(), Flag(), Flag()
        async with (
            pair(sqlite_url, lambda: MemoryChannel(memory)) as (here, there),
            opened(sqlite_url) as store,
            on(here, speech((reached, go_on))).start("go", run_id="r1") as run,
        ):
            listener = Listener(there, "r1")
            await listener.hears("word-0 ")
            own = listener.events[-1]
            channel = MemoryChannel(memory)
            await channel.open(await store.secret("events"))
            for kind, status in ((RunEvent.run_paused, None), (RunEvent.run_completed, RunStatus.completed)):
                wrong = replace(own, seq=own.seq + 1, event=kind, status=status)
                await channel.send([Text("r1", own.session_id, own.agent_id, [wrong])])
            go_on.set()
            await run.result()
            check_same(run, await listener.ends())

    play(main)


def test_closing_does_not_wait_for_a_redis_that_hangs(sqlite_url: str, place: Place) -> None:
    async def main() -> None:
        async with pair(sqlite_url, place.make) as (here, there):
            async with on(here, speech()).start("go", run_id="r1") as run:
                listener = Listener(there, "r1")
                await run.result()
                await listener.ends()
            await asyncio.to_thread(place.lose)
            async with asyncio.timeout(CLOSE_SECONDS):
                await there.close()
                await here.close()
        await asyncio.to_thread(place.mend)

    play(main)


def test_after_an_outage_text_goes_through_the_channel_again(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        memory = Memory()
        flags = [(Flag(), Flag()) for _ in range(3)]
        async with pair(sqlite_url, lambda: MemoryChannel(memory)) as (here, there):
            up = worker_of(here).relay
            async with on(here, speech(*flags)).start("go", run_id="r1") as run:
                listener = Listener(there, "r1")
                await listener.hears("word-0 ")
                memory.away = True
                memory.wake()
                flags[0][1].set()
                await listener.hears("word-1 ")
                await until(lambda: not up.is_up)
                memory.away, memory.sent = False, 0
                await until(lambda: up.is_up)
                flags[1][1].set()
                await listener.hears("word-2 ")
                await until(lambda: memory.sent > 0)
                flags[2][1].set()
                await run.result()
                check_same(run, await listener.ends())
        assert "events go through the database alone: memory: it is away, says the test" in caplog.text
        assert "events go through memory again" in caplog.text

    play(main)


def test_text_of_a_holder_that_was_overtaken_never_comes_after_the_end(sqlite_url: str) -> None:
    """A worker that can't reach the store any more, but the channel: its run has ended without it."""

    async def main() -> None:
        memory = Memory()
        async with pair(sqlite_url, lambda: MemoryChannel(memory)) as (_, there), opened(sqlite_url) as store:
            lease = await store.enter(record("r1"), "another", LONG, "queue")
            channel = MemoryChannel(memory)
            await channel.open(await store.secret("events"))
            reader = StoredReader(worker_of(there).link, "r1")
            end = events("r1", [1])[0]
            end = replace(end, event=RunEvent.run_cancelled, status=RunStatus.cancelled)
            assert await store.finish(lease, record("r1", RunStatus.cancelled), said("x"), [end]) is None
            await channel.send([Text("r1", "s1", "helper", events("r1", [1, 2, 3]))])
            assert [event.event for event in await reader.batch()] == [RunEvent.run_cancelled]
            assert await reader.batch() == []
            feed = worker_of(there).link.cache.feed("r1")
            feed.receive(events("r1", [2, 3]))
            assert [event.event for event in await StoredReader(worker_of(there).link, "r1").batch()] == [end.event]

    play(main)


def test_a_channel_is_for_a_store_that_is_shared() -> None:
    with pytest.raises(ConfigurationError, match="processes share"):
        Runtime(events=MemoryChannel(Memory()))
    with pytest.raises(ConfigurationError, match="is no event channel: open it with open_events"):
        Runtime(events="redis://host/0")  # type: ignore[arg-type]
