# SPDX-License-Identifier: Apache-2.0
"""What the administrator of a Postgres says to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg


def ask(url: str, question: str) -> str:
    with psycopg.connect(url, autocommit=True) as admin:
        (answer,) = admin.execute(question).fetchone() or ("",)
        return str(answer)


def tell(url: str, *orders: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        for each in orders:
            admin.execute(each)


@contextlib.contextmanager
def plain_role(url: str) -> Iterator[str]:
    """The same database for a user who may make tables in it, and has no other rights."""
    name = "plain_" + ask(url, "SELECT current_database()")
    tell(url, f"CREATE ROLE {name} LOGIN", f"GRANT CREATE ON SCHEMA public TO {name}")
    try:
        yield url.replace("postgres:@", f"{name}@", 1)
    finally:
        tell(url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")
