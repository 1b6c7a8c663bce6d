# SPDX-License-Identifier: Apache-2.0
"""Objects that start over in a forked child.

Only the thread that forked exists in the child. So locks may be held for ever there, and loops have no thread. The
runs in flight belong to the parent, and go on in the parent.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class StartsOver(Protocol):
    """An object that holds runs, or a lock."""

    def start_over(self) -> None:
        """Become as new, and hold nothing of the parent's. Called in the child, by the thread that forked."""
        ...


_known: WeakSet[StartsOver] = WeakSet()


def start_over_after_fork(thing: StartsOver) -> None:
    """Call `thing.start_over()` in every forked child, for as long as `thing` lives."""
    _known.add(thing)


def _after_fork() -> None:
    for thing in list(_known):
        thing.start_over()


os.register_at_fork(after_in_child=_after_fork)
