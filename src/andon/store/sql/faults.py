# SPDX-License-Identifier: Apache-2.0
"""Translates a database's errors: what failed, and what to do. They contain no password and no SQL."""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from andon.errors import StoreError, say
from andon.store.sql.address import Address

_BUSY = ("database is locked", "database table is locked", "database schema is locked")
_LOCKED = "55P03"
_TRANSIENT_STATES = ("40001", "40P01")  # a conflict of two transactions: the database has rolled one of them back

_FULL = "Postgres has no connection left. Raise its max_connections, or free some; each process of Andon uses up to {}."
_ADVICE = {
    "too many clients": _FULL,
    "too many connections": _FULL,  # for this role, or for this database
    "connection slots are reserved": _FULL,
    "read-only transaction": "It is a standby, or set to read-only: see to it that the URL leads to the primary.",
    "pooling mode": "This is a pooler, which breaks LISTEN: use it in session mode, or name Postgres itself.",
    "locked": "Another process has been writing to it for too long; trying again may help.",
    "readonly": "Make the file and its folder writable.",
    "disk is full": "Make room on the disk; trying again helps then.",
    "unable to open": "Is the file still there, and may this user read and write it and its folder?",
    "password": "Check the user and the password in the URL.",
    "does not exist": "Check the names in the URL.",
    "permission denied": "Give the user of the URL the right to use and make tables in this database.",
}


class LockedError(StoreError):
    """Another transaction has locked the rows for longer than one attempt waits."""


class CutOffError(SQLAlchemyError):
    """The connection was lost before the commit was sent. Nothing was done, or, where a statement is a transaction, it
    is safe to repeat. A server that was restarted leaves such connections behind. The next attempt gets a new
    connection, or an error if there is no server.
    """


def is_transient(error: BaseException) -> bool:
    """Whether the transaction failed only because it met another one, or because its connection was lost."""
    if isinstance(error, CutOffError):
        return True
    cause = _cause(error)
    if isinstance(cause, sqlite3.OperationalError):
        return str(cause).startswith(_BUSY)
    return getattr(cause, "sqlstate", None) in _TRANSIENT_STATES


def translate(error: BaseException, address: Address, connections: int) -> StoreError:
    if isinstance(error, CutOffError):
        error = error.__cause__ or error
    if isinstance(error, PoolTimeoutError):
        said = f"all {connections} connections of this process have been busy for too long"
    else:
        said = _said(_cause(error), address)
    advice = next((text for words, text in _ADVICE.items() if words in said), "Trying again may help.")
    if advice not in _ADVICE.values() and address.path is None and isinstance(error, OperationalError):
        advice = f"Is it running, and is the URL right? {advice}"
    advice = advice.format(connections)
    kind = LockedError if getattr(_cause(error), "sqlstate", None) == _LOCKED else StoreError
    return kind(f"the database {address.shown} could not be asked: {said.rstrip('.')}. {advice}")


def _said(cause: Any, address: Address) -> str:
    # Postgres' details may name what is in a row.
    words = getattr(getattr(cause, "diag", None), "message_primary", None) or say(cause)
    return address.scrub(" ".join(words.split())) or type(cause).__name__


def _cause(error: BaseException) -> Any:
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
