# SPDX-License-Identifier: Apache-2.0
"""Creates, migrates or refuses the tables. A database that is refused is not changed in any byte.

All changes are one transaction, under a lock that one process at a time can have. If several processes open a new
database together, one creates the tables, and the others find them. An older database is copied first: a file to
another file beside it, the tables of a server to another schema.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import cast
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, delete, insert, inspect, select, text
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.pool import NullPool

from andon.errors import SchemaError
from andon.store.sql import configuration, permissions
from andon.store.sql.address import Address
from andon.store.sql.migrations import MIGRATIONS
from andon.store.sql.tables import meta, metadata

log = logging.getLogger(__name__)

VERSION = 3

SMALLEST = 512
"""The size of the smallest page that a SQLite database can have."""

LOCK = 0x616E646F  # "ando": the first half of our advisory locks


def open(engine: Engine, address: Address) -> None:
    """Leave the database with the tables of this version, or raise and leave it as it was: a `SchemaError`, or a
    `ConfigurationError` for a server that can't be used.
    """
    if address.path is None:
        configuration.check(engine, address)
        _open_server(engine, address)
    else:
        _open_file(engine, address, address.path)


def _open_file(engine: Engine, address: Address, path: Path) -> None:
    permissions.make_file(path)
    if path.exists() and path.stat().st_size:
        _look_first(path, address)
    permissions.warn_if_open(path)
    borrowed = engine.raw_connection()  # outside of any transaction
    try:
        driver = cast(sqlite3.Connection, borrowed.driver_connection)
        modes = ("PRAGMA journal_mode", "PRAGMA journal_mode=WAL")  # the second one needs the file for itself
        if not any(driver.execute(mode).fetchone() == ("wal",) for mode in modes):
            log.warning("%s can't be used in WAL mode: readers and writers will wait for each other", path)
    finally:
        borrowed.close()
    with engine.connect().execution_options(andon_writes=True) as connection, connection.begin():
        _settle(connection, address, lambda version: _copy_file(path, version))


def _look_first(path: Path, address: Address) -> None:
    """Check through a read-only connection that we may use the file: even a switch to WAL mode would change it.

    Only SQLite may open the file, not this code. Closing it would drop the locks of all connections that this process
    has to it. The next process to leave would then believe that it is the last one, and delete the log in use.
    """
    refusal = SchemaError(f"{path} is no SQLite database; it was left as it is. Name another file.")
    if path.stat().st_size < SMALLEST:
        raise refusal  # SQLite would take some of these for empty ones
    place = f"file:{quote(str(path))}?mode=ro"
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(place, uri=True), poolclass=NullPool)
    try:
        with engine.connect() as connection:
            survey(connection, address)
    except OperationalError:
        raise
    except DatabaseError as error:
        if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
            raise refusal from None
        raise SchemaError(
            f"{path} is damaged ({error.orig}); it was left as it is. Put a good copy in its place, or name another "
            f"file."
        ) from None


def _open_server(engine: Engine, address: Address) -> None:
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock, 1)"), {"lock": LOCK})
        _settle(connection, address, lambda version: _copy_tables(connection, version))


def _settle(connection: Connection, address: Address, copy: Callable[[int], str]) -> None:
    version = survey(connection, address)
    if version is None:
        metadata.create_all(connection, checkfirst=False)
        connection.execute(insert(meta).values(version=VERSION))
    elif version < VERSION:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))
        kept = copy(version)
        for step in range(version, VERSION):
            MIGRATIONS[step](connection)
        connection.execute(delete(meta))
        connection.execute(insert(meta).values(version=VERSION))
        _check_tables(connection, address)
        log.warning("%s was brought from version %d to %d; a copy is in %s", address.shown, version, VERSION, kept)


def survey(connection: Connection, address: Address) -> int | None:
    """The version of the tables, None if there are none. Raises for what this version of Andon can't use."""
    names = {name for name in inspect(connection).get_table_names() if name in metadata.tables}
    if not names:
        return None
    found = connection.execute(select(meta.c.version)).scalars().all() if meta.name in names else []
    if len(found) != 1 or not isinstance(found[0], int):
        raise _broken(address, f"{meta.name} does not say which version it is")
    version = found[0]
    if version > VERSION:
        raise SchemaError(
            f"{address.shown} was made by a newer version of Andon (its tables are of version {version}, this one "
            f"knows {VERSION}); it was left as it is. Update Andon, or use another database."
        )
    if version < VERSION and any(step not in MIGRATIONS for step in range(version, VERSION)):
        raise SchemaError(
            f"{address.shown} has tables of version {version}, from which there is no way to {VERSION}; it was left as "
            f"it is. Use another database."
        )
    if version == VERSION:
        _check_tables(connection, address)
    return version


def _check_tables(connection: Connection, address: Address) -> None:
    found = inspect(connection)
    for name, table in metadata.tables.items():
        if not found.has_table(name):
            raise _broken(address, f"there is no table {name}")
        missing = {column.name for column in table.columns} - {column["name"] for column in found.get_columns(name)}
        if missing:
            raise _broken(address, f"{name} has no {', '.join(sorted(missing))}")


def _broken(address: Address, why: str) -> SchemaError:
    return SchemaError(
        f"{address.shown} is not whole: {why}. It was left as it is. Put a good copy in its place, or use another "
        f"database."
    )


def _copy_file(path: Path, version: int) -> str:
    """A copy beside the file. It gets its name when it is complete. No process writes meanwhile: we have the lock."""
    copy = path.with_name(f"{path.name}.v{version}.bak")
    number = 1
    while copy.exists():
        number += 1
        copy = path.with_name(f"{path.name}.v{version}.{number}.bak")
    part = copy.with_name(f"{copy.name}.part")
    part.unlink(missing_ok=True)
    permissions.make_file(part)
    source, target = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True), sqlite3.connect(part)
    try:
        source.backup(target)
    except sqlite3.Error as error:
        part.unlink(missing_ok=True)
        raise SchemaError(
            f"{path} has tables of version {version}, and could not be copied before they are changed ({error}); it "
            f"was left as it is. Is there room for a copy beside it?"
        ) from None
    finally:
        source.close()
        target.close()
    os.replace(part, copy)
    return str(copy)


def _copy_tables(connection: Connection, version: int) -> str:
    found = inspect(connection)
    taken, number, name = set(found.get_schema_names()), 1, f"andon_v{version}"
    while name in taken:
        number += 1
        name = f"andon_v{version}_{number}"
    connection.execute(text(f"CREATE SCHEMA {name}"))
    for table in sorted(each for each in found.get_table_names() if each.startswith("andon_")):
        connection.execute(text(f"CREATE TABLE {name}.{table} AS TABLE {table}"))
    return f"the schema {name}"
