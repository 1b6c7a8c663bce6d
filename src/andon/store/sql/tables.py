# SPDX-License-Identifier: Apache-2.0
"""The tables. A change of anything here is a new version, and needs one of the `migrations`.

The rows of `andon_runs` are small on purpose: each renewal of a lease writes one, and SQLite writes whole rows. Large
values are in `andon_records`. A run's `number` is its place in its session's queue and in the conversation. A run whose
session was deleted keeps the session's `id`. That id is not used again, so the run is in no session. No user is ''.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

from andon.core.states import RunStatus
from andon.errors import ConfigurationError

metadata = MetaData()


LONGEST = 2_500
"""How many bytes the values in a row of a Postgres index may take."""


class Id(TypeDecorator[str]):
    """A name from outside: any text, also one that a database can't store, as with a NUL or a lone surrogate.

    Such a name is stored escaped, in a form that no other name has.
    """

    impl = Text
    cache_ok = True
    _ESCAPED = "\x01"

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return self.encode_or_none(value)

    @classmethod
    def encode_or_none(cls, value: str | None) -> str | None:
        return None if value is None else cls.encode(value)

    @classmethod
    def encode(cls, value: str) -> str:
        if value.isprintable() and value.isascii():
            return value
        odd = "\x00" in value or value.startswith(cls._ESCAPED) or any("\ud800" <= each <= "\udfff" for each in value)
        return cls._ESCAPED + quote(value, safe="", errors="surrogatepass") if odd else value

    @classmethod
    def check(cls, *names: str | None) -> None:
        """Raise if these names, which are in one index, are too long together: a Postgres index has a limit."""
        if (size := sum(len(cls.encode(name or "").encode()) for name in names)) > LONGEST:
            what = "the id" if len(names) == 1 else "the ids of agent, user and session together"
            raise ConfigurationError(
                f"{what} would take {size:,} bytes; a database takes {LONGEST:,}: use shorter ones"
            )

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else self.decode(value)

    @classmethod
    def decode(cls, value: str) -> str:
        return unquote(value[1:], errors="surrogatepass") if value.startswith(cls._ESCAPED) else value


_Number = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only an INTEGER

meta = Table("andon_meta", metadata, Column("version", Integer, nullable=False))

sessions = Table(
    "andon_sessions",
    metadata,
    Column("id", _Number, Identity(), primary_key=True),
    Column("agent_id", Id, nullable=False),
    Column("user_id", Id, nullable=False),
    Column("session_id", Id, nullable=False),
    Column("begun", Boolean, nullable=False),  # until then it only holds the queue of its first run
    Column("created", Double, nullable=False),  # that of the run that made it, if one did
    Column("updated", Double, nullable=False),
    UniqueConstraint("agent_id", "user_id", "session_id", name="andon_sessions_key"),
    Index("andon_sessions_age", "updated"),
    sqlite_autoincrement=True,
)

states = Table(
    "andon_states",
    metadata,
    Column("session", BigInteger, primary_key=True, autoincrement=False),
    Column("state", Text, nullable=False),
    Column("version", Integer, nullable=False),  # counts its changes
)
"""The states of sessions that have one. They may be large: an update of the session does not write them again."""

runs = Table(
    "andon_runs",
    metadata,
    Column("number", _Number, Identity(), primary_key=True),
    Column("run_id", Id, nullable=False, unique=True),
    Column("session", BigInteger, nullable=False),
    Column("agent_id", Id, nullable=False),
    Column("user_id", Id, nullable=False),
    Column("session_id", Id, nullable=False),
    Column("status", Text, nullable=False),
    Column("owner", Text),
    Column("epoch", Integer, nullable=False),
    Column("lease_until", Double),  # see `clocks`
    Column("lease_seconds", Double),  # how long it was given for
    Column("cancel", Text),
    Column("continues", Id),
    Column("parent", Id),  # the run whose tool has started it
    Column("last_seq", Integer, nullable=False),  # of its events, once it has ended; 0 when they are deleted
    Column("created", Double, nullable=False),  # as its record says: by its process's clock
    Column("ended", Double),
    Index("andon_runs_line", "session", "number"),
    Index("andon_runs_ended", "ended"),
    Index("andon_runs_created", "created"),  # what is listed page by page
    sqlite_autoincrement=True,
)

LIVE = runs.c.ended.is_(None)
HELD = (RunStatus.pending.value, RunStatus.running.value)
"""The states of a run that has a lease."""

# Not on the leases: they change all the time, and few runs have one.
Index("andon_runs_live", runs.c.number, sqlite_where=LIVE, postgresql_where=LIVE)

records = Table(
    "andon_records",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("record", Text, nullable=False),
    Column("messages", Text),  # none: it has added nothing yet, or was rolled back
)

histories = Table(
    "andon_histories",
    metadata,
    Column("session", BigInteger, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),  # another one whenever it is replaced
    Column("messages", Text, nullable=False),
)
"""The messages of a session before the first of its runs: a caller has put them there."""

events = Table(
    "andon_events",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("seq", Integer, primary_key=True, autoincrement=False),  # of the last event in it: see `batches`
    Column("batch", Text, nullable=False),  # long: so in SQLite the table has rowids
)

cancels = Table(
    "andon_cancels",
    metadata,
    Column("id", _Number, Identity(), primary_key=True),
    Column("run_id", Id, nullable=False),
    Column("agent_id", Id, nullable=False),
    Column("user_id", Id, nullable=False),
    Column("session_id", Id, nullable=False),
    Column("at", Double, nullable=False),
    Column("request", Text, nullable=False),
    Index("andon_cancels_run", "run_id"),
    Index("andon_cancels_age", "at"),
    sqlite_autoincrement=True,
)

news = Table(
    "andon_news",
    metadata,
    Column("id", _Number, Identity(), primary_key=True),
    Column("said", Text, nullable=False),
)
"""The last notifications, in a SQLite file. Postgres has NOTIFY."""

keys = Table(
    "andon_keys",
    metadata,
    Column("agent_id", Id, primary_key=True),
    Column("user_id", Id, primary_key=True),
    Column("key", Id, primary_key=True),
    Column("run_id", Id, nullable=False),
    Column("said", Text, nullable=False),  # a digest of what was asked for
    Column("after_seq", Integer, nullable=False),  # the last event before that
    Index("andon_keys_run", "run_id"),
)
"""Idempotency keys, each user's own."""

secrets = Table(
    "andon_secrets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
"""Random text that all processes of a database share. The name says what it is for."""

blocks = Table(
    "andon_blocks",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("id", Id, primary_key=True),
    Column("data", Text, nullable=False),
)
