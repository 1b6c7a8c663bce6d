# SPDX-License-Identifier: Apache-2.0
"""The parent of the processes that serve: `andon serve --workers N`, and `--reload`.

The parent holds the listening socket and serves nothing itself. A worker is the same command in another process. It
gets that socket, and a socket to its parent (`andon.server.parent_process`). What must stay true: one signal to the
parent drains all workers; a second signal ends all of them at once; a worker that dies, or can't be started, is
replaced; and no worker outlives its parent.

The parent tells a worker to drain over the socket, not by a signal. systemd sends SIGTERM to every process of a
service, and a second SIGTERM would end the worker at once. Each worker has its own process group, so that Ctrl-C at a
terminal reaches the parent alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import NamedTuple

from andon.cli.command_error import Exit
from andon.cli.file_watcher import FileWatcher
from andon.cli.terminal import note
from andon.scale import systemd
from andon.server.parent_process import END, VARIABLE

RESTART_SECONDS, LONGEST_RESTART_SECONDS = 1.0, 30.0
"""A worker that died is replaced after this time. If it can't be started, the delay doubles."""

RELOAD_SECONDS = 15.0
"""How long a worker has to end after a change, in addition to `--drain`: a tool may block its event loop."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Worker:
    """A serving process, and the socket to it."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self.pid, self.is_ready = process.pid, False

    @classmethod
    async def start(cls, number: int, arguments: Sequence[str], listener: socket.socket) -> Worker:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",  # else a file `andon.py` in this folder would be run
                    *(f"-W{each}" for each in sys.warnoptions),
                    "-m",
                    "andon",
                    *arguments,
                    env={**os.environ, VARIABLE: f"{listener.fileno()},{theirs.fileno()},{number}"},
                    stdin=asyncio.subprocess.DEVNULL,  # a background process must not read from the terminal
                    pass_fds=(listener.fileno(), theirs.fileno()),
                    process_group=0,
                )
            return cls(process, *await asyncio.open_connection(sock=ours))
        except BaseException:  # if it was started, the closed socket ends it
            ours.close()
            raise

    async def ready(self) -> str | None:
        """What it prints when it serves; None if it ended before that."""
        try:
            text = await self._reader.readuntil(END)
        except (asyncio.IncompleteReadError, OSError):
            return None
        self.is_ready = True
        return text.removesuffix(END).decode()

    def drain(self) -> None:
        """Make it drain and end. It may be called several times, and signals don't disturb it."""
        if self.is_ready:
            with contextlib.suppress(OSError):  # it has ended
                self._writer.write_eof()
        else:
            self.send(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def ended(self) -> int:
        code = await self._process.wait()
        self._writer.close()
        return code


class Ended(NamedTuple):
    """A worker that has ended."""

    code: int
    """The exit code that this process should use for it."""
    how: str


class Workers:
    """The workers of this process, and the handling of signals."""

    def __init__(self, arguments: Sequence[str], listener: socket.socket) -> None:
        self._arguments, self._listener = arguments, listener
        self._alive: dict[int, Worker] = {}
        self._unstarted: dict[int, OSError] = {}
        """Why the worker of this number could not be started."""
        self._signal: signal.Signals | None = None
        """The first signal. After it no worker is started."""
        self._leaving = asyncio.Event()

    def listen(self) -> None:
        for each in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(each, self._caught, each)

    def _caught(self, number: signal.Signals) -> None:
        if self._signal is not None:
            self.kill()  # at once: the worker's own handler may not run
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._signal = number
        self._leaving.set()
        systemd.notify("STOPPING=1")
        self.drain()

    def drain(self) -> None:
        for worker in self._alive.values():
            worker.drain()

    def kill(self) -> None:
        for worker in self._alive.values():
            worker.send(signal.SIGKILL)

    async def _begin(self, number: int) -> str | None:
        """Start it. Returns what it prints, or None if it ends before it serves, or can't be started."""
        try:
            worker = self._alive[number] = await Worker.start(number, self._arguments, self._listener)
        except OSError as error:  # no descriptors or no memory, for now
            self._unstarted[number] = error
            return None
        if self._leaving.is_set():  # a signal came during the start
            worker.drain()
        return await worker.ready()

    async def _end(self, number: int) -> Ended:
        """Wait for its end. A worker that a signal ended has a negative code, which this process can't use."""
        if (error := self._unstarted.pop(number, None)) is not None:
            return Ended(Exit.ok if self._leaving.is_set() else Exit.failed, f"could not be started ({error})")
        worker = self._alive[number]
        code = await worker.ended()
        del self._alive[number]
        how = f"has ended ({_how(code)})"
        if self._signal is not None and code == -signal.SIGTERM and not worker.is_ready:
            return Ended(Exit.ok, how)  # it had not installed its handler yet
        return Ended(Exit.failed if code < 0 else code, how)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaving.wait()

    # -- several ------------------------------------------------------------------------------------------------------

    async def keep(self, count: int) -> int:
        """Keep this number of workers, until a signal. Returns the exit code of this process."""
        # The first one alone: it creates the tables, and an error is printed only once.
        text = await self._begin(1)
        if text is None:
            unstarted, ended = 1 in self._unstarted, await self._end(1)
            if unstarted:  # otherwise the worker has printed the reason
                note(f"andon: the server {ended.how}", "red")
            return ended.code
        up = [asyncio.Event() for _ in range(2, count + 1)]
        tending = [asyncio.create_task(self._tend(1, None))]
        tending += [asyncio.create_task(self._tend(number, each)) for number, each in enumerate(up, 2)]
        for each in up:
            await each.wait()
        if not self._leaving.is_set():
            pids = ", ".join(str(worker.pid) for _, worker in sorted(self._alive.items()))
            print(f"{text}\nworkers: {count} processes ({pids}), of {os.getpid()}", flush=True)
            systemd.notify("READY=1")
        return max([await each for each in tending])

    async def _tend(self, number: int, up: asyncio.Event | None) -> int:
        """Replace a worker whenever it has ended, until a signal."""
        delay = RESTART_SECONDS
        if up is not None:
            try:
                await self._begin(number)
            finally:
                up.set()
        while True:
            ended = await self._end(number)
            if self._leaving.is_set():
                return ended.code
            note(f"andon: worker {number} {ended.how}; starting another in {delay:g} s", "yellow")
            await self._pause(delay)
            if self._leaving.is_set():
                return Exit.ok
            text = await self._begin(number)
            delay = RESTART_SECONDS if text is not None else min(2 * delay, LONGEST_RESTART_SECONDS)

    # -- one, and again -----------------------------------------------------------------------------------------------

    async def reload(self, files: FileWatcher, drain: float) -> int:
        """Keep one worker, and replace it whenever the program has changed, until a signal."""
        while True:
            changing = asyncio.create_task(files.changed())
            serving = asyncio.create_task(self._serve_once())
            leaving = asyncio.create_task(self._leaving.wait())
            await asyncio.wait([serving, changing, leaving], return_when=asyncio.FIRST_COMPLETED)
            if serving.done() and not self._leaving.is_set():
                how = serving.result().how
                note(f"andon: the server {how}; a change of the program starts it again", "yellow")
                await asyncio.wait([changing, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not self._leaving.is_set():
                print(f"changed: {', '.join(changing.result())}; starting again", flush=True)
                self.drain()
                _, late = await asyncio.wait([serving], timeout=drain + RELOAD_SECONDS)
                if late:
                    self.kill()
            ended = await serving
            for each in (changing, leaving):
                each.cancel()
            if self._leaving.is_set():
                return ended.code

    async def _serve_once(self) -> Ended:
        text = await self._begin(0)
        if text is not None:
            print(text, flush=True)
        return await self._end(0)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


async def supervise(
    arguments: Sequence[str], listener: socket.socket, *, count: int, reload: bool, drain: float
) -> int:
    """Serve in other processes until a signal; returns the exit code of this one."""
    workers = Workers(arguments, listener)
    workers.listen()
    return await (workers.reload(FileWatcher(), drain) if reload else workers.keep(count))
