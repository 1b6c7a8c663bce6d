# SPDX-License-Identifier: Apache-2.0
"""What holds for every event channel: text comes as it was sent, from a place on, and only from its own space."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from andon import Event, RunEvent
from andon.core.shared.event_channel import ChannelError, EventChannel, Received, Text
from andon.errors import ConfigurationError, MissingExtraError
from andon.store import open_events, redis_events
from andon.store.redis_events import RedisEvents
from bench.chaos.ports import free_port
from tests.store.making import KEY, events
from tests.support import play, until
from tests.support.memory_channel import Memory, MemoryChannel
from tests.support.redis_server import RedisServer, redis_server

Make = Callable[[], EventChannel]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a channel, as another process would."""
    if request.param == "memory":
        memory = Memory()
        return lambda: MemoryChannel(memory)
    server: RedisServer = request.getfixturevalue("redis")
    with server.client() as client:
        client.flushall()
    return lambda: RedisEvents(server.url)


def text(run_id: str, *numbers: int) -> Text:
    return Text(run_id, KEY.session_id, KEY.agent_id, events(run_id, numbers))


def seen(found: list[Received]) -> dict[str, list[list[Event]]]:
    return {each.run_id: [list(part) for part in each.texts] for each in found}


async def opened(make: Make, space: str = "ours") -> EventChannel:
    channel = make()
    await channel.open(space)
    return channel


def test_text_comes_as_it_was_sent_from_a_place_on(make: Make) -> None:
    async def main() -> None:
        here, there = await opened(make), await opened(make)
        await here.send([text("r1", 1, 2), text("r2", 7)])
        await here.send([text("r1", 3)])
        found = await there.receive({"r1": None, "r2": None, "r3": None})
        assert seen(found) == {"r1": [events("r1", [1, 2]), events("r1", [3])], "r2": [events("r2", [7])]}
        place = {each.run_id: each.place for each in found}["r1"]
        waiting = asyncio.create_task(there.receive({"r1": place}))
        await here.send([text("r2", 8), text("r1", 4)])
        assert seen(await waiting) == {"r1": [events("r1", [4])]}
        await here.close()
        await there.close()

    play(main)


def test_odd_names_and_texts_of_all_kinds_come_through(make: Make) -> None:
    async def main() -> None:
        here, there = await opened(make), await opened(make)
        odd, session = "r\ud800\x00 é", "s\udfff"
        own = Event(RunEvent.run_content, odd, session, "helper", 5, 2.5, "é\u2028\x00")
        thought = msgspec.structs.replace(own, event=RunEvent.reasoning, seq=6, content="hm")
        relayed = msgspec.structs.replace(own, run_id="child", session_id="sub", agent_id="writer", seq=7)
        await here.send([Text(odd, session, "helper", [own, thought, relayed])])
        assert seen(await there.receive({odd: None})) == {odd: [[own, thought, relayed]]}
        await here.close()
        await there.close()

    play(main)


def test_another_store_has_a_space_of_its_own(make: Make) -> None:
    async def main() -> None:
        here, there = await opened(make), await opened(make, "theirs")
        await here.send([text("r1", 1)])
        await there.send([text("r1", 2)])
        assert seen(await there.receive({"r1": None})) == {"r1": [events("r1", [2])]}
        await here.close()
        await there.close()

    play(main)


def test_a_wait_is_interrupted_also_before_it_begins(make: Make) -> None:
    async def main() -> None:
        channel = await opened(make)
        await channel.interrupt()
        assert await channel.receive({"r1": None}) == []
        waiting = asyncio.create_task(channel.receive({"r1": None}))
        await asyncio.sleep(0)
        await channel.interrupt()
        assert await waiting == []
        await channel.close()

    play(main)


def test_a_wait_that_is_cancelled_leaves_the_channel_usable(make: Make) -> None:
    async def main() -> None:
        channel = await opened(make)
        waiting = asyncio.create_task(channel.receive({"r1": None}))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await channel.send([text("r1", 1)])
        assert seen(await channel.receive({"r1": None})) == {"r1": [events("r1", [1])]}
        await channel.close()

    play(main)


def test_streams_are_short_and_expire(redis: RedisServer) -> None:
    async def main() -> None:
        channel = RedisEvents(redis.url)
        await channel.open("short")
        for number in range(1, 1_001):
            await channel.send([text("r1", number)])
        with redis.client() as client:
            (key,) = client.keys("andon:text:short:*")
            assert client.xlen(key) < 400
            assert 0 < client.ttl(key) <= 120
        await channel.close()

    play(main)


@pytest.mark.parametrize("how", ["emptied", "restarted", "evicted"])
def test_a_stream_that_redis_has_lost_expires_when_it_begins_anew(how: str) -> None:
    async def main() -> None:
        with redis_server() as server:
            channel = RedisEvents(server.url)
            await channel.open("ours")
            await channel.send([text("r1", 1), text("r2", 1)])
            with server.client() as client:
                before = client.keys("andon:text:*")
                if how == "restarted":
                    server.kill()
                    server.start()
                elif how == "emptied":
                    client.flushall()
                else:
                    client.delete(before[0])
            with contextlib.suppress(ChannelError):  # the connection was lost with it
                await channel.send([text("r1", 2), text("r2", 2), text("r1", 3)])
            await channel.send([text("r1", 4), text("r2", 4)])
            with server.client() as client:
                assert sorted(client.keys("andon:text:*")) == sorted(before)
                assert all(client.ttl(key) > 0 for key in before)
            found = seen(await channel.receive({"r1": None, "r2": None}))
            assert [found[run_id][-1] for run_id in ("r1", "r2")] == [events("r1", [4]), events("r2", [4])]
            await channel.close()

    play(main)


