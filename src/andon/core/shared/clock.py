# SPDX-License-Identifier: Apache-2.0
"""Compares a clock that can be set with a clock that can't, in order to notice a jump.

Ages, and leases on a database server, are measured by the store's clock. If that clock jumps ahead, leases look expired
though their holders are alive. If it was wrong before and is corrected, ages are wrong. One look can't tell a right
clock from a wrong one. So before a worker takes runs over or deletes old ones, it asks here how long the clock has kept
pace.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

log = logging.getLogger(__name__)

JUMP = 2.0
"""In seconds. A smaller difference is no jump: clocks are corrected in small steps all the time."""


def steady() -> float:
    """Seconds by a clock that can't be set. If the system has such a clock, it goes on while the machine sleeps."""
    return time.monotonic() if _KIND is None else time.clock_gettime(_KIND)


def _find_kind() -> int | None:
    kind: int | None = getattr(time, "CLOCK_MONOTONIC_RAW" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None)
    with contextlib.suppress(OSError):
        return kind if kind is not None and time.clock_gettime(kind) else None
    return None


_KIND = _find_kind()


class _Look(NamedTuple):
    """One look at the clock, begun at `before`. The clock is ahead of `steady` by at least `least`, at most `most`."""

    before: float
    least: float
    most: float


class ClockWatch:
    """Watches one clock. Safe from any thread."""

    def __init__(self, read: Callable[[], Awaitable[float]], steady: Callable[[], float] = steady) -> None:
        self._read, self._steady = read, steady
        self._began = steady()
        self._last: _Look | None = None
        self._jumped: float | None = None
        """When the last jump was noticed."""

    async def look(self) -> None:
        """Read the clock, and log a warning if it has jumped since the last look."""
        before = self._steady()
        said = await self._read()
        look = _Look(before, said - self._steady(), said - before)
        last = self._last
        if last is not None and last.before > before:
            return  # another thread has looked meanwhile
        jump = 0.0 if last is None else max(look.least - last.most, 0.0) + min(look.most - last.least, 0.0)
        if last is not None and not jump:  # a slow answer gives wide bounds: keep the narrower ones
            look = _Look(before, max(look.least, last.least), min(look.most, last.most))
        self._last = look
        if abs(jump) > JUMP:
            self._jumped = self._steady()
            log.warning(
                "the store's clock has jumped by %+.1f s: for now no runs are taken over, and nothing is pruned",
                jump,
            )

    async def jumped_within(self, seconds: float) -> bool:
        """True if a jump was noticed in the last `seconds`."""
        await self.look()
        return self._jumped is not None and self._steady() - self._jumped < seconds

    async def kept_pace_for(self, seconds: float) -> bool:
        """True if the clock was watched for `seconds` or longer, and did not jump in the last `seconds`."""
        return not await self.jumped_within(seconds) and self._steady() - self._began >= seconds
