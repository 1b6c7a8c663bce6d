# SPDX-License-Identifier: Apache-2.0
"""The current time, as SQL expressions that are evaluated when their statement runs.

On Postgres every time is the server's: the clocks of the machines that use it don't matter. SQLite has no clock. There,
leases use `time.monotonic`, which all processes of a machine share, and which can't be set. It stands still while the
machine sleeps, as do the processes that hold leases. Ages use the machine's wall clock, because they must outlive a
restart.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import ColumnElement, Double, and_, bindparam, cast, func, or_

from andon.store.sql.tables import HELD, runs

SLACK = 5.0
"""In seconds. A clock that is set back by less than this ends no lease."""


def monotonic() -> float:
    """The clock for leases in SQLite."""
    return time.monotonic()


SERVER_CLOCK = "extract(epoch FROM clock_timestamp())::double precision"
_SERVER: ColumnElement[float] = cast(func.extract("epoch", func.clock_timestamp()), Double)
_MONOTONIC: ColumnElement[float] = bindparam("andon_now", callable_=lambda: monotonic(), type_=Double)
_WALL: ColumnElement[float] = bindparam("andon_wall", callable_=lambda: time.time(), type_=Double)


def now(postgres: bool) -> ColumnElement[float]:
    """The clock for leases."""
    return _SERVER if postgres else _MONOTONIC


def wall(postgres: bool) -> ColumnElement[float]:
    """The clock for ages."""
    return _SERVER if postgres else _WALL


def lease(postgres: bool, seconds: float) -> dict[str, Any]:
    """The columns of a run whose lease ends in this number of seconds."""
    return {"lease_until": now(postgres) + seconds, "lease_seconds": seconds}


def expired(postgres: bool) -> ColumnElement[bool]:
    """A held run whose lease is over.

    A lease that ends later than its own length from now was written before the clock was set back, or, with SQLite,
    before the machine was restarted. A worker that is alive would have renewed it since.
    """
    until, clock = runs.c.lease_until, now(postgres)
    return and_(runs.c.status.in_(HELD), or_(until < clock, until - runs.c.lease_seconds > clock + SLACK))


def unowned(postgres: bool) -> ColumnElement[bool]:
    """A run without a holder that would end it: it is paused, it waits for a worker process, or its lease is over."""
    return or_(runs.c.owner.is_(None), runs.c.status.not_in(HELD), expired(postgres))


SERVER_UNOWNED = (
    f"(owner IS NULL OR status NOT IN {HELD} OR lease_until < {SERVER_CLOCK}"
    f" OR lease_until - lease_seconds > {SERVER_CLOCK} + {SLACK})"
)
"""The same, as SQL for Postgres."""
