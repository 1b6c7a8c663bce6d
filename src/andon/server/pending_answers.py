# SPDX-License-Identifier: Apache-2.0
"""Answers of people that wait for the store to take them in, and what a shutdown does with those.

An answer that was turned away has changed nothing: its run is paused as before, and no tool of it has begun.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from andon.server.problems import Problem


class PendingAnswers:
    """The requests that are about to go on with a run."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Task[Any], asyncio.Future[None]] = {}
        """Their tasks. The future is done as soon as the run goes on, or doesn't."""

    @property
    def waiting(self) -> list[asyncio.Future[None]]:
        return list(self._waiting.values())

    @contextlib.contextmanager
    def waiting_for_store(self) -> Iterator[None]:
        """Wait in here for the store. Raises the 503 of a shutdown if this was turned away."""
        task = asyncio.current_task()
        assert task is not None
        over = self._waiting[task] = asyncio.get_running_loop().create_future()
        try:
            yield
        except asyncio.CancelledError:
            if task in self._waiting or task.uncancel():  # by someone else: whoever asks has left, say
                raise
            raise shutting_down() from None
        finally:
            self._waiting.pop(task, None)
            over.set_result(None)

    def reject_all(self) -> list[asyncio.Future[None]]:
        """Let none of them wait any longer. If the store has just given a run, that is given back: wait for these."""
        turned, self._waiting = self._waiting, {}
        for task in turned:
            task.cancel()
        return list(turned.values())


def shutting_down() -> Problem:
    return Problem(503, "the server is shutting down and takes no new runs or answers", {"retry-after": "5"})
