# SPDX-License-Identifier: Apache-2.0
"""What starts over in a forked child.

Of the threads only the one that forked goes on there, so locks may be held for ever and loops are served by nobody. The
runs in flight are the parent's, and go on in the parent.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class StartsOver(Protocol):
    """Whatever holds runs, or a lock."""

    def start_over(self) -> None:
        """Be as new, and hold nothing of the parent's. Called in the child, by the thread that forked."""
        ...


_known: WeakSet[StartsOver] = WeakSet()


def start_over_after_fork(thing: StartsOver) -> None:
    """Have it start over in every forked child, for as long as it lives."""
    _known.add(thing)


def _after_fork() -> None:
    for thing in list(_known):
        thing.start_over()


os.register_at_fork(after_in_child=_after_fork)
