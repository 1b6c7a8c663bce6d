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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from bench.chaos.ports import free_port
from bench.chaos.wires import Home
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


class Program:
    """A program of ours in a process of its own, which can be killed and started again."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name, self._command, self._environment, self._log = name, list(command), environment, log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self, is_up: Callable[[], Awaitable[bool]]) -> None:
        begins = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, cwd=ROOT, env=dict(self._environment), stdout=log, stderr=log
            )
        self.said = ""
        async with asyncio.timeout(START_SECONDS):
            while True:
                if self._process.returncode is not None:
                    raise ServerGoneError(f"it did not start:\n{self._log.read_text()[-2000:]}")
                self.said = self._log.read_bytes()[begins:].decode(errors="replace")
                if await is_up():
                    return
                await asyncio.sleep(0.05)

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


class Member(Protocol):
    """A server or a worker."""

    program: Program

    async def start(self) -> None: ...


async def start_again(member: Member) -> None:
    """As a supervisor would: again and again, if the database is down just now and it says so and leaves."""
    while True:
        with contextlib.suppress(ServerGoneError):
            return await member.start()


class Server:
    """`andon serve`, on a port that it keeps."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, home: Home | None = None
    ) -> None:
        self.port = free_port()
        self._host = "127.0.0.1" if home is None else home.address
        inside = () if home is None else home.entrance
        # In a namespace of its own nobody but this machine can reach it.
        reached = () if home is None else ("--host", home.address, "--allow-open")
        command = [*inside, *command, "--port", str(self.port), *reached]
        self.program = Program("server", command, environment, folder / f"server-{self.port}.log")

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}"

    @property
    def pid(self) -> int:
        return self.program.pid

    async def start(self) -> None:
        await self.program.start(self._listens)

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(self._host, self.port)
        except OSError:
            return False
        writer.close()
        return True


class Executor:
    """`andon worker`."""

    def __init__(
        self, number: int, command: Sequence[str], environment: Mapping[str, str], folder: Path, home: Home | None
    ) -> None:
        inside = () if home is None else home.entrance
        log = folder / f"worker-{number}.log"
        self.program = Program("worker", [*inside, *command, "--name", f"worker-{number}"], environment, log)

    async def start(self) -> None:
        await self.program.start(self._serves)

    async def _serves(self) -> bool:
        return " serves " in self.program.said


@contextlib.asynccontextmanager
async def serving(
    agent: str,
    database: Database,
    count: int,
    lease: float,
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    urls: Sequence[str] = (),
    homes: Sequence[Home | None] = (),
    own: Sequence[Mapping[str, str]] = (),
) -> AsyncIterator[list[Server]]:
    """So many servers of an agent on one database. With `urls`, each has an address of its own for it, with `homes` a
    network namespace, and with `own` more of an environment.
    """
    command = [sys.executable, "-m", "andon", "serve", agent, "--drain", "0", "--lease", str(lease), *options]
    settings = _settings(environment)
    addresses = urls or [database.url] * count
    places, rest = homes or [None] * count, own or [{}] * count
    servers = [
        Server([*command, "--db", url], {**settings, **more}, database.folder, home)
        for url, home, more in zip(addresses, places, rest, strict=True)
    ]
    try:
        await servers[0].start()  # alone: it makes the tables
        await asyncio.gather(*(server.start() for server in servers[1:]))
        yield servers
    finally:
        for server in servers:
            await server.program.kill()


def _settings(environment: Mapping[str, str] | None) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_")}
    return {**inherited, **(environment or {})}


@contextlib.asynccontextmanager
async def working(
    agent: str,
    database: Database,
    lease: float,
    urls: Sequence[str],
    homes: Sequence[Home | None],
    environments: Sequence[Mapping[str, str]],
) -> AsyncIterator[list[Executor]]:
    """A worker for each of these addresses of the database."""
    command = [sys.executable, "-m", "andon", "worker", agent, "--drain", "0", "--lease", str(lease)]
    executors = [
        Executor(number, [*command, "--db", url], _settings(environment), database.folder, home)
        for number, (url, home, environment) in enumerate(zip(urls, homes, environments, strict=True))
    ]
    try:
        await asyncio.gather(*(executor.start() for executor in executors))
        yield executors
    finally:
        for executor in executors:
            await executor.program.kill()
