# SPDX-License-Identifier: Apache-2.0
"""The one seat of an iterator: who waits for its next events sits there, and a second one is refused.

Without it two tasks that read one iterator would overwrite each other's batches, and events would be lost without a
word. There is no lock: a seat is given by one atomic step, so it serves tasks of several loops, and threads.
"""

from __future__ import annotations

from andon.errors import ReaderBusyError


class Seat:
    """Taken by one reader at a time, each known by an object of its own.

    >>> me = object()
    >>> try:
    ...     seat.take(me)
    ...     ...
    ... finally:
    ...     seat.leave(me)

    `take` is inside the `try`: a Ctrl-C may come right after it, and the seat is free all the same.
    """

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: dict[str, object] = {}

    def take(self, me: object) -> None:
        """Sit down, or raise if someone else sits there."""
        if self._taken.setdefault("by", me) is not me:
            raise ReaderBusyError(
                "another task or thread is waiting for the next event of this iterator, and each event is given out"
                " once. Give each of them an iterator of its own: run.events(), or stream.run.events() beside a stream"
            )

    def leave(self, me: object) -> None:
        """Get up, if it is you who sits there."""
        if self._taken.get("by") is me:
            del self._taken["by"]
