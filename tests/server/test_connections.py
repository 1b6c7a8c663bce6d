# SPDX-License-Identifier: Apache-2.0
"""What a connection may cost: bare sockets that send too much, too little, too late, or more than they read."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.requests import HTTPConnection
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.sync.client import connect

from andon import Agent
from andon.models.scripted import ScriptedModel, Stall
from andon.server import create_app
from andon.server.connections import FRAGMENTS, SPARE, Bounds, HttpProtocol, WebSocketProtocol, http_protocol
from tests.server.live import NEVER, Live, read_until, serving_app
from tests.support import HANG, Flag, Silence, eventually

RUNS = "/agents/helper/runs"
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
BRIEF = 0.2
"""What a client gets in seconds, where it is tested that it gets no more."""


@contextmanager
def serving(agent: Agent | None = None, **bounds: Any) -> Iterator[Live]:
    app = create_app(agent or Agent("Helper", ScriptedModel()), heartbeat=NEVER, drain=0.0)
    options = {
        "ws": WebSocketProtocol,
        "ws_max_size": 1000,
        "ws_per_message_deflate": False,
        "timeout_keep_alive": 3600,
    }
    with serving_app(app, http=http_protocol(Bounds(**bounds)), **options) as live:
        yield live


def answer(bare: socket.socket) -> tuple[int, Any]:
    """The next answer on a bare connection."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        part = bare.recv(1)
        assert part, f"the connection ended after {head!r}"
        head += part
    lines = head.decode().split("\r\n")
    size = int(next(line.partition(":")[2] for line in lines if line.lower().startswith("content-length:")))
    body = b""
    while len(body) < size:
        body += bare.recv(size - len(body))
    return int(lines[0].split()[1]), json.loads(body)


def ended(bare: socket.socket) -> bool:
    """The server has closed it, and has said nothing more."""
    try:
        return bare.recv(1) == b""
    except ConnectionResetError:
        return True


# -- heads ------------------------------------------------------------------------------------------------------------


def headers(count: int) -> bytes:
    return b"".join(b"h%d: x\r\n" % number for number in range(count))


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + headers(127), 200),
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + headers(128), 431),
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\nlong: " + b"x" * 60_000 + b"\r\n", 200),
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\nlong: " + b"x" * 70_000 + b"\r\n", 431),
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"x" * 70_000 + b": long\r\n", 431),
        (b"GET /health?" + b"x" * 70_000 + b" HTTP/1.1\r\nhost: localhost\r\n", 431),
        (b"nonsense\r\n", 400),
    ],
)
def test_a_head_has_a_size_and_a_number_of_headers(head: bytes, code: int) -> None:
    with serving() as live, live.connect() as bare:
        bare.sendall(head + b"\r\n")
        status, told = answer(bare)
        assert status == code
        assert code == 200 or (isinstance(told["detail"], str) and ended(bare))


@pytest.mark.parametrize("trailers", [b"t: x\r\n" * 200, b"long: " + b"x" * 70_000 + b"\r\n"])
def test_what_comes_behind_a_body_counts_too(trailers: bytes) -> None:
    with serving() as live, live.connect() as bare:
        head = f"POST {RUNS} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        bare.sendall(head + b"2\r\n{}\r\n0\r\n" + trailers)
        assert answer(bare)[0] == 431
        assert ended(bare)


def test_large_bodies_come_through_in_one_piece() -> None:
    with serving() as live:
        message = "x" * 900_000
        output = live.client.post(RUNS, json={"message": message, "stream": False})
        assert output.json()["messages"][0]["content"] == message


# -- time -------------------------------------------------------------------------------------------------------------

POST = b"POST /agents/helper/runs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET /health HTTP/1.1\r\nhost: loc", POST, POST + b"{"], ids=range(5))
def test_a_request_that_never_comes_is_not_waited_for(sent: bytes) -> None:
    with serving(head_seconds=BRIEF, request_seconds=BRIEF) as live, live.connect() as bare:
        bare.sendall(sent)
        assert ended(bare)
        eventually(lambda: not live.connections)


@pytest.mark.parametrize("sent", [b"GET ", b"\r\n"])
def test_nor_is_one_that_comes_byte_by_byte(sent: bytes) -> None:
    """Each byte is sent when the one before has been read, so it is never silent."""
    with serving(head_seconds=BRIEF) as live, live.connect() as bare:
        bare.sendall(HEALTH + sent)
        assert answer(bare)[0] == 200
        bare.settimeout(BRIEF / 20)
        for _ in range(int(HANG / BRIEF) * 20):
            try:
                bare.sendall(b"A" if sent == b"GET " else b"\r\n")
                assert bare.recv(1) == b""
                return
            except TimeoutError:
                continue
            except ConnectionError:
                return
        raise AssertionError("it was listened to for ever")


def test_the_rest_of_a_request_that_was_refused_is_not_waited_for_either() -> None:
    with serving(head_seconds=BRIEF) as live, live.connect() as bare:
        bare.sendall(POST.replace(b"1000", b"99999999"))
        assert answer(bare)[0] == 413
        bare.sendall(b"x" * 1000)
        assert ended(bare)


