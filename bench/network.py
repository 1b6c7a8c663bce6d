# SPDX-License-Identifier: Apache-2.0
"""Keeps programs that change this machine's network apart from those that a change disturbs.

A browser gives up what it is loading when an address comes or goes (`ERR_NETWORK_CHANGED`). Many programs may need the
network at rest at once; one that wants to change it waits for them, and those that come later wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def network_at_rest() -> Iterator[None]:
    """No address comes or goes meanwhile. Not for a program that has it already: it might wait for itself."""
    with _locked("gate", fcntl.LOCK_SH):
        pass
    with _locked("use", fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def network_change() -> Iterator[None]:
    """Addresses may come and go meanwhile."""
    with _locked("gate", fcntl.LOCK_EX), _locked("use", fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def _locked(name: str, how: int) -> Iterator[None]:
    # The lock goes with the process, by whatever death.
    file = os.open(Path(tempfile.gettempdir(), f"andon-network-{name}"), os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, how)
        yield
    finally:
        os.close(file)
