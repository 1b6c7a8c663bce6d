# SPDX-License-Identifier: Apache-2.0
"""The seat of an iterator: only the reader that has it may wait for the next events. A second reader is refused.

Without it, two tasks that read one iterator would overwrite each other's batches, and events would be lost without an
error. There is no lock: a seat is taken in one atomic step, so it works for tasks of several loops, and for threads.
"""

from __future__ import annotations

from andon.errors import ReaderBusyError


class Seat:
    """Taken by one reader at a time. Each reader identifies itself by an object of its own.

    >>> me = object()
    >>> try:
    ...     seat.take(me)
    ...     ...
    ... finally:
    ...     seat.leave(me)

    `take` is inside the `try`, so that the seat is freed even if a Ctrl-C comes right after it.
    """

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: dict[str, object] = {}

    def take(self, me: object) -> None:
        """Take the seat, or raise if another reader has it."""
        if self._taken.setdefault("by", me) is not me:
            raise ReaderBusyError(
                "another task or thread is waiting for the next event of this iterator, and each event is given out"
                " once. Give each of them an iterator of its own: run.events(), or stream.run.events() beside a stream"
            )

    def leave(self, me: object) -> None:
        """Free the seat, if `me` has it."""
        if self._taken.get("by") is me:
            del self._taken["by"]
