# SPDX-License-Identifier: Apache-2.0
"""How far behind a pool is: by what waits there, and by whether anything moves."""

from __future__ import annotations

from andon.store.sql.threads import Answer, ThreadPool
from tests.support import Flag

HOUR = 3600.0


def test_a_lane_that_was_idle_for_long_is_not_behind_and_one_that_hangs_is() -> None:
    pool, begun, go_on = ThreadPool("test", 1), Flag(), Flag()

    def hang(answer: Answer[None]) -> None:
        begun.set()
        go_on.wait()
        answer(None)

    first = pool.submit(hang)
    begun.wait()
    assert pool.lag == 0.0  # nothing waits
    pool._pace.moved -= HOUR
    second = pool.submit(hang)
    assert pool.lag < HOUR / 2
    pool._pace.moved -= HOUR  # as if that had waited for so long
    assert pool.lag >= HOUR
    go_on.set()
    first.result()
    second.result()
    pool.close()
