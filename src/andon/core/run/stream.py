# SPDX-License-Identifier: Apache-2.0
"""The stream of a run that its reader started, and owns: leaving it cancels the run.

An iterator object, not a generator: it begins the run at the first `next`, holds nothing open in between, and may be
dropped at any moment, from any thread.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from andon.core.events import Event
from andon.core.journal import Reader

if TYPE_CHECKING:
    from andon.core.run.run import Run


class EventStream(Reader):
    """A run's events, as they come.

    Read it to its end, or leave: `aclose()` cancels the run and waits until it is settled; dropping the last reference
    cancels it too. Cancelling a waiting `anext` cancels the run as well.
    """

    __slots__ = ("_state", "run")

    def __init__(self, run: Run) -> None:
        super().__init__(run.journal)
        self.run = run
        self._state = "new"

    @classmethod
    def of_begun(cls, run: Run, after: int = 0) -> EventStream:
        """The stream of a run that has begun, from a sequence number on."""
        stream = cls(run)
        stream._taken, stream._state = after, "begun"
        return stream

    def __aiter__(self) -> EventStream:
        return self

    async def _more(self) -> Event:
        if self._state == "new":
            self._state = "closed"  # unless it begins
            self.run.set_out()
            self._state = "begun"
            if self.run.tenure is not None:
                await self._admitted()
        if self._state == "closed":
            raise StopAsyncIteration
        try:
            return await super()._more()
        except StopAsyncIteration:
            await self.aclose()
            raise
        except asyncio.CancelledError as error:
            self._state, self._batch = "closed", iter(())
            await self.run.attend(error)
            raise

    async def _admitted(self) -> None:
        try:
            await self.run.admitted()
        except BaseException:
            self._state = "closed"
            raise

    async def aclose(self) -> None:
        """Leave. Returns when the run is settled."""
        begun, self._state, self._batch = self._state == "begun", "closed", iter(())
        if begun:
            self.run.leave()
            await self.run.attend()

    def __del__(self) -> None:
        # Only a signal: this may be any thread, and no place to wait.
        if getattr(self, "_state", "new") == "begun" and not sys.is_finalizing():  # __init__ may have been interrupted
            self.run.leave()
