# SPDX-License-Identifier: Apache-2.0
"""A server that is a program: started, talked to by its pipes, and ended.

The program does not run as our child. `supervisor.py` runs between us and it, and ends it with all its processes when
the lifeline is closed: a pipe whose other end is here. So the server ends with its session, with its loop, and with
this process, even if that is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO, Any, Self

from andon.tools.mcp.settings import Address

log = logging.getLogger(__name__)

SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
EXIT_SECONDS = 0.5
"""How long a server may take to end by itself once its input is closed."""

GRACE = 0.5
"""How long it may take after SIGTERM, before SIGKILL."""

LEARN_SECONDS = 1.0
"""How long it may take to be gone once it has closed a pipe, and then to be read to its end: then it is known how."""

KILL_SECONDS = 5.0
"""How long the supervisor may take to end all processes."""

CHUNK = 65_536
MAX_LINE = 128 * 2**20
"""A server that writes more bytes than this without the end of a line is given up: it would take all memory."""

TAIL_LINES, TAIL_CHARACTERS = 10, 300


class LineTooLongError(Exception):
    """The server has written more than `MAX_LINE` bytes without the end of a line."""


class Lifeline:
    """The end of the pipe that keeps a server alive. Closing it ends the server, and so does losing it."""

    __slots__ = ("__weakref__", "_number")

    def __init__(self, number: int) -> None:
        self._number: int | None = number
        _lifelines.add(self)

    def close(self) -> None:
        number, self._number = self._number, None
        if number is not None:
            os.close(number)

    def __del__(self) -> None:
        self.close()


_lifelines: weakref.WeakSet[Lifeline] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child must not keep the servers of its parent alive."""
    for each in list(_lifelines):
        each.close()


os.register_at_fork(after_in_child=_close_in_child)


class ServerProcess:
    """A server's process, its pipes, and the last lines that it wrote to stderr.

    Not one of asyncio's: those are killed when their object is freed, and the supervisor must outlive this one.
    """

    __slots__ = (
        "_followed",
        "_gone",
        "_left",
        "_lifeline",
        "_process",
        "_stderr",
        "_stdin",
        "_stdout",
        "_transports",
        "tail",
    )

    def __init__(self, process: subprocess.Popen[bytes], lifeline: Lifeline, tail: deque[str]) -> None:
        self._process, self._lifeline, self.tail = process, lifeline, tail
        self._gone, self._followed = asyncio.Event(), asyncio.Event()
        self._stdout, self._stderr = asyncio.StreamReader(), asyncio.StreamReader()
        self._stdin: asyncio.StreamWriter
        self._left = False
        self._transports: list[asyncio.BaseTransport] = []

    @classmethod
    async def start(cls, address: Address, tail: deque[str]) -> ServerProcess:
        made, alive = cls._spawn(address, tail)
        try:
            await made._connect(alive)
        except BaseException:  # also if it was cancelled
            made.leave()
            raise
        return made

    @classmethod
    def _spawn(cls, address: Address, tail: deque[str]) -> tuple[ServerProcess, IO[bytes]]:
        """Blocks for a millisecond, as asyncio's own way to start a process does."""
        theirs, ours = os.pipe()
        lifeline = Lifeline(ours)
        alive, their_alive = os.pipe()  # we read its end when the supervisor has ended
        numbers = str(theirs), str(their_alive), str(EXIT_SECONDS), str(GRACE)
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", SUPERVISOR, *numbers, *address.command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=address.environment(),
                cwd=address.cwd,
                pass_fds=(theirs, their_alive),
                start_new_session=True,  # a Ctrl-C at the terminal is for us, not for the server
            )
        except BaseException:
            lifeline.close()
            os.close(alive)
            raise
        finally:
            os.close(theirs)
            os.close(their_alive)
        return cls(process, lifeline, tail), os.fdopen(alive, "rb", 0)

    async def _connect(self, alive: IO[bytes]) -> None:
        loop = asyncio.get_running_loop()
        protocols: list[asyncio.Protocol] = [
            AliveProtocol(self._gone),
            asyncio.StreamReaderProtocol(self._stdout),
            asyncio.StreamReaderProtocol(self._stderr),
        ]
        for each, pipe in zip(protocols, (alive, self._process.stdout, self._process.stderr), strict=True):
            transport, _ = await loop.connect_read_pipe(functools.partial(_same, each), pipe)
            self._transports.append(transport)
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())  # only for its flow control
        writing, _ = await loop.connect_write_pipe(functools.partial(_same, protocol), self._process.stdin)
        writing.set_write_buffer_limits(0)  # what was written has left this process
        self._stdin = asyncio.StreamWriter(writing, protocol, None, loop)
        self._transports.append(writing)

    async def lines(self) -> AsyncIterator[bytes]:
        """What the server writes to stdout. Raises `LineTooLongError`."""
        parts: list[bytes] = []  # of a line; it may be long, so its parts are joined once
        size = 0
        while chunk := await self._stdout.read(CHUNK):
            end, *starts = chunk.split(b"\n")
            parts.append(end)
            size += len(end)
            for start in starts:
                yield b"".join(parts)
                parts, size = [start], len(start)
            if size > MAX_LINE:
                raise LineTooLongError

    async def write(self, line: bytes) -> None:
        """Raises `OSError` if the server has closed its input."""
        self._stdin.write(line)  # all of it, or nothing: a cancellation of the wait leaves no half of a line
        await self._stdin.drain()
        if self._stdin.is_closing():
            raise BrokenPipeError("the input was closed before it had taken the line")

    async def follow_stderr(self) -> None:
        """Keep the last lines, for errors. The others go to our log, at level DEBUG."""
        left = b""
        while chunk := await self._stderr.read(CHUNK):
            *lines, left = (left + chunk).split(b"\n")
            for line in [*lines, left] if len(left) > CHUNK else lines:
                self.note(line)
            left = b"" if len(left) > CHUNK else left
        self.note(left)
        self._followed.set()

    def note(self, line: bytes) -> None:
        if text := line.decode("utf-8", "replace").strip():
            self.tail.append(text[:TAIL_CHARACTERS])
            log.debug("an MCP server says: %s", text[:TAIL_CHARACTERS])

    async def describe_end(self, closed: str) -> str:
        """Why the connection is over. If the server has just ended, that is known in a moment, with its last lines."""
        code = await self.exit_code(LEARN_SECONDS)
        if code is None:
            return f"it closed its {closed}"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEARN_SECONDS):
                await self._followed.wait()
        return f"it ended (exit code {code})"

    async def exit_code(self, seconds: float) -> int | None:
        """How it has ended; None if it has not ended within this time."""
        try:
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        except TimeoutError:
            return None
        if self._left:  # it was our own end that was closed
            return None
        return self._process.wait()  # at once: it has closed its files, which is the last that it does

    async def stop(self) -> None:
        """End it: its input is closed, and the supervisor ends it if that is not enough. Wait for that."""
        try:
            self.let_go()
            if await self.exit_code(KILL_SECONDS) is None:
                log.warning("the MCP server of process %s did not end", self._process.pid)
        finally:
            self.leave()

    def let_go(self) -> None:
        if self._transports[3:] and not self._transports[3].is_closing():
            self._transports[3].abort()  # type: ignore[attr-defined]
        self._lifeline.close()

    def leave(self) -> None:
        """End it without waiting. The supervisor does the rest, also when this process has ended."""
        if self._left:
            return
        self._left = True
        self.let_go()
        for transport in self._transports:
            transport.close()
        if self._process.poll() is None:
            with contextlib.suppress(RuntimeError):  # no thread can be started when the interpreter exits
                threading.Thread(target=self._process.wait, name="andon-mcp-reaper", daemon=True).start()


