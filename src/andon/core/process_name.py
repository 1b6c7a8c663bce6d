# SPDX-License-Identifier: Apache-2.0
"""The name of this process, for people: which machine, and which process on it."""

from __future__ import annotations

import os
import re
import socket

LONGEST = 40
"""The most characters of the machine's name."""


def process_name() -> str:
    """`machine:process id`. It has letters, digits and `.-_:` only, so it needs no escaping anywhere."""
    machine = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:LONGEST] or "localhost"
    return f"{machine}:{os.getpid()}"


def process_of(owner: str) -> str:
    """The process that holds a run under this name. What follows the process in it is random."""
    return ":".join(owner.split(":")[:2])


def worker_of(owner: str) -> str:
    """The worker that holds a run under this name, which may be of one of its runs alone."""
    return ":".join(owner.split(":")[:3])
