# SPDX-License-Identifier: Apache-2.0
"""The root of all processes of tools: a small interpreter, started by the host, that forks a keeper for each worker.

It has imported what workers need, so a worker begins within milliseconds. It imports nothing of the user's and starts
no thread, so it is always safe to fork. It adopts what a killed keeper leaves behind, kills that, and exits when the
host is gone and nothing is left.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys

from andon.tools.function import FunctionTool
from andon.tools.process.keeper import keep
from andon.tools.process.tree import Tree, adopt_orphans

__all__ = ["main"]


def main(fd: int, host: int) -> None:
    """All that the root does. `fd` is its socket to the host, on which each message brings the socket of a keeper."""
    _load_what_workers_need()
    adopt_orphans()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    for each in (wake_read, wake_write):
        os.set_blocking(each, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with socket.socket(fileno=fd) as line:
        Root(line, open_host(host), wake_read, wake_write).run()
    os._exit(0)


def open_host(host: int) -> int | None:
    """A descriptor that becomes readable when the host dies. The socket tells it too, unless the host was copied."""
    try:
        pidfd = os.pidfd_open(host)
    except OSError:  # the host is gone already, or the kernel is too old
        pidfd = None
    if os.getppid() != host:
        os._exit(0)
    return pidfd


class Root:
    """The root's loop."""

    def __init__(self, line: socket.socket, host: int | None, wake_read: int, wake_write: int) -> None:
        self._line, self._host, self._wake_read, self._wake_write = line, host, wake_read, wake_write
        self._tree = Tree()
        self._keepers: set[int] = set()
        self._poll = select.poll()
        for each in (line.fileno(), wake_read, host):
            if each is not None:
                self._poll.register(each, select.POLLIN)

    def run(self) -> None:
        ending = False
        while not ending or self._keepers:
            for fd, _ in self._poll.poll():
                if fd == self._wake_read:
                    os.read(fd, 4096)
                    self._reap()
                elif fd == self._host or not self._take():
                    ending = True
                    self._poll.unregister(fd)

    def _take(self) -> bool:
        """Fork a keeper for the socket that came. False if the host is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self._line, 1, 1)
        except OSError:
            return False
        for fd in fds:
            self._fork(fd)
            os.close(fd)
        return bool(data)

    def _fork(self, fd: int) -> None:
        try:
            pid = os.fork()
        except OSError:  # too many processes: the host finds the socket closed
            return
        if pid:
            self._keepers.add(pid)
            return
        try:
            self._line.close()
            for each in (self._wake_read, self._wake_write):
                os.close(each)
            keep(socket.socket(fileno=fd), self._host)
        finally:
            os._exit(1)

    def _reap(self) -> None:
        """Bury the dead. What is left of a keeper that was killed is killed too."""
        orphaned = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                break
            orphaned = orphaned or pid not in self._keepers or status != 0
            self._keepers.discard(pid)
        if orphaned:
            for orphan in self._tree.children([os.getpid()]):
                if orphan not in self._keepers:
                    _kill(orphan)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def _load_what_workers_need() -> None:
    """Import it here, once. Then freeze it, so that the workers share its memory."""

    def example(number: int) -> int:
        """Have pydantic import all that a tool needs."""
        return number

    made = FunctionTool(example)
    made.bind({"number": 1})
    sys.stdout.flush()
    gc.collect()
    gc.freeze()
