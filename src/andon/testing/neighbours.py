# SPDX-License-Identifier: Apache-2.0
"""Servers that run in this process, each in a thread of its own: a virtual clock moves only when they are at rest.

Without this, a clock that finds nothing to do would move to its next timer, such as the read timeout of an HTTP client.
On a busy machine it did so while the thread of the server had not had its turn yet. What must stay true: a server that
never comes to rest delays the clock, but never stops it.
"""

from __future__ import annotations

from typing import Protocol


class Neighbour(Protocol):
    """A server."""

    def look(self, seconds: float) -> float | None:
        """Let it do all that it can do now. Blocks, at most so many seconds of real time; called in another thread.

        Returns after how many seconds of real time it goes on by itself. None: only if something comes from outside.
        """
        ...


_neighbours: set[Neighbour] = set()


def add(neighbour: Neighbour) -> None:
    _neighbours.add(neighbour)


def remove(neighbour: Neighbour) -> None:
    _neighbours.discard(neighbour)


def look_at_all(seconds: float) -> float | None:
    """Let all of them do what they can do now. Returns when the first one goes on by itself, as `look` does."""
    found = [neighbour.look(seconds) for neighbour in tuple(_neighbours)]
    return min((after for after in found if after is not None), default=None)
