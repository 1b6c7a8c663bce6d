# SPDX-License-Identifier: Apache-2.0
"""A store by its URL. What a URL needs is imported only when it is asked for."""

from __future__ import annotations

from andon.core.store import SessionStore
from andon.errors import ConfigurationError
from andon.store.memory import MemoryStore

_KNOWN = "memory:// (forgets with its process), sqlite:///andon.db, postgresql://user:password@host/name"


def open_store(url: str) -> SessionStore:
    """The store that a URL names: `memory://`, `sqlite:///andon.db`, or `postgresql://user:password@host/name`."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "memory" and not rest:
        return MemoryStore()
    if separator and scheme.partition("+")[0] in ("sqlite", "postgresql", "postgres"):
        from andon.store.sql import SQLStore

        return SQLStore(url)
    named = f"{scheme}://" if separator else "this"
    raise ConfigurationError(f"{named} names no store; there are {_KNOWN}")