def test_a_connection_whose_late_request_was_refused_can_be_used_and_is_closed_in_the_end() -> None:
    with serving(head_seconds=BRIEF) as live, live.connect() as bare:
        refused = POST.replace(b"/helper/", b"/nobody/")
        bare.sendall(refused)
        assert answer(bare)[0] == 404
        bare.sendall(b"x" * 1000 + HEALTH)
        assert answer(bare)[0] == 200
        assert ended(bare)


def test_a_silent_run_has_all_the_time_it_wants() -> None:
    """Also while the next request is half there. A connection that came later, and is closed, says how late it is."""
    silence = Silence()
    agent = Agent("Helper", ScriptedModel(["One ", silence]))
    with serving(agent, head_seconds=BRIEF, request_seconds=BRIEF) as live, live.connect() as bare:
        live.send(bare, RUNS, message="Hi", run_id="r1")
        silence.reached.wait()
        bare.sendall(b"GET /hea")
        for _ in range(3):
            with live.connect() as other:
                assert ended(other)
        assert live.client.get(f"{RUNS}/r1").json()["status"] == "RUNNING"
        assert live.client.post(f"{RUNS}/r1/cancel").status_code == 200


# -- how many ---------------------------------------------------------------------------------------------------------


def test_connections_above_the_limit_are_refused_until_one_leaves() -> None:
    with serving(connections=2) as live:
        with live.connect() as first, live.connect() as second:
            for bare in (first, second):
                bare.sendall(HEALTH)
                assert answer(bare)[0] == 200
            with live.connect() as third:
                third.sendall(HEALTH)
                status, told = answer(third)
                assert (status, "limit of connections" in told["detail"]) == (503, True)
                assert ended(third)
            first.sendall(HEALTH)
            assert answer(first)[0] == 200
        eventually(lambda: not live.connections)
        assert live.client.get("/health").status_code == 200


def test_those_far_above_it_are_closed_at_once() -> None:
    with serving(connections=1) as live, live.connect() as first:
        first.sendall(HEALTH)
        assert answer(first)[0] == 200
        crowd = [live.connect() for _ in range(SPARE + 50)]
        assert all(map(ended, crowd))
        for bare in crowd:
            bare.close()


# -- requests without reading -----------------------------------------------------------------------------------------


def test_pipelined_requests_are_answered_in_their_order() -> None:
    with serving() as live, live.connect() as bare:
        body = json.dumps({"message": "Hi", "stream": False})
        for number in range(300):
            post = f"POST {RUNS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n{body}"
            missing = f"GET {RUNS}/r{number} HTTP/1.1\r\nhost: localhost\r\n\r\n"
            bare.sendall((post if number % 10 == 0 else missing).encode())
        for number in range(300):
            status, told = answer(bare)
            assert (status, number % 10 == 0) in ((200, True), (404, False))
            assert number % 10 == 0 or f"'r{number}'" in told["detail"]


def test_who_does_not_read_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken in and not answered stays small, and the rest waits in the network."""
    most, parse = [0, 0], HttpProtocol._parse

    def watched(self: HttpProtocol) -> None:
        most[1] = max(most[1], len(self._unparsed))
        parse(self)
        most[0] = max(most[0], len(self.pipeline))

    monkeypatch.setattr(HttpProtocol, "_parse", watched)
    with serving() as live, live.connect(receive_buffer=4096) as bare:
        bare.settimeout(1)
        with pytest.raises(TimeoutError):
            for _ in range(1000):
                bare.sendall(b"GET /health HTTP/1.1\r\nhost:localhost\r\n\r\n" * 2000)
        assert 0 < most[0] < 60
        assert 0 < most[1] <= 2 * 256 * 1024
        assert live.client.get("/health").status_code == 200


def test_who_leaves_is_noticed_though_a_request_waits_behind() -> None:
    """Only the last request of a connection was told. A run in front of it went on until it wrote something. That was
    an error in the log, with a traceback, which strangers could cause too.
    """
    with serving(Agent("Helper", ScriptedModel(Stall()))) as live:
        body = json.dumps({"message": "Hi", "run_id": "r1"})
        post = f"POST {RUNS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n{body}"
        with live.connect() as bare:
            bare.sendall(post.encode() + HEALTH)
            read_until(bare, b"RunStarted")
        eventually(lambda: live.client.get(f"{RUNS}/r1").json()["status"] == "CANCELLED")


def test_a_body_that_no_route_reads_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was parsed in small pieces: whoever sent enough of it, also without a token, kept all others waiting."""
    pieces = 0
    parse = HttpToolsProtocol.data_received

    def counted(self: HttpToolsProtocol, data: bytes) -> None:
        nonlocal pieces
        pieces += 1
        parse(self, data)

    monkeypatch.setattr(HttpToolsProtocol, "data_received", counted)
    with serving() as live, live.connect() as bare:
        size = 8_000_000
        bare.sendall(b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % (RUNS.encode(), size))
        bare.sendall(b"x" * size + HEALTH)
        assert [answer(bare)[0], answer(bare)[0]] == [413, 200]
    assert pieces < size // 1024 // 4


