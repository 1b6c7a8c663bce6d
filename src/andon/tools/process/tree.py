# SPDX-License-Identifier: Apache-2.0
"""The processes below one process, and how to be told of orphans. Used by keepers and by the root.

What must stay true: a process that began after `Tree(...)` was made, below this process, is found, wherever it has
moved: to another group, to another session, or to another parent. The kernel gives orphans to their nearest subreaper.
One that begins or moves while they are looked for may be missed, so who kills them looks again.

A look costs as much as there are processes below this one, however many there are in the system: the kernel lists the
children of a process. On a kernel without that list, the processes that began since are looked at one by one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterable

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LISTED = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""Whether the kernel lists the children of a process (CONFIG_PROC_CHILDREN)."""
FEW = 20_000
"""If not more process ids were given out, each of them is looked at. Otherwise all that exist are."""
ROUND_SECONDS = 10.0
"""In less than this, process ids do not begin anew. Afterwards the last one does not say how many were given out."""

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Orphans of processes below this one become children of this one."""
    _control(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    _control(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        os._exit(1)


def _control(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")


def last_pid() -> int:
    """The process id that was given out last. Threads have ids too. 0 where the system does not tell."""
    with open("/proc/loadavg", "rb") as file:
        return int(file.read().split()[-1])


def parent_of(pid: int) -> int:
    """The parent of a process; 0 if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):  # it ended just now
        return 0


def listed_children(pid: int) -> list[int]:
    """The children of a process, zombies too: each of its threads has a list."""
    found = list[int]()
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb", 0) as file:
                found += map(int, file.read().split())
        except OSError:  # this thread ended just now, and another one of them has its children
            pass
    return found


class Tree:
    """The processes that began below this one since it was made."""

    __slots__ = ("_made", "_since")

    def __init__(self) -> None:
        self._made, self._since = time.monotonic(), last_pid()

    @property
    def is_quiet(self) -> bool:
        """Not one process or thread has begun since, in the whole system."""
        return 0 < last_pid() == self._since and self._is_young

    def children(self, parents: Iterable[int]) -> list[int]:
        """The children that these processes have got since, and maybe earlier ones."""
        if LISTED:
            return [child for parent in parents for child in listed_children(parent)]
        wanted = set(parents)
        candidates = self._recent() if self._is_young else everyone()
        return [pid for pid in candidates if parent_of(pid) in wanted]

    def all(self) -> list[int]:
        """Every process below this one that began since. Each of its children must have begun since.

        Asked when there are some. So if none is found one by one, process ids have begun anew.
        """
        if LISTED:
            return self._listed()
        return self._below(self._recent()) or self._below(everyone())

    def _listed(self) -> list[int]:
        found, ahead = dict[int, None](), [os.getpid()]
        while ahead:
            ahead = [child for pid in ahead for child in listed_children(pid) if child not in found]
            found.update(dict.fromkeys(ahead))
        return list(found)

    def _below(self, candidates: Iterable[int]) -> list[int]:
        parents = {pid: parent for pid in candidates if (parent := parent_of(pid))}
        below, found = {os.getpid()}, list[int]()
        while more := [pid for pid, parent in parents.items() if parent in below and pid not in below]:
            below.update(more)
            found += more
        return found

    def signal(self, number: int, but: int = 0) -> None:
        """Send a signal to all of them, but not to this group."""
        for pid in self.all():
            try:
                if not but or os.getpgid(pid) != but:
                    os.kill(pid, number)
            except OSError:  # it ended just now; or it belongs to another user, and must be left
                pass

    @property
    def _is_young(self) -> bool:
        return time.monotonic() - self._made < ROUND_SECONDS

    def _recent(self) -> Iterable[int]:
        last = last_pid()
        if 0 < self._since <= last <= self._since + FEW:
            return range(self._since + 1, last + 1)
        return everyone()


def everyone() -> list[int]:
    """Every process that there is."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
