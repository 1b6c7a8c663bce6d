# SPDX-License-Identifier: Apache-2.0
"""Where the runs of an agent are that brought no runtime and is used as a tool: on the runtimes of those that use it.

They are only remembered, so that a run of the agent is found by its id. None is kept alive by that.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from andon.core.runtime import Runtime


class Homes:
    """The runtimes, besides its own, on which an agent may have runs."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: tuple[weakref.ref[Runtime], ...] = ()  # replaced, never changed: threads may read it meanwhile

    def add(self, runtime: Runtime) -> bool:
        """False if it is known already."""
        known = [each for each in self._known if each() is not None]
        if any(each() is runtime for each in known):
            return False
        self._known = (*known, weakref.ref(runtime))
        return True

    def __iter__(self) -> Iterator[Runtime]:
        return iter([runtime for each in self._known if (runtime := each()) is not None])
