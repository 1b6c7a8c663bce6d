# SPDX-License-Identifier: Apache-2.0
"""Opens a store, or an event channel, by its URL. The packages that a URL needs are imported only for that URL."""

from __future__ import annotations

from urllib.parse import parse_qsl

from andon.core.shared.event_channel import EventChannel
from andon.core.store import SessionStore
from andon.errors import ConfigurationError
from andon.store.memory import MemoryStore

_KNOWN = "memory:// (until the process ends), sqlite:///andon.db, postgresql://user:password@host/name"


def open_store(url: str) -> SessionStore:
    """The store that a URL names: `memory://`, `sqlite:///andon.db`, or `postgresql://user:password@host/name`.

    A memory store is bounded. These are its defaults: `memory://?keep_days=7&keep_sessions=10000`.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "memory":
        return _in_memory(rest)
    if separator and scheme.partition("+")[0] in ("sqlite", "postgresql", "postgres"):
        from andon.store.sql import SQLStore

        return SQLStore(url)
    named = f"{scheme}://" if separator else "this"
    raise ConfigurationError(f"{named} names no store; there are {_KNOWN}")


def open_events(url: str) -> EventChannel:
    """The event channel that a URL names: `redis://:password@host:6379/0`, or `rediss://` for TLS."""
    scheme = url.partition("://")[0]
    if scheme in ("redis", "rediss"):
        from andon.store.redis_events import RedisEvents

        return RedisEvents(url)
    raise ConfigurationError(f"events can go through redis://HOST:PORT/DB or rediss://…, and not through {scheme!r}")


def _in_memory(rest: str) -> MemoryStore:
    options = dict(parse_qsl(rest[1:], keep_blank_values=True))
    days, sessions = options.pop("keep_days", "7"), options.pop("keep_sessions", "10000")
    try:
        if not options and rest[:1] in ("", "?"):
            return MemoryStore(keep_days=float(days), keep_sessions=int(sessions))
    except ValueError:
        pass
    raise ConfigurationError("memory:// takes nothing after it but ?keep_days=NUMBER&keep_sessions=NUMBER")
