# SPDX-License-Identifier: Apache-2.0
"""The store in a database, SQLite or Postgres, through the same statements.

    store           SQLStore: each method is one transaction
    database        where transactions run: our own threads, the engine, retries
    threads         the threads
    transaction     one open transaction
    address         what a URL means
    schema          creates, migrates or refuses the tables
    tables          the tables
    sessions · leases · cancels · queries · maintenance    what the transactions do
    postgres_fast · sqlite_fast    the usual cases of the same, with fewer round trips and less work
    notifications   wakes listeners when something has changed
    codec           what is stored as JSON
    faults          a database's errors in our words

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
