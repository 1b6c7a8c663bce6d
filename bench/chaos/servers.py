# SPDX-License-Identifier: Apache-2.0
"""Real servers and real databases, each of which can be killed and started again.

What must stay true: whatever a round ends with, no process of it is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

from bench.chaos.ports import free_port
from tests.store.server import HASTY
from tests.store.server import Server as Postgres

ROOT = Path(__file__).parents[2]
START_SECONDS = 60.0
_TRACEBACK = re.compile(r"^Traceback \(.*\n(?: .*\n)+.*", re.MULTILINE)
DATABASES = ("sqlite", "postgres")


class Database:
    """Where it is, and how it can be killed: a file can't."""

    def __init__(self, url: str, folder: Path, postgres: Postgres | None = None) -> None:
        self.url, self.folder, self._postgres = url, folder, postgres

    @property
    def can_die(self) -> bool:
        return self._postgres is not None

    async def kill(self) -> None:
        assert self._postgres is not None
        await asyncio.to_thread(self._postgres.kill)

    async def start(self) -> None:
        assert self._postgres is not None
        await asyncio.to_thread(self._postgres.start)


@contextlib.contextmanager
def database(kind: str, settings: str = HASTY) -> Iterator[Database]:
    """A fresh one, in a folder that goes with it. `settings` are Postgres' own."""
    folder = Path(tempfile.mkdtemp(prefix="andon-chaos-"))  # not for its owner alone: Postgres never runs as root
    try:
        if kind == "sqlite":
            yield Database(f"sqlite:///{folder}/andon.db", folder)
        else:
            postgres = Postgres(folder, Path(tempfile.gettempdir()), settings)
            try:
                yield Database(postgres.url("postgres"), folder, postgres)
            finally:
                postgres.start()  # who is down can't be stopped
                postgres.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class ServerGoneError(RuntimeError):
    """It has left before it listened."""


def _is_ours(frame: str) -> bool:
    where = frame.partition("\n")[0]
    return "site-packages" not in where or "site-packages/andon/" in where


class Server:
    """`andon serve` in a process of its own, on a port that it keeps."""

    def __init__(self, command: list[str], environment: Mapping[str, str], folder: Path) -> None:
        self.port = free_port()
        self._command, self._environment = [*command, "--port", str(self.port)], environment
        self._log = folder / f"server-{self.port}.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        await self._launch()
        async with asyncio.timeout(START_SECONDS):
            while True:
                if await self._listens():
                    return
                await asyncio.sleep(0.05)

    async def start_again(self) -> None:
        """As a supervisor would: again and again, if the database is down just now and it says so and leaves."""
        while True:
            with contextlib.suppress(ServerGoneError):
                return await self.start()

    async def _launch(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, cwd=ROOT, env=dict(self._environment), stdout=log, stderr=log
            )

    async def _listens(self) -> bool:
        if self._process is None or self._process.returncode is not None:
            raise ServerGoneError(f"the server did not start:\n{self._log.read_text()[-2000:]}")
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True

    @property
    def defects(self) -> list[str]:
        """What its log says that it should never say: each traceback, by the frames that are ours, and its error."""
        found = []
        for traceback in _TRACEBACK.findall(self._log.read_text(errors="replace")):
            *frames, last = traceback.split("  File ")
            found.append("  File ".join([*filter(_is_ours, frames), last]))
        return found

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def serving(
    agent: str,
    database: Database,
    count: int,
    lease: float,
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    urls: Sequence[str] = (),
) -> AsyncIterator[list[Server]]:
    """So many servers of an agent on one database; with `urls`, each has an address of its own for it."""
    command = [sys.executable, "-m", "andon", "serve", agent, "--drain", "0", "--lease", str(lease), *options]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_")}
    settings = {**inherited, **(environment or {})}
    addresses = urls or [database.url] * count
    servers = [Server([*command, "--db", url], settings, database.folder) for url in addresses]
    try:
        await servers[0].start()  # alone: it makes the tables
        await asyncio.gather(*(server.start() for server in servers[1:]))
        yield servers
    finally:
        for server in servers:
            await server.kill()