class AliveProtocol(asyncio.Protocol):
    """Sets an event when the supervisor has ended. Nothing is ever read."""

    def __init__(self, gone: asyncio.Event) -> None:
        self._gone = gone

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()


def _same(protocol: asyncio.Protocol) -> asyncio.Protocol:
    return protocol


class Writer:
    """The stream of messages to the server, as the SDK uses it. `send` returns when the system has taken the message.

    So a call that is cancelled counts as running until its cancellation has left this process.
    """

    def __init__(self, process: ServerProcess, on_end: Callable[[str], object]) -> None:
        self._process, self._on_end = process, on_end

    async def send(self, item: Any) -> None:
        from anyio import BrokenResourceError

        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            await self._process.write(text.encode() + b"\n")
        except OSError:
            self._on_end(await self._process.describe_end("input"))
            raise BrokenResourceError from None

    async def aclose(self) -> None:
        """The process closes its input, when it is stopped."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `aclose`."""


@contextlib.asynccontextmanager
async def stdio(
    address: Address,
    tail: deque[str],
    on_end: Callable[[str], object],
    hurry: Callable[[], bool],
    unheard: asyncio.Event,
) -> AsyncIterator[tuple[Any, Any]]:
    """The transport of the SDK's client: a stream of messages from the server, and one to it.

    `on_end` is told, with the reason, when the server ends by itself. `hurry` says at the end whether there is no time
    to wait for the end of the server. `unheard` is set when the server takes no messages: then it is ended at once.
    """
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    process = await ServerProcess.start(address, tail)
    to_session, from_server = anyio.create_memory_object_stream[Any](0)
    to_server = Writer(process, on_end)

    async def read() -> None:
        async with to_session:  # closed last: it fails the calls in flight, and by then it is known why
            try:
                async for line in process.lines():
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:  # some servers print there
                        process.note(line)
                        continue
                    await to_session.send(SessionMessage(message))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # the session is being closed
            except LineTooLongError:
                on_end(f"it wrote more than {MAX_LINE // 2**20} MB without the end of a line")
                return
            on_end(await process.describe_end("output"))

    async def end_unheard() -> None:
        await unheard.wait()
        process.let_go()

    try:
        async with anyio.create_task_group() as group:
            for work in (read, process.follow_stderr, end_unheard):
                group.start_soon(work)
            try:
                yield from_server, to_server
            finally:
                from_server.close()
                if hurry():
                    process.leave()
                else:
                    with anyio.CancelScope(shield=True):
                        await process.stop()
                group.cancel_scope.cancel()
    finally:
        for stream in (to_session, from_server):
            stream.close()
        process.leave()
