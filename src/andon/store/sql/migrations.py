# SPDX-License-Identifier: Apache-2.0
"""What brings an older database to the next version. Each is one transaction, of which a copy was made before."""

from __future__ import annotations

from sqlalchemy import Connection

from andon.store.sql.tables import news


def from_1(connection: Connection) -> None:
    """What is new is told by name."""
    news.create(connection)
