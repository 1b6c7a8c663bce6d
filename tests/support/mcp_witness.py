# SPDX-License-Identifier: Apache-2.0
"""Real MCP servers in processes of their own, and a witness that hears what they see."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from andon.tools.mcp import MCPServer
from tests.support import mcp_warm

HANG = 10.0

PROGRAM = str(Path(__file__).with_name("mcp_server.py"))


class Witness:
    """Listens to the servers of a test. It knows what they have seen, and which of their processes are gone."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(HANG)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._hear, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _hear(self, connection: socket.socket) -> None:
        pid = None
        with connection, connection.makefile() as lines:
            try:
                for line in lines:
                    told = json.loads(line)
                    pid = told["pid"]
                    self._tell(told)
            except ConnectionError:
                pass
        self._tell({"what": "gone", "pid": pid})

    def _tell(self, told: dict[str, Any]) -> None:
        with self._news:
            self.seen.append(told)
            self._news.notify_all()

    def find(self, what: str, **facts: Any) -> list[dict[str, Any]]:
        wanted = {"what": what, **facts}
        return [each for each in list(self.seen) if wanted.items() <= each.items()]

    def wait(self, what: str, count: int = 1, **facts: Any) -> dict[str, Any]:
        """Wait until so many of these were seen, and return the last one."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.find(what, **facts)) >= count, HANG), (what, facts, self.seen)
            return self.find(what, **facts)[-1]

    async def saw(self, what: str, count: int = 1, **facts: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self.wait, what, count, **facts)

    # -- servers ------------------------------------------------------------------------------------------------------

    def command(self, *flags: str) -> list[str]:
        return [sys.executable, PROGRAM, str(self.port), *flags]

    def stdio(self, *flags: str, **options: Any) -> MCPServer:
        return MCPServer(self.command(*flags), name="tests", **options)

    def warm(self, *flags: str, **options: Any) -> MCPServer:
        """The same, started quickly (`mcp_warm`). Not for tests of how it ends."""
        return MCPServer(mcp_warm.command(str(self.port), *flags), name="tests", **options)

    @contextmanager
    def http(self, **options: Any) -> Iterator[MCPServer]:
        with self.http_process(warm=True) as (_, url):
            yield MCPServer(url=url, name="tests", **options)

    @contextmanager
    def http_process(self, *flags: str, warm: bool = False) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
        count = len(self.find("port")) + 1
        command = mcp_warm.command(str(self.port), "--http", *flags) if warm else self.command("--http", *flags)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                yield process, f"http://127.0.0.1:{self.wait('port', count)['port']}/mcp"
            finally:
                process.kill()

    @contextmanager
    def server(self, kind: str, *flags: str, **options: Any) -> Iterator[MCPServer]:
        """One of each kind: `stdio`, `stdio-legacy`, `http`, `http-legacy`. It is started quickly: `mcp_warm`."""
        if kind.startswith("http"):
            with self.http(protocol="legacy" if kind.endswith("legacy") else "auto", **options) as server:
                yield server
        else:
            yield self.warm(*(["--legacy"] if kind.endswith("legacy") else []), *flags, **options)
