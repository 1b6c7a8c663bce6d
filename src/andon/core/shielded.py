# SPDX-License-Identifier: Apache-2.0
"""A task for work that must get through, and yet is bounded: it undoes what a cut call has done.

A host that ends its loop cancels every task of it (`asyncio.run` does), and closing the portal does the same. Such a
cancel is refused here. A cancel that the work itself has set up, such as that of `asyncio.timeout`, works as usual: it
comes from a callback of the loop. What must stay true: only the time limit ends the work against its will.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class ShieldedTask(asyncio.Task[None]):
    """A task that no other task can cancel. After `seconds` it is cut; `cut` is called again if it does not end."""

    def __init__(
        self, work: Coroutine[Any, Any, None], *, seconds: float, loop: asyncio.AbstractEventLoop, name: str
    ) -> None:
        super().__init__(work, loop=loop, name=name)
        self.out_of_time = False
        self._timer = loop.call_later(seconds, self._cut, seconds)
        self.add_done_callback(ShieldedTask._stop_timer)

    def cancel(self, msg: Any | None = None) -> bool:
        """Refused if another task asks, or if it is asked while the loop does not run."""
        if asyncio._get_running_loop() is None or asyncio.current_task() not in (None, self):
            return False
        return super().cancel(msg)

    def _cut(self, seconds: float) -> None:
        self.out_of_time = True
        super().cancel()
        self._timer = self.get_loop().call_later(seconds, self._cut, seconds)

    def _stop_timer(self) -> None:
        self._timer.cancel()
