# SPDX-License-Identifier: Apache-2.0
"""Answers to paused runs that the store has not accepted yet, and what a shutdown does with them.

A rejected answer has changed nothing: its run is still paused, and none of its tools has begun.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from andon.server.problems import Problem


class PendingAnswers:
    """The requests that are about to continue a paused run."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Task[Any], asyncio.Future[None]] = {}
        """By task. The future is done as soon as the run continues, or fails to."""

    @property
    def waiting(self) -> list[asyncio.Future[None]]:
        return list(self._waiting.values())

    @contextlib.contextmanager
    def waiting_for_store(self) -> Iterator[None]:
        """Wait for the store in this block. Raises the 503 of a shutdown if the answer was rejected."""
        task = asyncio.current_task()
        assert task is not None
        over = self._waiting[task] = asyncio.get_running_loop().create_future()
        try:
            yield
        except asyncio.CancelledError:
            if task in self._waiting or task.uncancel():  # not by `reject_all`: the client disconnected, say
                raise
            raise shutting_down() from None
        finally:
            self._waiting.pop(task, None)
            over.set_result(None)

    def reject_all(self) -> list[asyncio.Future[None]]:
        """Reject all waiting answers. A run that the store has just handed out is given back: wait for the futures."""
        turned, self._waiting = self._waiting, {}
        for task in turned:
            task.cancel()
        return list(turned.values())


def shutting_down() -> Problem:
    return Problem(503, "the server is shutting down and takes no new runs or answers", {"retry-after": "5"})
