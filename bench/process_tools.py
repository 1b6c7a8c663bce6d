# SPDX-License-Identifier: Apache-2.0
"""The tools of the figure `processes`. Workers import this module, so it imports little."""

from __future__ import annotations

import os
import signal
import time

from andon import Limits, tool

FOREVER = 10_000


@tool
def in_thread(number: int) -> int:
    """Add one."""
    return number + 1


@tool(isolation="process")
def in_process(number: int) -> int:
    """Add one."""
    return number + 1


@tool(isolation="process", limits=Limits(cpu=60))
def in_new_process(number: int) -> int:
    """Add one. With a limit of processor time, no worker serves twice."""
    return number + 1


@tool(isolation="process")
def polite() -> None:
    """End when asked."""
    print(os.getpid(), flush=True)
    time.sleep(FOREVER)


@tool(isolation="process")
def stubborn() -> None:
    """Ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid(), flush=True)
    while True:
        time.sleep(FOREVER)


@tool(isolation="process")
def daemon() -> None:
    """Have a grandchild that has left the group and the session, and ignores SIGTERM."""
    read, write = os.pipe()
    if not os.fork():
        os.setsid()
        if not os.fork():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(write, b"%d" % os.getpid())
            while True:
                time.sleep(FOREVER)
        os._exit(0)
    os.wait()
    print(os.getpid(), os.read(read, 20).decode(), flush=True)
    time.sleep(FOREVER)
