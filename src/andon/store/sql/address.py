# SPDX-License-Identifier: Apache-2.0
"""Parses a database's URL. Errors in it are raised here, before anything is opened. No error contains the password."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from andon.errors import ConfigurationError, MissingExtraError

SYNCHRONOUS = ("normal", "full")


class Address(NamedTuple):
    """Where the database is."""

    url: URL
    shown: str
    """The URL without its password."""
    path: Path | None
    """The file of a SQLite database."""
    synchronous: str
    """What SQLite waits for: `normal` survives the death of every process, `full` also the machine's."""

    def scrub(self, text: str) -> str:
        password = self.url.password
        return text.replace(password, "***") if password else text


def parse(text: str) -> Address:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "this is no database URL; it looks like sqlite:///andon.db or postgresql://user:password@host/name"
        ) from None
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        return _sqlite(url)
    if url.drivername in ("postgresql", "postgresql+psycopg", "postgres"):
        return _postgres(url)
    raise ConfigurationError(
        f"{url.drivername}:// is no database that Andon can use; there are sqlite:///andon.db and "
        f"postgresql://user:password@host/name"
    )


def _sqlite(url: URL) -> Address:
    if not url.host and url.database in (None, "", ":memory:"):
        raise ConfigurationError("SQLite needs a file, as in sqlite:///andon.db; to keep nothing, use memory://")
    query = dict(url.query)
    synchronous = str(query.pop("synchronous", "normal")).lower()
    name = url.database or ""
    if query or url.host or name.startswith("file:") or synchronous not in SYNCHRONOUS:
        raise ConfigurationError(
            f"{url.render_as_string()} is not understood: three slashes and a path (sqlite:///andon.db; four, if it "
            f"begins at the root), and at most ?synchronous=full"
        )
    path = Path(name).expanduser().absolute()
    shown = f"sqlite:///{path}"
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder; name a file in it, as in sqlite:///{path}/andon.db")
    if not path.parent.is_dir():
        raise ConfigurationError(f"{path} can't be made: there is no folder {path.parent}. Make it first.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"{path} can't be written: it, or its folder, is read-only for this user")
    return Address(URL.create("sqlite+pysqlite", database=str(path)), shown, path, synchronous)


def _postgres(url: URL) -> Address:
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtraError(f'Postgres needs psycopg: pip install "andon[postgres]" ({error})') from None
    del psycopg
    url = url.set(drivername="postgresql+psycopg")
    shown = url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)
    return Address(url, shown, None, "")
