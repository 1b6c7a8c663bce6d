# SPDX-License-Identifier: Apache-2.0
"""A real Redis that can be killed, stopped in its tracks, and started again."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis

from tests.support.flags import HANG


class RedisServer:
    """In memory alone, on a port that it keeps."""

    def __init__(self, program: str, folder: Path, password: str | None = None, options: Sequence[str] = ()) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        access = [] if password is None else ["--requirepass", password]
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(folder)]
        self._command = [program, *where, "--save", "", "--appendonly", "no", *access, *options]
        self._password = password
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        return self._process.pid

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, password=self._password, socket_timeout=HANG)

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + HANG
        while True:
            assert self._process.poll() is None, "redis-server did not start"
            assert time.monotonic() < deadline
            with contextlib.suppress(redis.ConnectionError), self.client() as client:
                client.ping()
                return
            time.sleep(0.01)

    def hang(self) -> None:
        """Connections stay, and nothing answers."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(HANG)


def redis_program() -> str:
    """Debian's package has it. In CI a test that is skipped is a failure."""
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("there is no redis-server: `make redis` installs it")
    return found


@contextlib.contextmanager
def redis_server(password: str | None = None, *options: str) -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="andon-redis-") as folder:
        server = RedisServer(redis_program(), Path(folder), password, options)
        try:
            yield server
        finally:
            server.kill()
