# SPDX-License-Identifier: Apache-2.0
"""How far behind a lane is: by what waits there, and by whether anything moves."""

from __future__ import annotations

from andon.store.sql.lanes import Answer, Lane
from tests.support import Flag

HOUR = 3600.0


def test_a_lane_that_was_idle_for_long_is_not_behind_and_one_that_hangs_is() -> None:
    lane, begun, go_on = Lane("test", 1), Flag(), Flag()

    def hang(answer: Answer[None]) -> None:
        begun.set()
        go_on.wait()
        answer(None)

    first = lane.submit(hang)
    begun.wait()
    assert lane.lag == 0.0  # nothing waits
    lane._pace.moved -= HOUR
    second = lane.submit(hang)
    assert lane.lag < HOUR / 2
    lane._pace.moved -= HOUR  # as if that had waited for so long
    assert lane.lag >= HOUR
    go_on.set()
    first.result()
    second.result()
    lane.close()
