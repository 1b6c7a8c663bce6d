# SPDX-License-Identifier: Apache-2.0
"""`andon serve` and those who have no token: what they send costs the server next to nothing, whatever it is."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.no_cover  # a tracer's own memory would be measured too

HANG = 60
MEGABYTE = 2**20
PROGRAM = """
from andon import Agent
from andon.models.scripted import ScriptedModel

agent = Agent("Helper", ScriptedModel())
"""


class Served:
    """A server with a token in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), HANG)

    @property
    def peak(self) -> int:
        """The most memory that it ever had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found
        return int(found[1]) * 1024

    @property
    def works(self) -> bool:
        return httpx.get(f"http://127.0.0.1:{self.port}/ready", timeout=HANG, verify=False).status_code == 200


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "program.py").write_text(PROGRAM)

    def few_descriptors() -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

    with subprocess.Popen(
        [sys.executable, "-m", "andon", "serve", "program:agent", "--port", "0", "--db", "memory://"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "error", "ANDON_TOKEN": "t1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=few_descriptors,
    ) as process:
        assert process.stdout is not None
        try:
            found = re.search(r":(\d+)$", process.stdout.readline())
            assert found
            served = Served(process, int(found[1]))
            assert served.works
            yield served
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG) == 0
        finally:
            process.kill()


HEAD = b"GET /agents HTTP/1.1\r\nhost: localhost\r\n"
UPGRADE = (
    b"GET /run_live HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"sec-websocket-extensions: permessage-deflate\r\n\r\n"
)


def one_huge_header(served: Served) -> None:
    with served.connect() as bare, suppress(ConnectionError):
        bare.sendall(HEAD + b"huge: ")
        for _ in range(100):
            bare.sendall(b"x" * MEGABYTE)


def a_million_headers(served: Served) -> None:
    with served.connect() as bare, suppress(ConnectionError):
        bare.sendall(HEAD)
        for _ in range(1000):
            bare.sendall(b"h: x\r\n" * 1000)


def a_body_without_end(served: Served) -> None:
    with served.connect() as bare, suppress(ConnectionError):
        bare.sendall(b"POST /agents/helper/runs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 104857600\r\n\r\n")
        for _ in range(100):
            bare.sendall(b"x" * MEGABYTE)


def answers_that_nobody_reads(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(10):
            bare = stack.enter_context(served.connect())
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            bare.settimeout(0.5)
            with suppress(TimeoutError, ConnectionError):
                for _ in range(100):
                    bare.sendall(b"GET /health HTTP/1.1\r\nhost:localhost\r\n\r\n" * 10_000)


def a_thousand_idle_connections(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(served.connect()).sendall(b"GET /")
        assert served.works


def frames_on_a_refused_websocket(served: Served) -> None:
    """It is answered as a request, and is no WebSocket."""
    with served.connect() as bare:
        bare.sendall(UPGRADE)
        assert bare.recv(12) == b"HTTP/1.1 401"
        with suppress(ConnectionError):
            while bare.recv(65536):
                pass


@pytest.mark.parametrize(
    "attack",
    [
        one_huge_header,
        a_million_headers,
        a_body_without_end,
        answers_that_nobody_reads,
        a_thousand_idle_connections,
        frames_on_a_refused_websocket,
    ],
)
def test_a_stranger_takes_no_memory(served: Served, attack: Callable[[Served], None]) -> None:
    before = served.peak
    attack(served)
    assert served.works
    assert served.peak - before < 40 * MEGABYTE


def test_the_limit_of_descriptors_is_raised(served: Served) -> None:
    line = re.search(r"Max open files +(\d+) +(\d+)", Path(f"/proc/{served.process.pid}/limits").read_text())
    assert line
    soft, hard = map(int, line.groups())
    assert soft == min(hard, 2**20)
