# SPDX-License-Identifier: Apache-2.0
"""The program between Andon and an MCP server that is a program. It is run by its path, and imports nothing of ours.

    python -I -S supervisor.py LIFELINE ALIVE PATIENCE GRACE COMMAND [ARGUMENT ...]

LIFELINE is the number of a pipe's end that it reads. The other end is in the process of Andon. It is closed when the
server shall end, or by the system when that process dies, by any death. ALIVE is the end of another pipe, which is
closed when this program ends. PATIENCE is how many seconds the server has to end by itself, once the lifeline and its
input are closed, and GRACE those between SIGTERM and SIGKILL.

What must stay true: when this program ends, so have the server and every process below it. On Linux that includes those
that have left the server's process group: they become children of this program when their parent dies.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
NOT_STARTED = 127
POLL_SECONDS = 0.01
"""How often processes that were told to end are looked at."""


def main() -> int:
    lifeline, alive = int(sys.argv[1]), int(sys.argv[2])
    patience, grace, command = float(sys.argv[3]), float(sys.argv[4]), sys.argv[5:]
    os.set_inheritable(lifeline, False)
    os.set_inheritable(alive, False)
    wake = _wake_on_child()
    prctl: Callable[[int, int], object] = (lambda *_: None) if not LINUX else ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    server = _start(command, prctl)
    _give_up_pipes()
    code = _watch(server, lifeline, wake)
    if code is None:
        code = _watch(server, None, wake, patience)
    ended = _end_all(server, signal.SIGTERM, grace)
    if not ended:
        _end_all(server, signal.SIGKILL, grace + 5)
    return NOT_STARTED if code is None else code


def _wake_on_child() -> int:
    """The end of a pipe that becomes readable when a child has ended."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _start(command: list[str], prctl: Callable[[int, int], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # should this program itself be killed
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} can't be started: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)


def _give_up_pipes() -> None:
    """Only the server has them now: so it sees the end of its input, and Andon the end of its output."""
    empty = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(empty, number)


def _watch(server: int, lifeline: int | None, wake: int, seconds: float | None = None) -> int | None:
    """Wait for the end of the server, and return its exit code; or for that of the lifeline, or of the time: None."""
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        if (code := _reap(server)) is not None:
            return code
        left = None if until is None else max(0.0, until - time.monotonic())
        readable, _, _ = select.select([wake] if lifeline is None else [lifeline, wake], [], [], left)
        if not readable or lifeline in readable:
            return None
        os.read(wake, 4096)


def _reap(server: int) -> int | None:
    """Take the exit codes of children that have ended, and return the server's."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == server:
            code = os.waitstatus_to_exitcode(status)
            found = code if code >= 0 else 128 - code


def _end_all(server: int, how: int, seconds: float) -> bool:
    """Send a signal to all processes that are left. True if none is left after this number of seconds."""
    until = time.monotonic() + seconds
    told: set[int] = set()
    while True:
        _reap(server)
        left = {*_group(server), *_children(server)}
        if not left:
            return True
        for pid in left if how == signal.SIGKILL else left - told:
            _send(os.killpg if pid == -server else os.kill, abs(pid), how)
        told |= left
        if time.monotonic() > until:
            return False
        time.sleep(POLL_SECONDS)


def _group(server: int) -> list[int]:
    """The server's process group, as a negative number, if a process is left in it."""
    return [-server] if _send(os.killpg, server, 0) else []


def _children(server: int) -> list[int]:
    """The children of this program outside the server's group: those that were left by a parent that died."""
    if not LINUX:
        return []
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as listed:
            children = [int(pid) for pid in listed.read().split()]
    except OSError:  # a kernel that does not list them
        children = _children_one_by_one()
    return [pid for pid in children if os.getpgid(pid) != server]


def _children_one_by_one() -> list[int]:
    children = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:  # it ended just now
            continue
        if parent == os.getpid():
            children.append(int(pid))
    return children


def _send(send: Callable[[int, int], None], pid: int, how: int) -> bool:
    try:
        send(pid, how)
    except ProcessLookupError:
        return False
    except PermissionError:  # it changed its user
        return how != 0
    return True


if __name__ == "__main__":
    os._exit(main())