def test_much_text_is_received_in_parts(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read all text of a thousand runs at once would take longer than a `receive` may take: it would never end."""
    monkeypatch.setattr(redis_events, "ENTRIES_AT_ONCE", 12)

    async def main() -> None:
        channel = RedisEvents(redis.url)
        await channel.open("much")
        run_ids = ["r1", "r2", "r3"]
        for number in range(1, 11):
            await channel.send([text(run_id, number) for run_id in run_ids])
        places: dict[str, str | None] = dict.fromkeys(run_ids)
        got: dict[str, list[int]] = {run_id: [] for run_id in run_ids}
        while any(len(numbers) < 10 for numbers in got.values()):
            found = await channel.receive(places)
            assert sum(len(each.texts) for each in found) <= 12
            for run_id, place, texts in found:
                places[run_id] = place
                got[run_id] += [event.seq for part in texts for event in part]
        assert all(numbers == list(range(1, 11)) for numbers in got.values())
        await channel.close()

    play(main)


def test_an_entry_that_can_not_be_read_is_left_out_and_told_once(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    entries = ({"n": "x"}, {"n": "x", "b": "[]", "s": "s", "a": "a"}, {"n": "3", "b": "{", "s": "s", "a": "a"})

    async def main() -> None:
        channel = RedisEvents(redis.url)
        await channel.open("odd")
        await channel.send([text("r1", 1), text("r2", 1)])
        with redis.client() as client:
            for fields in entries:
                client.xadd("andon:text:odd:r1", fields)
        await channel.send([text("r1", 2)])
        found = seen(await channel.receive({"r1": None, "r2": None}))
        assert found == {"r1": [events("r1", [1]), events("r1", [2])], "r2": [events("r2", [1])]}
        await channel.close()

    play(main)
    assert caplog.text.count("can't be read, and comes from the database") == 1


def test_a_dead_connection_is_noticed_by_the_kernel(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall forgets a connection that is idle for long, and tells no end of it."""
    made: list[socket.socket] = []
    connect = asyncio.open_connection

    async def open_connection(*args: Any, **options: Any) -> Any:
        reader, writer = await connect(*args, **options)
        made.append(writer.get_extra_info("socket"))
        return reader, writer

    async def main() -> None:
        monkeypatch.setattr(asyncio, "open_connection", open_connection)
        channel = RedisEvents(redis.url)
        await channel.open("ours")
        assert made
        for connection in made:
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
        await channel.close()

    play(main)


def test_a_redis_that_is_gone_is_told_and_used_again_when_it_is_back() -> None:
    async def main() -> None:
        with redis_server() as server:
            channel = RedisEvents(server.url)
            await channel.open("ours")
            server.kill()
            for call in (channel.open("ours"), channel.send([text("r1", 1)]), channel.receive({"r1": None})):
                with pytest.raises(ChannelError):
                    await call
            with pytest.raises(ChannelError):
                await channel.check()
            server.start()
            await channel.send([text("r1", 2)])
            assert seen(await channel.receive({"r1": None})) == {"r1": [events("r1", [2])]}
            await channel.close()

    play(main)


def test_a_redis_that_takes_nothing_is_away() -> None:
    async def main() -> None:
        with redis_server() as server:
            channel = RedisEvents(server.url)
            await channel.open("ours")
            with server.client() as client:
                client.config_set("maxmemory", 1)
            for call in (channel.open("ours"), channel.send([text("r1", 1)])):
                with pytest.raises(ChannelError, match="memory"):
                    await call
            await channel.close()

    play(main)


def test_what_can_never_work_is_told_at_once() -> None:
    async def main() -> None:
        with redis_server("secret") as server:
            address = f"127.0.0.1:{server.port}"
            for wrong in (server.url, f"redis://:guess@{address}/0", f"redis://:secret@{address}/99"):
                with pytest.raises(ConfigurationError, match=f"can't go through redis://{address}") as raised:
                    await RedisEvents(wrong).check()
                assert "guess" not in str(raised.value)
                assert "secret" not in str(raised.value)
            await RedisEvents(f"redis://:secret@{address}/0").check()

    play(main)


def test_a_cluster_can_not_carry_events() -> None:
    """Streams of several runs are read together, and there they may be on several machines."""

    async def main() -> None:
        with redis_server(None, "--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
            with server.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                await until(lambda: "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO")))
            with pytest.raises(ConfigurationError, match="same slot"):
                await RedisEvents(server.url).check()

    play(main)


OPTIONS = "decode_responses=true", "protocol=3", "socket_timeout=1"


@pytest.mark.parametrize(
    "url",
    ["kafka://x", "redis", "redis://host:port", "redis://host/one", *(f"redis://host/0?{each}" for each in OPTIONS)],
)
def test_a_url_that_names_no_channel_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="events"):
        open_events(url)


def test_without_the_client_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib
    import sys

    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    monkeypatch.delitem(sys.modules, "andon.store.redis_events")
    with pytest.raises(MissingExtraError, match=r'pip install "andon\[redis\]"'):
        importlib.import_module("andon.store.redis_events")
