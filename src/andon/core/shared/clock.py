# SPDX-License-Identifier: Apache-2.0
"""A clock that can be set is compared with one that can't, so that a jump is noticed.

Ages, and leases on a server, go by the store's clock. If that jumps ahead, leases look over whose holders are alive. If
it was wrong all the time and is put right, ages are wrong. Nothing tells a right clock from a wrong one at first sight.
So whoever would take runs over, or forget what is old, asks here first for how long the clock has kept pace.
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
"""In seconds. Less is no jump: clocks are corrected in small steps all the time."""


def steady() -> float:
    """Seconds by a clock that nobody can set. It counts on while the machine sleeps, where there is such a one."""
    return time.monotonic() if _KIND is None else time.clock_gettime(_KIND)


def _find_kind() -> int | None:
    kind: int | None = getattr(time, "CLOCK_MONOTONIC_RAW" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None)
    with contextlib.suppress(OSError):
        return kind if kind is not None and time.clock_gettime(kind) else None
    return None


_KIND = _find_kind()


class _Look(NamedTuple):
    """The clock was read between these two moments, as `steady` counts: so it is ahead of `steady` by this much."""

    before: float
    least: float
    most: float


class ClockWatch:
    """Watches one clock. It may be asked from any thread."""

    def __init__(self, read: Callable[[], Awaitable[float]], steady: Callable[[], float] = steady) -> None:
        self._read, self._steady = read, steady
        self._began = steady()
        self._last: _Look | None = None
        self._jumped: float | None = None
        """When the last jump was noticed."""

    async def look(self) -> None:
        """Read the clock, and say so in the log if it has jumped since the last time."""
        before = self._steady()
        said = await self._read()
        look = _Look(before, said - self._steady(), said - before)
        last = self._last
        if last is not None and last.before > before:
            return  # another thread has looked since
        jump = 0.0 if last is None else max(look.least - last.most, 0.0) + min(look.most - last.least, 0.0)
        if last is not None and not jump:  # a slow answer tells little: what is known better already stays known
            look = _Look(before, max(look.least, last.least), min(look.most, last.most))
        self._last = look
        if abs(jump) > JUMP:
            self._jumped = self._steady()
            log.warning(
                "the store's clock has jumped by %+.1f s: for now nobody's runs are taken over, and nothing is pruned",
                jump,
            )

    async def jumped_within(self, seconds: float) -> bool:
        """Whether a jump was noticed in the last so many seconds."""
        await self.look()
        return self._jumped is not None and self._steady() - self._jumped < seconds

    async def kept_pace_for(self, seconds: float) -> bool:
        """Whether it was watched for so long, and has not jumped."""
        return not await self.jumped_within(seconds) and self._steady() - self._began >= seconds