# -- WebSockets -------------------------------------------------------------------------------------------------------


@contextmanager
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What uvicorn logs, which keeps it to itself."""
    logger = logging.getLogger("uvicorn.error")
    with caplog.at_level("ERROR", "uvicorn.error"):
        logger.addHandler(caplog.handler)
        try:
            yield
        finally:
            logger.removeHandler(caplog.handler)


@contextmanager
def talking(live: Live) -> Iterator[Any]:
    live.client.post("/apps/helper/users/ada/sessions/s1")
    url = f"ws://127.0.0.1:{live.port}/run_live?app_name=helper&user_id=ada&session_id=s1"
    with connect(url, proxy=None) as talk:
        yield talk


def test_messages_have_a_size_and_are_not_inflated() -> None:
    with serving() as live, talking(live) as talk:
        assert "Sec-WebSocket-Extensions" not in talk.response.headers
        talk.send("x" * 1001)
        with pytest.raises(ConnectionClosed) as caught:
            talk.recv(timeout=HANG)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


def test_nor_do_they_come_in_endless_pieces() -> None:
    with serving() as live, talking(live) as talk:
        empty = Frame(Opcode.CONT, b"", fin=False).serialize(mask=True, extensions=[])
        begin = Frame(Opcode.TEXT, b"", fin=False).serialize(mask=True, extensions=[])
        talk.socket.sendall(begin + empty * (FRAGMENTS + 1))
        with pytest.raises(ConnectionClosed) as caught:
            talk.recv(timeout=HANG)
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, "pieces" in caught.value.rcvd.reason) == (1009, True)


UPGRADE = (
    b"GET /run_live HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def test_a_client_that_reads_no_pongs_has_its_pings_not_read() -> None:
    with serving() as live:
        live.client.post("/apps/helper/users/ada/sessions/s1")
        with live.connect(receive_buffer=4096) as bare:
            path = b"/run_live?app_name=helper&user_id=ada&session_id=s1"
            bare.sendall(UPGRADE.replace(b"/run_live", path) + b"\r\n")
            assert bare.recv(12) == b"HTTP/1.1 101"
            bare.settimeout(1)
            pings = Frame(Opcode.PING, b"x" * 125).serialize(mask=True, extensions=[]) * 1000
            with pytest.raises(TimeoutError):
                for _ in range(500):
                    bare.sendall(pings)
            [talk] = [each for each in live.server.server_state.connections if isinstance(each, WebSocketProtocol)]
            assert talk.transport.get_write_buffer_size() < 1_000_000


def test_who_is_not_accepted_is_not_listened_to(caplog: pytest.LogCaptureFixture) -> None:
    asked, release = Flag(), Flag()

    async def nobody(connection: HTTPConnection) -> None:
        asked.set()
        await release.arrived()

    app = create_app(Agent("Helper", ScriptedModel()), authenticate=nobody, drain=0.0)
    with (
        serving_app(app, http=http_protocol(Bounds()), ws=WebSocketProtocol) as live,
        live.connect() as bare,
        logged(caplog),
    ):
        bare.sendall(UPGRADE + b"\r\n")
        asked.wait()
        ping = Frame(Opcode.PING, b"").serialize(mask=True, extensions=[])
        bare.sendall(ping + b"\xff" * 1000)  # is no frame
        assert live.client.get("/health").status_code == 200  # it has come by now
        release.set()
        status, told = answer(bare)
        assert (status, "not known" in told["detail"]) == (401, True)
        assert ended(bare)
    assert caplog.text == ""


def test_who_is_accepted_is_heard_though_it_spoke_too_early() -> None:
    """Behind another request, which keeps the server from reading on; and what comes then may come in one piece."""
    with serving() as live:
        live.client.post("/apps/helper/users/ada/sessions/s1")
        with live.connect() as bare:
            path = b"/run_live?app_name=helper&user_id=ada&session_id=s1"
            bare.sendall(HEALTH + UPGRADE.replace(b"/run_live", path) + b"\r\n")
            assert answer(bare)[0] == 200
            assert bare.recv(12) == b"HTTP/1.1 101"
            while not bare.recv(4096).endswith(b"\r\n\r\n"):
                pass
            bare.sendall(Frame(Opcode.PING, b"x").serialize(mask=True, extensions=[]))
            assert bare.recv(3) == Frame(Opcode.PONG, b"x").serialize(mask=False, extensions=[])


def test_what_is_no_handshake_is_a_bad_request() -> None:
    """A line that is longer than the WebSocket's own library takes: it would never be answered, and kept for ever."""
    with serving() as live, live.connect() as bare:
        bare.sendall(UPGRADE + b"long: " + b"x" * 9000 + b"\r\n\r\n")
        status, told = answer(bare)
        assert (status, "handshake" in told["detail"]) == (400, True)
        assert ended(bare)
        assert live.client.get("/health").status_code == 200
