# SPDX-License-Identifier: Apache-2.0
"""The processes of this host: the root, which is started at the first call, and the workers that wait for a call.

What must stay true: any thread and any event loop may ask for a worker. Nothing here waits, except for room in the
root's socket. After a fork, the child has none of the parent's processes. At exit all of them end.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from weakref import WeakSet

import msgspec

from andon.core.fork import start_over_after_fork
from andon.errors import ToolDefinitionError, ToolProcessError
from andon.tools.process.channel import Channel, writable
from andon.tools.process.protocol import SPEC, Spec, frame

log = logging.getLogger(__name__)

EXIT_SECONDS = 1.0
"""How long an exit waits for the processes to be gone. They go in any case."""
DYING_SECONDS = 0.5
"""How long to wait for a root that is dead: its socket is closed a moment before it can be buried."""
MAX_IDLE = max(2, min(8, os.cpu_count() or 1))
"""How many workers wait for a call of one module."""
MAX_IDLE_IN_ALL = 4 * MAX_IDLE

_START = (
    "import json,sys;sys.path[:]=json.loads(sys.argv[1]);"
    "import andon;andon.Agent;"  # most modules with tools import it
    "from andon.tools.process.root import main;main(int(sys.argv[2]),int(sys.argv[3]))"
)


class Root:
    """The root process, as the host knows it."""

    def __init__(self) -> None:
        self.line, theirs = socket.socketpair()
        self.line.setblocking(False)
        path = json.dumps([os.path.abspath(each) for each in sys.path])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *_flags(), "-c", _START, path, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C on the terminal is for the host alone
            )

    @property
    def is_dead(self) -> bool:
        """It has died, and is buried now."""
        return self._process.poll() is not None

    def end(self, seconds: float) -> None:
        """Let it end, and bury it, later if it takes longer than that. It outlives this if its processes do."""
        self.line.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(RuntimeError):  # no thread can be started when the interpreter exits
                threading.Thread(target=self._process.wait, name="andon-root-reaper", daemon=True).start()

    def forget(self) -> None:
        """In a forked child: it belongs to the parent."""
        self.line.close()
        self._process.returncode = 0


def _flags() -> list[str]:
    """How this interpreter was started, as far as it matters to others: `-W`, `-X dev`, `-I`, and their kind."""
    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined,no-any-return]  # also multiprocessing's


class Pool:
    """Starts workers, and keeps those that can serve another call."""

    def __init__(self) -> None:
        self.refusal: str | None = None
        """Why no call may start in this process now."""
        self._root: Root | None = None
        self._lock = threading.Lock()
        self._idle: dict[bytes, deque[Channel]] = {}
        self._known: WeakSet[Channel] = WeakSet()
        start_over_after_fork(self)

    def start_over(self) -> None:
        self._lock = threading.Lock()
        root, self._root, self._idle = self._root, None, {}
        if root is not None:
            root.forget()
        known, self._known = list(self._known), WeakSet()
        for channel in known:
            channel.disown()

    async def take(self, spec: Spec, fresh: bool = False) -> Channel:
        """A worker that is as `spec` says, or will be in a moment. A waiting one, if there is one, unless `fresh`."""
        if self.refusal is not None:
            raise ToolDefinitionError(self.refusal)
        root = self._root
        if root is not None and root.is_dead:
            self._replace(root)
        key = msgspec.json.encode(spec)
        idle = self._idle.get(key, deque())
        while idle and not fresh:
            with contextlib.suppress(IndexError):  # another thread was quicker
                channel = idle.pop()
                if channel.is_alive:
                    return channel
                channel.close()
        return await self._start(key)

    def refill(self, spec: Spec) -> None:
        """Have a worker ready for the next call, in the background."""
        key = msgspec.json.encode(spec)
        if self._idle.get(key):
            return
        with contextlib.suppress(OSError, ToolProcessError):  # no room for it: the next call starts its own
            channel, theirs = self._pair()
            ready = False
            try:
                with theirs:
                    self._send(theirs)
                ready = not channel.try_to_send(frame(SPEC, key))
            finally:
                if ready:
                    self._put(key, channel)
                else:
                    channel.close()

    def give_back(self, spec: Spec, channel: Channel) -> None:
        """The worker has ended a call, and can serve another one."""
        key = msgspec.json.encode(spec)
        if len(self._idle.get(key, ())) >= MAX_IDLE:
            channel.close()
        else:
            self._put(key, channel)

    def close(self) -> None:
        """End all of them. The next call starts over."""
        waiting, self._idle = self._idle, {}
        for idle in waiting.values():
            for channel in idle:
                channel.close()
        for channel in list(self._known):
            channel.stop()
        with self._lock:
            root, self._root = self._root, None
        if root is not None:
            root.end(EXIT_SECONDS)

    def _put(self, key: bytes, channel: Channel) -> None:
        """Keep a worker. If there are too many, those that wait for the module that was used least recently end."""
        idle = self._idle.pop(key, None) or deque()
        self._idle[key] = idle
        idle.append(channel)
        while sum(map(len, (waiting := self._idle.copy()).values())) > MAX_IDLE_IN_ALL:
            oldest = next(iter(waiting))
            for each in self._idle.pop(oldest, ()):
                each.close()

    async def _start(self, key: bytes) -> Channel:
        channel, theirs = self._pair()
        try:
            with theirs:
                while True:
                    try:
                        self._send(theirs)
                        break
                    except BlockingIOError:
                        await writable(self._rooted().line)
            channel.unsent = frame(SPEC, key)
        except BaseException:
            channel.close()
            raise
        return channel

    def _pair(self) -> tuple[Channel, socket.socket]:
        try:
            own, theirs = socket.socketpair()
        except OSError as error:
            raise ToolProcessError(f"no process could be started: {error}") from error
        channel = Channel(own)
        self._known.add(channel)
        return channel, theirs

    def _send(self, theirs: socket.socket) -> None:
        """Have the root start a keeper with this socket. A root that is dead is replaced, once."""
        root = self._rooted()
        try:
            socket.send_fds(root.line, [b"k"], [theirs.fileno()])
        except BlockingIOError:
            raise
        except OSError:
            self._replace(root)
            socket.send_fds(self._rooted().line, [b"k"], [theirs.fileno()])

    def _replace(self, root: Root) -> None:
        """This root is dead. The workers that it has started go on."""
        log.warning("the process that starts the processes of tools is gone; another one is started")
        with self._lock:
            if self._root is root:
                self._root = None
        root.end(DYING_SECONDS)

    def _rooted(self) -> Root:
        root = self._root
        if root is None:
            with self._lock:
                root = self._root = self._root or Root()
        return root


pool = Pool()
atexit.register(pool.close)
