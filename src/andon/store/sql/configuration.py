# SPDX-License-Identifier: Apache-2.0
"""Checks the settings of a Postgres once, when a store is opened. Settings that can't work are refused before anything
is changed. Settings that may lose committed data are logged.

The check takes one query and one notification, on two connections that the store uses later anyway.
"""

from __future__ import annotations

import logging
import secrets
import selectors
import time
from typing import Any

from sqlalchemy import Connection, Engine, Row

from andon.errors import SchemaError
from andon.store.sql.address import Address

log = logging.getLogger(__name__)

HEAR_SECONDS = 5.0
"""A notification takes a millisecond. After this long it went to another session."""

_LOOK = """
SELECT pg_is_in_recovery() AS standby,
  current_setting('transaction_read_only') = 'on' AS read_only,
  (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit') AS synchronous_commit,
  current_setting('fsync') AS fsync,
  current_setting('full_page_writes') AS full_page_writes,
  current_setting('synchronous_standby_names') = '' AND EXISTS (
    SELECT FROM pg_stat_replication WHERE state IN ('streaming', 'catchup')
    AND pid NOT IN (SELECT active_pid FROM pg_replication_slots WHERE slot_type = 'logical' AND active_pid IS NOT NULL)
  ) AS has_late_replicas
"""
"""Our own session has set `synchronous_commit` already; `reset_val` is the value before that. A role without the right
to see the state of replicas sees none, and no message is logged about them.
"""


def check(engine: Engine, address: Address) -> None:
    """Raise `SchemaError` for a server that can't be used, and log settings that may lose data."""
    engine = engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as first:
        found = first.exec_driver_sql(_LOOK).one()
        check_writable(found, address)
        with engine.connect() as second:
            check_notifications(first, second, address)
    warn(found, address)


def check_writable(found: Row[Any], address: Address) -> None:
    if found.standby:
        raise SchemaError(
            f"{address.shown} is a standby, which can only be read: name the primary. A URL may name several servers; "
            f"then target_session_attrs=read-write in it picks the primary."
        )
    if found.read_only:
        raise SchemaError(
            f"{address.shown} is read-only for this user (default_transaction_read_only is on): switch that off for "
            f"the user and the database, or name another one."
        )


def warn(found: Row[Any], address: Address) -> None:
    if found.synchronous_commit == "off":
        log.warning(
            "%s has synchronous_commit=off, which loses the last commits if Postgres dies. Andon uses "
            "synchronous_commit=on for its own connections, so nothing that it has answered is lost.",
            address.shown,
        )
    if off := [f"{name}=off" for name in ("fsync", "full_page_writes") if getattr(found, name) == "off"]:
        log.warning(
            "%s has %s: if its machine crashes or loses power, the database may be destroyed. Its administrator can "
            "switch that on.",
            address.shown,
            " and ".join(off),
        )
    if found.has_late_replicas:
        log.info(
            "%s has replicas and does not wait for them (synchronous_standby_names is empty): a failover may lose the "
            "last cancels and ends that were answered.",
            address.shown,
        )


def check_notifications(listener: Connection, speaker: Connection, address: Address) -> None:
    """Check that a notification of one connection reaches another one. A pooler that gives each transaction another
    session loses notifications, and mixes up the settings of sessions.
    """
    channel = f"andon_{secrets.token_hex(8)}"
    listener.exec_driver_sql(f"LISTEN {channel}")
    speaker.exec_driver_sql(f"NOTIFY {channel}")
    if _hears(listener.connection.driver_connection, channel):
        listener.exec_driver_sql(f"UNLISTEN {channel}")
        return
    for connection in (listener, speaker):  # other clients of these sessions must not get our settings
        connection.exec_driver_sql("DISCARD ALL")
        connection.invalidate()
    raise SchemaError(
        f"{address.shown} is a pooler that gives each transaction another session, so notifications (LISTEN) get lost: "
        f"set it to session mode (pool_mode=session in PgBouncer), or give the address of Postgres itself."
    )


def _hears(driver: Any, channel: str) -> bool:
    """Wait without sending anything: a query might by chance get the session that received the notification."""
    deadline = time.monotonic() + HEAR_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(driver.fileno(), selectors.EVENT_READ)
        while True:
            driver.pgconn.consume_input()
            while (notice := driver.pgconn.notifies()) is not None:
                if notice.relname.decode() == channel:
                    return True
            if not selector.select(max(0, deadline - time.monotonic())):
                return False
