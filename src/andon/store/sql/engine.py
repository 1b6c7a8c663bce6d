# SPDX-License-Identifier: Apache-2.0
"""Connections to a database, and what is said to each of them first."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from andon.store.sql.address import Address

# What each session is told first. A worker that was stopped (SIGSTOP) in the middle of a transaction must not hold its
# locks for long, and nobody may wait for ever for a lock. And a server would keep the session of a client that is gone
# without a word for two hours, while that client has long made another one.
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
# libpq would wait for ever for a server that is gone without a word.
LINK_SETTINGS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "andon",
}
POOL_SECONDS = 10.0
"""There is a connection for every thread of ours, so no thread ever waits for one. Should one wait all the same, it is
told so after this long.
"""

_SETTINGS = """
WITH setting (name, value) AS (
  SELECT * FROM unnest(%s::text[], %s::text[])
  UNION ALL SELECT 'synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on')
)
SELECT set_config(name, value, FALSE) FROM setting WHERE current_setting(name, TRUE) IS NOT NULL
"""
"""All that this server knows, in one round trip. `synchronous_commit` is never off, or what was answered could get lost
with the server; else it stays what it was when the session began, also if the server's configuration is read anew.
"""

LONGEST_LOG = 10_000
"""In pages. SQLite's log is brought to its place in the file beside all changes; should that never be possible in time,
the change that makes it longer than this has to do it.
"""


def make_engine(address: Address, connections: int) -> Engine:
    size: dict[str, Any] = {"poolclass": QueuePool, "pool_size": connections, "max_overflow": 0}
    size["pool_timeout"] = POOL_SECONDS
    size["pool_use_lifo"] = True  # the one used last knows our statements best
    if address.path is not None:
        # SQLite's own waiting gets slow and unfair: its steps are 1, 2, 5, 10 and more milliseconds, where another one
        # writes for one or two. So it has the first two steps, and then whoever waits tries again.
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
    link = {key: value for key, value in LINK_SETTINGS.items() if key not in address.url.query}
    engine = create_engine(
        address.url,
        connect_args=link,
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
    except refusal:  # there are platforms on which a server knows one of them, but can't do it: do without that one
        for name, value in SERVER_SETTINGS.items():
            with contextlib.suppress(refusal):
                connection.execute(_SETTINGS, ([name], [value]))
    connection.autocommit = False
