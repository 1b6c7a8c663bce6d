# SPDX-License-Identifier: Apache-2.0
"""Tells systemd that a service is ready, is stopping, or is alive (`Type=notify`, `WatchdogSec=`).

Without systemd, nothing is sent. That systemd is not told must never disturb the service itself.
"""

from __future__ import annotations

import contextlib
import os
import socket

SOCKET, WATCHDOG, WATCHED = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


def notify(*states: str) -> None:
    """Send states such as `READY=1`, all in one message."""
    address = os.environ.get(SOCKET, "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # an abstract address of Linux
        address = f"\0{address[1:]}"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)  # a full socket must not hold up the event loop
        sender.sendto("\n".join(states).encode(), address)


def watchdog_seconds() -> float | None:
    """How often to send `WATCHDOG=1`: twice as often as systemd expects it. None if it does not expect it."""
    given, me = os.environ.get(WATCHDOG, ""), str(os.getpid())
    is_wanted = bool(os.environ.get(SOCKET)) and os.environ.get(WATCHED, me) == me
    return int(given) / 2e6 if is_wanted and given.isdecimal() and int(given) > 0 else None
