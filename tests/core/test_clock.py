# SPDX-License-Identifier: Apache-2.0
"""A clock that jumps is noticed; one that is slow to answer, or drifts, is not taken for one that jumps."""

from __future__ import annotations

import logging
import time

import pytest

from andon.core.shared import clock
from andon.core.shared.clock import ClockWatch, steady
from tests.support import play


class Clocks:
    """One that can be set, and one that can't: the test moves both."""

    def __init__(self) -> None:
        self.steady, self.ahead, self.delay = 1000.0, 1_700_000_000.0, 0.0

    def pass_by(self, seconds: float) -> None:
        self.steady += seconds

    async def read(self) -> float:
        self.steady += self.delay / 2
        said = self.steady + self.ahead
        self.steady += self.delay / 2
        return said

    def watch(self) -> ClockWatch:
        return ClockWatch(self.read, lambda: self.steady)


@pytest.mark.parametrize("size", [3600.0, -3600.0, 2.5])
def test_a_jump_is_told_once_with_its_size(size: float, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        clocks = Clocks()
        watch = clocks.watch()
        assert not await watch.jumped_within(10)
        clocks.pass_by(3)
        assert not await watch.jumped_within(10)
        clocks.ahead += size
        for _ in range(3):
            assert await watch.jumped_within(10)
            clocks.pass_by(3)
        clocks.pass_by(3)
        assert not await watch.jumped_within(10)

    with caplog.at_level(logging.WARNING, "andon"):
        play(main)
    [told] = caplog.records
    assert f"has jumped by {size:+.1f} s" in told.getMessage()


def test_what_is_no_jump_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        clocks = Clocks()
        watch = clocks.watch()
        for turn in range(20):
            clocks.delay = 30.0 * (turn % 2)  # it may have been read at any moment of these
            clocks.ahead += 1.0  # it is corrected all the time, a little
            assert not await watch.jumped_within(100)
            clocks.pass_by(3600)

    play(main)
    assert not caplog.records


def test_a_jump_during_a_slow_answer_is_found_in_the_next_one() -> None:
    async def main() -> None:
        clocks = Clocks()
        watch = clocks.watch()
        await watch.look()
        clocks.ahead, clocks.delay = clocks.ahead + 10, 30.0
        assert not await watch.jumped_within(100)  # nothing is certain
        clocks.delay = 0.0
        assert await watch.jumped_within(100)

    play(main)


def test_a_clock_is_trusted_when_it_was_watched_for_long_enough() -> None:
    async def main() -> None:
        clocks = Clocks()
        watch = clocks.watch()
        assert not await watch.kept_pace_for(3600)  # it may be wrong from the start, and be put right soon
        clocks.pass_by(3599)
        assert not await watch.kept_pace_for(3600)
        clocks.pass_by(1)
        assert await watch.kept_pace_for(3600)
        clocks.ahead -= 40 * 86400
        assert not await watch.kept_pace_for(3600)
        clocks.pass_by(3599)
        assert not await watch.kept_pace_for(3600)
        clocks.pass_by(1)
        assert await watch.kept_pace_for(3600)

    play(main)


def test_a_look_that_another_one_has_overtaken_is_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        clocks = Clocks()
        watch = clocks.watch()
        await watch.look()
        read = clocks.read

        async def slow() -> float:
            said = await read()
            watch._read = read
            clocks.pass_by(1)
            clocks.ahead += 100
            await watch.look()
            return said

        watch._read = slow
        await watch.look()
        await watch.look()

    play(main)
    assert [each.getMessage().split(":")[0] for each in caplog.records] == ["the store's clock has jumped by +100.0 s"]


def test_there_is_a_clock_that_can_not_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    before = steady()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before <= steady() < before + 60
    monkeypatch.setattr(clock, "_KIND", None)  # where there is none that counts on in sleep
    assert abs(steady() - time.monotonic()) < 60
