# SPDX-License-Identifier: Apache-2.0
"""The tables of the queue of runs. They are created when a database is first used with workers.

They are apart from `tables`, and have a version of their own: a process that knows nothing of them goes on with the
others as before. The engine has tables of its own, whose names begin with `procrastinate_`.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, MetaData, Table, Text

from andon.store.sql.tables import Id

VERSION = 1

metadata = MetaData()

meta = Table(
    "andon_queue_meta",
    metadata,
    Column("version", Integer, nullable=False),
    Column("swept", Double, nullable=False),  # when a process has last begun to sweep
)

waiting = Table(
    "andon_waiting",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),  # of the run
    Column("run_id", Id, nullable=False),
    Column("channel", Text, nullable=False),  # the engine's queue
    Column("queue", Text, nullable=False),  # its name, as users know it
    Column("priority", Integer, nullable=False),
    Column("share", Text, nullable=False),  # see `core/shared/run_queue.py`
    Column("request", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("known", Integer, nullable=False),  # the run's last event when it was put here
    Column("jobs", Integer, nullable=False),  # how many were sent
    Column("since", Double, nullable=False),  # when it was put here
    Column("counts", Boolean, nullable=False),  # it has its place in the limits since then
    Column("goes_on", Boolean, nullable=False),  # if its worker is lost, another one continues it
    Column("until", Double),  # when its `timeout` is over
    Column("sent", Double),  # when its last job was sent
    Index("andon_waiting_run", "run_id"),
    Index("andon_waiting_share", "share", "state"),
)
"""Runs that wait for a worker, or for room. A row is deleted some time after its run has ended or paused."""

HELD_BACK, SENT, TAKEN = "held", "sent", "taken"
"""The states: it has no job yet; it has one; a worker has claimed it."""

Index("andon_waiting_due", waiting.c.priority.desc(), waiting.c.number, postgresql_where=waiting.c.state == HELD_BACK)

limits = Table(
    "andon_limits",
    metadata,
    Column("name", Text, primary_key=True),
    Column("most", Integer, nullable=False),
)

workers = Table(
    "andon_workers",
    metadata,
    Column("name", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("seen", Double, nullable=False),
    Column("draining", Boolean, nullable=False),
)
