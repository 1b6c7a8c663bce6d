# SPDX-License-Identifier: Apache-2.0
"""What the fakes record: who left and when, what was sent, which connection was used. With nothing but sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import pytest

from andon.testing.providers import (
    FakeChat,
    FakeResponses,
    call,
    connect_never,
    pause,
    reasoning,
    silence,
    stall,
    text,
    until,
)
from andon.testing.providers.script import Word
from tests.testing.wire import HANG, KINDS, Wire, asking, body_of, events_of, post

LONG = 3600.0

PLACES: list[tuple[str, list[Word]]] = [
    ("silent", [silence()]),
    ("stalled", [stall()]),
    ("stalled", [text("a b c"), stall()]),
    ("paused", [pause(LONG), text("never")]),
    ("paused", [text("a"), pause(LONG)]),
    ("held", [text("a"), until(threading.Event())]),
    ("text", [text("a b", pace=LONG)]),
    ("reasoning", [reasoning("a b", pace=LONG)]),
    ("call", [call("f", {"a": 1}, pieces=3, pace=LONG)]),
    ("stalled", [call("f", {"a": 1}, pieces=3, send=1), stall()]),
]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(("place", "answer"), PLACES, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_leaves_is_seen_wherever_it_leaves(
    kind: type[FakeChat | FakeResponses], place: str, answer: list[Word], reset: bool
) -> None:
    with kind([answer]) as fake, Wire(fake) as wire:
        wire.send()
        record = fake.wait_for(at=place)
        assert record.left_at is None
        assert not record.over
        before, sent = time.monotonic(), record.bytes_sent
        wire.leave(reset=reset)
        assert fake.wait_for(at="left") is record
        assert record.left_at is not None
        assert before <= record.left_at <= time.monotonic()
        assert record.state == "left"
        assert record.over
        assert not record.finished
        assert record.sent_after_left == record.sent_after(before) == 0
        assert record.bytes_sent == sent
        fake.wait_until(lambda: fake.open_connections == 0)


def test_a_client_that_takes_nothing_is_waited_for_and_seen_to_leave() -> None:
    with FakeChat([[text(pieces=["x" * 1000] * 30_000)]]) as fake, Wire(fake) as wire:
        wire.send()
        record = fake.wait_for(at="text")
        fake.wait_until(lambda: bool(fake._server.full))  # thirty megabytes don't fit into any buffer
        assert not record.over
        wire.leave()
        fake.wait_for(at="left")
        assert record.sent == []


def test_a_client_that_takes_its_time_gets_everything() -> None:
    pieces = ["x" * 1000] * 30_000
    with FakeChat([[text(pieces=pieces)]]) as fake, Wire(fake) as wire:
        wire.send(connection="close")
        fake.wait_until(lambda: bool(fake._server.full))
        assert wire.rest().count(b'"content":"xxx') == len(pieces)
        assert fake.wait_for(at="finished").pieces_sent == len(pieces)


def test_what_was_sent_after_a_moment_is_counted() -> None:
    go = threading.Event()
    with FakeChat([[text("a"), until(go), text("b")]]) as fake, Wire(fake) as wire:
        wire.send()
        wire.until(b'"a"')
        record = fake.wait_for(at="held")
        moment = time.monotonic()
        assert record.sent == [text("a")]
        assert record.sent_after(moment) == 0
        go.set()
        wire.until(b"0\r\n\r\n")
        fake.wait_for(at="finished")
        fake.wait_until(lambda: record.sent_after(moment) > 0)
        assert record.sent_after(0) == record.bytes_sent
        assert record.sent == [text("a"), until(go), text("b")]
        assert record.pieces_sent == 2


def test_closing_after_the_end_is_not_leaving() -> None:
    with FakeChat() as fake, Wire(fake) as wire:
        wire.send()
        wire.until(b"data: [DONE]")
        wire.leave()
        fake.wait_until(lambda: fake.open_connections == 0)
        assert [record.state for record in fake.served] == ["finished"]
        assert fake.served[0].left_at is None
        assert fake.served[0].sent_after_left == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_is_used_again(kind: type[FakeChat | FakeResponses]) -> None:
    with kind([["one"], ["two"], ["three"]]) as fake, Wire(fake) as wire, Wire(fake) as other:
        wire.send()
        wire.until(b"\r\n0\r\n\r\n")
        wire.send({"nonsense": True})
        assert b"unknown_parameter" in wire.until(b"}}")
        wire.send(asking(fake))
        assert b"two" in wire.until(b"two")
        other.send(connection="close")
        assert b"three" in other.rest()
        assert [record.connection for record in fake.served] == [1, 1, 1, 2]
        fake.wait_until(lambda: fake.open_connections == 1)


def test_two_requests_in_one_go_are_answered_in_turn() -> None:
    with FakeChat([["one"], ["two"]]) as fake, Wire(fake) as wire:
        wire.send()
        wire.send()
        wire.until(b"one")
        wire.until(b"two")


@pytest.mark.parametrize(
    "request_bytes",
    [b"nonsense\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"],
)
def test_what_is_not_http_is_told_so(request_bytes: bytes) -> None:
    with FakeChat() as fake, Wire(fake) as wire:
        wire.socket.sendall(request_bytes)
        assert wire.rest().startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert fake.served == []


def test_other_addresses_and_the_list_of_models() -> None:
    with FakeChat() as fake, Wire(fake) as wire:
        assert post(fake, {}, path="/v1/responses")[0] == 404
        wire.socket.sendall(b"GET /v1/models?x=1 HTTP/1.1\r\n\r\n")
        assert b'"object": "list"' in wire.until(b"]}")
        assert fake.served == []


def test_headers_and_bodies_are_kept() -> None:
    with FakeChat() as fake, Wire(fake) as wire:
        wire.send(None, **{"X-Test": "yes"})
        wire.until(b"[DONE]")
        assert fake.served[0].headers["x-test"] == "yes"
        assert fake.requests == [asking(fake, stream=True)]


def test_waiting_in_vain_says_what_there_is() -> None:
    with FakeChat([[silence()]]) as fake, Wire(fake) as wire:
        with pytest.raises(TimeoutError, match="request 0 at 'received'; there is no request"):
            fake.wait_for(timeout=0.01)
        wire.send()
        fake.wait_for(at="silent")
        with pytest.raises(TimeoutError, match=r"request -1 at 'text'; there is <request 0: silent, 0 bytes sent>"):
            fake.wait_for(-1, at="text", timeout=0.01)


async def _waits() -> None:
    async with FakeResponses([[text("a"), stall()]]) as fake:
        with Wire(fake) as wire:
            waiting = asyncio.create_task(fake.wait_for_async(at="stalled"))
            given_up = asyncio.create_task(fake.wait_for_async(at="left"))
            await asyncio.sleep(0)
            wire.send()
            record = await waiting
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            with pytest.raises(TimeoutError, match="request 0 at 'left'"):
                await fake.wait_for_async(at="left", timeout=0.01)
            wire.leave()
            assert await fake.wait_for_async(at="left") is record
            assert await fake.wait_for_async(at="over") is record
            await fake.wait_until_async(lambda: fake.open_connections == 0)


def test_waiting_in_an_event_loop() -> None:
    asyncio.run(_waits())


def test_a_loop_that_was_closed_while_it_waited_is_no_trouble() -> None:
    with FakeChat([[silence()]]) as fake:
        loop = asyncio.new_event_loop()
        checks: list[None] = []

        def holds() -> bool:
            checks.append(None)
            return False

        waiting = loop.create_task(fake.wait_until_async(holds))
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()
        assert checks, "it does not wait yet"
        with Wire(fake) as wire:
            wire.send()
            fake.wait_for(at="silent")
        assert not waiting.done()


def test_leaving_the_block_closes_every_connection_and_ends_the_thread() -> None:
    threads = set(threading.enumerate())
    with FakeChat([[text("a"), stall()]]) as fake:
        wire, idle = Wire(fake), Wire(fake)
        wire.send()
        fake.wait_for(at="stalled")
        assert set(threading.enumerate()) - threads
    assert set(threading.enumerate()) == threads
    with wire, pytest.raises(ConnectionError):
        wire.rest()
    with idle, pytest.raises(ConnectionError):
        idle.rest()
    with pytest.raises(ConnectionRefusedError):
        Wire(fake)
    assert fake.served[0].left_at is None
    fake.__exit__(None, None, None)  # once more is no mistake


def test_a_fake_that_is_not_entered_has_no_address_and_none_is_entered_twice() -> None:
    fake = FakeChat()
    fake.__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="with FakeChat"):
        _ = fake.base_url
    with fake, pytest.raises(RuntimeError, match="make a new one"), fake:
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_twenty_thousand_tokens_are_an_event_each_in_few_writes(kind: type[FakeChat | FakeResponses]) -> None:
    tokens = [f"{number} " for number in range(20_000)]
    with kind([[text(pieces=tokens)]]) as fake, Wire(fake) as wire:
        wire.send(connection="close")
        events = events_of(body_of(wire.rest()))
        said = []
        for event in events:
            if isinstance(event, str):
                continue
            if kind is FakeResponses:
                said += [event["delta"]] if event["type"] == "response.output_text.delta" else []
            else:
                said += [choice["delta"].get("content") for choice in event["choices"]]
        assert [piece for piece in said if piece] == tokens
        record = fake.wait_for(at="finished")
        assert record.pieces_sent == 20_000
        assert len(record._writes) < 500


def test_the_fakes_need_no_extra() -> None:
    code = "import sys, andon.testing.providers; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(output.split()) & {"openai", "httpx", "httpx2", "aiohttp", "fastapi", "uvicorn", "pydantic"} == set()


# -- connecting for ever ----------------------------------------------------------------------------------------------


def test_connecting_never_ends() -> None:
    with connect_never() as nowhere, socket.socket() as client:
        client.settimeout(0.3)
        address = urlsplit(nowhere.base_url)
        assert address.scheme == "http"
        with pytest.raises(TimeoutError):
            client.connect((address.hostname, address.port))


def test_a_tls_handshake_never_ends_and_the_client_is_seen() -> None:
    with connect_never(tls=True) as nowhere:
        address = urlsplit(nowhere.base_url)
        assert address.scheme == "https"
        with pytest.raises(TimeoutError, match="no client came"):
            nowhere.wait_connected(timeout=0.01)
        plain = socket.create_connection((address.hostname, address.port), timeout=0.2)
        context = ssl.create_default_context()
        with context.wrap_socket(plain, server_hostname="localhost", do_handshake_on_connect=False) as client:
            nowhere.wait_connected()
            with pytest.raises(TimeoutError):
                client.do_handshake()
            assert nowhere.open_connections == 1
            with pytest.raises(TimeoutError, match="not every client has left; 1 connections"):
                nowhere.wait_left(timeout=0.01)
        nowhere.wait_left()


async def _never() -> None:
    async with connect_never(tls=True) as nowhere:
        address = urlsplit(nowhere.base_url)
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        await nowhere.wait_connected_async()
        writer.close()
        await writer.wait_closed()
        await nowhere.wait_left_async(HANG)


def test_a_tls_handshake_never_ends_in_an_event_loop() -> None:
    asyncio.run(_never())
