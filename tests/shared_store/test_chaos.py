# SPDX-License-Identifier: Apache-2.0
"""The short form of the trial in `bench.chaos`: two servers on one database, killed, stopped and cut off at random; and
two servers with two workers and a Redis, which is lost as well.
"""

from __future__ import annotations

import asyncio

import pytest

from bench.chaos.servers import DATABASES
from bench.chaos.trial import hold, hold_with_workers
from tests.support.redis_server import redis_program

pytestmark = pytest.mark.no_cover  # what its servers do is covered by others, and would be slowed down


@pytest.mark.timeout(600)  # on a machine that does much else
@pytest.mark.parametrize("kind", DATABASES)
def test_whatever_dies_no_cancel_is_lost_and_every_run_has_one_end(kind: str) -> None:
    cuts = 1 if kind == "sqlite" else 2  # refused, and silent
    outcome = asyncio.run(hold(kind, servers=2, runs=40, seed="short", lease=3.0, cuts=cuts))
    assert outcome.sound, outcome.show()
    # And it was a trial.
    assert outcome.counts["runs"] >= 30
    assert outcome.counts["cancels acknowledged"]
    assert outcome.counts["kills of a server"]
    assert outcome.counts["stops of a server"]
    assert outcome.counts["cuts between a server and its database"]
    assert outcome.counts["kills of the database"] or kind == "sqlite"


@pytest.mark.timeout(600)
def test_losing_redis_as_well_loses_and_doubles_nothing() -> None:
    redis_program()  # or this is skipped
    outcome = asyncio.run(hold_with_workers(2, 2, runs=40, seed="short", lease=3.0, with_redis=True))
    assert outcome.sound, outcome.show()
    # And it was a trial.
    assert outcome.counts["runs"] >= 30
    assert outcome.counts["cancels acknowledged"]
    assert outcome.counts["entries of text in Redis, at least"]
    troubles = ("kills of Redis", "stops of Redis", "losses of all that Redis had", "cuts between a worker and Redis")
    for each in (*troubles, "cuts between a server and Redis", "kills of a worker"):
        assert outcome.counts[each], each
