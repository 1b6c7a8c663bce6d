# SPDX-License-Identifier: Apache-2.0
"""Connections to a database, and the settings that each of them gets first."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from andon.store.sql.address import Address

# The settings of each session. A worker that was stopped (SIGSTOP) in the middle of a transaction must not hold its
# locks for long, and no statement may wait for a lock for ever. By default a server would also keep the session of a
# client that has vanished for two hours.
SERVER_SETTINGS = {
    "idle_in_transaction_session_timeout": "5s",
    "statement_timeout": "30s",
    "default_transaction_isolation": "read committed",
    "tcp_keepalives_idle": "5s",
    "tcp_keepalives_interval": "2s",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
    "client_connection_check_interval": "3s",  # also while a statement runs, or waits for a lock
}
# By default libpq would wait for ever for a server that has vanished.
LINK_SETTINGS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
POOL_SECONDS = 10.0
"""There is a connection for each of our threads, so no thread should wait for one. If one does, it gets an error after
this long.
"""

_SETTINGS = """
WITH setting (name, value) AS (
  SELECT * FROM unnest(%s::text[], %s::text[])
  UNION ALL SELECT 'synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on')
)
SELECT set_config(name, value, FALSE) FROM setting WHERE current_setting(name, TRUE) IS NOT NULL
"""
"""Sets all of them that this server knows, in one round trip. `synchronous_commit` is never off: else committed changes
could be lost with the server. Any other value stays as it was when the session began, also if the server reloads its
configuration.
"""

LONGEST_LOG = 10_000
"""In pages. A thread of its own copies SQLite's log into the file. If that is not possible in time, the change that
makes the log longer than this does it.
"""


def link_settings(address: Address, name: str) -> dict[str, str | int]:
    """What libpq is told of a connection, unless the address says otherwise. Postgres shows it under this name."""
    settings: dict[str, str | int] = {**LINK_SETTINGS, "application_name": name}
    return {key: value for key, value in settings.items() if key not in address.url.query}


def make_engine(address: Address, connections: int) -> Engine:
    size: dict[str, Any] = {"poolclass": QueuePool, "pool_size": connections, "max_overflow": 0}
    size["pool_timeout"] = POOL_SECONDS
    size["pool_use_lifo"] = True  # the one used last has most of our statements prepared
    if address.path is not None:
        # SQLite waits for a lock in steps of 1, 2, 5, 10 and more milliseconds, which is slow and unfair: a transaction
        # takes one or two. So SQLite has only the first two steps, and then we try again.
        arguments = {"timeout": 0.003, "check_same_thread": False}
        engine = create_engine(address.url, connect_args=arguments, hide_parameters=True, **size)
        synchronous = address.synchronous

        @event.listens_for(engine, "connect")
        def on_connect(connection: sqlite3.Connection, _: object) -> None:
            connection.isolation_level = None  # transactions begin where we say so
            connection.execute(f"PRAGMA synchronous={synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint={LONGEST_LOG}")

        @event.listens_for(engine, "begin")
        def on_begin(connection: Connection) -> None:
            writes = connection.get_execution_options().get("andon_writes")
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

        return engine
    engine = create_engine(
        address.url,
        connect_args=link_settings(address, "andon"),
        hide_parameters=True,
        isolation_level="READ COMMITTED",
        **size,
    )

    @event.listens_for(engine, "connect")
    def on_server_connect(connection: Any, _: object) -> None:
        _introduce(connection, engine.dialect.loaded_dbapi.DataError)

    return engine


def _introduce(connection: Any, refusal: type[Exception]) -> None:
    connection.autocommit = True
    try:
        connection.execute(_SETTINGS, (list(SERVER_SETTINGS), list(SERVER_SETTINGS.values())))
    except refusal:  # on some platforms a server knows a setting, but refuses it: leave that one out
        for name, value in SERVER_SETTINGS.items():
            with contextlib.suppress(refusal):
                connection.execute(_SETTINGS, ([name], [value]))
    connection.autocommit = False
