# SPDX-License-Identifier: Apache-2.0
"""A loop whose clock stands still until it is moved: what must happen before a time is up has all the time there is."""

from __future__ import annotations

import asyncio
import time

from tests.support.flags import Flag


class StoppedClock(asyncio.SelectorEventLoop):
    """For a test whose time limit is real, and whose threads are too: `play(main, loop=StoppedClock)`."""

    def __init__(self) -> None:
        self._now = time.monotonic()
        super().__init__()

    def time(self) -> float:
        return self._now

    def move(self, seconds: float) -> None:
        self._now += seconds
        self._write_to_self()  # type: ignore[attr-defined]  # the timer that it sleeps for may be due now


async def time_is_up(after: Flag, seconds: float = 10.0) -> None:
    """Move the stopped clock of this loop as soon as the flag is set."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StoppedClock)
    await after.arrived()
    loop.move(seconds)
