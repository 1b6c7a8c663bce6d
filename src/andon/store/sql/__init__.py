# SPDX-License-Identifier: Apache-2.0
"""The store in a database, SQLite or Postgres, through the same statements.

    store       SQLStore: each method is one transaction
    database    where transactions run: threads of our own, engine, retries
    lanes       the threads
    address     what a URL means
    schema      tables are made, migrated or refused
    tables      the tables
    sessions · holding · asking · service    what the transactions do
    push        who is woken when something has changed
    codec       what is kept as JSON
    faults      a database's errors in our words

`import andon` does not come here: SQLAlchemy is an extra.
"""

from andon.errors import MissingExtraError

try:
    import sqlalchemy
except ImportError as error:
    raise MissingExtraError(
        f'a database needs SQLAlchemy: pip install "andon[server]" for SQLite, "andon[postgres]" for Postgres ({error})'
    ) from None
del sqlalchemy

from andon.store.sql.store import SQLStore  # noqa: E402 - after the check that says what is missing

__all__ = ["SQLStore"]
