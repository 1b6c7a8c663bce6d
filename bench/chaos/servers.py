# SPDX-License-Identifier: Apache-2.0
"""Real servers and real databases, each of which can be killed and started again, and what is done to them.

What must stay true: whatever a round ends with, no process of it is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

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

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.port = _free_port()
        self._command, self._environment, self._log = [*command, "--port", str(self.port)], environment, log
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


def _free_port() -> int:
    """Below those that the system gives to clients: one of them could take it while its server is down."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = secrets.randbelow(12_000) + 20_000
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.asynccontextmanager
async def serving(
    agent: str,
    database: Database,
    count: int,
    lease: float,
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> AsyncIterator[list[Server]]:
    """So many servers of an agent on one database."""
    command = [sys.executable, "-m", "andon", "serve", agent, "--db", database.url, "--lease", str(lease), *options]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_")}
    logs = [database.folder / f"server-{number}.log" for number in range(count)]
    servers = [Server([*command, "--drain", "0"], {**inherited, **(environment or {})}, log) for log in logs]
    try:
        await servers[0].start()  # alone: it makes the tables
        await asyncio.gather(*(server.start() for server in servers[1:]))
        yield servers
    finally:
        for server in servers:
            await server.kill()


class Trouble:
    """Kills and stops at random, and counts it. Servers and database have their troubles at the same time."""

    def __init__(self, servers: list[Server], database: Database, lease: float, chance: Random) -> None:
        self._servers, self._database, self._lease, self._chance = servers, database, lease, chance
        self.counts: Counter[str] = Counter()

    @property
    def was_had(self) -> bool:
        """Has each kind of it come at least once?"""
        return len(self.counts) == (3 if self._database.can_die else 2)

    async def make(self, over: asyncio.Event) -> None:
        """Until it is over; then all that was killed or stopped is there again."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._with_servers(over))
            tasks.create_task(self._with_database(over))

    async def _with_servers(self, over: asyncio.Event) -> None:
        kinds = [self._kill, self._stop]  # both, however short it is: the trial waits for them
        while not await self._pause(over, 0.3, 2.5):
            kind = kinds.pop() if kinds else self._chance.choice((self._kill, self._stop))
            await kind(self._chance.choice(self._servers), over)

    async def _kill(self, server: Server, over: asyncio.Event) -> None:
        await server.kill()
        self.counts["kills of a server"] += 1
        await self._pause(over, 0, 1.5 * self._lease)
        await server.start_again()

    async def _stop(self, server: Server, over: asyncio.Event) -> None:
        """Past its lease."""
        server.signal(signal.SIGSTOP)
        self.counts["stops of a server"] += 1
        try:
            await self._pause(over, 1.1 * self._lease, 2 * self._lease)
        finally:
            server.signal(signal.SIGCONT)

    async def _with_database(self, over: asyncio.Event) -> None:
        while self._database.can_die and not await self._pause(over, 2.0, 10.0):
            await self._database.kill()
            self.counts["kills of the database"] += 1
            await self._pause(over, 0, self._lease)
            await self._database.start()

    async def _pause(self, over: asyncio.Event, least: float, most: float) -> bool:
        """Wait for so long, or until it is over: then True."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), self._chance.uniform(least, most))
        return over.is_set()
