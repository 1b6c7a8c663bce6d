# SPDX-License-Identifier: Apache-2.0
"""A keeper: it starts one worker, passes its frames and its output on, and ends its tree.

What must stay true: the keeper says `GONE` only when nothing of the tree is left. The kernel tells it so: every orphan
of the tree becomes its child, and then it has no child any more. It ends the tree when the host shuts its socket down,
and that happens by itself when the host dies. It never waits for the host: what it has to say is buffered.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import time
from collections.abc import Callable

import msgspec

from andon.core.states import Stopped
from andon.tools.process.command import execute
from andon.tools.process.output import Output
from andon.tools.process.protocol import (
    CALL,
    DONE,
    GONE,
    GRACE,
    HELLO,
    HELPERS,
    LAST,
    READY,
    SPEC,
    Frames,
    Gone,
    Spec,
    encode,
    frame,
)
from andon.tools.process.tree import Tree, adopt_orphans, die_with_parent
from andon.tools.process.worker import serve

READ_BYTES = 256 * 1024
NO_FAILURE = msgspec.json.encode(None)
LOOK_AGAIN, LOOK_LATER = 0.01, 0.1
"""After this, processes are looked for that began while their tree was being killed. The second one is for a group that
was killed just now: its end is heard, and then they are looked for at once.
"""


def keep(line: socket.socket, host: int | None) -> None:
    """All that a keeper does. `line` leads to the host; `host` is readable when the host is dead."""
    gc.disable()
    adopt_orphans()
    line.setblocking(False)
    wake_read, wake_write = os.pipe()
    for each in (wake_read, wake_write):
        os.set_blocking(each, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    keeper = Keeper(line, wake_read)
    keeper.watch(wake_read, keeper.reap)
    keeper.watch(line.fileno(), keeper.hear_host)
    if host is not None:
        keeper.watch(host, keeper.lose_host)
    keeper.tell(frame(HELLO))
    keeper.run()
    os._exit(0)


class Keeper:
    """The keeper's loop, and what it knows of its worker."""

    def __init__(self, line: socket.socket, wake: int) -> None:
        self._line, self._wake = line, wake
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[int], object]] = {}
        self._from_host, self._from_worker = Frames(), Frames()
        self._to_host, self._to_worker = bytearray(), bytearray()
        self._spec: Spec | None = None
        self._grace = 0.0
        self._tree = self._since_call = Tree()
        self._worker = 0
        self._helpers = set[int]()
        """The worker, and what its module has started when it was imported: no call has left these behind."""
        self._worker_line: socket.socket | None = None
        self._output = Output(0)
        self._pipe = -1
        self._status: int | None = None
        self._cpu = 0.0
        self._stopping = False
        self._stopped: Stopped | None = None
        self._look_at: float | None = None
        """When to look again for what is left, while the tree is being ended."""
        self._kill_at = 0.0
        self._asked_all = self._killed_group = self._called = self._ready = False
        self._over = self._deaf = False
        self._is_polled = True
        """Whether the host's socket is among the polled ones."""

    def watch(self, fd: int, handler: Callable[[int], object]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def run(self) -> None:
        while not self._over or self._to_host:
            for fd, event in self._poll.poll(self._patience()):
                if fd == self._line.fileno() and event & select.POLLOUT:
                    self._write_host()
                if self._worker_line is not None and fd == self._worker_line.fileno() and event & select.POLLOUT:
                    self._write_worker()
                if event & ~select.POLLOUT and (handler := self._handlers.get(fd)) is not None:
                    handler(fd)
            self._look()

    def _patience(self) -> float | None:
        """How many milliseconds to wait for an event."""
        times = [at for at in (self._look_at, self._output.due) if at is not None and not self._over]
        return max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None

    # -- the host -----------------------------------------------------------------------------------------------------

    def hear_host(self, fd: int) -> None:
        try:
            data = self._line.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            del self._handlers[fd]
            self._stop()
            self._write_host()
            return
        for kind, body in self._from_host.feed(data):
            if kind == SPEC and self._spec is None:
                self._begin(msgspec.json.decode(body, type=Spec))
            elif kind == CALL and self._status is None:
                (self._grace,) = GRACE.unpack_from(body)
                self._since_call, self._output = Tree(), Output(self._output.keep)
                self._to_worker += frame(CALL, body[GRACE.size :])
                self._called = self._write_worker()

    def lose_host(self, fd: int) -> None:
        """The host is dead, though a copy of it may have kept the socket open."""
        self.unwatch(fd)
        self._deaf = True
        self._to_host.clear()
        if self._is_polled:
            self._poll.unregister(self._line.fileno())
            self._is_polled = False
        self._handlers.pop(self._line.fileno(), None)
        self._stop()

    def tell(self, data: bytes) -> None:
        if not self._deaf:
            self._to_host += data
            self._write_host()

    def _write_host(self) -> None:
        try:
            while self._to_host:
                del self._to_host[: self._line.send(self._to_host[:READ_BYTES])]
        except BlockingIOError:
            pass
        except OSError:  # the host does not listen any more
            self._deaf = True
            self._to_host.clear()
        fd = self._line.fileno()
        wanted = (select.POLLIN if fd in self._handlers else 0) | (select.POLLOUT if self._to_host else 0)
        if wanted:
            self._poll.register(fd, wanted)
        elif self._is_polled:
            self._poll.unregister(fd)
        self._is_polled = bool(wanted)

    # -- the worker ---------------------------------------------------------------------------------------------------

    def _begin(self, spec: Spec) -> None:
        """Fork the worker."""
        self._spec, self._grace, self._output = spec, spec.grace, Output(spec.keep)
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        keeper = os.getpid()
        try:
            self._worker = os.fork()
        except OSError as error:
            self.tell(encode(GONE, Gone(begun=False, error=f"no process could be started ({error})")))
            self._over = True
            return
        if not self._worker:
            try:
                _become_worker(spec, theirs, write, keeper)
            finally:
                os._exit(1)
        theirs.close()
        os.close(write)
        ours.setblocking(False)
        os.set_blocking(read, False)
        self._worker_line, self._pipe = ours, read
        self._helpers.add(self._worker)
        self.watch(ours.fileno(), self._hear_worker)
        self.watch(read, self._read_output)

    def _hear_worker(self, fd: int) -> bool:
        """Read what the worker says. False if there is nothing more now."""
        assert self._worker_line is not None
        try:
            data = self._worker_line.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.unwatch(fd)
        for kind, body in self._from_worker.feed(data):
            if kind == HELPERS:
                self._helpers.update(msgspec.json.decode(body, type=list[int]))
                continue
            if kind not in (DONE, LAST):
                self._ready = self._ready or (kind == READY and body == NO_FAILURE)
                self.tell(frame(kind, body))
                continue
            self._read_output(self._pipe)
            kind = LAST if self._stopping or self._has_left_something() else kind
            self.tell(self._output.take() + frame(kind, body))
            if kind == LAST:  # the end that follows is still that of the call
                self._stop()
            else:
                self._called = False
        return bool(data)

    def _has_left_something(self) -> bool:
        """Whether there are processes that have begun during the call."""
        if self._since_call.is_quiet:
            return False
        return not self._helpers.issuperset(self._since_call.children([os.getpid(), self._worker]))

    def _write_worker(self) -> bool:
        """Write what there is room for. False if the worker has ended."""
        line = self._worker_line
        if line is None:
            return False
        try:
            while self._to_worker:
                del self._to_worker[: line.send(self._to_worker[:READ_BYTES])]
        except BlockingIOError:
            pass
        except OSError:  # `reap` finds it too
            self._to_worker.clear()
            return False
        if line.fileno() in self._handlers:
            self._poll.register(line.fileno(), select.POLLIN | (select.POLLOUT if self._to_worker else 0))
        return True

    def _read_output(self, fd: int) -> None:
        """Take what was printed. Stop after a while: a tool may print faster than that."""
        for _ in range(16):
            try:
                data = os.read(fd, READ_BYTES)
            except OSError:  # there is no more of it now
                return
            if not data:
                self.unwatch(fd)
                return
            self._output.add(data)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Ask the tree to end. What has not ended after the grace is killed."""
        if self._stopping:
            return
        self._stopping = True
        if self._spec is None:
            self.tell(encode(GONE, Gone(called=False, begun=False)))
            self._over = True
            return
        if self._over:
            return
        if self._status is None:
            self._stopped = Stopped.asked
        self._signal_group(signal.SIGTERM)  # also if the worker has ended by itself: others may be left in its group
        now = time.monotonic()
        self._kill_at = now + self._grace
        # Others, which have left the group, are looked for when the worker has ended. If it takes long, before that.
        self._look_at = now + self._grace / 2

    def _signal_group(self, number: int) -> None:
        """A group is signalled in one step, so no process can be forked past it."""
        try:
            os.killpg(self._worker, number)
        except ProcessLookupError:  # it has just been forked
            if self._status is None:
                os.kill(self._worker, number)
        except PermissionError:  # some of it belong to another user; the others got the signal
            pass

    def reap(self, fd: int) -> None:
        """Bury the dead. If there are no children left, the tree is gone."""
        os.read(fd, 4096)
        while self._worker and not self._over:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._finish()
                return
            if not pid:
                break
            if pid == self._worker:
                self._status = os.waitstatus_to_exitcode(status)
                self._cpu = used.ru_utime + used.ru_stime
        if self._status is not None and not self._over:
            if not self._stopping:
                self._stop()
            if not self._asked_all or self._killed_group:  # others are left: look for them now
                self._look_at = time.monotonic()

    def _look(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        if self._output.due is not None and now >= self._output.due and not self._over:
            self.tell(self._output.take())
        if self._look_at is None or now < self._look_at or self._over:
            return
        if now < self._kill_at:
            self._stopped = Stopped.asked
            if not self._asked_all:
                self._asked_all = True
                self._tree.signal(signal.SIGTERM, but=self._worker)
            self._look_at = self._kill_at
            return
        self._stopped = Stopped.killed
        if not self._killed_group:
            self._killed_group = True
            self._signal_group(signal.SIGKILL)
            if self._status is None:
                self._look_at = now + LOOK_LATER
                return
        self._tree.signal(signal.SIGKILL)
        self._look_at = now + max(LOOK_AGAIN, 2 * (time.monotonic() - now))

    def _finish(self) -> None:
        """Nothing of the tree is left. What it wrote before that may not have been read yet, so that comes first."""
        while self._worker_line is not None and self._hear_worker(self._worker_line.fileno()):
            pass
        if self._pipe >= 0:
            self._read_output(self._pipe)
        is_command = not self._spec or not self._spec.module
        called = self._called or is_command
        begun = called and (self._ready or is_command)
        kept, missed = self._output.kept, self._output.missed
        gone = Gone(self._stopped, self._status, self._cpu, called, begun, output=kept, missed=missed)
        self.tell(self._output.take() + encode(GONE, gone))
        self._over = True


def _become_worker(spec: Spec, line: socket.socket, output: int, keeper: int) -> None:
    """In the child: a session of its own, its output in the pipe, and nothing open that it should not have."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    die_with_parent(keeper)
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, place in ((null, 0), (output, 1), (output, 2)):
        os.dup2(fd, place)
    os.closerange(3, line.fileno())
    os.closerange(line.fileno() + 1, 65_536)
    gc.enable()
    if spec.module:
        serve(spec, line)
    else:
        execute(spec, line)
