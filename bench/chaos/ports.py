# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that are killed and come back: each keeps its own."""

from __future__ import annotations

import contextlib
import secrets
import socket


def free_port() -> int:
    """Below those that the system gives to clients: one of them could take it while its server is down."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = secrets.randbelow(12_000) + 20_000
            probe.bind(("127.0.0.1", port))
            return port
